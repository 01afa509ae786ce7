"""Products with weights that never change: put in order for the processor once, and in numbers that it multiplies fast.

A product takes rows of float32 and gives rows of float32, whatever it computes with in between.

    X rows    I inputs    O outputs
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.linear import has_bf16_matmul
from dragoman.runtime.malloc import trim_malloc

Precision = Literal["float32", "bfloat16", "int8"]

# Up to so many rows fbgemm's product is the faster, which reads weights at the speed of memory; above it oneDNN's. Of a wide
# product, as the one before the softmax is, up to fewer.
SMALL_BATCH_ROWS = 32
WIDE_SMALL_BATCH_ROWS = 16
WIDE_OUTPUTS = 8192
# Up to so many weights a product's price is that of starting it, which torch's own is best at while it has no more to multiply
# than FEW_SUMS.
SMALL_WEIGHT_COUNT = 1 << 17
SMALL_MATMUL_MACS = 1 << 20
# Rows for which oneDNN is asked to lay weights out; the layout serves any number but one as well.
PREPACK_ROWS = 128
# So many rows at a time are looked at, so that copies in between are small.
QUANTIZE_BLOCK_ROWS = 256
LANES = 16
INT8_MAX = 127.0
# Nothing smaller is told from zero, so that a row of zeros has a scale as well.
MIN_SCALE = 1e-30


class PackedMatMul(Protocol):
    """act(x·Wᵀ + b), the act being a ReLU or nothing."""

    def __call__(self, x_XI: Tensor) -> Tensor:
        """A new tensor (X, O)."""
        ...

    def add_to(self, residual_XO: Tensor, x_XI: Tensor) -> Tensor:
        """The residual sum: a new tensor with the product added."""
        ...


@dataclass(frozen=True)
class TorchMatMul:
    """PyTorch's own, for processors without oneDNN."""

    weight_OI: Tensor
    bias_O: Tensor | None
    relu: bool

    def __call__(self, x_XI: Tensor) -> Tensor:
        y_XO = F.linear(x_XI.to(self.weight_OI.dtype), self.weight_OI, self.bias_O).float()
        return y_XO.relu_() if self.relu else y_XO

    def add_to(self, residual_XO: Tensor, x_XI: Tensor) -> Tensor:
        return self(x_XI).add_(residual_XO)


@dataclass(frozen=True)
class OneDnnMatMul:
    """oneDNN's in float32 or bfloat16, with weights in its own order."""

    weight: Tensor
    bias_O: Tensor | None
    relu: bool

    def __call__(self, x_XI: Tensor) -> Tensor:
        multiply = torch.ops.mkldnn._linear_pointwise.default
        y_XO: Tensor = multiply(x_XI.to(self.weight.dtype), self.weight, self.bias_O, "relu" if self.relu else "none", [], "")
        return y_XO.float()

    def add_to(self, residual_XO: Tensor, x_XI: Tensor) -> Tensor:
        return self(x_XI).add_(residual_XO)


@dataclass(frozen=True)
class SmallMatMul:
    """With few weights: torch's own product in float32 for few rows, which starts in a fifth of the time, else another."""

    weight_IO: Tensor
    bias_O: Tensor | None
    relu: bool
    max_rows: int
    fallback: PackedMatMul

    def __call__(self, x_XI: Tensor) -> Tensor:
        if x_XI.shape[0] > self.max_rows:
            return self.fallback(x_XI)
        y_XO = torch.mm(x_XI, self.weight_IO) if self.bias_O is None else torch.addmm(self.bias_O, x_XI, self.weight_IO)
        return y_XO.relu_() if self.relu else y_XO

    def add_to(self, residual_XO: Tensor, x_XI: Tensor) -> Tensor:
        return self.fallback.add_to(residual_XO, x_XI) if x_XI.shape[0] > self.max_rows else self(x_XI).add_(residual_XO)


