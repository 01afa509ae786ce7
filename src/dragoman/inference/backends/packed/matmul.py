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

from dragoman.model.linear import multiplies_bfloat16
from dragoman.runtime.malloc import give_freed_memory_back

Precision = Literal["float32", "bfloat16", "int8"]

# Up to so many rows fbgemm's product is the faster, which reads weights at the speed of memory; above it oneDNN's. Of a wide
# product, as the one before the softmax is, up to fewer.
FEW_ROWS = 32
FEW_ROWS_OF_WIDE = 16
WIDE = 8192
# Up to so many weights a product's price is that of starting it, which torch's own is best at while it has no more to multiply
# than FEW_SUMS.
SMALL = 1 << 17
FEW_SUMS = 1 << 20
# Rows for which oneDNN is asked to lay weights out; the layout serves any number but one as well.
USUAL_ROWS = 128
# So many rows at a time are looked at, so that copies in between are small.
ROWS_AT_ONCE = 256
LANES = 16
LEVELS = 127.0
# Nothing smaller is told from zero, so that a row of zeros has a scale as well.
TINY = 1e-30


class Product(Protocol):
    """act(x·Wᵀ + b), the act being a ReLU or nothing."""

    def __call__(self, x_XI: Tensor) -> Tensor:
        """A new tensor (X, O)."""
        ...

    def onto(self, sum_XO: Tensor, x_XI: Tensor) -> Tensor:
        """The residual sum: a new tensor with the product added."""
        ...


@dataclass(frozen=True)
class PlainProduct:
    """PyTorch's own, for processors without oneDNN."""

    weight_OI: Tensor
    bias_O: Tensor | None
    relu: bool

    def __call__(self, x_XI: Tensor) -> Tensor:
        y_XO = F.linear(x_XI.to(self.weight_OI.dtype), self.weight_OI, self.bias_O).float()
        return y_XO.relu_() if self.relu else y_XO

    def onto(self, sum_XO: Tensor, x_XI: Tensor) -> Tensor:
        return self(x_XI).add_(sum_XO)


@dataclass(frozen=True)
class PackedProduct:
    """oneDNN's in float32 or bfloat16, with weights in its own order."""

    weight: Tensor
    bias_O: Tensor | None
    relu: bool

    def __call__(self, x_XI: Tensor) -> Tensor:
        multiply = torch.ops.mkldnn._linear_pointwise.default
        y_XO: Tensor = multiply(x_XI.to(self.weight.dtype), self.weight, self.bias_O, "relu" if self.relu else "none", [], "")
        return y_XO.float()

    def onto(self, sum_XO: Tensor, x_XI: Tensor) -> Tensor:
        return self(x_XI).add_(sum_XO)


@dataclass(frozen=True)
class SmallProduct:
    """With few weights: torch's own product in float32 for few rows, which starts in a fifth of the time, else another."""

    weight_IO: Tensor
    bias_O: Tensor | None
    relu: bool
    most_rows: int
    other: Product

    def __call__(self, x_XI: Tensor) -> Tensor:
        if x_XI.shape[0] > self.most_rows:
            return self.other(x_XI)
        y_XO = torch.mm(x_XI, self.weight_IO) if self.bias_O is None else torch.addmm(self.bias_O, x_XI, self.weight_IO)
        return y_XO.relu_() if self.relu else y_XO

    def onto(self, sum_XO: Tensor, x_XI: Tensor) -> Tensor:
        return self.other.onto(sum_XO, x_XI) if x_XI.shape[0] > self.most_rows else self(x_XI).add_(sum_XO)


