"""Tests that a packed model equals the trained model that it was packed from."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.inference.backends.packed.kv_cache import MASKED_BIAS
from dragoman.inference.backends.packed.matmul import (
    SMALL_BATCH_ROWS,
    SMALL_MATMUL_MACS,
    pack_matmul,
)
from dragoman.inference.backends.packed.model import PackedTransformer
from dragoman.inference.backends.packed.pack import pack_model
from dragoman.inference.backends.protocol import Precision
from dragoman.model.factory import build_model
from dragoman.model.linear import round_up_rows
from dragoman.model.transformer import Transformer
from dragoman.runtime.cpu_support import has_int8_matmul, supports_bf16_matmul

VOCABULARY = 50
PADDING = 0
WORD = 4
# Rounding of float32 sums in another order over the layers, in units of the last of 24 bits.
ROUNDING = 2e-4
MODEL_KEYS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm": "pre", "attention_bias": True},
    "post-norm with final norm": {"final_norm": True, "tie_embeddings": "decoder"},
    "windows": {"attention_window": 3, "norm": "pre", "final_norm": False},
    "learned positions": {"position_encoding": "learned", "tie_embeddings": "none", "scale_embeddings": False},
    "wide heads, target space": {"d_k": 5, "d_v": 11, "target_space_embedding": True, "position_encoding": "concatenated"},
    "pointer": {"pointer": True, "tie_embeddings": "none", "attention_bias": True},
    "MarianMT": {"activation": "silu", "output_bias": True, "position_encoding": "halves", "attention_bias": True},
    "fairseq with GELU": {"activation": "gelu", "position_encoding": "concatenated", "position_offset": 2, "norm": "pre"},
}


@pytest.fixture(autouse=True, scope="module")
def without_gradients(one_core: None) -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def pack_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack these few weights like many."""
    monkeypatch.setattr("dragoman.inference.backends.packed.matmul.SMALL_WEIGHT_COUNT", 0)


def make_model(**model_keys: Any) -> Transformer:
    """Return a model of two layers with random weights, norms and biases."""
    torch.manual_seed(1)
    config = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=24, d_ff=40, num_heads=4, **model_keys)
    parts: dict[str, Any] = {"word_id": WORD, "tagging": False} if config.pointer else {}
    model = build_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, padding_id=PADDING, **parts).eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    if model.words is not None:
        model.words.fill(begins=range(3, VOCABULARY, 2), shifts=range(WORD, VOCABULARY, 3), hidden=[])
    return model


def make_sources(sentences: int, longest: int, seed: int = 1) -> Tensor:
    """Return sentences of random lengths, one of them of the greatest length, padded on the right."""
    rng = random.Random(seed)
    source_BS = torch.full((sentences, longest), PADDING)
    for row in range(sentences):
        length = longest if row == 0 else rng.randint(1, longest)
        source_BS[row, :length] = torch.tensor(rng.choices(range(1, VOCABULARY), k=length))
    return source_BS


def max_logit_difference(
    model: Transformer, packed: PackedTransformer, source_BS: Tensor, width: int, steps: int, leave: Mapping[int, int]
) -> float:
    """Return the greatest difference of both models' logits in a search that reorders rows at random.

    leave: number of sentences that leave, by step
    """
    rng = random.Random(width)
    packed_state, model_state = packed.start(source_BS), model.start(source_BS)
    num_left, worst = len(source_BS), 0.0
    for step in range(steps):
        tokens_N = torch.tensor(
            rng.choices(range(VOCABULARY), k=num_left * width)
        )  # padding is an ordinary token of the target
        packed_NV, packed_state = packed.step(tokens_N, packed_state)
        model_NV, model_state = model.step(tokens_N, model_state)
        worst = max(worst, float((packed_NV - model_NV).abs().max()))
        rows_N = torch.tensor(
            [row * width + rng.randrange(width) for row in range(num_left) for _ in range(width)], dtype=torch.long
        )
        packed_state, model_state = packed_state.reorder(rows_N), model_state.reorder(rows_N)
        if num_leaving := leave.get(step, 0):
            kept_B = torch.tensor(sorted(rng.sample(range(num_left), num_left - num_leaving)), dtype=torch.long)
            packed_state, model_state = packed_state.select_sentences(kept_B), model_state.select_sentences(kept_B)
            num_left -= num_leaving
    return worst


def test_logits_equal_those_of_the_model(subtests: pytest.Subtests) -> None:
    for width, model_keys in product([1, 3], MODEL_KEYS.values()):
        with subtests.test(width=width, model_keys=model_keys):
            model = make_model(**model_keys)
            packed = pack_model(model, "float32")
            assert max_logit_difference(model, packed, make_sources(5, 9), width, steps=24, leave={3: 1, 11: 2}) < ROUNDING


def test_sources_without_padding_exceed_a_vector() -> None:
    model = make_model()
    source_BS = make_sources(1, 40)
    assert bool((source_BS != PADDING).all())
    assert max_logit_difference(model, pack_model(model, "float32"), source_BS.repeat(2, 1), 4, steps=6, leave={}) < ROUNDING


