"""What is compiled says what the formulas say, whatever it is computed beside."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.decoding.topk import TorchTopK
from dragoman.inference.backends.device import choose_fastest_precision
from dragoman.inference.backends.packed.model import PackedTransformer
from dragoman.inference.backends.select import build_inference_model, supports_compiled
from dragoman.inference.backends.shared import LazyWeight
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer

pytest.importorskip("numba", reason="the extra `fast` is not installed")

import numba

from dragoman.inference.backends.compiled import jit_cache
from dragoman.inference.backends.compiled.kernels import gemm, memory, simd
from dragoman.inference.backends.compiled.kernels.cpu_features import has_avx512_vnni
from dragoman.inference.backends.compiled.kernels.structs import (
    ADD_RESIDUAL,
    ADD_RESIDUAL_U8,
    LANES,
    MIN_SCALE,
    RELU,
    STORE,
    HeadLayout,
    Int8Weights,
)
from dragoman.inference.backends.compiled.model import (
    ENCODE_BLOCK_TOKENS,
    INITIAL_POSITIONS,
    CompiledTransformer,
    WorkspaceTensors,
)
from dragoman.inference.backends.compiled.pack import compile_model, pack_int8_weights
from dragoman.inference.backends.compiled.topk import CompiledTopK

njit: Callable[[Any], Any] = numba.njit
pytestmark = pytest.mark.skipif(not has_avx512_vnni(), reason="this processor has no AVX-512 with VNNI")

VOCABULARY = 90
D_FF = 80
# Float32 sums in another order: some units of the last of 24 bits, over the layers.
ROUNDING = 1e-5
PADDING = 0
SWITCHES: dict[str, dict[str, Any]] = {
    "as printed": {},
    "pre-norm": {"norm": "pre", "attention_bias": True},
    "post-norm, normalised once more": {"final_norm": True, "tie_embeddings": "decoder"},
    "learned positions": {"position_encoding": "learned", "tie_embeddings": "none", "scale_embeddings": False},
    "wide heads, target space": {"d_k": 16, "d_v": 32, "target_space_embedding": True, "position_encoding": "concatenated"},
    "one head": {"num_heads": 1, "d_k": 24, "d_v": 40},
    "two heads": {"num_heads": 2},
    "eight narrow heads": {"num_heads": 8, "d_k": 3, "d_v": 5},
    "sixteen heads": {"num_heads": 16, "d_k": 16, "d_v": 16},
}


@pytest.fixture(autouse=True, scope="module")
def without_gradients(one_core: None) -> Iterator[None]:
    with torch.no_grad():
        yield


def model_of(**switches: Any) -> Transformer:
    """Two layers whose every weight, norms and biases too, is drawn; no width is a multiple of 64."""
    torch.manual_seed(1)
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 48, "d_ff": D_FF, "num_heads": 3} | switches
    config = ModelConfig(**shape)
    parts: dict[str, Any] = {"word_id": 4, "tagging": False} if config.pointer else {}
    model = build_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, padding_id=PADDING, **parts).eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sources(sentences: int, longest: int) -> Tensor:
    """Sentences of all lengths, the longest among them, padded on the right."""
    chance = random.Random(1)
    source_BS = torch.full((sentences, longest), PADDING)
    for row in range(sentences):
        length = longest if row == 0 else chance.randint(1, longest)
        source_BS[row, :length] = torch.tensor(chance.choices(range(1, VOCABULARY), k=length))
    return source_BS


def product_in_bytes(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """A product as it is defined in whole numbers: weights in steps of 1/127 of the greatest of their row, inputs of 1/127 of
    theirs, or 1/255 of it where they come from a ReLU."""
    step_X1 = (x.abs().amax(-1, keepdim=True).double() / (255 if weight.shape[1] == D_FF else 127)).clamp(min=MIN_SCALE)
    step_O1 = weight.abs().amax(1, keepdim=True) / 127
    inputs, weights = (x * (1 / step_X1).float()).round() * step_X1, (weight / step_O1).round() * step_O1.double()
    result = (inputs @ weights.t() if bias is None else inputs @ weights.t() + bias).float()
    return result.relu() if relu else result


def in_bytes(model: Transformer) -> Transformer:
    """Products in whole numbers; keys and values in halves."""
    for name, module in model.named_modules():
        if hasattr(module, "matmul"):
            cast(Any, module).matmul = product_in_halves if name.endswith((".key", ".value")) else product_in_bytes
    return model


def product_in_halves(x: Tensor, weight: Tensor, bias: Tensor | None, **ways: Any) -> Tensor:
    return product_in_bytes(x, weight, bias, **ways).half().float()


def walk(
    model: Transformer | CompiledTransformer, source_BS: Tensor, width: int, leave: Mapping[int, Sequence[int]], steps: int
) -> list[dict[int, Tensor]]:
    """At each step the logits of the sentences that are left, by number, in a search that changes places at random.

    leave: at which step which sentences leave
    """
    state: Any = model.start(source_BS)
    left = list(range(len(source_BS)))
    found = []
    for step in range(steps):
        chances = {number: random.Random(f"{number} {step}") for number in left}
        tokens_N = torch.tensor([chances[number].randrange(VOCABULARY) for number in left for _ in range(width)])
        logits_NV, state = model.step(tokens_N, state)
        found.append(dict(zip(left, logits_NV.clone().view(len(left), width, -1), strict=True)))
        rows_N = [row * width + chances[number].randrange(width) for row, number in enumerate(left) for _ in range(width)]
        state = state.reorder(torch.tensor(rows_N))
        if going := leave.get(step):
            stay = [row for row, number in enumerate(left) if number not in going]
            left = [left[row] for row in stay]
            state = state.select_sentences(torch.tensor(stay))
    return found


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize("width", [1, 3])
def test_every_switch_gives_the_logits_of_the_model_in_whole_numbers(switches: dict[str, Any], width: int) -> None:
    """To float32's rounding, mostly: now and then it carries an input across the middle between two steps, and what comes after
    is off by about as much as whole numbers are from the model."""
    model = model_of(**switches)
    assert supports_compiled(model)
    source_BS, leave = sources(6, 21), {3: [1], 11: [0, 4]}
    exact = walk(model, source_BS, width, leave, INITIAL_POSITIONS + 8)
    ours = walk(compile_model(model), source_BS, width, leave, INITIAL_POSITIONS + 8)
    theirs = walk(in_bytes(model), source_BS, width, leave, INITIAL_POSITIONS + 8)
    assert [list(step) for step in ours] == [list(step) for step in theirs]
    apart = differences(ours, theirs)
    assert float((apart < ROUNDING).float().mean()) > 0.5
    assert float(apart.max()) < 2 * float(differences(ours, exact).max())


def differences(some: list[dict[int, Tensor]], others: list[dict[int, Tensor]]) -> Tensor:
    """The largest of each sentence at each step."""
    both = zip(some, others, strict=True)
    return torch.stack([(one[number] - other[number]).abs().max() for one, other in both for number in one])


@pytest.mark.parametrize("width", [1, 4])
def test_no_sentence_hears_of_the_others_in_its_batch(width: int) -> None:
    """To the last bit: by vectors or tiles, read together or alone, while others leave, beyond the places that room is made for
    at first."""
    model = compile_model(model_of())
    source_BS = sources(40, 30)
    assert int((source_BS != PADDING).sum()) > ENCODE_BLOCK_TOKENS
    together = walk(model, source_BS, width, {2: [1, 2], 5: [39]}, 2 * INITIAL_POSITIONS + 3)
    for number in (0, 1, 17, 39):
        length = int((source_BS[number] != PADDING).sum())
        alone = walk(model, source_BS[number : number + 1, :length], width, {}, 2 * INITIAL_POSITIONS + 3)
        # A walk draws by the number of a sentence, and alone it has number 0.
        assert number or all(torch.equal(one[0], other[0]) for one, other in zip(together, alone, strict=True))
    one_BS = source_BS[17:18].repeat(40, 1)
    many, few = model.start(one_BS), model.start(one_BS[:1])
    tokens_N = torch.arange(width)
    for _ in range(2 * INITIAL_POSITIONS + 3):
        many_NV, many = model.step(tokens_N.repeat(40), many)
        few_NV, few = model.step(tokens_N, few)
        assert torch.equal(many_NV, few_NV.repeat(40, 1))


def test_sentences_may_leave_before_anything_is_said() -> None:
    model = compile_model(model_of())
    source_BS, tokens_N = sources(5, 12), torch.tensor([7, 8, 9, 10])
    kept = model.start(source_BS).reorder(torch.arange(5)).select_sentences(torch.tensor([1, 4]))
    found_NV, _ = model.step(tokens_N, kept)
    wanted_NV, _ = model.step(tokens_N, model.start(source_BS[[1, 4]]))
    assert torch.equal(found_NV, wanted_NV)


def test_padding_within_a_source_is_passed_over() -> None:
    model = model_of()
    source_BS = torch.tensor([[5, PADDING, 7, 9], [PADDING, 8, 3, PADDING]])
    ours, theirs = walk(compile_model(model), source_BS, 2, {}, 5), walk(in_bytes(model), source_BS, 2, {}, 5)
    assert float(differences(ours, theirs).median()) < ROUNDING


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_pytorch_makes_by_default_changes_nothing(dtype: torch.dtype) -> None:
    model = model_of()
    wanted = walk(compile_model(model), sources(3, 9), 2, {}, 20)
    torch.set_default_dtype(dtype)
    try:
        found = walk(compile_model(model), sources(3, 9), 2, {}, 20)
        logits_NV = torch.randn(4, 50, dtype=torch.float32)
        best_BX, sums_N = CompiledTopK().topk(logits_NV[:, None], None, 3), CompiledTopK().logsumexp(logits_NV)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(one[number], other[number]) for one, other in zip(wanted, found, strict=True) for number in one)
    assert torch.equal(best_BX, logits_NV.topk(3).indices)
    assert torch.allclose(sums_N, logits_NV.double().logsumexp(-1), atol=1e-6)


@pytest.mark.parametrize("then", [STORE, ADD_RESIDUAL_U8])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 16), (16, 64), (33, 80), (600, 48), (70, 512)])
def test_weights_are_put_in_order_in_steps_of_a_127th_of_the_greatest_of_their_row(
    outputs: int, inputs: int, then: int
) -> None:
    """Four inputs of 16 outputs side by side; what is filled up is zero."""
    weight = torch.randn(inputs, outputs, generator=torch.Generator().manual_seed(inputs)).t()  # rows are not side by side
    weight[0] = 0.0
    # Halves of steps, which are rounded to the even number; the greatest is -127 steps.
    weight[-1] = torch.arange(inputs) % 20 / 2
    weight[-1, -1] = -127.0
    bias = torch.randn(outputs)
    bytes_LPQ, scale_LO, bias_LO, shift_LO = pack_int8_weights(
        [LazyWeight(lambda: weight, weight.shape)] * 2, [bias, None], then
    )
    step_O = (weight.abs().amax(1) / 127).clamp(min=MIN_SCALE)
    filled_OI = torch.zeros(scale_LO.shape[1], bytes_LPQ.shape[2] * 4, dtype=torch.int8)
    filled_OI[:outputs, :inputs] = (weight / step_O[:, None]).round()
    wanted_PQ = filled_OI.view(-1, 16, filled_OI.shape[1] // 4, 4).transpose(1, 2)
    assert all(torch.equal(layer_PQ, wanted_PQ) for layer_PQ in bytes_LPQ)
    assert all(torch.equal(layer_O[:outputs], step_O) and not layer_O[outputs:].any() for layer_O in scale_LO)
    assert torch.equal(bias_LO[0, :outputs], bias)
    assert not bias_LO[1].any()
    sums_O = filled_OI.sum(1, dtype=torch.int32) * 128
    assert all(torch.equal(layer_O, sums_O if then == STORE else 0 * sums_O) for layer_O in shift_LO)


@njit
def product(x: Any, matrices: Any, y: Any, rows: Any, inputs: Any, space: Any) -> None:
    gemm.configure_amx(space)
    gemm.multiply(x, matrices, np.int64(0), y, rows, inputs, space)
    gemm.release_amx(space)


@pytest.mark.parametrize("then", [STORE, RELU, ADD_RESIDUAL, ADD_RESIDUAL_U8])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 16), (80, 100), (128, 321), (512, 64)])
@pytest.mark.parametrize("rows", [1, 3, 4, 7, 16, 17, 33, 70])
def test_a_product_is_the_sum_of_its_bytes(then: int, inputs: int, outputs: int, rows: int) -> None:
    """By vectors and by tiles the same to the last bit; beside the same sums in 64 bits, to float32's rounding."""
    numbers = torch.Generator().manual_seed(rows)
    x_NI, y_NO = torch.randn(rows, inputs, generator=numbers), torch.randn(rows, outputs, generator=numbers)
    x_NI = x_NI.relu() if then == ADD_RESIDUAL_U8 else x_NI
    x_NI[0] = 0.0
    weight, bias = torch.randn(outputs, inputs, generator=numbers), torch.randn(outputs, generator=numbers)
    kept = pack_int8_weights([LazyWeight(lambda: weight, weight.shape)], [bias], then)
    places = dict(zip(("weights", "scale", "bias", "compensation"), (tensor.data_ptr() for tensor in kept), strict=True))
    matrices = Int8Weights(**places, num_outputs=outputs, padded_outputs=kept[1].shape[1], epilogue=then)
    room = WorkspaceTensors(rows, 0, HeadLayout(1, 0, 0), width=inputs, max_outputs=0)
    room.thread_tensors[0]["quantized_inputs"].fill_(77)  # what is left over meets zeros alone
    found = []
    for tile_config in {0, room.workspaces[0].tile_config}:
        space, result_NO = room.workspaces[0]._replace(tile_config=tile_config, x=y_NO.data_ptr()), torch.empty_like(y_NO)
        product(x_NI.data_ptr(), matrices, result_NO.data_ptr(), rows, inputs, space)
        found.append(result_NO)
    assert all(torch.equal(one, found[0]) for one in found)
    step_N1 = (x_NI.abs().amax(1, keepdim=True) / (255 if then == ADD_RESIDUAL_U8 else 127)).clamp(min=MIN_SCALE)
    whole_NI = (x_NI * (1 / step_N1)).round().double()
    scale_O = weight.abs().amax(1) / 127
    wanted_NO = (whole_NI @ (weight / scale_O[:, None]).round().double().t()) * (scale_O * step_N1) + bias
    wanted_NO = {RELU: wanted_NO.relu(), STORE: wanted_NO}.get(then, wanted_NO + y_NO)
    off_NO = (found[0] - wanted_NO).abs()
    # An input in the middle between two steps may go either way, and so may its row.
    assert float((off_NO.amax(1) < 1e-5 * inputs**0.5).double().mean()) > 0.9
    assert float(off_NO.max()) < 0.05 * inputs**0.5


