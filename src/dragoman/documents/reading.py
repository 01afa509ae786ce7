"""Limits of the reading of a file, and its end before the file is read.

Small files can unpack to, or describe, far more than they hold. The limits keep the memory of reading 16 MiB below 256 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dragoman.errors import DataError

MIN_TEXTS = 200_000
"""Texts that a file of any size may have."""
BYTES_PER_TEXT = 80
"""A larger file may have one text in so many bytes."""
MAX_PARTS = 200_000
"""Most elements, attributes and texts within one element that is read as a whole, such as a paragraph or a chapter."""
MAX_CODES = 20_000
"""Most tags and other codes in one text."""

_check: ContextVar[Callable[[], None]] = ContextVar("check", default=lambda: None)


@contextmanager
def ended_by(check: Callable[[], None]) -> Iterator[None]:
    """Let the work on documents in this context call a function again and again, which ends the work by an exception.

    It is called at least once for each text and each 64 KiB of markup.
    """
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_goes_on() -> None:
    """Raise the exception of the innermost `ended_by` if the work is to end."""
    _check.get()()


def check_texts(count: int, num_bytes: int) -> None:
    """Raise DataError if a file of so many bytes may not have this number of texts. Called for each text, it ends the work."""
    check_goes_on()
    if count > MIN_TEXTS and count > num_bytes // BYTES_PER_TEXT:
        limit = max(MIN_TEXTS, num_bytes // BYTES_PER_TEXT)
        raise DataError(f"the file has more than {limit:,} texts; divide it", code="input-too-long")


def check_parts(count: int, name: str) -> None:
    """Raise DataError if an element of this name may not have so many parts."""
    if count > MAX_PARTS:
        raise DataError(
            f"one element {name[:40]!r} has more than {MAX_PARTS:,} elements, attributes and texts; divide it",
            code="input-too-long",
        )


def check_codes(count: int) -> None:
    """Raise DataError if a text may not have so many codes."""
    if count > MAX_CODES:
        raise DataError(f"one text has more than {MAX_CODES:,} tags or other codes; divide it", code="input-too-long")