def test_long_sources_use_fused_attention() -> None:
    model = make_model(attention_window=5)
    assert max_logit_difference(model, pack_model(model, "float32"), make_sources(2, 300), 2, steps=3, leave={}) < ROUNDING
    model = make_model()
    assert max_logit_difference(model, pack_model(model, "float32"), make_sources(2, 300), 2, steps=3, leave={}) < ROUNDING


def test_few_finished_sentences_stay_stored() -> None:
    model = make_model()
    packed = pack_model(model, "float32")
    sentences = 24
    assert (
        max_logit_difference(model, packed, make_sources(sentences, 6), 2, steps=14, leave={1: 1, 2: 1, 5: 5, 9: 2}) < ROUNDING
    )
    _, state = packed.step(torch.ones(2 * sentences, dtype=torch.long), packed.start(make_sources(sentences, 6)))
    kept = state.select_sentences(torch.arange(1, sentences))
    assert (kept.num_stored, kept.num_active) == (sentences, sentences - 1)
    kept = kept.select_sentences(torch.arange(1, sentences - 1))
    assert (kept.num_stored, kept.num_active) == (sentences - 2, sentences - 2)
    kept = kept.select_sentences(torch.arange(5, sentences - 2))
    assert (kept.num_stored, kept.num_active) == (18, 17)


@pytest.mark.parametrize("model_keys", [MODEL_KEYS["paper"], MODEL_KEYS["pointer"]], ids=["paper", "pointer"])
def test_unusual_batch_sizes_are_padded(model_keys: dict[str, Any]) -> None:
    model = make_model(**model_keys)
    packed = pack_model(model, "float32")
    assert max_logit_difference(model, packed, make_sources(19, 6), 2, steps=8, leave={2: 1, 4: 1}) < ROUNDING
    state = packed.start(make_sources(19, 6))
    assert (state.num_stored, state.num_active) == (20, 19)


def test_round_up_rows_has_eight_steps_an_octave() -> None:
    assert [round_up_rows(count) for count in (1, 7, 16, 17, 18, 33, 65, 100, 4097)] == [1, 7, 16, 18, 18, 36, 72, 104, 4608]
    for count in range(1, 3000):
        assert count <= round_up_rows(count) <= count * 9 / 8
    assert len({round_up_rows(count) for count in range(257, 513)}) == 8


def test_slots_without_descendants_are_reused() -> None:
    """Extend only the first hypothesis: it has one ancestor a step, so T of R·T slots are alive."""
    packed = pack_model(make_model(), "float32")
    width, steps = 4, 60
    state = packed.start(make_sources(2, 5))
    for _ in range(steps):
        _, state = packed.step(torch.ones(2 * width, dtype=torch.long), state)
        state = state.reorder(torch.tensor([0] * width + [width] * width))
    assert state.self_kv is not None
    assert state.ancestors_CRW is not None
    assert (state.ancestors_CRW == 0).sum(-1).tolist() == [[steps] * width] * 2
    assert state.ancestors_CRW[state.ancestors_CRW != 0].eq(MASKED_BIAS).all()
    assert state.self_kv[0].key.shape[1] < width * steps / 2


def test_float32_ignores_other_sentences_of_the_batch() -> None:
    packed = pack_model(make_model(), "float32")
    source_BS = make_sources(6, 12)
    together_NV, _ = packed.step(torch.full((6,), 3), packed.start(source_BS))
    for row, source_S in enumerate(source_BS):
        alone_NV, _ = packed.step(torch.tensor([3]), packed.start(source_S[source_S != PADDING][None]))
        torch.testing.assert_close(together_NV[row], alone_NV[0], atol=ROUNDING, rtol=0)


def largest_error(x: Tensor, weight: Tensor, precision: Precision) -> Tensor:
    """Return the greatest possible rounding error of a product, from both factors and the output with its bias.

    float32 has 24 bits and bfloat16 8. In int8 an input is wrong by a step at most: half of one, and another half if fbgemm
    moves zero onto a step. A weight is wrong by half a step. A step is 1/127 of the largest magnitude.
    """
    x, weight = x.double().abs(), weight.double().abs()
    if precision != "int8":
        bits = {"float32": 24, "bfloat16": 8}[precision]
        return (x @ weight.T * (2 if bits == 8 else 64) + 16) * 2.0**-bits
    x_step, weight_step = x.max() / 127, weight.amax(1) / 127
    return x_step * weight.sum(1) + x.sum(1, keepdim=True) * weight_step / 2 + x.shape[1] * x_step * weight_step / 2 + 1e-5