def test_e_to_the_power_of_what_is_not_above_zero() -> None:
    @njit
    def powers(x: int, y: int, count: int) -> None:
        for at in range(0, count, LANES):
            memory.store_f32x16(y, at, simd.exp_f32x16(memory.load_f32x16(x, at)))

    x = np.concatenate([np.linspace(-79, 0, 1 << 16), [-80.0, -1e4, -np.inf] * 16]).astype(np.float32)
    y = np.empty_like(x)
    powers(x.ctypes.data, y.ctypes.data, len(x))
    wanted = np.exp(np.maximum(x.astype(np.float64), -80))
    assert np.abs(y / wanted - 1).max() < 3e-7  # some units of the last of 24 bits


@pytest.mark.parametrize("vocabulary", [16, 37, 1000, 10_001])
def test_the_sums_and_the_best_are_those_of_pytorch(vocabulary: int) -> None:
    numbers = torch.Generator().manual_seed(vocabulary)
    logits_NV = 4 * torch.randn(12, vocabulary, generator=numbers)
    logits_NV[3, 5:] = -torch.inf
    logits_NV[4] = -torch.inf
    logits_NV[4, 7] = 1.0
    logits_NV[5] = 0.25
    ours, theirs = CompiledTopK(), TorchTopK()
    assert torch.allclose(ours.logsumexp(logits_NV), logits_NV.double().logsumexp(-1), rtol=0, atol=2e-6)
    for rows, count in ((1, 1), (1, 16), (3, 6), (4, 8), (12, 24)):
        shift_BR = torch.randn(12 // rows, rows, generator=numbers)
        shift_BR[0, 1:] = -torch.inf  # as all but one hypothesis are at the first step
        logits_BRV = logits_NV.view(-1, rows, vocabulary)
        raised_BX = (logits_BRV + shift_BR[:, :, None]).flatten(1)
        ours_BX, theirs_BX = ours.topk(logits_BRV, shift_BR, count), theirs.topk(logits_BRV, shift_BR, count)
        assert torch.equal(raised_BX.gather(1, ours_BX), raised_BX.gather(1, theirs_BX))
        assert all(len(set(row)) == count for row in ours_BX.tolist())
    assert ours.topk(logits_NV[5:6, None], None, 4).tolist() == [[0, 1, 2, 3]]  # of equals the first


def test_what_kernels_do_not_know_is_packed() -> None:
    for switches in (
        {"pointer": True, "tie_embeddings": "none"},
        {"attention_window": 3},
        {"num_heads": 24},
        {"d_ff": 40},
        {"d_model": 24},
    ):
        model = model_of(**switches)
        assert not supports_compiled(model)
        assert isinstance(ready(model, "int8"), PackedTransformer)
    assert isinstance(ready(model_of(), "float32"), PackedTransformer)
    assert isinstance(ready(model_of(), "int8"), CompiledTransformer)


def test_without_a_numba_that_works_models_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    assert supports_compiled(model)
    assert choose_fastest_precision(model) == "int8"
    with monkeypatch.context() as patch:
        patch.setattr(jit_cache.EntryPoint, "is_cached", lambda entry: False)
        assert supports_compiled(model)
        with monkeypatch.context() as other:  # Numba is told to compile for another processor
            other.setattr("numba.config.CPU_NAME", "generic")
            assert not supports_compiled(model)
        patch.setitem(
            sys.modules, "dragoman.inference.backends.compiled.jit", None
        )  # as where its NumPy is not the one that is here
        assert not supports_compiled(model)
    with monkeypatch.context() as patch:
        patch.setattr(jit_cache.EntryPoint, "is_cached", lambda entry: True)
        patch.setitem(sys.modules, "dragoman.inference.backends.compiled.jit", None)
        assert supports_compiled(model)  # all is there already
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "dragoman.inference.backends.compiled.pack", None)
        assert not supports_compiled(model)
    monkeypatch.setattr("dragoman.inference.backends.compiled.backend.find_spec", lambda name: None)
    assert not supports_compiled(model)
    assert isinstance(ready(model, "int8"), PackedTransformer)


