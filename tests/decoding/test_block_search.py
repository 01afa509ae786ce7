"""Search over blocks of tokens: its outputs are those of greedy search for any proposals of the heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.bundle import Bundle, load_bundle
from dragoman.config import ModelConfig
from dragoman.data.collate import pad_sequences
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.decoding.block_search import BlockModel, block_greedy_search
from dragoman.decoding.constraints import DecodingConstraints, SentenceConstraints
from dragoman.decoding.greedy import decode_tokens
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import SearchSettings
from dragoman.decoding.native_search import build_request
from dragoman.decoding.prompt import PromptedState, prompted_step
from dragoman.inference.backends.eager_blocks import EagerBlockModel
from dragoman.inference.backends.packed.blocks import PackedBlockModel
from dragoman.inference.backends.packed.pack import pack_model
from dragoman.inference.backends.select import supports_compiled
from dragoman.model.draft_decoder import DraftDecoder
from dragoman.model.factory import build_model
from dragoman.model.prediction_heads import PredictionHeads

pytestmark = pytest.mark.usefixtures("one_core")

LINES = ["one two three four five", "red", "big small green blue", "seven eight nine", "ten ten ten"]
RULES: dict[str, dict[str, Any]] = {
    "no rules": {},
    "minimum length": {"min_length": 6},
    "no repeated tokens": {"no_repeat_ngram_size": 1, "min_length": 5},
    "no repeated bigrams": {"no_repeat_ngram_size": 2, "min_length": 9},
    "suppressed tokens": {"suppress_tokens": (10, 11, 12, 20, 30)},
    "repetition": {"repetition_window": 8, "min_length": 14},
}


@pytest.fixture(scope="module")
def opened(bundle: Path) -> Bundle:
    return load_bundle(bundle)


def make_heads(bundle: Bundle, num_heads: int = 3) -> PredictionHeads:
    """Return heads with random weights, whose proposals are often wrong."""
    torch.manual_seed(3)
    size = len(bundle.model.output)
    heads = PredictionHeads(num_heads=num_heads, d_model=16, d_inner=8, token_ids_W=torch.arange(4, size))
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return heads.eval()


def make_draft(bundle: Bundle) -> DraftDecoder:
    """Return a draft that is the model's last layer with noise, whose proposals are often wrong."""
    torch.manual_seed(3)
    size = len(bundle.model.output)
    draft = DraftDecoder.from_model(bundle.model, token_ids_W=torch.arange(2, size), num_proposals=3)
    for parameter in draft.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return draft


class PerfectModel:
    """Block model whose proposals are the tokens of outputs that are known, so that every one of them is accepted."""

    def __init__(self, inner: BlockModel, outputs: list[list[int]], num_heads: int) -> None:
        self.inner, self.outputs, self.num_heads = inner, outputs, num_heads
        self.device, self.make_topk, self.start, self.read = inner.device, inner.make_topk, inner.start, inner.read
        self.position = 0

    def propose(
        self, outputs_BD: torch.Tensor, tokens_B: torch.Tensor, state: Any, num_proposals: int
    ) -> tuple[torch.Tensor, Any]:
        start = 1 + self.position
        self.position += self.num_heads + 1
        return torch.tensor([(output[start:] + [END_ID] * self.num_heads)[: self.num_heads] for output in self.outputs]), state


def build_block_model(name: str, bundle: Bundle) -> tuple[BlockModel, Any]:
    """Return the block model of a back end, and the model whose step greedy search calls."""
    proposer = make_draft(bundle) if "draft" in name else make_heads(bundle)
    if name.startswith("eager"):
        return EagerBlockModel(bundle.model, proposer), bundle.model
    packed = pack_model(bundle.model, "float32")
    return PackedBlockModel(packed, bundle.model, proposer), packed


