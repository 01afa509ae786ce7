"""Limits of the reading of a file, and its end before the file is read.

Small files can unpack to, or describe, far more than they hold. The limits keep the memory of reading 16 MiB below 256 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from dragoman.errors import DataError

MIN_TEXTS = 100_000
"""Texts that a file of any size may have."""
BYTES_PER_TEXT = 160
"""A larger file may have one text in so many bytes."""
MIN_LINES = 1_000_000
"""Lines that a file of any size may have."""
BYTES_PER_LINE = 16
"""A larger file may have one line in so many characters."""
MIN_ELEMENTS = 2_000_000
"""Elements that an XML file of any size may have. One that may be a text counts as `TEXT_ELEMENTS`, because it takes longer."""
TEXT_ELEMENTS = 5
BYTES_PER_ELEMENT = 16
"""A larger file may have one element in so many bytes."""
MIN_TAGS = 400_000
"""Tags that an HTML page of any size may have."""
BYTES_PER_TAG = 20
"""A larger page may have one tag in so many bytes."""
MAX_PARTS = 200_000
"""Most elements, attributes and texts within an element that is read as a whole, such as a paragraph or a chapter."""
MAX_CHAPTER_PARTS = 80_000
"""Most of these within a chapter of a book, whose texts take more memory."""
MAX_CODES = 10_000
"""Most tags and other codes in one text. The translation of a text takes some 13 KB for each."""
MAX_CODE_TRIES = 100_000
"""Most places of one text at which a reader looks for a code, those that it looks at again counted each time."""
MAX_TEXT = 1_000_000
"""Most characters of one text. The work on one text goes on until it is complete, some two seconds for this length."""
MAX_CONTEXT = 300
"""Most characters of the keys around a text, which are its context."""

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


def check_text(num_characters: int, limit: int = MAX_TEXT) -> None:
    """Raise DataError if a text may not have so many characters."""
    if num_characters > limit:
        raise DataError(f"one text has more than {limit:,} characters; divide it", code="input-too-long")


def join_keys(keys: Sequence[str]) -> str:
    """Return the keys around a text as its context; of long ones the end."""
    return ".".join(key[:MAX_CONTEXT] for key in keys)[-MAX_CONTEXT:]


def check_lines(count: int, num_characters: int, *, min_lines: int = MIN_LINES) -> None:
    """Raise DataError if a file of so many characters may not have this number of lines.

    min_lines: lines that a file of any size may have, fewer for a format with a large reader
    """
    limit = max(min_lines, num_characters * min_lines // (MIN_LINES * BYTES_PER_LINE))
    if count > limit:
        raise DataError(f"the file has more than {limit:,} lines; divide it", code="input-too-long")


def check_elements(count: int, num_bytes: int) -> None:
    """Raise DataError if an XML file of so many bytes may not have so many elements."""
    if count > MIN_ELEMENTS and count > num_bytes // BYTES_PER_ELEMENT:
        raise DataError("the XML file has more elements than texts need; divide it", code="input-too-long")


def check_tags(count: int, num_bytes: int) -> None:
    """Raise DataError if an HTML page of so many bytes may not have so many tags."""
    if count > MIN_TAGS and count > num_bytes // BYTES_PER_TAG:
        limit = max(MIN_TAGS, num_bytes // BYTES_PER_TAG)
        raise DataError(f"the page has more than {limit:,} tags; divide it", code="input-too-long")


def check_parts(count: int, name: str = "", limit: int = MAX_PARTS) -> None:
    """Raise DataError if an element of this name, or a file that is read as a whole, may not have so many parts."""
    if count > limit:
        place = f"one element {name[:40]!r}" if name else "the file"
        raise DataError(f"{place} has more than {limit:,} elements, attributes and texts; divide it", code="input-too-long")


def check_codes(count: int, num_tries: int = 0) -> None:
    """Raise DataError if a text may not have so many codes, or may not be tried for them so often."""
    if count > MAX_CODES or num_tries > MAX_CODE_TRIES:
        raise DataError(f"one text has more than {MAX_CODES:,} tags or other codes; divide it", code="input-too-long")
