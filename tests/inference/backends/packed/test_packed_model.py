"""A packed model says what the model says that it was made from, in fewer and larger pieces."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
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
from dragoman.inference.backends.shared import Precision
from dragoman.model.factory import build_model
from dragoman.model.linear import round_up_rows
from dragoman.model.transformer import Transformer
from dragoman.runtime.cpu_support import has_int8_matmul, supports_bf16_matmul

VOCABULARY = 50
PADDING = 0
WORD = 4
# Float32 sums in another order: some units of the last of 24 bits, over the layers.
ROUNDING = 2e-4
SWITCHES: dict[str, dict[str, Any]] = {
    "as printed": {},
    "pre-norm": {"norm": "pre", "attention_bias": True},
    "post-norm, normalised once more": {"final_norm": True, "tie_embeddings": "decoder"},
    "windows": {"attention_window": 3, "norm": "pre", "final_norm": False},
    "learned positions": {"position_encoding": "learned", "tie_embeddings": "none", "scale_embeddings": False},
    "wide heads, target space": {"d_k": 5, "d_v": 11, "target_space_embedding": True, "position_encoding": "concatenated"},
    "pointed at words": {"pointer": True, "tie_embeddings": "none", "attention_bias": True},
}


@pytest.fixture(autouse=True, scope="module")
def without_gradients(one_core: None) -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def none_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """These weights are packed as large ones are."""
    monkeypatch.setattr("dragoman.inference.backends.packed.matmul.SMALL_WEIGHT_COUNT", 0)


def model_of(**switches: Any) -> Transformer:
    """Two layers whose every weight, norms and biases too, is drawn."""
    torch.manual_seed(1)
    config = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=24, d_ff=40, num_heads=4, **switches)
    parts: dict[str, Any] = {"word_id": WORD, "tagging": False} if config.pointer else {}
    model = build_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, padding_id=PADDING, **parts).eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    if model.words is not None:
        model.words.fill(begins=range(3, VOCABULARY, 2), shifts=range(WORD, VOCABULARY, 3), hidden=[])
    return model


def sources(sentences: int, longest: int, seed: int = 1) -> Tensor:
    """Sentences of all lengths, the longest among them, padded on the right."""
    chance = random.Random(seed)
    source_BS = torch.full((sentences, longest), PADDING)
    for row in range(sentences):
        length = longest if row == 0 else chance.randint(1, longest)
        source_BS[row, :length] = torch.tensor(chance.choices(range(1, VOCABULARY), k=length))
    return source_BS


def differences(
    model: Transformer, packed: PackedTransformer, source_BS: Tensor, width: int, steps: int, leave: Mapping[int, int]
) -> float:
    """The largest between the logits of both, over a search that changes places at random and lets sentences go.

    leave: at which step how many sentences leave
    """
    chance = random.Random(width)
    ours, theirs = packed.start(source_BS), model.start(source_BS)
    left, worst = len(source_BS), 0.0
    for step in range(steps):
        tokens_N = torch.tensor(chance.choices(range(VOCABULARY), k=left * width))  # padding is a token like any other here
        ours_NV, ours = packed.step(tokens_N, ours)
        theirs_NV, theirs = model.step(tokens_N, theirs)
        worst = max(worst, float((ours_NV - theirs_NV).abs().max()))
        rows_N = torch.tensor(
            [row * width + chance.randrange(width) for row in range(left) for _ in range(width)], dtype=torch.long
        )
        ours, theirs = ours.reorder(rows_N), theirs.reorder(rows_N)
        if going := leave.get(step, 0):
            rest_B = torch.tensor(sorted(chance.sample(range(left), left - going)), dtype=torch.long)
            ours, theirs, left = ours.select_sentences(rest_B), theirs.select_sentences(rest_B), left - going
    return worst


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize("width", [1, 3])
def test_every_switch_gives_the_logits_of_the_model(switches: dict[str, Any], width: int) -> None:
    model = model_of(**switches)
    packed = pack_model(model, "float32")
    assert differences(model, packed, sources(5, 9), width, steps=24, leave={3: 1, 11: 2}) < ROUNDING


def test_sources_longer_than_a_vector_and_without_padding() -> None:
    model = model_of()
    whole_BS = sources(1, 40)
    assert bool((whole_BS != PADDING).all())
    assert differences(model, pack_model(model, "float32"), whole_BS.repeat(2, 1), 4, steps=6, leave={}) < ROUNDING


def test_sources_so_long_that_attention_goes_to_the_kernel() -> None:
    model = model_of(attention_window=5)
    assert differences(model, pack_model(model, "float32"), sources(2, 300), 2, steps=3, leave={}) < ROUNDING
    model = model_of()
    assert differences(model, pack_model(model, "float32"), sources(2, 300), 2, steps=3, leave={}) < ROUNDING


def test_finished_sentences_are_computed_on_while_they_are_few_and_never_seen() -> None:
    model = model_of()
    packed = pack_model(model, "float32")
    sentences = 24
    assert differences(model, packed, sources(sentences, 6), 2, steps=14, leave={1: 1, 2: 1, 5: 5, 9: 2}) < ROUNDING
    _, state = packed.step(torch.ones(2 * sentences, dtype=torch.long), packed.start(sources(sentences, 6)))
    rest = state.select_sentences(torch.arange(1, sentences))
    assert (rest.num_stored, rest.num_active) == (sentences, sentences - 1)
    rest = rest.select_sentences(torch.arange(1, sentences - 1))
    assert (rest.num_stored, rest.num_active) == (sentences - 2, sentences - 2)
    rest = rest.select_sentences(torch.arange(5, sentences - 2))
    assert (rest.num_stored, rest.num_active) == (18, 17)


@pytest.mark.parametrize("switches", [SWITCHES["as printed"], SWITCHES["pointed at words"]], ids=["as printed", "pointed"])
def test_a_batch_of_an_unusual_size_is_filled_up_with_sentences_that_are_never_seen(switches: dict[str, Any]) -> None:
    model = model_of(**switches)
    packed = pack_model(model, "float32")
    assert differences(model, packed, sources(19, 6), 2, steps=8, leave={2: 1, 4: 1}) < ROUNDING
    state = packed.start(sources(19, 6))
    assert (state.num_stored, state.num_active) == (20, 19)


def test_usual_numbers_of_rows_are_eight_from_a_number_to_its_double() -> None:
    assert [round_up_rows(count) for count in (1, 7, 16, 17, 18, 33, 65, 100, 4097)] == [1, 7, 16, 18, 18, 36, 72, 104, 4608]
    for count in range(1, 3000):
        assert count <= round_up_rows(count) <= count * 9 / 8
    assert len({round_up_rows(count) for count in range(257, 513)}) == 8


def test_slots_from_which_nothing_descends_are_used_again() -> None:
    """A beam that always goes on from its first hypothesis has one ancestor a step, so T of R·T slots are alive."""
    packed = pack_model(model_of(), "float32")
    width, steps = 4, 60
    state = packed.start(sources(2, 5))
    for _ in range(steps):
        _, state = packed.step(torch.ones(2 * width, dtype=torch.long), state)
        state = state.reorder(torch.tensor([0] * width + [width] * width))
    assert state.self_kv is not None
    assert state.ancestors_CRW is not None
    assert (state.ancestors_CRW == 0).sum(-1).tolist() == [[steps] * width] * 2
    assert state.ancestors_CRW[state.ancestors_CRW != 0].eq(MASKED_BIAS).all()
    assert state.self_kv[0].key.shape[1] < width * steps / 2


def test_batch_mates_change_nothing_in_float32() -> None:
    packed = pack_model(model_of(), "float32")
    source_BS = sources(6, 12)
    together_NV, _ = packed.step(torch.full((6,), 3), packed.start(source_BS))
    for row, source_S in enumerate(source_BS):
        alone_NV, _ = packed.step(torch.tensor([3]), packed.start(source_S[source_S != PADDING][None]))
        torch.testing.assert_close(together_NV[row], alone_NV[0], atol=ROUNDING, rtol=0)


def largest_error(x: Tensor, weight: Tensor, precision: Precision) -> Tensor:
    """What rounding of both factors can do at most, in the sum of |x|·|w| over the inputs; and of the output with its bias.

    float32 has 24 bits and bfloat16 8. In int8 an input is out by a step at most (half of one, and another half where fbgemm
    moves zero onto a step), a weight by half of one; a step is 1/127 of the largest.
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
@pytest.mark.parametrize("kind", ["bias", "no bias", "relu", "positive"])
def test_a_product_is_the_product(precision: Precision, rows: int, kind: str, none_is_small: None) -> None:
    """Against float64. `positive` products are of what a ReLU let through."""
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 64), torch.randn(48, 64) * torch.rand(48, 1)
    x = x.abs() if kind == "positive" else x
    bias = None if kind == "no bias" else torch.randn(48)
    product = pack_matmul(weight, bias, precision, relu=kind == "relu", nonnegative_input=kind == "positive")
    expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    expected = expected.relu() if kind == "relu" else expected
    allowed = largest_error(x, weight, precision)
    assert bool(((product(x).double() - expected).abs() < allowed).all())
    residual = torch.randn(rows, 48)
    assert bool(((product.add_to(residual, x).double() - expected - residual.double()).abs() < allowed).all())
    assert product(x).dtype == torch.float32


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rows", [1, 20, 400])
def test_a_product_with_few_weights_is_torchs_own_for_few_rows(precision: Precision, rows: int) -> None:
    """Then in float32, whatever was asked for; int8's many rows are multiplied in bfloat16 where the processor does."""
    torch.manual_seed(rows)
    x, weight, bias, residual = torch.randn(rows, 64), torch.randn(48, 64), torch.randn(48), torch.randn(rows, 48)
    product = pack_matmul(weight, bias, precision, relu=True)
    expected = (x.double() @ weight.double().T + bias.double()).relu()
    kinds: list[Precision] = ["float32"] if rows * weight.numel() <= SMALL_MATMUL_MACS else [precision, "bfloat16"]
    allowed = torch.stack([largest_error(x, weight, kind).expand_as(expected) for kind in kinds]).amax(0)
    assert bool(((product(x).double() - expected).abs() < allowed).all())
    assert bool(((product.add_to(residual, x).double() - expected - residual.double()).abs() < allowed + 1e-6).all())