@pytest.mark.parametrize("backend", ["eager", "packed", "eager draft", "packed draft"])
@pytest.mark.parametrize("rules", RULES)
def test_outputs_are_those_of_greedy_search(opened: Bundle, backend: str, rules: str) -> None:
    block_model, model = build_block_model(backend, opened)
    settings = SearchSettings(
        start_id=BEGIN_ID,
        end_id=END_ID,
        forbidden_ids=(PADDING_ID, BEGIN_ID),
        decoding_constraints=DecodingConstraints(**RULES[rules]),
    )
    sources = [opened.tokenizer.encode_source(line) for line in LINES]
    limits = [20, 3, 16, 1, 18]
    constraints = [SentenceConstraints(allow_repetition=index == 4) for index in range(len(LINES))]
    prompt = (7, 9, 8, 10, 11) if rules == "no rules" else ()  # longer than a block
    step, source_BS = prompted_step(model.step, prompt), pad_sequences(sources)
    expected = decode_tokens(
        step,
        PromptedState(model.start(source_BS)),
        max_lengths=limits,
        settings=settings,
        device=torch.device("cpu"),
        constraints=constraints,
    )
    request = build_request(settings, constraints, max_lengths=limits, prompt=prompt)
    assert request is not None
    for block_size in (2, 4):
        outputs = block_greedy_search(block_model, source_BS, request, block_size=block_size)
        for output, hypothesis in zip(outputs, expected, strict=True):
            assert output.tokens == hypothesis.tokens
            assert output.finished == hypothesis.finished
            assert output.has_repetition == hypothesis.has_repetition
            assert output.score == pytest.approx(hypothesis.score, abs=1e-4)
            assert output.token_log_probs == pytest.approx(hypothesis.token_log_probs, abs=1e-4)
            assert output.step_lengths is not None
            assert min(output.step_lengths) >= 1
            assert max(output.step_lengths) <= block_size
            assert sum(output.step_lengths) == len(output.token_log_probs)


@pytest.mark.parametrize("backend", ["eager", "packed"])
def test_right_proposals_are_all_accepted(opened: Bundle, backend: str) -> None:
    """A step then writes k tokens, so an output of n tokens takes 1 + ⌈(n − 1) / k⌉ steps."""
    block_model, model = build_block_model(backend, opened)
    settings = SearchSettings(start_id=BEGIN_ID, end_id=END_ID, forbidden_ids=(PADDING_ID, BEGIN_ID))
    source_BS = pad_sequences([opened.tokenizer.encode_source(LINES[0])])
    (expected,) = decode_tokens(
        model.step, model.start(source_BS), max_lengths=[30], settings=settings, device=torch.device("cpu")
    )
    tokens = [*expected.tokens, END_ID]
    assert len(tokens) > 4
    request = build_request(settings, [], max_lengths=[30])
    assert request is not None
    perfect = PerfectModel(block_model, [tokens], num_heads=2)
    (output,) = block_greedy_search(perfect, source_BS, request, block_size=3)
    assert output.tokens == expected.tokens
    assert output.step_lengths is not None
    assert len(output.step_lengths) == 1 + -(-(len(tokens) - 1) // 3)
    assert output.step_lengths[:2] == (1, 3)


@pytest.mark.parametrize("prompt", [(), (7, 9, 8, 10, 11)])
@pytest.mark.parametrize("backend", ["eager", "packed"])
def test_draft_that_is_the_model_is_always_right(backend: str, prompt: tuple[int, ...]) -> None:
    """A draft of one layer that keeps all units begins as the model. So each step but the first writes a whole block."""
    torch.manual_seed(5)
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32, num_heads=2)
    model = build_model(config, source_vocab_size=40, target_vocab_size=40, padding_id=PADDING_ID).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    token_ids_W = torch.tensor([1, *range(4, 40)])  # without the excluded ones
    draft = DraftDecoder.from_model(model, token_ids_W=token_ids_W, num_proposals=3, d_ff=config.d_ff)
    settings = SearchSettings(
        start_id=BEGIN_ID,
        end_id=END_ID,
        forbidden_ids=(PADDING_ID, BEGIN_ID),
        decoding_constraints=DecodingConstraints(suppress_tokens=(END_ID,)),
    )
    source_BS = pad_sequences([[5, 6, 7, 8, END_ID], [9, END_ID], [10, 11, 12, END_ID]])
    request = build_request(settings, [], max_lengths=[17, 5, 13], prompt=prompt)
    assert request is not None
    block_model: BlockModel = EagerBlockModel(model, draft)
    if backend == "packed":
        block_model = PackedBlockModel(pack_model(model, "float32"), model, draft)
    outputs = block_greedy_search(block_model, source_BS, request, block_size=4)
    assert [output.step_lengths for output in outputs] == [(1, 4, 4, 4, 4), (1, 4), (1, 4, 4, 4)]


