"""Reader of CTranslate2's `model.bin`: variables by name, and other names of the same variables.

All numbers are little-endian. A text is its length with a zero byte at the end (2 bytes), and its bytes. The file holds:

- the version of the format (4 bytes), the name of the specification, its revision (4), and the number of variables (4)
- for each variable: name, number of dimensions (1), dimensions (4 each), type (1), size in bytes (4), values
- the number of aliases (4), and for each its name and that of its variable

A quantized variable has a second one behind its name, `_scale`: its integers are the values times this scale.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.conversion.mapped_arrays import Array, MappedArray, MappedArrays, damaged, view_values
from dragoman.errors import BundleError
from dragoman.io.bfloat16 import BFLOAT16
from dragoman.io.mapped_file import release_mapping

SUPPORTED_VERSIONS = (4, 5, 6)
MAX_DIMENSIONS = 8
INT16_SCALE = 1000.0
"""Scale of the integers of 16 bits in old models, which store none."""
VALUE_TYPES = (*(np.dtype(name) for name in ("<f4", "|i1", "<i2", "<i4", "<f2")), BFLOAT16)
"""Types in the order of their numbers."""


@dataclass(frozen=True)
class BinaryModel:
    """Content of `model.bin`.

    Attributes:
        version: version of the format
        specification: name of the architecture, such as TransformerSpec
        revision: revision of the architecture's names
        arrays: variables by name, aliases included; quantized ones with their scales
        canonical_names: name of the variable behind each name
    """

    version: int
    specification: str
    revision: int
    arrays: MappedArrays
    canonical_names: dict[str, str]


class _Cursor:
    """Position in a mapped file."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self.mapping = mapping
        self.position = 0

    def read_number(self, code: str) -> int:
        """Return a number of a type of the struct module. Raise struct.error at the end of the file."""
        (value,) = struct.unpack_from(f"<{code}", self.mapping, self.position)
        self.position += struct.calcsize(code)
        return int(value)

    def read_text(self) -> str:
        """Return a text. Raise ValueError if it does not end inside of the file."""
        length = self.read_number("H")
        data = self.mapping[self.position : self.position + length]
        self.position += length
        if len(data) < length or not data.endswith(b"\0"):
            raise ValueError("a text without an end")
        return data[:-1].decode()

    def read_values(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Return values without a copy. Raise ValueError if they do not end inside of the file."""
        num_bytes = self.read_number("I")
        if num_bytes != math.prod(shape) * dtype.itemsize or self.position + num_bytes > len(self.mapping):
            raise ValueError("the size of a variable is not that of its shape")
        values = view_values(self.mapping, dtype, shape, self.position)
        self.position += num_bytes
        return values


def read_binary(mapping: mmap.mmap, path: Path) -> BinaryModel:
    """Return the content of `model.bin`.

    Raises:
        DataError: the file is damaged.
        BundleError: the version is unknown.
    """
    cursor = _Cursor(mapping)
    try:
        version = cursor.read_number("I")
        if version not in SUPPORTED_VERSIONS:
            raise BundleError(
                f"{path}: has the version {version}; dragoman reads the versions {', '.join(map(str, SUPPORTED_VERSIONS))} of "
                "CTranslate2's model.bin; convert the original model again with CTranslate2",
                code="conversion-unsupported",
            )
        specification, revision = cursor.read_text(), cursor.read_number("I")
        variables = dict(_read_variable(cursor) for _ in range(cursor.read_number("I")))
        aliases = dict((cursor.read_text(), cursor.read_text()) for _ in range(cursor.read_number("I")))
    except (struct.error, ValueError, LookupError, OverflowError) as error:
        raise damaged(path, f"is no model of CTranslate2, or is cut short ({str(error)[:80]})") from None
    scales = {f"{name}_scale" for name in (*variables, *aliases)}
    arrays = {name: _dequantize(variables[name], name, variables, path) for name in variables if name not in scales}
    canonical_names = {name: name for name in arrays}
    for alias, name in aliases.items():
        if alias in scales:  # the scale of another name, which that name has already
            continue
        if name not in arrays or alias in variables:
            raise damaged(path, f"the alias {alias[:80]!r} has no variable, or is one")
        has_own_scale = f"{alias}_scale" in variables  # equal integers with other scales are other values
        arrays[alias] = _dequantize(variables[name], alias, variables, path) if has_own_scale else arrays[name]
        canonical_names[alias] = alias if has_own_scale else name
    return BinaryModel(
        version, specification, revision, MappedArrays(arrays, partial(release_mapping, mapping), path), canonical_names
    )


def _read_variable(cursor: _Cursor) -> tuple[str, MappedArray]:
    """Return the name and the values of the next variable."""
    name, num_dimensions = cursor.read_text(), cursor.read_number("B")
    if num_dimensions > MAX_DIMENSIONS:
        raise ValueError(f"a variable of {num_dimensions} dimensions")
    shape = tuple(cursor.read_number("I") for _ in range(num_dimensions))
    return name, MappedArray(cursor.read_values(VALUE_TYPES[cursor.read_number("B")], shape))


def _dequantize(array: MappedArray, name: str, variables: dict[str, MappedArray], path: Path) -> MappedArray:
    """Return a variable with the scale of its name, if it has one."""
    scale = variables.get(f"{name}_scale")
    if array.dtype not in (np.int8, np.int16) or not name.endswith("weight"):
        return array
    if scale is None and array.dtype == np.int16:
        return MappedArray(array.values, np.full((), INT16_SCALE, np.float32))
    if scale is None or scale.dtype != np.float32 or scale.shape not in (array.shape[:1], ()):
        raise damaged(path, f"{name} has no scale for each of its rows")
    return MappedArray(array.values, scale.values)