class Int8Product:
    """Whole numbers of 8 bits on both sides, a scale for each output and one for each row.

    The weights are put in order when they are needed first: for few rows in fbgemm's order, where one scale is for all of the
    rows; for many in oneDNN's. Who translates one sentence at a time never holds the second.
    """

    def __init__(self, weight: Weight, bias_O: Tensor | None, *, relu: bool, positive: bool) -> None:
        _hear_the_warning()
        self.weight, self.relu, self.positive = weight, relu, positive
        outputs = weight.shape[0]
        self.zero_O = torch.zeros(outputs, dtype=torch.int32)
        self.bias_O = torch.zeros(outputs) if bias_O is None else bias_O
        self.reduce_range = not _adds_bytes_whole()
        self.is_wide = outputs >= WIDE
        self.few_rows = FEW_ROWS_OF_WIDE if self.is_wide else FEW_ROWS
        if self.reduce_range:  # fbgemm can do with a bit less, oneDNN cannot
            self.few_rows = sys.maxsize
        self._lock = Lock()

    @cached_property
    def scale_O(self) -> Tensor:  # noqa: N802
        return self.weight.greatest().div_(LEVELS).clamp_(min=TINY)

    @cached_property
    def few(self) -> Any:
        quantized = _in_steps(self.scale_O, self.weight.shape)
        place_OI = torch.empty(0, dtype=torch.int8)
        place_OI.set_(quantized.untyped_storage(), 0, self.weight.shape)  # type: ignore[call-overload]
        self.weight.whole(self.scale_O, place_OI)
        packed = torch.ops.quantized.linear_prepack.default(quantized, self.bias_O)
        del quantized, place_OI
        self._tidy()
        return packed

    @cached_property
    def many(self) -> Tensor:
        whole_OI = torch.empty(self.weight.shape, dtype=torch.int8)
        self.weight.whole(self.scale_O, whole_OI)
        packed: Tensor = torch.ops.onednn.qlinear_prepack.default(whole_OI, [USUAL_ROWS, whole_OI.shape[1]])
        del whole_OI
        self._tidy()
        return packed

    def _tidy(self) -> None:
        """After the product before the softmax, which is the last to be put in order and the largest."""
        if self.is_wide:
            give_freed_memory_back()

    def __call__(self, x_XI: Tensor) -> Tensor:
        if x_XI.shape[0] <= self.few_rows:
            return self._few(x_XI)
        y_XO, scale_X1 = self._many(x_XI)
        y_XO = torch.addcmul(self.bias_O, y_XO, scale_X1, out=y_XO)
        return y_XO.relu_() if self.relu else y_XO

    def onto(self, sum_XO: Tensor, x_XI: Tensor) -> Tensor:
        if x_XI.shape[0] <= self.few_rows or self.relu:
            return self(x_XI).add_(sum_XO)
        y_XO, scale_X1 = self._many(x_XI)
        return torch.addcmul(sum_XO, y_XO, scale_X1, out=y_XO).add_(self.bias_O)

    def _few(self, x_XI: Tensor) -> Tensor:
        quantized = torch.ops.quantized
        multiply = quantized.linear_relu_dynamic.default if self.relu else quantized.linear_dynamic.default
        with self._lock:  # of several threads one puts in order
            few = self.few
        y_XO: Tensor = multiply(x_XI, few, self.reduce_range)
        return y_XO

    def _many(self, x_XI: Tensor) -> tuple[Tensor, Tensor]:
        """The product without the rows' scales, and the scales."""
        bytes_XI, scale_X1 = _positive_bytes(x_XI) if self.positive else _bytes(x_XI)
        zero = 0 if self.positive else 128
        with self._lock:
            many, scale_O = self.many, self.scale_O
        multiply = torch.ops.onednn.qlinear_pointwise.default
        y_XO: Tensor = multiply(bytes_XI, 1.0, zero, many, scale_O, self.zero_O, None, 1.0, 0, torch.float32, "none", [], "")
        return y_XO, scale_X1


def _in_steps(scale_O: Tensor, shape: torch.Size) -> Tensor:
    """What fbgemm takes its weights from: so many steps of these sizes, not filled in yet."""
    zero_O = torch.zeros(shape[0], dtype=torch.long)
    return torch._empty_per_channel_affine_quantized(
        shape, scales=scale_O.double(), zero_points=zero_O, axis=0, dtype=torch.qint8
    )


@lru_cache(maxsize=1)
def _hear_the_warning() -> None:
    """PyTorch's, that such tensors will go, which it gives once: here, since several threads may make the others."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions", category=UserWarning)
        _in_steps(torch.ones(1), torch.Size((1, 1)))


def _bytes(x_XI: Tensor) -> tuple[Tensor, Tensor]:
    """Each row as 128 plus -127 … 127 steps, and its step. To flip the first bit adds 128."""
    steps_XI = x_XI.abs()
    step_X1 = steps_XI.amax(1, keepdim=True).mul_(1 / LEVELS).clamp_(min=TINY)
    torch.mul(x_XI, step_X1.reciprocal(), out=steps_XI)
    return steps_XI.round_().to(torch.int8).bitwise_xor_(-128).view(torch.uint8), step_X1


def _positive_bytes(x_XI: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of what a ReLU let through as 0 … 255 steps, and its step."""
    step_X1 = x_XI.amax(1, keepdim=True).mul_(1 / (2 * LEVELS + 1)).clamp_(min=TINY)
    steps_XI = torch.mul(x_XI, step_X1.reciprocal()).sub_(LEVELS + 1)
    return steps_XI.round_().to(torch.int8).bitwise_xor_(-128).view(torch.uint8), step_X1


