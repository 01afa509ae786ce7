"""Candidates of sequence-level training: the n best outputs of the model that is trained.

Shapes: B sentences, R different candidates of all sentences, T target positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.config import DecodingConfig, Recipe
from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.decoding.beam_search import BeamSearchOptions, beam_search
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.interface import SearchSettings
from dragoman.evaluation.gleu import count_ngrams, ngram_gleu
from dragoman.experiments.risk_training.config import SequenceLossConfig
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import get_decoder_start_id
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

    @classmethod
    def from_recipe(cls, recipe: Recipe, config: SequenceLossConfig) -> SequenceLossSettings:
        return cls(config, get_decoder_start_id(recipe.model), recipe.data.max_length, recipe.decoding)


@dataclass(frozen=True)
class OutputCandidates:
    """Different candidates of the sentences of a batch; those of a sentence are adjacent.

    target_ids: tokens of each candidate, with the end token unless the search cut the candidate at its length limit
    sentences_R: number of each candidate's sentence in the batch
    gleu_R: GLEU of each candidate against the reference of its sentence
    """

    target_ids: Sequence[tuple[int, ...]]
    sentences_R: Tensor
    gleu_R: Tensor


def find_candidates(model: Transformer, batch: Batch, settings: SequenceLossSettings) -> OutputCandidates:
    """Return candidates of the model without dropout, each with its GLEU."""
    references = [_strip_padding(row) for row in batch.targets_BT.tolist()]
    limits = [
        min(len(_strip_padding(row)) + settings.decoding.max_extra_tokens, settings.max_length)
        for row in batch.source_BS.tolist()
    ]
    was_training = model.training
    model.eval()
    try:
        hypotheses = _find_nbest(model, batch.source_BS, limits, settings)
    finally:
        model.train(was_training)
    target_ids: list[tuple[int, ...]] = []
    sentences, gleus = list[int](), list[float]()
    for sentence, reference in enumerate(references):
        outputs = [hypothesis.tokens + ((END_ID,) if hypothesis.finished else ()) for hypothesis in hypotheses[sentence]]
        if settings.config.include_reference:
            outputs.insert(0, tuple(reference))
        different = dict.fromkeys(outputs)
        reference_ngrams = count_ngrams(_strip_end(reference))
        target_ids += different
        sentences += [sentence] * len(different)
        gleus += [ngram_gleu(count_ngrams(_strip_end(candidate)), reference_ngrams) for candidate in different]
    device = batch.source_BS.device
    return OutputCandidates(
        target_ids,
        torch.tensor(sentences, device=device),
        torch.tensor(gleus, dtype=torch.float32, device=device),
    )


def _strip_padding(row: list[int]) -> list[int]:
    return [token for token in row if token != PADDING_ID]


def _strip_end(target_ids: Sequence[int]) -> Sequence[int]:
    return target_ids[:-1] if target_ids[-1] == END_ID else target_ids


@torch.no_grad()
def _find_nbest(
    model: Transformer, source_BS: Tensor, limits: Sequence[int], settings: SequenceLossSettings
) -> list[list[Hypothesis]]:
    """Return the best outputs of beam search for each sentence, or one that reached the length limit if none is finished."""
    num_candidates = settings.config.num_candidates
    hypotheses = beam_search(
        model.step,
        model.start(source_BS),
        max_lengths=limits,
        settings=SearchSettings(
            start_id=settings.start_id,
            end_id=END_ID,
            forbidden_ids=FORBIDDEN_IDS,
            length_penalty=LengthPenalty(settings.decoding.length_penalty, settings.decoding.alpha),
            compaction_threshold=COMPACTION_THRESHOLD,
        ),
        options=BeamSearchOptions(
            beam_size=num_candidates, nbest=num_candidates, early_stopping=settings.decoding.early_stopping
        ),
        arrays=TorchArrays(source_BS.device),
    )
    return [[hypothesis for hypothesis in nbest if hypothesis.finished] or nbest[:1] for nbest in hypotheses]