def build_search(backend: str, bundle: Bundle) -> Callable[..., list[Hypothesis]]:
    """Return the search over blocks of a back end in float32."""
    if backend != "compiled":
        return partial(block_greedy_search, build_block_model(backend, bundle)[0])
    if not supports_compiled(bundle.model, "float32"):
        pytest.skip("this machine does not run the kernels")
    from dragoman.inference.backends.compiled.block_search import build_block_search
    from dragoman.inference.backends.compiled.pack import compile_model

    search = build_block_search(compile_model(bundle.model, "float32"), bundle.model, make_heads(bundle))
    assert search is not None
    return search


@pytest.mark.parametrize("backend", ["eager", "packed", "compiled"])
def test_typical_acceptance_keeps_likely_proposals(opened: Bundle, backend: str) -> None:
    """Each kept token is the best one, or its probability exceeds the limit, which is computed here from all logits."""
    block_search = build_search(backend, opened)
    settings = SearchSettings(start_id=BEGIN_ID, end_id=END_ID, forbidden_ids=(PADDING_ID, BEGIN_ID))
    sources = [opened.tokenizer.encode_source(line) for line in LINES]
    request = build_request(settings, [], max_lengths=[20] * len(sources))
    assert request is not None
    lossless = block_search(pad_sequences(sources), request, block_size=4)
    counts = []
    for threshold in (1e-9, 0.05):
        typical = replace(request, typical_threshold=threshold)
        outputs = block_search(pad_sequences(sources), typical, block_size=4)
        num_other = 0
        for source, output in zip(sources, outputs, strict=True):
            tokens = [*output.tokens, *([END_ID] if output.finished else [])]
            inputs_BT = torch.tensor([[BEGIN_ID, *tokens[:-1]]])
            logits_TV = opened.model(torch.tensor([source]), inputs_BT)[0].detach()
            logits_TV[:, [PADDING_ID, BEGIN_ID]] = -torch.inf
            for token, log_prob, logits_V in zip(tokens, output.token_log_probs, logits_TV, strict=True):
                probs_V = logits_V.softmax(-1)
                entropy = -float(torch.special.xlogy(probs_V, probs_V).sum())
                limit = min(threshold, threshold**0.5 * math.exp(-entropy))
                is_best = token == int(probs_V.argmax())
                assert is_best or float(probs_V[token]) > limit * 0.99
                assert log_prob == pytest.approx(math.log(float(probs_V[token])), abs=0.5)  # the sum includes excluded tokens
                num_other += not is_best
        counts.append((num_other, sum(len(output.step_lengths or ()) for output in outputs)))
    assert counts[0][0] > counts[1][0]
    assert counts[0][1] < sum(len(output.step_lengths or ()) for output in lossless)


def test_search_without_sentences_returns_no_outputs(opened: Bundle) -> None:
    block_model, _ = build_block_model("eager", opened)
    request = build_request(SearchSettings(start_id=BEGIN_ID, end_id=END_ID), [], max_lengths=[])
    assert request is not None
    assert block_greedy_search(block_model, torch.zeros(0, 1, dtype=torch.long), request, block_size=2) == []
