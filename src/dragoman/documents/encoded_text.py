"""Text of a file beside its bytes: formats look for spans of characters, and edits are spans of bytes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from dragoman.documents.document import Edit
from dragoman.documents.reading import check_goes_on, check_lines
from dragoman.errors import DataError
from dragoman.text.encodings import find_codec

_BLOCK = 4096  # characters between two known byte positions
_CARRIAGE_RETURNS = re.compile(r"\r++(?!\n)")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_UTF_16 = re.compile(rb"((?:[\t\r\n -~]\0){2})|(?:\0[\t\r\n -~]){2}")
"""Two characters of ASCII in UTF-16, with which a file without a byte order mark begins."""


@dataclass(frozen=True)
class EncodedText:
    """Text, and the bytes that it was decoded from.

    Attributes:
        content: the bytes
        text: the characters, without a byte order mark; line feeds for carriage returns that stand before none
        encoding: Python's name of the encoding
        start: length of the byte order mark
        has_carriage_returns: whether line feeds are written as carriage returns, because all line breaks of the file are
    """

    content: bytes
    text: str
    encoding: str
    start: int = 0
    has_carriage_returns: bool = False

    @cached_property
    def newline(self) -> str:
        r"""Line break of the file, which is "\n" for a file of one line."""
        first = self.text.find("\n")
        return "\r\n" if first > 0 and self.text[first - 1] == "\r" else "\n"

    @cached_property
    def _block_starts(self) -> Sequence[int]:
        """Byte positions of the characters 0, 4096, and so on."""
        blocks = (self.text[start : start + _BLOCK] for start in range(0, len(self.text), _BLOCK))
        return list(accumulate((len(block.encode(self.encoding)) for block in blocks), initial=self.start))

    def get_byte(self, position: int) -> int:
        """Return the position of a character in the bytes."""
        number = position // _BLOCK
        return self._block_starts[number] + len(self.text[number * _BLOCK : position].encode(self.encoding))

    def make_edit(self, start: int, end: int, text: str, escape: Callable[[str], str] | None = None) -> Edit:
        """Return the replacement of the characters from `start` to `end`.

        escape: function that writes a character that the encoding does not have; without one, such a character is an error

        Raises DataError for a text that the encoding does not have.
        """
        return Edit(self.get_byte(start), self.get_byte(end), self.encode(text, escape))

    def encode(self, text: str, escape: Callable[[str], str] | None = None) -> bytes:
        """Return the bytes of a text; see `make_edit`."""
        text = text.replace("\n", "\r") if self.has_carriage_returns else text
        try:
            return text.encode(self.encoding)
        except UnicodeEncodeError as error:
            if escape is not None:
                return "".join(escape(c) if not self._has(c) else c for c in text).encode(self.encoding)
            character = text[error.start]
            raise DataError(
                f"the file is in {self.encoding}, which does not have {character!r}; convert it to UTF-8 first",
                code="invalid-encoding",
            ) from None

    def _has(self, character: str) -> bool:
        try:
            return bool(character.encode(self.encoding))
        except UnicodeEncodeError:
            return False


def decode(content: bytes, encoding: str = "utf-8", *, is_table: bool = False) -> EncodedText:
    """Return the text of a file. A byte order mark has precedence over the encoding.

    is_table: carriage returns beside line feeds may be characters of a cell

    Raises DataError for the name of no text encoding, for bytes that are not of the encoding or not a text, and for an
    encoding whose bytes cannot be edited.
    """
    start = 0
    for mark, name in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            start, encoding = len(mark), name
            break
    else:
        encoding = check_encoding(encoding)
        if encoding == "utf-8" and (match := _UTF_16.match(content)):
            encoding = "utf-16-le" if match[1] else "utf-16-be"
    try:
        text = content[start:].decode(encoding)
        # Of these, each text has one encoding, so a large file needs no second copy.
        is_exact = encoding in ("utf-8", "ascii", "iso8859-1") or text.encode(encoding) == content[start:]
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, start + error.start) + 1
        raise DataError(
            f"line {line}: the bytes are not {encoding}; convert the file to UTF-8", code="invalid-encoding"
        ) from None
    except UnicodeEncodeError:
        is_exact = False
    # In ISO 2022, the bytes of a character depend on what stands before it.
    if not is_exact or encoding.startswith("iso2022"):
        raise DataError(f"a file in {encoding} cannot be edited; convert it to UTF-8", code="invalid-encoding")
    if "\0" in text:
        raise DataError("the file holds zero bytes, so it is no text", code="invalid-format")
    has_carriage_returns = "\n" not in text and "\r" in text
    if "\r" in text and (has_carriage_returns or not is_table):
        text = _CARRIAGE_RETURNS.sub(lambda match: "\n" * len(match[0]), text)
    return EncodedText(content, text, encoding, start, has_carriage_returns)


def check_encoding(name: str) -> str:
    """Return Python's codec of an encoding that a file states. Raises DataError for a name of no text encoding."""
    codec = find_codec(name)
    if codec is None:
        raise DataError(
            f"the file states the encoding {name[:40]!r}, which is no text encoding that can be read; save it as UTF-8",
            code="invalid-encoding",
        )
    return codec


def make_line_error(text: str, position: int, problem: str) -> DataError:
    """Return the error about the line of a character."""
    line = text.count("\n", 0, position) + 1
    return DataError(f"line {line}: {problem}", code="invalid-format")


def split_lines(text: str) -> list[str]:
    """Return the lines of a text with their line feeds. Other line breaks of Unicode are characters like others.

    Raises DataError for more lines than a file may have.
    """
    check_goes_on()
    check_lines(text.count("\n"), len(text))
    return re.findall(r"[^\n]*\n|[^\n]+", text)
