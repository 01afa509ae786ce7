"""Cross-attention of translations, as weights over tokens and as links between words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.forced_decoding import ForcedDecoder, compute_cross_attentions
from dragoman.tasks.translation import TranslatedLine


@dataclass(frozen=True)
class AttentionAligner:
    """Word aligner that reads the cross-attention of one model.

    start_id: first decoder input
    head: attention head that links come from; pictures show the mean of the last layer's heads
    """

    decoder: ForcedDecoder
    tokenizer: PairTokenizer
    start_id: int
    head: AlignmentHead

    def compute_line_weights(
        self, translated_lines: Sequence[TranslatedLine], batch_tokens: int
    ) -> list[list[NDArray[np.float32]]]:
        """Return the weights of each hypothesis of each line; see `compute_pair_weights`."""
        pairs = [
            (line.source, hypothesis.tokens, hypothesis.finished) for line in translated_lines for hypothesis in line.hypotheses
        ]
        weights = iter(self.compute_pair_weights(pairs, batch_tokens))
        return [list(islice(weights, len(line.hypotheses))) for line in translated_lines]

    def compute_pair_weights(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int], bool]], batch_tokens: int
    ) -> list[NDArray[np.float32]]:
        """Return, for each pair, the weights for pictures and the weights for links, stacked. → (2, T + 1, S)

        pairs: source ids, target ids, and whether the target ends with the end token
        """
        return compute_cross_attentions(
            self.decoder,
            [source for source, _, _ in pairs],
            [target for _, target, _ in pairs],
            start_id=self.start_id,
            prompt=self.tokenizer.decoder_prompt,
            finished=[finished for _, _, finished in pairs],
            batch_tokens=batch_tokens,
            transform=lambda weights_LHTS: np.stack(
                [AlignmentHead().select_weights(weights_LHTS), self.head.select_weights(weights_LHTS)]
            ),
        )
