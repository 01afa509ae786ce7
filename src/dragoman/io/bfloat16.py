"""Numbers of bfloat16 in NumPy, which has no such type: words of 16 bits, the upper half of a float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""Type of arrays of bfloat16. They are copied, sliced and stored like others; `widen` makes numbers of them."""
NAN_WORD = 0x7FC0


def widen(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of 16 bits as float32; other arrays are returned as they are."""
    if array.dtype == BFLOAT16:
        return (array["bfloat16"].astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def cast(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return numbers in another type, which may be `BFLOAT16`. They are rounded to the nearest, ties to even."""
    if dtype != BFLOAT16:
        return array.astype(dtype, copy=False)
    values = np.asarray(array, dtype=np.float32, order="C")
    bits = values.view(np.uint32)
    words = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(NAN_WORD), words).view(BFLOAT16)
