"""Reader of Marian's binary files: `model*.bin`, and the shortlist `lex*.bin`.

All numbers are little-endian. A model holds its version and the number of items (8 bytes each), and then for all items:

- the length of the name, the type, the number of dimensions and the size of the data (8 bytes each)
- the name, with a zero byte at its end
- the dimensions (4 bytes each)
- after a number of 8 bytes and as many bytes of padding, the data

The data of an int8 matrix are its outputs as rows, and behind them the factor with which it was quantized. A table of tokens
has its tokens as rows. The item `NAME_QuantMultA` is the factor of the inputs that are multiplied by the matrix `NAME`.

A shortlist holds six numbers (8 bytes each), and then the offsets (8 bytes each) and the candidates (4 bytes each) of all
source tokens. The numbers are:

- a magic number and a checksum
- the number of frequent tokens, and the most candidates of a source token
- the number of offsets, and that of candidates
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.conversion.mapped_arrays import Array, MappedArray, MappedArrays, damaged, view_values
from dragoman.errors import BundleError
from dragoman.io.mapped_file import release_mapping

VERSION = 1
HEADER, ITEM = struct.Struct("<2Q"), struct.Struct("<4Q")
MAX_NAME_BYTES, MAX_DIMENSIONS = 2**10, 4
FLOAT32, INT8, CHARACTERS = 0x404, 0x4101, 0x101
"""Types of the items that are read: floats, matrices of intgemm8, and text."""
INPUT_SUFFIX = "_QuantMultA"
TABLE_SUFFIX = "Wemb"
SHORTLIST_MAGIC, SHORTLIST_HEADER = 0xF11A48D5013417F5, struct.Struct("<6Q")
MAX_CANDIDATES = 2**10
"""Most candidates of a source token. Marian's default is 100."""


class Int8Array(MappedArray):
    """Matrix of integers, whose values are the integers times a step.

    step: step of all values
    input_step: step of the inputs that the matrix is multiplied by; None if the file has none
    """

    def __init__(self, values: Array, step: float, input_step: float | None = None) -> None:
        super().__init__(values)
        self.step, self.input_step = step, input_step

    @property
    def transposed(self) -> Int8Array:
        """Return the transposed matrix, which shares the values."""
        return Int8Array(self.values.T, self.step, self.input_step)


@dataclass(frozen=True)
class LexicalTable:
    """Content of a shortlist.

    num_frequent: number of tokens, the first of the vocabulary, that every batch may use
    offset_V: index of each source token's first candidate, and behind them the number of all candidates
    candidates: target tokens of all source tokens
    """

    num_frequent: int
    offset_V: NDArray[np.int64]
    candidates: NDArray[np.int64]


def is_binary(mapping: mmap.mmap) -> bool:
    """Return whether a file begins as a model of Marian does."""
    return mapping[:8] == struct.pack("<Q", VERSION)


def open_binary(mapping: mmap.mmap, path: Path) -> MappedArrays:
    """Return the arrays of a model by name; int8 matrices are `Int8Array`.

    Raises:
        DataError: the file is damaged.
        BundleError: it has an item of another type, such as those of Marian's packed matrices.
    """
    try:
        items = list(iter_items(mapping, path))
    except (struct.error, ValueError, OverflowError) as error:
        raise damaged(path, f"is no binary model of Marian, or is cut short ({str(error)[:80]})") from None
    arrays = dict(items)
    if len(arrays) < len(items):
        raise damaged(path, "has two items of one name")
    factors = {name: arrays.pop(name) for name in list(arrays) if name.endswith(INPUT_SUFFIX)}
    for name, array in arrays.items():
        if isinstance(array, Int8Array) and (factor := factors.get(name + INPUT_SUFFIX)) is not None:
            array.input_step = 1.0 / _read_factor(factor, name, path)
    return MappedArrays(arrays, partial(release_mapping, mapping), path)


