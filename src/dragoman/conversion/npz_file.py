"""Arrays of a numpy archive (`.npz`), mapped into memory. Entries must be stored without compression, as Marian writes them."""

from __future__ import annotations

import math
import re
import struct
from functools import partial
from pathlib import Path

import numpy as np

from dragoman.conversion.mapped_arrays import MappedArray, MappedArrays, damaged, map_file, view_values
from dragoman.conversion.zip_archive import ZipArchive
from dragoman.io.mapped_file import release_mapping

NPY_MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES, MAX_DIMENSIONS = 2**16, 8
HEADER = re.compile(
    r"\s*\{\s*'descr':\s*'([<|=][\w]{2,3})',\s*'fortran_order':\s*(True|False),\s*'shape':\s*\(([\d,\sL]*)\),?\s*\}\s*",
    re.ASCII,
)
"""Header of an array: a dictionary as Python writes it, with the keys in the order of numpy."""
VALUE_TYPES = ("f4", "f8", "f2", "i1", "u1", "i4", "i8")
"""Types of the arrays in the header. Marian's packed matrices have others."""


def open_npz(path: Path) -> MappedArrays:
    """Return the arrays of a file by name.

    Raises:
        DataError: the file is damaged or compressed, or has an array of another type.
    """
    archive = ZipArchive(path, map_file(path))
    arrays = {}
    for entry in archive.entries:
        start, size = archive.find_stored(entry)
        try:
            arrays[entry.removesuffix(".npy")] = _read_array(archive, start, size)
        except (struct.error, ValueError, LookupError, OverflowError) as error:
            raise damaged(path, f"the array {entry[:80]!r} is damaged, or of an unknown type ({str(error)[:60]})") from None
    return MappedArrays(arrays, partial(release_mapping, archive.mapping), path)


def _read_array(archive: ZipArchive, start: int, size: int) -> MappedArray:
    """Return the array of an entry. Raise ValueError if its header is not that of an array of this size."""
    mapping, end = archive.mapping, start + size
    major = mapping[start + 6 : start + 7]
    if mapping[start : start + 6] != NPY_MAGIC or major not in (b"\1", b"\2", b"\3"):
        raise ValueError("no array")
    length_code = "<H" if major == b"\1" else "<L"
    (length,) = struct.unpack_from(length_code, mapping, start + 8)
    values_start = start + 8 + struct.calcsize(length_code) + length
    if length > MAX_HEADER_BYTES or values_start > end:
        raise ValueError("a long header")
    header = HEADER.fullmatch(mapping[values_start - length : values_start].decode("latin-1"))
    if header is None:
        raise ValueError("an unknown header")
    if header[1][1:] not in VALUE_TYPES:
        raise ValueError(header[1])
    dtype = np.dtype(f"<{header[1][1:]}")
    shape = tuple(int(part.strip().rstrip("L")) for part in header[3].split(",") if part.strip())
    if len(shape) > MAX_DIMENSIONS or (header[2] == "True" and sum(width > 1 for width in shape) > 1):
        raise ValueError("an order of the values that Marian does not write")
    if values_start + math.prod(shape) * dtype.itemsize != end:
        raise ValueError("not the size of its shape")
    return MappedArray(view_values(mapping, dtype, shape, values_start))
