"""Candidates of sequence-level training: samples or n-best outputs of the model that is trained.

Samples come from PyTorch's generator of the CPU, which the training step seeds from the run's seed, the step and the number of
the batch. So a run that resumes draws the same samples.

Shapes: B sentences, K candidates of each, R different candidates of all sentences, T target positions, N rows of a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dragoman.config import DecodingConfig
from dragoman.data.collate import Batch
from dragoman.data.counter_rng import hash64
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.decoding.arrays import Array
from dragoman.decoding.beam_search import BeamSearchOptions, beam_search
from dragoman.decoding.greedy import TokenSelector, decode_tokens, sample_tokens
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.interface import SearchSettings
from dragoman.decoding.topk import BlockTopK, TopK
from dragoman.evaluation.gleu import count_ngrams, ngram_gleu
from dragoman.experiments.risk_training.config import SequenceLossConfig
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.torch_engine.arrays import TorchArrays

# Finished outputs leave the batch of a search once they make up this share of it, because each departure copies the state.
COMPACTION_THRESHOLD = 0.25


@dataclass(frozen=True)
class SequenceLossSettings:
    """Sequence-level loss of a run, and the search that finds its candidates.

    start_id: the decoder's first input
    max_length: longest candidate in tokens, the end token included
    decoding: length limit, length penalty and stop rule of the search
    """

    config: SequenceLossConfig
    start_id: int
    max_length: int
    decoding: DecodingConfig


@dataclass(frozen=True)
class OutputCandidates:
    """Different candidates of the sentences of a batch; those of a sentence are adjacent.

    target_ids: tokens of each candidate, with the end token unless the search cut the candidate at its length limit
    sentences_R: number of each candidate's sentence in the batch
    counts_R: number of times that each candidate was drawn
    gleu_R: GLEU of each candidate against the reference of its sentence
    """

    target_ids: Sequence[tuple[int, ...]]
    sentences_R: Tensor
    counts_R: Tensor
    gleu_R: Tensor


def draw_candidates(model: Transformer, batch: Batch, settings: SequenceLossSettings) -> OutputCandidates:
    """Return candidates of the model without dropout, each with its GLEU."""
    references = [_strip_padding(row) for row in batch.targets_BT.tolist()]
    limits = [
        min(len(_strip_padding(row)) + settings.decoding.max_extra_tokens, settings.max_length)
        for row in batch.source_BS.tolist()
    ]
    was_training = model.training
    model.eval()
    try:
        search = _draw_samples if settings.config.candidates == "sample" else _find_nbest
        hypotheses = search(model, batch.source_BS, limits, settings)
    finally:
        model.train(was_training)
    target_ids: list[tuple[int, ...]] = []
    sentences, counts, gleus = list[int](), list[int](), list[float]()
    for sentence, reference in enumerate(references):
        drawn = Counter(hypothesis.tokens + ((END_ID,) if hypothesis.finished else ()) for hypothesis in hypotheses[sentence])
        if settings.config.include_reference:
            drawn = Counter({tuple(reference): 1}) | drawn
        reference_ngrams = count_ngrams(_strip_end(reference))
        target_ids += drawn
        sentences += [sentence] * len(drawn)
        counts += drawn.values()
        gleus += [ngram_gleu(count_ngrams(_strip_end(candidate)), reference_ngrams) for candidate in drawn]
    device = batch.source_BS.device
    return OutputCandidates(
        target_ids,
        torch.tensor(sentences, device=device),
        torch.tensor(counts, dtype=torch.float32, device=device),
        torch.tensor(gleus, dtype=torch.float32, device=device),
    )


def _strip_padding(row: list[int]) -> list[int]:
    return [token for token in row if token != PADDING_ID]


def _strip_end(target_ids: Sequence[int]) -> Sequence[int]:
    return target_ids[:-1] if target_ids[-1] == END_ID else target_ids


@torch.no_grad()
def _draw_samples(
    model: Transformer, source_BS: Tensor, limits: Sequence[int], settings: SequenceLossSettings
) -> list[list[Hypothesis]]:
    """Return K samples for each sentence."""
    num_samples, device = settings.config.num_candidates, source_BS.device
    rows_N = torch.arange(len(source_BS), device=device).repeat_interleave(num_samples)
    samples = decode_tokens(
        model.step,
        model.start(source_BS).select_sentences(rows_N),
        max_lengths=[limit for limit in limits for _ in range(num_samples)],
        settings=_build_search_settings(settings),
        arrays=TorchArrays(device),
        select_tokens=make_counter_sampler(int(torch.randint(2**63 - 1, ())), TorchArrays(device)),
    )
    return [samples[start : start + num_samples] for start in range(0, len(samples), num_samples)]


@torch.no_grad()
def _find_nbest(
    model: Transformer, source_BS: Tensor, limits: Sequence[int], settings: SequenceLossSettings
) -> list[list[Hypothesis]]:
    """Return the K best outputs of beam search for each sentence, or one that reached the length limit if none is finished."""
    num_candidates = settings.config.num_candidates
    hypotheses = beam_search(
        model.step,
        model.start(source_BS),
        max_lengths=limits,
        settings=_build_search_settings(settings),
        options=BeamSearchOptions(
            beam_size=num_candidates, nbest=num_candidates, early_stopping=settings.decoding.early_stopping
        ),
        arrays=TorchArrays(source_BS.device),
    )
    return [[hypothesis for hypothesis in nbest if hypothesis.finished] or nbest[:1] for nbest in hypotheses]


def _build_search_settings(settings: SequenceLossSettings) -> SearchSettings:
    return SearchSettings(
        start_id=settings.start_id,
        end_id=END_ID,
        forbidden_ids=FORBIDDEN_IDS,
        length_penalty=LengthPenalty(settings.decoding.length_penalty, settings.decoding.alpha),
        compaction_threshold=COMPACTION_THRESHOLD,
    )


def make_counter_sampler(seed: int, arrays: TorchArrays) -> TokenSelector:
    """Return a selector that samples each token; a draw is a function of the seed, the row and the output length."""
    topk = BlockTopK(arrays)

    def select_tokens(logits_NV: Array, rows: Sequence[int], length: int, topk_impl: TopK) -> Array:
        words = hash64(seed, np.asarray(rows, dtype=np.int64), length)
        # A draw of 24 bits never rounds up to 1 in float32.
        uniform_N = arrays.asarray((words >> np.uint64(40)).astype(np.float32) / 2**24)
        return sample_tokens(logits_NV, topk.logsumexp(logits_NV), uniform_N, topk, top_k=0, top_p=1.0)

    return select_tokens
