"""PNG files of bytes. They are lossless, so that a script can read the numbers back."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_BIT_DEPTH, _COLOR_TYPE_PALETTE = 8, 3
# Level 9 takes ten times as long and saves one percent.
_COMPRESSION_LEVEL = 6

Color = tuple[int, int, int]


def interpolate_colors(low_color: Color, high_color: Color) -> list[Color]:
    """Return 256 colors from `low_color` to `high_color`."""
    channels = list(zip(low_color, high_color, strict=True))
    red, green, blue = ([low + round((high - low) * level / 255) for level in range(256)] for low, high in channels)
    return list(zip(red, green, blue, strict=True))


def encode_palette_png(rows: Sequence[bytes], palette: Sequence[Color]) -> bytes:
    """Return a PNG of rows of equal length, one palette index a byte, without filters and interlacing."""
    width = len(rows[0])
    assert all(len(row) == width for row in rows)
    header = struct.pack(">IIBBBBB", width, len(rows), _BIT_DEPTH, _COLOR_TYPE_PALETTE, 0, 0, 0)
    palette_bytes = b"".join(bytes(color) for color in palette)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), _COMPRESSION_LEVEL)
    chunks = [(b"IHDR", header), (b"PLTE", palette_bytes), (b"IDAT", pixels), (b"IEND", b"")]
    return _SIGNATURE + b"".join(_encode_chunk(kind, content) for kind, content in chunks)


def _encode_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def to_data_url(png: bytes) -> str:
    """Return the data URL of a PNG for the `src` of an image."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
