"""Word alignments from cross-attention: attention over pieces becomes links between words.

Only some heads attend to the source word that a target word translates. `choose_alignment_head` finds the best head on
held-out pairs, by how well its links agree with a lexical aligner. The bundle stores that head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ModelConfig, TrainingConfig
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.word_boundaries import get_word_numbers
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.tasks.translation import has_text

if TYPE_CHECKING:
    from dragoman.tasks.forced_decoding import ForcedDecoder
    from dragoman.word_aligner import Link

PAIR_BATCH_SIZE = 32
"""Pairs in a batch; memory holds the attention weights of all heads and layers of a batch."""


@dataclass(frozen=True)
class AlignmentHead:
    """Source of alignments: one head of a layer, or the mean of the layer's heads; both count from 0.

    The default is the mean of the last layer's heads.

    layer: -1 is the last
    head: None is the mean of all heads
    error_rate: alignment error rate against the lexical aligner, if measured
    """

    layer: int = -1
    head: int | None = None
    error_rate: float | None = None

    def select_weights(self, weights_LHTS: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the weights of this head. (L, H, T, S) → (T, S)"""
        weights_HTS = weights_LHTS[self.layer]
        weights_TS: NDArray[np.float32] = weights_HTS.mean(0) if self.head is None else weights_HTS[self.head]
        return weights_TS


def get_guided_head(training: TrainingConfig, alignment_layer: int) -> AlignmentHead | None:
    """Return the head that guided alignment trains, if the recipe has one."""
    return AlignmentHead(alignment_layer - 1, training.alignment_head - 1) if training.guided_alignment_weight else None


def choose_alignment_head(
    decoder: ForcedDecoder,
    tokenizer: PairTokenizer,
    config: ModelConfig,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    candidates: Sequence[AlignmentHead] | None = None,
) -> AlignmentHead | None:
    """Return the head whose links agree best with a lexical aligner on these pairs; None without links or cross-attention.

    candidates: heads to choose from; by default every head, and the mean of each layer
    """
    from dragoman.evaluation.aer import score_alignments  # translation needs none of them
    from dragoman.tasks.forced_decoding import compute_cross_attentions
    from dragoman.word_aligner import align_pairs

    pairs = [
        (source, target, tokenizer.encode_source(source), tokenizer.encode_target(target))
        for source, target in zip(sources, targets, strict=True)
        if has_text(source, tokenizer.encode_source(source)) and tokenizer.encode_target(target)
    ]
    gold = align_pairs([source.split() for source, *_ in pairs], [target.split() for _, target, *_ in pairs])
    if not any(gold) or not config.num_cross_attentions:
        return None
    heads = candidates or [
        AlignmentHead(layer, head) for layer in range(config.num_cross_attentions) for head in (None, *range(config.num_heads))
    ]
    links_by_head: dict[AlignmentHead, list[list[Link]]] = {head: [] for head in heads}
    for start in range(0, len(pairs), PAIR_BATCH_SIZE):
        batch = pairs[start : start + PAIR_BATCH_SIZE]
        sources_ids, targets_ids = [source for *_, source, _ in batch], [target for *_, target in batch]
        weights = compute_cross_attentions(
            decoder,
            sources_ids,
            targets_ids,
            start_id=get_decoder_start_id(config),
            prompt=tokenizer.decoder_prompt,
            finished=[True] * len(batch),
        )
        for weights_LHTS, source, target in zip(weights, sources_ids, targets_ids, strict=True):
            for head in heads:
                links_by_head[head].append(extract_pair_links(head.select_weights(weights_LHTS), source, target, tokenizer))
    errors = {head: score_alignments(links_by_head[head], gold).error_rate for head in heads}
    best = min(heads, key=errors.__getitem__)
    return replace(best, error_rate=round(errors[best], 4))


def extract_pair_links(
    weights: NDArray[np.float32], source: Sequence[int], target: Sequence[int], tokenizer: PairTokenizer
) -> list[Link]:
    """Return the links between the words of a pair of ids; see `extract_links`.

    The words of a source with a language token are those behind this token.
    """
    num_language_tokens = tokenizer.num_language_tokens
    text_ids = source[num_language_tokens : -1 if tokenizer.append_source_eos else None]
    pieces = tokenizer.source.ids_to_pieces(text_ids), tokenizer.target.ids_to_pieces(target)
    return extract_links(weights, *pieces, num_language_tokens=num_language_tokens)


def extract_links(
    weights: Sequence[Sequence[float]] | NDArray[np.float32],
    source: Sequence[str],
    target: Sequence[str],
    *,
    num_language_tokens: int = 0,
) -> list[Link]:
    """Return, for each target word, a link to the source word with the most attention.

    There is no link if the end token or a language token has the most.

    weights: a row for each target piece, over language tokens, source pieces and end token; rows beyond the target are ignored
    source, target: pieces without these tokens
    """
    if not source or not target:
        return []
    from_words, to_words = get_word_numbers(source), get_word_numbers(target)
    rows_TS = np.asarray(weights, dtype=np.float64)[: len(target)]
    no_word = from_words[-1] + 1  # column of the language token and of the end token
    num_end_tokens = rows_TS.shape[1] - num_language_tokens - len(source)
    columns_SW = np.eye(no_word + 1)[[*[no_word] * num_language_tokens, *from_words, *[no_word] * num_end_tokens]]
    rows_WT = np.eye(to_words[-1] + 1)[to_words].T
    best = (rows_WT @ rows_TS @ columns_SW).argmax(1)
    return [(int(source_word), target_word) for target_word, source_word in enumerate(best) if source_word != no_word]
