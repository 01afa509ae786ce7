"""Arrays of NumPy or PyTorch, so that one search serves models of both libraries.

Most functions have one name in both libraries, and a search calls them through `xp`, as in `arrays.xp.concat`. Indexing needs
no function. `Arrays` has what the libraries call differently. `dragoman.torch_engine.arrays` has PyTorch's, so that a search of
NumPy arrays imports no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""NumPy array or PyTorch tensor."""
LogSumExpFn = Callable[[Array], Array]
"""logits_NV → log Σ exp over the vocabulary of each row (N,), in double precision."""
Reduction = Literal["add", "minimum", "maximum"]

# For a shorter row, a stable sort of the indices is faster than a sort of integers.
FEW_SORTED_VALUES = 128


class Arrays(Hashable, Protocol):
    """Library of arrays and the device on which it makes them."""

    @property
    def xp(self) -> Any:
        """Library, for functions with one name in both."""
        ...

    @property
    def is_on_cpu(self) -> bool:
        """Return whether a search can read an array without a wait for another processor."""
        ...

    def asarray(self, values: Any, dtype: Any = None) -> Array:
        """Return numbers or a NumPy array as an array on the device."""
        ...

    def arange(self, stop: int) -> Array:
        """Return 0, 1, …, stop - 1 as int64."""
        ...

    def full(self, shape: Sequence[int], value: float, dtype: Any) -> Array: ...

    def cast(self, array: Array, dtype: Any) -> Array:
        """Return the array in this type; the same one if it has the type."""
        ...

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]: ...

    def take(self, array: Array, index: Array, axis: int = -1) -> Array:
        """Return the values at these positions of an axis; the shapes of the other axes are broadcast."""
        ...

    def reduce_at(self, array: Array, index: Array, values: Array, reduction: Reduction) -> None:
        """Combine values with those at these positions of the last axis, in place; a position may occur several times."""
        ...

    def repeat(self, array: Array, count: int) -> Array:
        """Return each row `count` times in a row."""
        ...

    def windows(self, array_NT: Array, size: int) -> Array:
        """Return all runs of `size` adjacent columns. → (N, T - size + 1, size)"""
        ...

    def cumsum(self, array: Array) -> Array:
        """Return the sums of the first values of the last axis, accumulated in double precision."""
        ...

    def topk(self, array_BX: Array, count: int) -> Array:
        """Return the indices of the greatest values of each row, greatest first. → (B, count)"""
        ...

    def log_softmax(self, logits_NV: Array) -> Array: ...

    def logsumexp(self, array: Array, axis: int) -> Array: ...

    def make_logsumexp(self) -> LogSumExpFn:
        """Return the function for the logits of one search; it may keep its workspace between steps."""
        ...


class NumpyArrays:
    """Arrays of NumPy."""

    xp = np
    is_on_cpu = True

    def asarray(self, values: Any, dtype: Any = None) -> Array:
        return np.asarray(values, dtype=dtype)

    def arange(self, stop: int) -> Array:
        return np.arange(stop, dtype=np.int64)

    def full(self, shape: Sequence[int], value: float, dtype: Any) -> Array:
        return np.full(shape, value, dtype=dtype)

    def cast(self, array: Array, dtype: Any) -> Array:
        return array.astype(dtype, copy=False)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def take(self, array: Array, index: Array, axis: int = -1) -> Array:
        if array.ndim == 2 and axis in (1, -1):  # the usual case, faster than NumPy's own function
            return array[np.arange(len(array))[:, None], index]
        return np.take_along_axis(array, index, axis)

    def reduce_at(self, array: Array, index: Array, values: Array, reduction: Reduction) -> None:
        positions = (*np.indices(index.shape, sparse=True)[:-1], index)
        getattr(np, reduction).at(array, positions, values)

    def repeat(self, array: Array, count: int) -> Array:
        return np.repeat(array, count, axis=0)

    def windows(self, array_NT: Array, size: int) -> Array:
        return np.lib.stride_tricks.sliding_window_view(array_NT, size, axis=1)

    def cumsum(self, array: Array) -> Array:
        return array.cumsum(-1, dtype=np.float64).astype(array.dtype, copy=False)

    def topk(self, array_BX: Array, count: int) -> Array:
        """Return the indices as the protocol describes; of equal values, the first comes first."""
        if count == 1:
            return array_BX.argmax(1)[:, None]
        if array_BX.shape[1] <= FEW_SORTED_VALUES or array_BX.dtype != np.float32:
            return (-array_BX).argsort(1, kind="stable")[:, :count]
        # Bits of a float as an integer in the same order, above the index: NumPy sorts integers many times faster than it
        # sorts indices. The sum turns -0.0 into 0.0.
        bits_BX = (array_BX + np.float32(0.0)).view(np.int32)
        keys_BX = ~(bits_BX ^ ((bits_BX >> 31) & 0x7FFFFFFF)).astype(np.int64) << 32
        keys_BX |= np.arange(array_BX.shape[1])
        if count < array_BX.shape[1]:
            keys_BX = np.partition(keys_BX, count - 1, axis=1)[:, :count]
        return np.sort(keys_BX, axis=1) & 0xFFFFFFFF

    def log_softmax(self, logits_NV: Array) -> Array:
        return logits_NV - self.logsumexp(logits_NV, -1)[..., None]

    def logsumexp(self, array: Array, axis: int) -> Array:
        greatest = array.max(axis, keepdims=True)
        shifted = array - np.where(np.isfinite(greatest), greatest, 0.0)  # -inf - -inf is not a number
        with np.errstate(divide="ignore"):  # log 0 = -inf
            result = np.log(np.exp(shifted, out=shifted).sum(axis, dtype=array.dtype))
        return result + np.where(np.isfinite(greatest), greatest, 0.0).squeeze(axis)

    def make_logsumexp(self) -> LogSumExpFn:
        return _logsumexp_rows


# A row of fewer logits is summed in double precision.
SMALL_VOCABULARY = 1024


def _logsumexp_rows(logits_NV: Array) -> Array:
    """Return log Σ exp over the vocabulary of each row. → (N,) in double precision"""
    if logits_NV.shape[1] < SMALL_VOCABULARY:
        return NUMPY.logsumexp(logits_NV.astype(np.float64), -1)
    result_N = np.empty(len(logits_NV), dtype=np.float64)
    for row, logits_V in enumerate(logits_NV):  # row by row, so that temporary arrays stay in the processor's cache
        greatest = logits_V.max()
        result_N[row] = np.float64(greatest) + np.log(np.float64(np.exp(logits_V - greatest).sum()))
    return result_N


NUMPY = NumpyArrays()