def ready(model: Transformer, precision: Any) -> object:
    return cast(Any, build_inference_model([model], torch.device("cpu"), precision, None).step).__self__


def test_some_words_are_said_as_all_are() -> None:
    model = model_of()
    whole = compile_model(model)
    words_W = torch.tensor([0, 1, 2, 3, 17, 40, 41, 89])
    some = whole.restrict_output(model, words_W)
    source_BS, tokens_N = sources(3, 7), torch.tensor([2, 17, 40])
    all_NV, _ = whole.step(tokens_N, whole.start(source_BS))
    some_NW, _ = some.step(tokens_N, some.start(source_BS))
    assert torch.equal(some_NW, all_NV[:, words_W])


def test_what_is_kept_hangs_on_every_file_that_is_compiled() -> None:
    """And on the tuples that they are given."""
    package = Path(jit_cache.__file__).parent
    sources = {str(path.relative_to(package)): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    marks = ("@kernel\n", "@export(", "@inline_kernel\n", "@intrinsic")
    marked = {name for name, source in sources.items() if any(mark in source for mark in marks)}
    assert marked | {"kernels/structs.py"} == set(jit_cache.KERNEL_SOURCES)


def test_compiling_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(jit_cache, "_get_cache_dir", lambda: tmp_path)
    monkeypatch.setattr("dragoman.inference.backends.compiled.jit.compile_object", lambda module, name: ("symbol", b"code"))
    entry = jit_cache.EntryPoint("transformer", "encode")
    with caplog.at_level("INFO", logger="dragoman"):
        assert entry._compile() == entry._read_cached() == ("symbol", b"code")
    assert caplog.messages == ["compiling the kernel encode for this processor: it takes some seconds, once"]


SUMS = """
import sys
import torch
from dragoman.inference.backends.compiled.topk import CompiledTopK

print(CompiledTopK().logsumexp(torch.arange(20.0).view(2, 10)).tolist())
print("compiled" if "numba" in sys.modules else "kept")
"""


@pytest.mark.slow
def test_what_was_kept_is_used_and_if_it_is_spoilt_or_cannot_be_kept_compiled_anew(tmp_path: Path) -> None:
    def said(cache: Path) -> list[str]:
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        done = subprocess.run([sys.executable, "-c", SUMS], env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.splitlines()

    sums, way = said(tmp_path)
    assert way == "compiled"
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    whole = kept.read_bytes()
    assert said(tmp_path) == [sums, "kept"]
    for spoilt in (b"", b"no digest", whole[:-1], whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:]):
        kept.write_bytes(spoilt)
        assert said(tmp_path) == [sums, "compiled"]
        assert said(tmp_path) == [sums, "kept"]
    a_file = tmp_path / "file"
    a_file.touch()
    assert said(a_file) == [sums, "compiled"]


ASSEMBLED = """
import sys
import llvmlite.binding as llvm

features = llvm.get_host_cpu_features()
llvm.get_host_cpu_features = lambda: features
features |= dict.fromkeys(("amx-tile", "amx-int8"), sys.argv[1] == "tiles")

from dragoman.inference.backends.compiled.jit import compile_object

_, code = compile_object("transformer", "encode")
tilerelease = bytes.fromhex("c4e27849c0")
print(tilerelease in code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("tiles", ["tiles", "vectors"])
def test_every_processor_is_compiled_for_whether_it_has_tiles_or_not(tiles: str) -> None:
    """LLVM ends the process over an instruction that a processor lacks, and virtual machines may hide a processor's AMX."""
    done = subprocess.run([sys.executable, "-c", ASSEMBLED, tiles], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(tiles == "tiles")
