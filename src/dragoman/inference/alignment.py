"""Where a model looked at the source while it said something: as weights over tokens, and as links between words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from dragoman.data.tokenization.tokenizer import Tokeniser
from dragoman.model.transformer import Transformer
from dragoman.tasks.attention_alignment import Head, links
from dragoman.tasks.generation import cross_attentions
from dragoman.tasks.translation import Translated
from dragoman.word_aligner import Link


@dataclass(frozen=True)
class Gaze:
    """head: what links are read off; pictures show the mean of the last layer's heads"""

    model: Transformer
    tokeniser: Tokeniser
    start_id: int
    head: Head

    def of_lines(self, translated: Sequence[Translated], batch_tokens: int) -> list[list[Tensor]]:
        """For each hypothesis of each line where the model looked when it said it: see `of_pairs`."""
        pairs = [(line.source, one.tokens, one.finished) for line in translated for one in line.hypotheses]
        weights = iter(self.of_pairs(pairs, batch_tokens))
        return [list(islice(weights, len(line.hypotheses))) for line in translated]

    def of_pairs(self, pairs: Sequence[tuple[Sequence[int], Sequence[int], bool]], batch_tokens: int) -> list[Tensor]:
        """What pictures show, and what links are read off. (2, T + 1, S)

        pairs: source, target, and whether it came to its end
        """
        return cross_attentions(
            self.model,
            [source for source, _, _ in pairs],
            [target for _, target, _ in pairs],
            start_id=self.start_id,
            finished=[finished for _, _, finished in pairs],
            batch_tokens=batch_tokens,
            read=lambda weights_LHTS: torch.stack([Head().of(weights_LHTS), self.head.of(weights_LHTS)]),
        )

    def links(self, source: Sequence[int], target: Sequence[int], linking_TS: Tensor) -> list[Link]:
        """Between words."""
        tokeniser = self.tokeniser
        read = tokeniser.source.pieces(source[:-1] if tokeniser.append_source_eos else source)
        return links(linking_TS.numpy(), read, tokeniser.target.pieces(target))