class Int8MatMul:
    """Whole numbers of 8 bits on both sides, a scale for each output and one for each row.

    The weights are put in order when they are needed first: for few rows in fbgemm's order, where one scale is for all of the
    rows; for many in oneDNN's. Who translates one sentence at a time never holds the second.
    """

    def __init__(self, weight: LazyWeight, bias_O: Tensor | None, *, relu: bool, nonnegative_input: bool) -> None:
        _silence_quantized_warning()
        self.weight, self.relu, self.nonnegative_input = weight, relu, nonnegative_input
        num_outputs = weight.shape[0]
        self.zero_points_O = torch.zeros(num_outputs, dtype=torch.int32)
        self.bias_O = torch.zeros(num_outputs) if bias_O is None else bias_O
        self.reduce_range = not _has_int32_accumulation()
        self.is_wide = num_outputs >= WIDE_OUTPUTS
        self.max_small_batch_rows = WIDE_SMALL_BATCH_ROWS if self.is_wide else SMALL_BATCH_ROWS
        if self.reduce_range:  # fbgemm can do with a bit less, oneDNN cannot
            self.max_small_batch_rows = sys.maxsize
        self._lock = Lock()

    @cached_property
    def scale_O(self) -> Tensor:  # noqa: N802
        return self.weight.compute_max_abs().div_(INT8_MAX).clamp_(min=MIN_SCALE)

    @cached_property
    def small_batch_weight(self) -> Any:
        quantized = _empty_per_channel_quantized(self.scale_O, self.weight.shape)
        int8_OI = torch.empty(0, dtype=torch.int8)
        int8_OI.set_(quantized.untyped_storage(), 0, self.weight.shape)  # type: ignore[call-overload]
        self.weight.quantize_into(self.scale_O, int8_OI)
        packed = torch.ops.quantized.linear_prepack.default(quantized, self.bias_O)
        del quantized, int8_OI
        self._trim_memory()
        return packed

    @cached_property
    def large_batch_weight(self) -> Tensor:
        int8_OI = torch.empty(self.weight.shape, dtype=torch.int8)
        self.weight.quantize_into(self.scale_O, int8_OI)
        packed: Tensor = torch.ops.onednn.qlinear_prepack.default(int8_OI, [PREPACK_ROWS, int8_OI.shape[1]])
        del int8_OI
        self._trim_memory()
        return packed

    def _trim_memory(self) -> None:
        """After the product before the softmax, which is the last to be put in order and the largest."""
        if self.is_wide:
            trim_malloc()

    def __call__(self, x_XI: Tensor) -> Tensor:
        if x_XI.shape[0] <= self.max_small_batch_rows:
            return self._multiply_small_batch(x_XI)
        y_XO, scale_X1 = self._multiply_large_batch(x_XI)
        y_XO = torch.addcmul(self.bias_O, y_XO, scale_X1, out=y_XO)
        return y_XO.relu_() if self.relu else y_XO

    def add_to(self, residual_XO: Tensor, x_XI: Tensor) -> Tensor:
        if x_XI.shape[0] <= self.max_small_batch_rows or self.relu:
            return self(x_XI).add_(residual_XO)
        y_XO, scale_X1 = self._multiply_large_batch(x_XI)
        return torch.addcmul(residual_XO, y_XO, scale_X1, out=y_XO).add_(self.bias_O)

    def _multiply_small_batch(self, x_XI: Tensor) -> Tensor:
        quantized = torch.ops.quantized
        multiply = quantized.linear_relu_dynamic.default if self.relu else quantized.linear_dynamic.default
        with self._lock:  # of several threads one puts in order
            weight = self.small_batch_weight
        y_XO: Tensor = multiply(x_XI, weight, self.reduce_range)
        return y_XO

    def _multiply_large_batch(self, x_XI: Tensor) -> tuple[Tensor, Tensor]:
        """The product without the rows' scales, and the scales."""
        uint8_XI, scale_X1 = _quantize_nonnegative_rows(x_XI) if self.nonnegative_input else _quantize_rows(x_XI)
        zero_point = 0 if self.nonnegative_input else 128
        with self._lock:
            weight, scale_O = self.large_batch_weight, self.scale_O
        multiply = torch.ops.onednn.qlinear_pointwise.default
        y_XO: Tensor = multiply(
            uint8_XI, 1.0, zero_point, weight, scale_O, self.zero_points_O, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return y_XO, scale_X1


def _empty_per_channel_quantized(scale_O: Tensor, shape: torch.Size) -> Tensor:
    """What fbgemm takes its weights from: so many steps of these sizes, not filled in yet."""
    zero_points_O = torch.zeros(shape[0], dtype=torch.long)
    return torch._empty_per_channel_affine_quantized(
        shape, scales=scale_O.double(), zero_points=zero_points_O, axis=0, dtype=torch.qint8
    )


@lru_cache(maxsize=1)
def _silence_quantized_warning() -> None:
    """PyTorch's, that such tensors will go, which it gives once: here, since several threads may make the others."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions", category=UserWarning)
        _empty_per_channel_quantized(torch.ones(1), torch.Size((1, 1)))


def _quantize_rows(x_XI: Tensor) -> tuple[Tensor, Tensor]:
    """Each row as 128 plus -127 … 127 steps, and its step. To flip the first bit adds 128."""
    scaled_XI = x_XI.abs()
    scale_X1 = scaled_XI.amax(1, keepdim=True).mul_(1 / INT8_MAX).clamp_(min=MIN_SCALE)
    torch.mul(x_XI, scale_X1.reciprocal(), out=scaled_XI)
    return scaled_XI.round_().to(torch.int8).bitwise_xor_(-128).view(torch.uint8), scale_X1


def _quantize_nonnegative_rows(x_XI: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of what a ReLU let through as 0 … 255 steps, and its step."""
    scale_X1 = x_XI.amax(1, keepdim=True).mul_(1 / (2 * INT8_MAX + 1)).clamp_(min=MIN_SCALE)
    scaled_XI = torch.mul(x_XI, scale_X1.reciprocal()).sub_(INT8_MAX + 1)
    return scaled_XI.round_().to(torch.int8).bitwise_xor_(-128).view(torch.uint8), scale_X1


@dataclass(frozen=True)
class LazyWeight:
    """A matrix of weights that can be made again. `forget` is told whenever nobody looks at what was made any more."""

    load: Callable[[], Tensor]
    shape: torch.Size
    release: Callable[[], None] = lambda: None

    def compute_max_abs(self) -> Tensor:
        """The largest of each row, without its sign, and without a copy of their sizes: new memory costs more than sums."""
        return torch.cat([torch.maximum(block_OI.amax(1), block_OI.amin(1).neg_()) for _, block_OI in self.iter_blocks()])

    def quantize_into(self, scale_O: Tensor, int8_OI: Tensor) -> None:
        """Put it there in steps of these sizes, as bytes."""
        scaled_RI = torch.empty(min(QUANTIZE_BLOCK_ROWS, self.shape[0]), self.shape[1], dtype=torch.float32)
        for rows, block_RI in self.iter_blocks():
            int8_OI[rows] = torch.div(block_RI, scale_O[rows, None], out=scaled_RI[: len(block_RI)]).round_()

    def iter_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """So many rows at a time, in float32."""
        weight_OI = self.load()
        for start in range(0, len(weight_OI), QUANTIZE_BLOCK_ROWS):
            rows = slice(start, start + QUANTIZE_BLOCK_ROWS)
            yield rows, weight_OI[rows].float()
            self.release()

    def to_dtype(self, dtype: torch.dtype) -> Tensor:
        """A copy that is this weight's own."""
        copy_OI = torch.empty(self.shape, dtype=dtype).copy_(self.load())
        self.release()
        return copy_OI


def pack_matmul(
    weight: LazyWeight | Tensor,
    bias_O: Tensor | None,
    precision: Precision,
    *,
    relu: bool = False,
    nonnegative_input: bool = False,
) -> PackedMatMul:
    """The product with these weights (O, I), which must stay what they are.

    positive: its inputs are never below zero
    """
    if isinstance(weight, Tensor):
        weight_OI = weight.detach()
        weight = LazyWeight(lambda: weight_OI, weight_OI.shape)
    bias_O = None if bias_O is None else bias_O.detach().float().clone()
    is_small = weight.shape.numel() <= SMALL_WEIGHT_COUNT
    if precision == "int8" and is_small and has_bf16_matmul():
        precision = "bfloat16"  # of so few weights whole numbers save nothing, and to make inputs whole costs more
    matmul = _build_matmul(weight, bias_O, precision, relu=relu, nonnegative_input=nonnegative_input)
    if not is_small:
        return matmul
    return SmallMatMul(
        weight.to_dtype(torch.float32).t().contiguous(), bias_O, relu, SMALL_MATMUL_MACS // weight.shape.numel(), matmul
    )


def _build_matmul(
    weight: LazyWeight, bias_O: Tensor | None, precision: Precision, *, relu: bool, nonnegative_input: bool
) -> PackedMatMul:
    if precision == "int8":
        return Int8MatMul(weight, bias_O, relu=relu, nonnegative_input=nonnegative_input)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    weight_OI, bias_O = weight.to_dtype(dtype), None if bias_O is None else bias_O.to(dtype)
    if not _has_onednn():
        return TorchMatMul(weight_OI, bias_O, relu)
    packed = torch.ops.mkldnn._reorder_linear_weight.default(weight_OI, PREPACK_ROWS)
    return OneDnnMatMul(packed, bias_O, relu)


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1)
def _has_int32_accumulation() -> bool:
    """Whether oneDNN sums products of bytes in 32 bits here; where processors lack the instructions, pairs saturate at 16.

    Found out by the largest product that there is, since what oneDNN uses hangs on more than the processor.
    """
    uint8_XI = torch.full((PREPACK_ROWS, PREPACK_ROWS), 255, dtype=torch.uint8)
    int8_OI = torch.full((LANES, PREPACK_ROWS), int(INT8_MAX), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack.default(int8_OI, [PREPACK_ROWS, PREPACK_ROWS])
    scale_O, zero_points_O = torch.ones(LANES), torch.zeros(LANES, dtype=torch.int32)
    multiply = torch.ops.onednn.qlinear_pointwise.default
    y_XO = multiply(uint8_XI, 1.0, 0, packed, scale_O, zero_points_O, None, 1.0, 0, torch.float32, "none", [], "")
    return bool((y_XO == 255 * INT8_MAX * PREPACK_ROWS).all())


def has_packed_bf16_matmul() -> bool:
    """Whether products of bfloat16 are to be had at all, fast or slow."""
    try:
        pack_matmul(torch.ones(LANES, LANES), None, "bfloat16")(torch.ones(1, LANES))
    except RuntimeError:
        return False
    return True


def has_int8_matmul() -> bool:
    """Whether this build of PyTorch has the products that int8 takes."""
    return _has_onednn() and "x86" in torch.backends.quantized.supported_engines