def iter_items(mapping: mmap.mmap, path: Path) -> Iterator[tuple[str, MappedArray]]:
    """Yield the name and the values of each item. Raise ValueError or struct.error if the file is cut short."""
    version, num_items = HEADER.unpack_from(mapping)
    position = HEADER.size + num_items * ITEM.size
    if version != VERSION or position > len(mapping):
        raise ValueError(f"the version is {version}" if version != VERSION else f"{num_items} items")
    headers = [ITEM.unpack_from(mapping, HEADER.size + index * ITEM.size) for index in range(num_items)]
    names = []
    for length, *_ in headers:
        text = mapping[position : position + min(length, MAX_NAME_BYTES)]
        if len(text) < length or not text.endswith(b"\0"):
            raise ValueError("a name without an end")
        names.append(text[:-1].decode())
        position += length
    shapes = []
    for _, _, num_dimensions, _ in headers:
        if num_dimensions > MAX_DIMENSIONS:
            raise ValueError(f"an item of {num_dimensions} dimensions")
        shapes.append(struct.unpack_from(f"<{num_dimensions}i", mapping, position))
        position += 4 * num_dimensions
    position += 8 + struct.unpack_from("<Q", mapping, position)[0]
    for name, shape, (_, item_type, _, size) in zip(names, shapes, headers, strict=True):
        if position + size > len(mapping) or min(shape, default=1) < 0:
            raise ValueError(f"the data of {name[:40]!r}")
        yield name, _view_item(mapping, path, name, item_type, shape, position, size)
        position += size


def _view_item(
    mapping: mmap.mmap, path: Path, name: str, item_type: int, shape: tuple[int, ...], start: int, size: int
) -> MappedArray:
    """Return the values of an item. Raise ValueError if its data are too short."""
    count = math.prod(shape)
    if item_type not in (FLOAT32, INT8, CHARACTERS):
        raise BundleError(
            f"{path}: {name[:80]} has the type {item_type:#x}; dragoman reads float32 and intgemm8, so convert the model with "
            "marian-conv -g intgemm8",
            code="conversion-unsupported",
        )
    needed = {FLOAT32: 4 * count, INT8: count + 4, CHARACTERS: count}[item_type]
    if needed > size:
        raise ValueError(f"the data of {name[:40]!r} are shorter than its shape")
    if item_type == FLOAT32:
        return MappedArray(view_values(mapping, "<f4", shape, start))
    if item_type == CHARACTERS:
        return MappedArray(view_values(mapping, "|u1", shape, start))
    if len(shape) != 2:
        raise ValueError(f"{name[:40]!r} is no matrix")
    is_table = name.endswith(TABLE_SUFFIX)
    values = view_values(mapping, "|i1", shape if is_table else shape[::-1], start)
    (factor,) = struct.unpack_from("<f", mapping, start + count)
    if not 0 < factor < math.inf:
        raise ValueError(f"{name[:40]!r} has the factor {factor}")
    return Int8Array(values if is_table else values.T, 1.0 / factor)


def _read_factor(array: MappedArray, name: str, path: Path) -> float:
    """Return the factor of a matrix's inputs, which may be quantized itself."""
    value = array.item()
    factor = 0.0 if value is None else value * array.step if isinstance(array, Int8Array) else float(value)
    if not 0 < factor < math.inf:
        raise damaged(path, f"{name[:80]}{INPUT_SUFFIX} is not a positive number")
    return factor


def read_lexical_table(mapping: mmap.mmap, path: Path) -> LexicalTable:
    """Return the content of a shortlist. Raise DataError if the file is damaged."""
    try:
        magic, _, num_frequent, max_candidates, num_offsets, num_candidates = SHORTLIST_HEADER.unpack_from(mapping)
        offsets_end = SHORTLIST_HEADER.size + 8 * num_offsets
        if magic != SHORTLIST_MAGIC or offsets_end + 4 * num_candidates != len(mapping):
            raise ValueError("another magic number" if magic != SHORTLIST_MAGIC else "another size")
        offset_V = np.frombuffer(mapping, "<u8", num_offsets, SHORTLIST_HEADER.size)
        candidates = np.frombuffer(mapping, "<u4", num_candidates, offsets_end)
        ends = offset_V[[0, -1]].tolist() if num_offsets else []
        if ends != [0, num_candidates] or (offset_V[1:] < offset_V[:-1]).any():
            raise ValueError("offsets that do not rise from 0 to the number of candidates")
        if int(np.diff(offset_V).max(initial=0)) > min(max_candidates, MAX_CANDIDATES):
            raise ValueError("more candidates of a token than it says")
    except (struct.error, ValueError) as error:
        raise damaged(path, f"is no binary shortlist of Marian, or is cut short ({error})") from None
    return LexicalTable(num_frequent, offset_V.astype(np.int64), candidates.astype(np.int64))
