"""Training of prediction heads: targets, acceptance, and a killed training that ends with the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dragoman.bundle import load_bundle
from dragoman.data.collate import pad_sequences
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID
from dragoman.decoding.block_search import block_greedy_search
from dragoman.decoding.greedy import decode_tokens
from dragoman.decoding.interface import SearchSettings
from dragoman.decoding.native_search import build_request
from dragoman.inference.backends.eager_blocks import EagerBlockModel
from dragoman.training.proposal_objectives import DecoderInputs, Output, shift_tokens
from dragoman.training.proposal_training import (
    Method,
    ProposalOptions,
    ProposalTrainer,
    choose_proposed_tokens,
    choose_target_tokens,
    count_steps,
)
from expected_errors import raises_code

pytestmark = pytest.mark.usefixtures("one_core")

OPTIONS = ProposalOptions(num_proposals=2, d_inner=8, target_tokens=200, batch_tokens=60, checkpoint_seconds=0.0)
METHODS: tuple[Method, ...] = ("heads", "draft")
WORDS = ("one", "two", "three", "four", "five", "six", "red", "blue")


@pytest.fixture(scope="module")
def inputs(bundle: Path) -> DecoderInputs:
    return DecoderInputs(load_bundle(bundle).model, BEGIN_ID)


@pytest.fixture(scope="module")
def outputs(bundle: Path) -> list[Output]:
    """Greedy outputs of the bundle, from the search without heads."""
    opened = load_bundle(bundle)
    lines = [f"{first} {second} {third}" for first in WORDS for second in WORDS[:3] for third in WORDS[4:6]]
    sources = [opened.tokenizer.encode_source(line) for line in lines]
    settings = SearchSettings(start_id=BEGIN_ID, end_id=END_ID, forbidden_ids=(0, BEGIN_ID))
    hypotheses = decode_tokens(
        opened.model.step,
        opened.model.start(pad_sequences(sources)),
        max_lengths=[20] * len(sources),
        settings=settings,
        device=torch.device("cpu"),
    )
    return [
        Output(tuple(source), (*hypothesis.tokens, *([END_ID] if hypothesis.finished else [])))
        for source, hypothesis in zip(sources, hypotheses, strict=True)
    ]


def test_each_head_learns_the_token_at_its_distance() -> None:
    tokens_BT = torch.tensor([[5, 6, 7, 3], [8, 3, -1, -1]])
    assert shift_tokens(tokens_BT, 1).tolist() == [[6, 7, 3, -1], [3, -1, -1, -1]]
    assert shift_tokens(tokens_BT, 3).tolist() == [[3, -1, -1, -1], [-1, -1, -1, -1]]
    assert shift_tokens(tokens_BT, 4).tolist() == [[-1] * 4, [-1] * 4]


def test_proposed_tokens_are_the_most_frequent_ones() -> None:
    outputs = [Output((1,), (5, 5, 5, 5, 6, 6, 7, END_ID)), Output((1,), (8, END_ID))]
    assert choose_proposed_tokens(outputs, 0.6).tolist() == sorted({5, END_ID})
    assert choose_proposed_tokens(outputs, 1.0).tolist() == sorted({5, 6, 7, 8, END_ID})


@pytest.mark.parametrize(
    ("output", "proposals", "block_size", "num_steps"),
    [
        ([5], [[0]], 2, 1),
        ([5, 6, 7, 8], [[0], [0], [0], [0]], 2, 4),  # nothing is accepted, so each step writes one token
        ([5, 6, 7, 8], [[6], [7], [8], [0]], 2, 3),  # the first step writes 5, the next 6 and 7, the last 8
        ([5, 6, 7, 8, 9], [[6, 7], [0, 0], [0, 0], [0, 0], [0, 0]], 3, 3),  # 5; 6, 7 and 8; 9
        ([5, 6, 7, 8, 9], [[0, 7], [0, 0], [8, 9], [0, 0], [0, 0]], 3, 4),  # a right proposal behind a wrong one is refused
    ],
)
def test_steps_are_those_of_a_search(output: list[int], proposals: list[list[int]], block_size: int, num_steps: int) -> None:
    assert count_steps(output, proposals, block_size) == num_steps


def test_target_tokens_are_at_most_a_tenth_of_the_training() -> None:
    assert choose_target_tokens(None, 5000) == 500
    assert choose_target_tokens(400, 5000) == 400
    assert choose_target_tokens(None, None) == ProposalOptions.target_tokens
    with raises_code("invalid-option", "500"):
        choose_target_tokens(501, 5000)


@pytest.mark.parametrize("method", METHODS)
def test_killed_training_ends_with_the_same_weights(
    inputs: DecoderInputs, outputs: list[Output], tmp_path: Path, method: Method
) -> None:
    options = replace(OPTIONS, method=method)
    whole = ProposalTrainer(inputs, outputs, options, tmp_path / "whole")
    expected = whole.train().state_dict()
    assert whole.step >= 4

    def kill(_loss: float) -> None:
        if killed.step == 3:
            raise KeyboardInterrupt

    killed = ProposalTrainer(inputs, outputs, options, tmp_path / "killed", kill)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    resumed = ProposalTrainer(inputs, outputs, options, tmp_path / "killed")
    weights = resumed.train().state_dict()
    assert (resumed.step, resumed.num_target_tokens) == (whole.step, whole.num_target_tokens)
    assert expected.keys() == weights.keys()
    assert all(torch.equal(expected[name], weights[name]) for name in expected)


@pytest.mark.parametrize("method", METHODS)
def test_two_seeds_train_other_proposers(inputs: DecoderInputs, outputs: list[Output], tmp_path: Path, method: Method) -> None:
    options = replace(OPTIONS, method=method)
    first, second, again = (
        ProposalTrainer(inputs, outputs, replace(options, seed=seed), tmp_path / name).train().state_dict()
        for seed, name in ((1, "first"), (2, "second"), (1, "again"))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], second[name]) for name in first if first[name].is_floating_point())


@pytest.mark.parametrize("method", METHODS)
def test_measured_acceptance_is_that_of_the_search(
    inputs: DecoderInputs, outputs: list[Output], tmp_path: Path, method: Method
) -> None:
    trainer = ProposalTrainer(inputs, outputs, replace(OPTIONS, method=method, target_tokens=1500, batch_tokens=200), tmp_path)
    trainer.held_out = outputs[:20]
    proposer = trainer.train()
    acceptance = trainer.measure_acceptance()
    block_model = EagerBlockModel(inputs.model, proposer)
    settings = SearchSettings(start_id=BEGIN_ID, end_id=END_ID, forbidden_ids=(0, BEGIN_ID))
    request = build_request(settings, [], max_lengths=[20] * 20)
    assert request is not None
    source_BS = pad_sequences([output.source for output in trainer.held_out])
    for block_size, tokens_per_step in acceptance.items():
        hypotheses = block_greedy_search(block_model, source_BS, request, block_size=block_size)
        num_tokens = sum(len(hypothesis.token_log_probs) for hypothesis in hypotheses)
        num_steps = sum(len(hypothesis.step_lengths or ()) for hypothesis in hypotheses)
        assert tokens_per_step == pytest.approx(num_tokens / num_steps, rel=0.02)
    assert acceptance[2] > 1.0


def test_damaged_checkpoint_is_refused(inputs: DecoderInputs, outputs: list[Output], tmp_path: Path) -> None:
    ProposalTrainer(inputs, outputs, replace(OPTIONS, target_tokens=1), tmp_path).train()
    tensors = tmp_path / "checkpoint" / "training.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-4])
    with raises_code("checkpoint-damaged"):
        ProposalTrainer(inputs, outputs, OPTIONS, tmp_path).train()