@dataclass(frozen=True)
class Weight:
    """A matrix of weights that can be made again. `forget` is told whenever nobody looks at what was made any more."""

    make: Callable[[], Tensor]
    shape: torch.Size
    forget: Callable[[], None] = lambda: None

    def greatest(self) -> Tensor:
        """The largest of each row, without its sign, and without a copy of their sizes: new memory costs more than sums."""
        return torch.cat([torch.maximum(part_OI.amax(1), part_OI.amin(1).neg_()) for _, part_OI in self.parts()])

    def whole(self, scale_O: Tensor, whole_OI: Tensor) -> None:
        """Put it there in steps of these sizes, as bytes."""
        steps_RI = torch.empty(min(ROWS_AT_ONCE, self.shape[0]), self.shape[1], dtype=torch.float32)
        for rows, part_RI in self.parts():
            whole_OI[rows] = torch.div(part_RI, scale_O[rows, None], out=steps_RI[: len(part_RI)]).round_()

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """So many rows at a time, in float32."""
        weight_OI = self.make()
        for first in range(0, len(weight_OI), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            yield rows, weight_OI[rows].float()
            self.forget()

    def of(self, dtype: torch.dtype) -> Tensor:
        """A copy that is this weight's own."""
        copy_OI = torch.empty(self.shape, dtype=dtype).copy_(self.make())
        self.forget()
        return copy_OI


def pack_product(
    weight: Weight | Tensor, bias_O: Tensor | None, precision: Precision, *, relu: bool = False, positive: bool = False
) -> Product:
    """The product with these weights (O, I), which must stay what they are.

    positive: its inputs are never below zero
    """
    if isinstance(weight, Tensor):
        kept_OI = weight.detach()
        weight = Weight(lambda: kept_OI, kept_OI.shape)
    bias_O = None if bias_O is None else bias_O.detach().float().clone()
    small = weight.shape.numel() <= SMALL
    if precision == "int8" and small and multiplies_bfloat16():
        precision = "bfloat16"  # of so few weights whole numbers save nothing, and to make inputs whole costs more
    product = _packed(weight, bias_O, precision, relu=relu, positive=positive)
    if not small:
        return product
    return SmallProduct(weight.of(torch.float32).t().contiguous(), bias_O, relu, FEW_SUMS // weight.shape.numel(), product)


def _packed(weight: Weight, bias_O: Tensor | None, precision: Precision, *, relu: bool, positive: bool) -> Product:
    if precision == "int8":
        return Int8Product(weight, bias_O, relu=relu, positive=positive)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    weight_OI, bias_O = weight.of(dtype), None if bias_O is None else bias_O.to(dtype)
    if not _has_onednn():
        return PlainProduct(weight_OI, bias_O, relu)
    packed = torch.ops.mkldnn._reorder_linear_weight.default(weight_OI, USUAL_ROWS)
    return PackedProduct(packed, bias_O, relu)


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1)
def _adds_bytes_whole() -> bool:
    """Whether oneDNN sums products of bytes in 32 bits here; where processors lack the instructions, pairs saturate at 16.

    Found out by the largest product that there is, since what oneDNN uses hangs on more than the processor.
    """
    bytes_XI = torch.full((USUAL_ROWS, USUAL_ROWS), 255, dtype=torch.uint8)
    whole_OI = torch.full((LANES, USUAL_ROWS), int(LEVELS), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack.default(whole_OI, [USUAL_ROWS, USUAL_ROWS])
    scale_O, zero_O = torch.ones(LANES), torch.zeros(LANES, dtype=torch.int32)
    multiply = torch.ops.onednn.qlinear_pointwise.default
    y_XO = multiply(bytes_XI, 1.0, 0, packed, scale_O, zero_O, None, 1.0, 0, torch.float32, "none", [], "")
    return bool((y_XO == 255 * LEVELS * USUAL_ROWS).all())


def packs_bfloat16() -> bool:
    """Whether products of bfloat16 are to be had at all, fast or slow."""
    try:
        pack_product(torch.ones(LANES, LANES), None, "bfloat16")(torch.ones(1, LANES))
    except RuntimeError:
        return False
    return True


def multiplies_int8() -> bool:
    """Whether this build of PyTorch has the products that int8 takes."""
    return _has_onednn() and "x86" in torch.backends.quantized.supported_engines
