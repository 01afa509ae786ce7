"""Searches of NumPy arrays against those of PyTorch tensors, and their imports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from test_beam_search import END, START, TORCH, Table
from test_decoding_constraints import constrain

from dragoman.decoding.arrays import NUMPY, Arrays
from dragoman.decoding.beam_search import BeamSearchOptions, beam_search
from dragoman.decoding.constraints import DecodingConstraints, SentenceConstraints
from dragoman.decoding.diverse_beam import BeamGroups
from dragoman.decoding.greedy import argmax, decode_tokens, make_sampler
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.interface import EnsembleState, SearchSettings, ensemble_step
from dragoman.decoding.prompt import PromptedState, prompted_step

pytestmark = pytest.mark.usefixtures("one_core")

LIMITS = [14, 9, 1, 12, 20, 6]
# A vocabulary that is searched in blocks, with a remainder.
VOCABULARY = 1501
CONSTRAINTS = [
    constrain(prefix=(3, 4), include=((5, 4), (7,))),
    constrain(include_any=(((5, 4), (8,)), ((3,), (6, 6)))),
    constrain(),
    constrain(exclude=((4,), (5, 3)), exactly_once=(6, 7)),
    constrain(prefix=(5,), exactly_once=(3, 8)),
    constrain(include=((4,),)),
]


def make_settings(**changes: Any) -> SearchSettings:
    keys = {"start_id": START, "end_id": END, "forbidden_ids": (0, START), "length_penalty": LengthPenalty("gnmt", 0.6)}
    return SearchSettings(**{**keys, **changes})


RULES = make_settings(
    decoding_constraints=DecodingConstraints(
        min_length=2, no_repeat_ngram_size=3, suppress_tokens=(9, 1500), repetition_window=8
    ),
    repetition_penalty=1.2,
    compaction_threshold=0.3,
)


def run_greedy(arrays: Arrays, settings: SearchSettings = RULES, **options: Any) -> list[list[Hypothesis]]:
    table, make_selector = make_table(4), options.pop("make_selector", lambda arrays: argmax)
    outputs = decode_tokens(
        table.step,
        table.start(len(LIMITS)),
        max_lengths=LIMITS,
        settings=settings,
        arrays=arrays,
        select_tokens=make_selector(arrays),
        **options,
    )
    return [[output] for output in outputs]


def run_beam(
    arrays: Arrays, settings: SearchSettings = RULES, constraints: Sequence[SentenceConstraints] = (), **options: Any
) -> list[list[Hypothesis]]:
    table, options = make_table(5), {"beam_size": 4, "nbest": 4, **options}
    return beam_search(
        table.step,
        table.start(len(LIMITS), options["beam_size"]),
        max_lengths=LIMITS,
        settings=settings,
        options=BeamSearchOptions(**options),
        arrays=arrays,
        constraints=constraints,
    )


def run_ensemble_with_prompt(arrays: Arrays) -> list[list[Hypothesis]]:
    first, second = make_table(6), make_table(7)
    return beam_search(
        prompted_step(ensemble_step([first.step, second.step], arrays), (5, 6)),
        PromptedState(EnsembleState((first.start(len(LIMITS), 3), second.start(len(LIMITS), 3)))),
        max_lengths=LIMITS,
        settings=make_settings(),
        options=BeamSearchOptions(beam_size=3),
        arrays=arrays,
    )


def make_table(seed: int) -> Table:
    table = Table.random(seed, VOCABULARY, spread=3.0)
    table.logits_CV[:, END] += 6.0
    return table


SEARCHES: dict[str, Callable[[Arrays], list[list[Hypothesis]]]] = {
    "greedy": lambda arrays: run_greedy(arrays, make_settings()),
    "greedy with constraints": lambda arrays: run_greedy(
        arrays, constraints=[CONSTRAINTS[4]] * len(LIMITS[:2]) + CONSTRAINTS[2:]
    ),
    "sampling": lambda arrays: run_greedy(arrays, make_selector=lambda arrays: make_sampler(range(6), arrays)),
    "nucleus sampling": lambda arrays: run_greedy(
        arrays, make_selector=lambda arrays: make_sampler(range(6), arrays, temperature=2.0, top_k=300, top_p=0.9)
    ),
    "beam": lambda arrays: run_beam(arrays, make_settings()),
    "beam with rules": run_beam,
    "beam with constraints": lambda arrays: run_beam(arrays, constraints=CONSTRAINTS),
    "beam of one with constraints": lambda arrays: run_beam(arrays, constraints=CONSTRAINTS, beam_size=1, nbest=1),
    "diverse groups": lambda arrays: run_beam(arrays, groups=BeamGroups(2, 0.7)),
    "alternatives": lambda arrays: run_beam(
        arrays, constraints=[constrain(prefix=(3,)), *CONSTRAINTS[1:]], groups=BeamGroups(4, return_alternatives=True)
    ),
    "heuristic stop": lambda arrays: run_beam(arrays, early_stopping="heuristic"),
    "worst finished": lambda arrays: run_beam(arrays, early_stopping="worst_finished"),
    "ensemble with a prompt": run_ensemble_with_prompt,
}


@pytest.mark.parametrize("name", SEARCHES)
def test_numpy_and_torch_find_equal_hypotheses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for arrays in (NUMPY, TORCH):
        monkeypatch.setattr(Table, "arrays", arrays)
        results.append([hypothesis for hypotheses in SEARCHES[name](arrays) for hypothesis in hypotheses])
    assert len(results[0]) == len(results[1]) > 0
    for ours, theirs in zip(*results, strict=True):
        assert (ours.tokens, ours.finished, ours.has_repetition) == (theirs.tokens, theirs.finished, theirs.has_repetition)
        assert ours.score == pytest.approx(theirs.score, abs=1e-5)
        assert ours.token_log_probs == pytest.approx(theirs.token_log_probs, abs=1e-5)