needs_int8 = pytest.mark.skipif(not has_int8_matmul(), reason="this build of torch has no int8 products")
needs_bf16 = pytest.mark.skipif(not supports_bf16_matmul(), reason="oneDNN does not multiply bfloat16 on this processor")
LOW_PRECISIONS = [pytest.param("bfloat16", marks=needs_bf16), pytest.param("int8", marks=needs_int8)]
PRECISIONS = ["float32", *LOW_PRECISIONS]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rows", [1, SMALL_BATCH_ROWS, SMALL_BATCH_ROWS + 1, 70])
@pytest.mark.parametrize("kind", ["bias", "no bias", "relu", "nonnegative"])
def test_product_equals_float64_product(precision: Precision, rows: int, kind: str, pack_small_weights: None) -> None:
    """Compare with float64. The inputs of `nonnegative` are a ReLU's output."""
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 64), torch.randn(48, 64) * torch.rand(48, 1)
    x = x.abs() if kind == "nonnegative" else x
    bias = None if kind == "no bias" else torch.randn(48)
    product = pack_matmul(weight, bias, precision, relu=kind == "relu", nonnegative_input=kind == "nonnegative")
    expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    expected = expected.relu() if kind == "relu" else expected
    allowed = largest_error(x, weight, precision)
    assert bool(((product(x).double() - expected).abs() < allowed).all())
    residual = torch.randn(rows, 48)
    assert bool(((product.add_to(residual, x).double() - expected - residual.double()).abs() < allowed).all())
    assert product(x).dtype == torch.float32


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rows", [1, 20, 400])
def test_few_weights_and_rows_multiply_in_float32(precision: Precision, rows: int) -> None:
    """Many rows of int8 multiply in bfloat16 if the processor has its isa."""
    torch.manual_seed(rows)
    x, weight, bias, residual = torch.randn(rows, 64), torch.randn(48, 64), torch.randn(48), torch.randn(rows, 48)
    product = pack_matmul(weight, bias, precision, relu=True)
    expected = (x.double() @ weight.double().T + bias.double()).relu()
    precisions: list[Precision] = ["float32"] if rows * weight.numel() <= SMALL_MATMUL_MACS else [precision, "bfloat16"]
    allowed = torch.stack([largest_error(x, weight, used_precision).expand_as(expected) for used_precision in precisions]).amax(
        0
    )
    assert bool(((product(x).double() - expected).abs() < allowed).all())
    assert bool(((product.add_to(residual, x).double() - expected - residual.double()).abs() < allowed + 1e-6).all())


@needs_int8
def test_int8_scales_each_of_many_rows(pack_small_weights: None) -> None:
    """A row a thousand times as large as the others does not change them, and a row of zeros stays zero."""
    torch.manual_seed(1)
    x, weight = torch.randn(SMALL_BATCH_ROWS + 2, 64), torch.randn(32, 64)
    product = pack_matmul(weight, None, "int8")
    before = product(x)
    x[-1] *= 1000
    x[-2] = 0
    after = product(x)
    assert torch.equal(before[:-2], after[:-2])
    assert not after[-2].any()


@pytest.mark.parametrize("precision", LOW_PRECISIONS)
@pytest.mark.parametrize(("sentences", "width"), [(2, 4), (20, 4), (20, 1)])
def test_lower_precisions_stay_close(
    precision: Precision, sentences: int, width: int, pack_small_weights: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few heads attend in float32 and many in bfloat16; the standard deviation of the logits is about 1."""
    monkeypatch.setattr("dragoman.inference.backends.packed.cached_attention.MIN_BF16_HEAD_WIDTH", 1)
    monkeypatch.setattr(
        "dragoman.inference.backends.packed.cached_attention.is_bf16_faster_for_one_query", lambda key_width: True
    )
    monkeypatch.setattr("dragoman.inference.backends.packed.cached_attention.has_bf16_matmul", lambda: True)
    model = make_model()
    packed = pack_model(model, precision)
    spread = float(model.step(torch.ones(sentences, dtype=torch.long), model.start(make_sources(sentences, 9)))[0].std())
    worst = max_logit_difference(model, packed, make_sources(sentences, 9), width, steps=12, leave={4: 1, 6: sentences // 3})
    assert 1e-5 < worst / spread < 0.5


INT8_SCRIPT = """
import torch
from dragoman.inference.backends.packed.matmul import Int8MatMul, pack_matmul
ones = torch.ones(512, 512)
product = pack_matmul(ones, None, "int8")
assert isinstance(product, Int8MatMul)
print(product.reduce_range, *(float((product(ones[:rows]) - 512).abs().max()) for rows in (1, 32, 128)))
"""


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE", None])
def test_int8_is_correct_without_vnni(isa: str | None) -> None:
    """512 times one times one: without sums of 32 bits, oneDNN's pairs would saturate and give 4."""
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    if isa:
        environment["ONEDNN_MAX_CPU_ISA"] = isa
    result = subprocess.run([sys.executable, "-c", INT8_SCRIPT], env=environment, capture_output=True, text=True, check=True)
    reduce_range, *errors = result.stdout.split()
    assert all(float(error) <= 512 / 64 for error in errors)  # a step of seven bits
    if isa:
        assert reduce_range == "True"
