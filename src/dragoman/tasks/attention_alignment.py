"""Which word came from which: attention over pieces, read as links between words.

Not every head of every layer looks where the word comes from. Which one does best is found on held-out pairs, by how well its
links agree with those of a lexical aligner, and is kept in the bundle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dragoman.config import Recipe
from dragoman.data.tokenization.tokenizer import Tokeniser
from dragoman.data.tokenization.word_boundaries import words_of
from dragoman.evaluation.aer import agreement
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import cross_attentions
from dragoman.tasks.inference_model import start_id
from dragoman.tasks.translation import holds_text
from dragoman.word_aligner import Link, align_pairs

PAIRS_AT_ONCE = 32
"""Of which the weights of all heads of all layers are held."""


@dataclass(frozen=True)
class Head:
    """What alignments are read off: one head of a layer, or the mean of all of them; both are counted from 0.

    layer: -1 is the last
    error: alignment error rate against the lexical aligner, where that was measured
    """

    layer: int = -1
    head: int | None = None
    error: float | None = None

    def of(self, weights_LHTS: Tensor) -> Tensor:
        """→ (T, S)"""
        weights_HTS = weights_LHTS[self.layer]
        return weights_HTS.mean(dim=0) if self.head is None else weights_HTS[self.head]


def chosen_head(story: Mapping[str, Any]) -> Head:
    """The one that a bundle's story names; the mean of the last layer's where it names none."""
    told = story.get("alignment")
    return Head(**told) if told else Head()


def guided_head(recipe: Recipe) -> Head | None:
    """The one that the recipe has looked at the right words in training, if any."""
    return (
        Head(recipe.alignment_layer - 1, recipe.training.alignment_head - 1)
        if recipe.training.guided_alignment_weight
        else None
    )


def choose_head(
    model: Transformer,
    tokeniser: Tokeniser,
    recipe: Recipe,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    among: Sequence[Head] | None = None,
) -> dict[str, Any] | None:
    """The head whose links agree best with the lexical aligner's on these pairs, for a bundle's story; none without links.

    among: heads to choose from; all of them, and each layer's mean, when not given
    """
    pairs = [
        (source, target, tokeniser.encode_source(source), tokeniser.encode_target(target))
        for source, target in zip(sources, targets, strict=True)
        if holds_text(source, tokeniser.encode_source(source)) and tokeniser.encode_target(target)
    ]
    gold = align_pairs([source.split() for source, *_ in pairs], [target.split() for _, target, *_ in pairs])
    if not any(gold):
        return None
    tried = among or [
        Head(layer, head) for layer in range(recipe.model.decoder_layers) for head in (None, *range(recipe.model.num_heads))
    ]
    found: dict[Head, list[list[Link]]] = {head: [] for head in tried}
    for first in range(0, len(pairs), PAIRS_AT_ONCE):
        some = pairs[first : first + PAIRS_AT_ONCE]
        sources_ids, targets_ids = [source for *_, source, _ in some], [target for *_, target in some]
        weights = cross_attentions(
            model, sources_ids, targets_ids, start_id=start_id(recipe.model), finished=[True] * len(some)
        )
        for one, source, target in zip(weights, sources_ids, targets_ids, strict=True):
            read = tokeniser.source.pieces(source[:-1] if tokeniser.append_source_eos else source)
            said = tokeniser.target.pieces(target)
            for head in tried:
                found[head].append(links(head.of(one).numpy(), read, said))
    errors = {head: agreement(found[head], gold).error_rate for head in tried}
    best = min(tried, key=errors.__getitem__)
    return asdict(replace(best, error=round(errors[best], 4)))


def links(weights: Sequence[Sequence[float]] | NDArray[np.float32], source: Sequence[str], target: Sequence[str]) -> list[Link]:
    """For each word of the target the one of the source that its pieces look at most; none where they look at the end.

    weights: a row for each piece of the target (rows beyond are left out), over the pieces of the source and what ends it
    source, target: pieces without end tokens
    """
    if not source or not target:
        return []
    from_words, to_words = words_of(source), words_of(target)
    rows_TS = np.asarray(weights, dtype=np.float64)[: len(target)]
    end = from_words[-1] + 1  # the last column is that of what ends the source
    columns_SW = np.eye(end + 1)[[*from_words, *[end] * (rows_TS.shape[1] - len(source))]]
    rows_WT = np.eye(to_words[-1] + 1)[to_words].T
    best = (rows_WT @ rows_TS @ columns_SW).argmax(1)
    return [(int(word), number) for number, word in enumerate(best) if word != end]
