"""CRC-32 of parts is that of the whole."""

from __future__ import annotations

from dragoman.io.checksums import Crc32


def test_crc32_of_parts_equals_the_published_check_value() -> None:
    """ISO 3309's CRC-32 of the digits 1 to 9 is cbf43926 (Williams 1993, "A painless guide to CRC error detection")."""
    checksum = Crc32()
    for part in (b"1", b"2345678", memoryview(b"9")):
        checksum.update(part)
    assert checksum.hexdigest() == "cbf43926"
