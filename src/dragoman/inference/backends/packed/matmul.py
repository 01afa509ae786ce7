"""Matrix products with constant weights, which are packed once for the processor in a format that it multiplies fast.

A product takes and returns rows of float32 in every format.

    X rows    I inputs    O outputs
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from threading import Lock
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.packed.lazy_weight import INT8_MAX, MIN_SCALE, LazyWeight
from dragoman.inference.backends.protocol import Precision
from dragoman.runtime.cpu_support import has_bf16_matmul, has_int32_accumulation, has_onednn
from dragoman.runtime.malloc import trim_malloc
from dragoman.runtime.shared_weights import allocate_shareable, share_memory

# Up to this many rows, fbgemm's product is faster, which reads weights at the speed of memory; beyond it, oneDNN's is faster.
SMALL_BATCH_ROWS = 32
# The same limit for a wide product, such as the one before the softmax.
WIDE_SMALL_BATCH_ROWS = 16
WIDE_OUTPUTS = 8192
# Up to this many weights, the start of a product costs most of its time. PyTorch's own product starts fastest.
SMALL_WEIGHT_COUNT = 1 << 17
# Multiplications up to which PyTorch's own product with few weights is the fastest.
SMALL_MATMUL_MACS = 1 << 20
# Rows for which oneDNN lays weights out; the layout serves any number of rows but one as well.
PREPACK_ROWS = 128


class PackedMatMul(Protocol):
    """act(x·Wᵀ + b), where act is a ReLU or the identity."""

    def __call__(self, x_XI: Tensor) -> Tensor:
        """Return the product as a new tensor (X, O)."""
        ...

    def add_to(self, residual_XO: Tensor, x_XI: Tensor) -> Tensor:
        """Return the residual plus the product as a new tensor (X, O)."""
        ...


@dataclass(frozen=True)
class TorchMatMul:
    """PyTorch's own product, for builds without oneDNN."""

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
    """oneDNN's product in float32 or bfloat16, with weights in oneDNN's own layout."""

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
    """Product with few weights: PyTorch's own in float32 for few rows, which starts in a fifth of the time, else a fallback.

    max_rows: rows up to which PyTorch's own product computes
    """

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
    """Product of int8 weights, with a scale for each output, and 8-bit inputs.

    Few rows go to fbgemm, which quantizes all of them with one scale. Many rows have a scale each and go to oneDNN.
    Each layout is made when a product first needs it, so translating one sentence at a time never holds the second layout.

    Without VNNI, oneDNN's sums would saturate. Then many rows go to fbgemm too, divided by their own scales first, and
    inputs have 7 bits.
    """

    def __init__(self, weight: LazyWeight, bias_O: Tensor | None, *, relu: bool, nonnegative_input: bool) -> None:
        _silence_quantized_warning()
        self.weight, self.relu, self.nonnegative_input = weight, relu, nonnegative_input
        num_outputs = weight.shape[0]
        self.zero_points_O = torch.zeros(num_outputs, dtype=torch.int32)
        self.bias_O = torch.zeros(num_outputs) if bias_O is None else bias_O
        self.reduce_range = not has_int32_accumulation()
        self.is_wide = num_outputs >= WIDE_OUTPUTS
        self.max_small_batch_rows = WIDE_SMALL_BATCH_ROWS if self.is_wide else SMALL_BATCH_ROWS
        self._lock = Lock()

    @cached_property
    def scale_O(self) -> Tensor:  # noqa: N802
        return self.weight.compute_max_abs().div_(INT8_MAX).clamp_(min=MIN_SCALE)

    @cached_property
    def fbgemm_weight(self) -> Any:
        """Weights in fbgemm's layout, with the bias unless rows have scales of their own."""
        quantized = _empty_per_channel_quantized(self.scale_O, self.weight.shape)
        int8_OI = torch.empty(0, dtype=torch.int8)
        int8_OI.set_(quantized.untyped_storage(), 0, self.weight.shape)  # type: ignore[call-overload]
        self.weight.quantize_into(self.scale_O, int8_OI)
        packed = torch.ops.quantized.linear_prepack.default(quantized, None if self.reduce_range else self.bias_O)
        del quantized, int8_OI
        self._trim_memory()
        return packed

    @cached_property
    def onednn_weight(self) -> Tensor:
        """Weights in oneDNN's layout."""
        int8_OI = torch.empty(self.weight.shape, dtype=torch.int8)
        self.weight.quantize_into(self.scale_O, int8_OI)
        packed = pack_shareable(partial(torch.ops.onednn.qlinear_prepack.default, int8_OI, [PREPACK_ROWS, int8_OI.shape[1]]))
        del int8_OI
        self._trim_memory()
        return packed

    def _trim_memory(self) -> None:
        """Release free memory after the widest product, which is the last one to be packed."""
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
        if self.reduce_range:
            y_XO = self._multiply_by_fbgemm(x_XI, relu=False).add_(self.bias_O)
            return y_XO.relu_() if self.relu else y_XO
        return self._multiply_by_fbgemm(x_XI, relu=self.relu)

    def _multiply_by_fbgemm(self, x_XI: Tensor, *, relu: bool) -> Tensor:
        quantized = torch.ops.quantized
        multiply = quantized.linear_relu_dynamic.default if relu else quantized.linear_dynamic.default
        with self._lock:  # only one of several threads packs the weights
            weight = self.fbgemm_weight
        y_XO: Tensor = multiply(x_XI, weight, self.reduce_range)
        return y_XO

    def _multiply_large_batch(self, x_XI: Tensor) -> tuple[Tensor, Tensor]:
        """Return the product (X, O) without the rows' scales and the bias, and the scales (X, 1)."""
        if self.reduce_range:
            scaled_XI, scale_X1 = _scale_rows(x_XI, nonnegative=self.nonnegative_input)
            return self._multiply_by_fbgemm(scaled_XI, relu=False)[: x_XI.shape[0]], scale_X1
        uint8_XI, scale_X1 = _quantize_nonnegative_rows(x_XI) if self.nonnegative_input else _quantize_rows(x_XI)
        zero_point = 0 if self.nonnegative_input else 128
        with self._lock:
            weight, scale_O = self.onednn_weight, self.scale_O
        multiply = torch.ops.onednn.qlinear_pointwise.default
        y_XO: Tensor = multiply(
            uint8_XI, 1.0, zero_point, weight, scale_O, self.zero_points_O, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return y_XO, scale_X1


def _empty_per_channel_quantized(scale_O: Tensor, shape: torch.Size) -> Tensor:
    """Return an uninitialized quantized tensor with these scales, which fbgemm packs."""
    zero_points_O = torch.zeros(shape[0], dtype=torch.long)
    return torch._empty_per_channel_affine_quantized(
        shape, scales=scale_O.double(), zero_points=zero_points_O, axis=0, dtype=torch.qint8
    )


@lru_cache(maxsize=1)
def _silence_quantized_warning() -> None:
    """Trigger PyTorch's only deprecation warning about quantized tensors and ignore it.

    Later tensors raise no warning, so threads that make them need no filter.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions", category=UserWarning)
        _empty_per_channel_quantized(torch.ones(1), torch.Size((1, 1)))


def _quantize_rows(x_XI: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row as 128 plus -127 … 127 steps, and the rows' steps (X, 1)."""
    scaled_XI = x_XI.abs()
    scale_X1 = scaled_XI.amax(1, keepdim=True).mul_(1 / INT8_MAX).clamp_(min=MIN_SCALE)
    torch.mul(x_XI, scale_X1.reciprocal(), out=scaled_XI)
    return scaled_XI.round_().to(torch.int8).bitwise_xor_(-128).view(torch.uint8), scale_X1  # the flipped bit adds 128


def _quantize_nonnegative_rows(x_XI: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row of a ReLU's output as 0 … 255 steps, and the rows' steps (X, 1)."""
    scale_X1 = x_XI.amax(1, keepdim=True).mul_(1 / (2 * INT8_MAX + 1)).clamp_(min=MIN_SCALE)
    scaled_XI = torch.mul(x_XI, scale_X1.reciprocal()).sub_(INT8_MAX + 1)
    return scaled_XI.round_().to(torch.int8).bitwise_xor_(-128).view(torch.uint8), scale_X1


def _scale_rows(x_XI: Tensor, *, nonnegative: bool) -> tuple[Tensor, Tensor]:
    """Return the rows divided by their largest magnitudes, with two rows more, and these magnitudes (X, 1).

    The two rows hold 1 and -1 (or 0), so that fbgemm's scale for all rows never depends on the rows.
    """
    num_rows = x_XI.shape[0]
    scale_X1 = x_XI.abs().amax(1, keepdim=True).clamp_(min=MIN_SCALE)
    scaled_XI = x_XI.new_zeros(num_rows + 2, x_XI.shape[1])
    torch.mul(x_XI, scale_X1.reciprocal(), out=scaled_XI[:num_rows])
    scaled_XI[num_rows, 0] = 1.0
    scaled_XI[num_rows + 1, 0] = 0.0 if nonnegative else -1.0
    return scaled_XI, scale_X1


def pack_matmul(
    weight: LazyWeight | Tensor,
    bias_O: Tensor | None,
    precision: Precision,
    *,
    relu: bool = False,
    nonnegative_input: bool = False,
) -> PackedMatMul:
    """Return the product with these weights (O, I), which must not change afterwards.

    relu: the product ends with a ReLU
    nonnegative_input: its inputs are never below zero
    """
    if isinstance(weight, Tensor):
        weight = LazyWeight.from_tensor(weight)
    bias_O = None if bias_O is None else bias_O.detach().float().clone()
    is_small = weight.shape.numel() <= SMALL_WEIGHT_COUNT
    if precision == "int8" and is_small and has_bf16_matmul():
        precision = "bfloat16"  # few weights save nothing as int8, and quantizing inputs costs more
    matmul: PackedMatMul = (
        Int8MatMul(weight, bias_O, relu=relu, nonnegative_input=nonnegative_input)
        if precision == "int8"
        else _build_float_matmul(weight, bias_O, precision, relu=relu)
    )
    if not is_small:
        return matmul
    return SmallMatMul(
        weight.to_dtype(torch.float32).t().contiguous(), bias_O, relu, SMALL_MATMUL_MACS // weight.shape.numel(), matmul
    )


def pack_shareable(pack: Callable[[], Tensor]) -> Tensor:
    """Return a weight in oneDNN's layout, whose memory this process shares with others if it shares any.

    pack: packs the weight, at another address if it is called again
    """
    packed = allocate_shareable(pack, _get_address)
    if packed.layout is torch._mkldnn:  # type: ignore[attr-defined]
        share_memory(_get_address(packed), torch.ops.mkldnn._nbytes(packed))
    return packed


def _get_address(packed: Tensor) -> int:
    is_opaque = packed.layout is torch._mkldnn  # type: ignore[attr-defined]
    return int(torch.ops.mkldnn.data_ptr(packed)) if is_opaque else packed.data_ptr()


def _build_float_matmul(weight: LazyWeight, bias_O: Tensor | None, precision: Precision, *, relu: bool) -> PackedMatMul:
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    weight_OI, bias_O = weight.to_dtype(dtype), None if bias_O is None else bias_O.to(dtype)
    if not has_onednn():
        return TorchMatMul(weight_OI, bias_O, relu)
    packed = pack_shareable(partial(torch.ops.mkldnn._reorder_linear_weight.default, weight_OI, PREPACK_ROWS))
    return OneDnnMatMul(packed, bias_O, relu)
