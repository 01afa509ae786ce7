"""A picture of bytes as PNG: lossless, so that a script can read the very numbers back that the eye sees."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BITS, _BY_PALETTE = 8, 3
# The largest, 9, takes ten times as long and saves one byte in a hundred.
_EFFORT = 6

Colour = tuple[int, int, int]


def shades(empty: Colour, full: Colour) -> list[Colour]:
    """256 colours from that of 0 to that of 255."""
    return [
        (_between(empty[0], full[0], level), _between(empty[1], full[1], level), _between(empty[2], full[2], level))
        for level in range(256)
    ]


def _between(start: int, end: int, level: int) -> int:
    return start + round((end - start) * level / 255)


def palette_png(rows: Sequence[bytes], palette: Sequence[Colour]) -> bytes:
    """Rows of equal length, one byte a pixel, that name colours of the palette. No row is filtered, and none interlaced."""
    width = len(rows[0])
    assert all(len(row) == width for row in rows)
    header = struct.pack(">IIBBBBB", width, len(rows), _EIGHT_BITS, _BY_PALETTE, 0, 0, 0)
    colours = b"".join(bytes(colour) for colour in palette)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), _EFFORT)
    chunks = [(b"IHDR", header), (b"PLTE", colours), (b"IDAT", pixels), (b"IEND", b"")]
    return _SIGNATURE + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_address(png: bytes) -> str:
    """For the `src` of an image that stands in the page itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