@needs_int8
def test_int8_gives_each_of_many_rows_a_scale_of_its_own(none_is_small: None) -> None:
    """A row a thousand times as large as the others costs them nothing; one of zeros is zeros."""
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
def test_lower_precisions_stay_near(
    precision: Precision, sentences: int, width: int, none_is_small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few heads attention is computed in float32, with many in bfloat16; the logits' spread is about 1."""
    monkeypatch.setattr("dragoman.inference.backends.packed.attention.MIN_BF16_HEAD_WIDTH", 1)
    monkeypatch.setattr("dragoman.inference.backends.packed.attention.is_bf16_faster_for_one_query", lambda key_width: True)
    monkeypatch.setattr("dragoman.inference.backends.packed.attention.has_bf16_matmul", lambda: True)
    model = model_of()
    packed = pack_model(model, precision)
    spread = float(model.step(torch.ones(sentences, dtype=torch.long), model.start(sources(sentences, 9)))[0].std())
    worst = differences(model, packed, sources(sentences, 9), width, steps=12, leave={4: 1, 6: sentences // 3})
    assert 1e-5 < worst / spread < 0.5


INT8_ALONE = """
import torch
from dragoman.inference.backends.packed.matmul import Int8MatMul, pack_matmul
ones = torch.ones(512, 512)
product = pack_matmul(ones, None, "int8")
assert isinstance(product, Int8MatMul)
print(product.reduce_range, *(float((product(ones[:rows]) - 512).abs().max()) for rows in (1, 32, 128)))
"""


@pytest.mark.parametrize("instructions", ["AVX2", "AVX512_CORE", None])
def test_int8_is_right_where_the_processor_lacks_its_sums(instructions: str | None) -> None:
    """Ones times ones, 512 of them: without the sums of 32 bits, oneDNN's pairs would saturate and give 4."""
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    if instructions:
        environment["ONEDNN_MAX_CPU_ISA"] = instructions
    told = subprocess.run([sys.executable, "-c", INT8_ALONE], env=environment, capture_output=True, text=True, check=True)
    reduced, *errors = told.stdout.split()
    assert all(float(error) <= 512 / 64 for error in errors)  # a step of seven bits
    if instructions:
        assert reduced == "True"
