"""A document: the original bytes, and the texts in them with their places.

Reading finds the spans of the texts, and writing puts other bytes into these spans. So everything between them stays as it is,
and a document without changes is the original, byte for byte.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, Protocol

from dragoman.documents.reading import check_goes_on, check_text
from dragoman.documents.translation_memory import MemoryMatch
from dragoman.errors import DataError
from dragoman.text.breaks import repeated_boundaries
from dragoman.text.inline_codes import Markup, read_inline
from dragoman.text.inline_rules import COMMON_RULES, InlineRules
from dragoman.text.no_language import begins_with_word, has_language

_SHORT_TAG = re.compile(r'</?g[0-9]+(?: lang="[\w-]*")?>|<(?:x|br|tab)[0-9]+/>')
_CUE_CODE = re.compile(r"<[ot]\b[^<>]*/>")
_CUE_CLASS = re.compile(r"</?c\b[^<>]*>", re.IGNORECASE)
_LANGUAGE_ATTRIBUTE = re.compile(
    r"""\s(?:(?:xml:)?(?:lang|dir)\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[^\s"'<>]+)"""
    r"""|style\s*=\s*(?:"[^"<>]*\bdirection\b[^"<>]*"|'[^'<>]*\bdirection\b[^'<>]*'))""",
    re.IGNORECASE,
)
_DIRECTED_TEXT = re.compile(r'<span dir="rtl">(.*)</span>', re.DOTALL)
_PART_BYTES = 2**20
_ANY_TAG = re.compile("(<[^<>]*>)")
# A tag that ends at its first >, and a declaration or comment that does.
_WHOLE_TAG = re.compile(
    r"""</?+[A-Za-z][^<>"'=]*+(?:=\s*+(?:"[^"<>]*+"|'[^'<>]*+'|[^\s"'<>=]++)[^<>"'=]*+)*+>|<!(?i:doctype)[^<>"'\[]*+>"""
    r"""|<\?xml\s[^<>]*+>|<!--[^<>]*+(?<=--)>"""
)
_MAX_KNOWN_TAGS = 1000
UnitState = Literal["untranslated", "fuzzy", "translated", "locked"]
"""State of a unit before the translation: without one, with one to be checked, with a good one, or not to be changed."""


BILINGUAL_FORMATS = frozenset(("po", "xliff", "tmx", "ts", "xcstrings"))
"""Formats whose files have sources and translations beside each other."""
PICTURES = "alternative texts of pictures"
"""Name of such texts that stay."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Text of a document that is translated as a whole.

    Attributes:
        id: name of the unit, unique in the document and equal in every reading of the same bytes
        source: text to translate, as a reader sees it; with tags if `markup` is not "none"
        markup: "none" for plain text; "html" and "xml" for a text with tags, whose character references are characters
        target: present translation; empty if there is none
        state: state of the present translation
        context: note for a translator, such as the key of the unit
        max_length: most characters of the translation, if the format states it
        keep_line_breaks: a line break ends a sentence
        seconds: time for which a subtitle is shown; None for other texts
        lines: a subtitle as the file breaks it into lines
        plural_form: plural form that the text is, by a category such as `few` or a number such as `=2`; empty for other texts
        language: code of the language that a part of the document states for the text; empty if only the document states one
        target_language: the same for the translation
        rules: rules for the codes of the text that its format, or a declaration of the file, adds
        key: keys of a value, joined by dots; empty in formats without keys
        locked_languages: codes of the languages into which the text is not translated
    """

    id: str
    source: str
    markup: Markup = "none"
    target: str = ""
    state: UnitState = "untranslated"
    context: str = ""
    max_length: int | None = None
    keep_line_breaks: bool = True
    seconds: float | None = None
    lines: str = ""
    plural_form: str = ""
    language: str = ""
    target_language: str = ""
    rules: InlineRules = COMMON_RULES
    key: str = ""
    locked_languages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitTranslation:
    """New text of a unit.

    Attributes:
        text: translation, with the tags of the source if the unit has markup
        state: "translated", or "fuzzy" for one that a human has to check
        flags: names of the checks that the translation fails
        match: the similar text whose translation it is, from a translation memory; None for any other origin
        source_language, language: codes of the language of its source and of its own; empty if they are not known
        note: sentences about the checks that it fails
    """

    text: str
    state: UnitState = "translated"
    flags: tuple[str, ...] = ()
    match: MemoryMatch | None = None
    source_language: str = ""
    language: str = ""
    note: str = ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Codes of the failed checks, and the similarity of a match."""
        return self.flags if self.match is None else (*self.flags, f"memory-match-{self.match.percent}")

    @property
    def comment(self) -> str:
        """Sentences for the translator, and the similarity of a match; codes of checks without a sentence."""
        parts = [self.note] if self.note else list(self.flags)
        return "; ".join(parts if self.match is None else [*parts, f"memory-match-{self.match.percent}"])


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement of the bytes from `start` to `end` by others."""

    start: int
    end: int
    content: bytes

    def fill(self, content: bytes) -> Edit:
        """Return the edit that puts a value there."""
        return Edit(self.start, self.end, content)


@dataclass(frozen=True, slots=True)
class Remark:
    """Remark of a human beside a translation, such as its state or a note.

    text: it as it stands in the file; empty for a place where the file has none
    write: function that returns the edit which puts another text there
    """

    text: str
    write: Callable[[str], Edit]


Remarks = Mapping[tuple[str, str], Remark]
"""Remarks by name and, if there may be several of a name, by content. Without content, it is the only one, or a place for more.
Those whose name begins with `state` belong to the translation, and `target` is the translation itself."""


def apply_edits(content: bytes, edits: Iterable[Edit]) -> bytes:
    """Return the bytes with replaced spans. Raises ValueError for spans that overlap, an error of the format's reader."""
    return apply_ordered_edits(content, sorted(edits, key=lambda edit: (edit.start, edit.end)))


def apply_ordered_edits(content: bytes, edits: Iterable[Edit]) -> bytes:
    """Return what `apply_edits` does, for edits in the order of their spans, which memory need not hold together."""
    output = io.BytesIO()
    for part in iter_edited(content, edits):
        output.write(part)
    return output.getvalue()


class Sliceable(Protocol):
    """Bytes of which parts can be read."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> bytes: ...


def iter_edited(content: Sliceable, edits: Iterable[Edit]) -> Iterator[bytes]:
    """Yield the parts of bytes with replaced spans, for edits in the order of their spans. Raises ValueError for an overlap."""
    position = 0
    for edit in chain(edits, (Edit(len(content), len(content), b""),)):
        if edit.start < position:
            raise ValueError(f"two edits overlap at byte {edit.start}")
        for start in range(position, edit.start, _PART_BYTES):
            yield content[start : min(start + _PART_BYTES, edit.start)]
        yield edit.content
        position = edit.end


@dataclass(frozen=True)
class Document:
    """Document of one format.

    Attributes:
        content: the original bytes
        units: texts to translate, in the order of the document
        other_units: texts in such places that hold no language, such as numbers. A translation may become one.
        format: name of the format, such as "po"
        make_edits: function from a unit and its translation to the edits of `content` that write it
        make_document_edits: function from all translations, and the code of their language or an empty text, to edits that
            belong to no single unit, such as the language that the document states
        source_language, target_language: codes that the document states; empty if it states none
        sentence_groups: ids of units that are read one after the other as one text, such as the cues of a subtitle
        make_plural_edits: function from the code of the translation's language to the edits that add the plural forms which it
            has and the file lacks, with the text of `other`
        assemble: function from the content and all edits to the new bytes; for a ZIP archive, edits are spans of its members,
            unpacked one after the other
        iter_units: function that yields the units of new bytes of the document one after the other, for formats whose reader
            then needs less memory; None for all others
        is_written: function from new bytes and all translations to whether the bytes have them, for formats whose units may be
            others when they are read again; None for all others
        keeps_tags: function from new bytes and all translations to whether the bytes have the same tags and these texts; false
            if only reading them can tell it. None for formats without it.
        skipped: numbers of texts that are no units although readers see them, by what they are, such as "names of sheets"
        boundaries: which line breaks end a text, as `recorded_boundaries` gives it
        keep_anchors: procedure that keeps the anchors of headings that other pages link to; and whether the page is one of Hugo
        convert: function that returns the same document in UTF-8, for formats that state their encoding; None for all others
        find_values: function that returns the values that are no units, such as numbers and empty texts, by their keys; each as
            an edit that changes nothing
        times: seconds at which each subtitle begins and ends, by the ids of units
        find_cells: function that returns the cells with each text of a table by the ids of units, for formats whose programs
            store the texts in any order
        divide_cells: function from cells to the edits that give each of them a text of its own instead of a shared one
        has_numbered_keys: the keys count places, so they name no text
        list_remarks: function from the id of a unit, or an empty text for the whole file, to what is written beside it
    """

    content: bytes
    units: Sequence[Unit]
    format: str
    make_edits: Callable[[Unit, UnitTranslation], Sequence[Edit]] = field(repr=False)
    source_language: str = ""
    target_language: str = ""
    make_document_edits: Callable[[Mapping[str, UnitTranslation], str], Iterable[Edit]] = field(
        default=lambda translations, language: (), repr=False
    )
    sentence_groups: Sequence[Sequence[str]] = ()
    make_plural_edits: Callable[[str], Sequence[Edit]] = field(default=lambda language: (), repr=False)
    assemble: Callable[[bytes, Iterable[Edit]], bytes] = field(default=apply_edits, repr=False)
    iter_units: Callable[[bytes], Iterable[Unit]] | None = field(default=None, repr=False)
    is_written: Callable[[bytes, Mapping[str, UnitTranslation]], bool] | None = field(default=None, repr=False)
    keeps_tags: Callable[[bytes, Mapping[str, UnitTranslation]], bool] | None = field(default=None, repr=False)
    other_units: Sequence[Unit] = field(default=(), repr=False)
    skipped: Mapping[str, int] = field(default_factory=dict, repr=False)
    boundaries: Sequence[bytes] = field(default=(), repr=False)
    keep_anchors: Callable[[Collection[str], bool], None] = field(default=lambda names, is_hugo: None, repr=False)
    convert: Callable[[], Document] | None = field(default=None, repr=False)
    find_values: Callable[[], Mapping[str, Edit]] = field(default=dict, repr=False)
    times: Mapping[str, tuple[float, float]] = field(default_factory=dict, repr=False)
    find_cells: Callable[[], Mapping[str, Sequence[str]]] = field(default=dict, repr=False)
    divide_cells: Callable[[Collection[str]], Iterable[Edit]] = field(default=lambda cells: (), repr=False)
    has_numbered_keys: bool = False
    list_remarks: Callable[[str], Remarks] = field(default=lambda name: {}, repr=False)

    @property
    def is_bilingual(self) -> bool:
        """Return whether the file has sources and translations beside each other."""
        return self.format in BILINGUAL_FORMATS


def get_source_language(translations: Mapping[str, UnitTranslation]) -> str:
    """Return the code of the language of which these are translations; empty if it is not known."""
    return next(iter(translations.values())).source_language if translations else ""


def divide_units(units: Iterable[Unit]) -> tuple[list[Unit], list[Unit]]:
    """Return the units with letters or amounts, and those without. Raises DataError for a text that is too long."""
    divided: tuple[list[Unit], list[Unit]] = ([], [])
    for unit in units:
        check_text(len(unit.source))
        is_text = begins_with_word(unit.source, unit.rules.kept) or (
            unit.markup == "none" and any(map(str.isalpha, unit.source))
        )
        divided[not (is_text or has_language(read_inline(unit.source, unit.markup, unit.rules)))].append(unit)
    return divided


def add_plural_forms(document: Document, parse: Callable[[bytes], Document], language: str) -> Document:
    """Return the document with units for all plural forms of a language; the document itself if it lacks none.

    parse: function that reads the format
    """
    edits = document.make_plural_edits(language) if language else ()
    return parse(document.assemble(document.content, edits)) if edits else document


def write_document(document: Document, translations: Mapping[str, UnitTranslation], language: str = "") -> bytes:
    """Return the bytes of the document with these translations, by the ids of their units. Other units stay as they are.

    language: code of the language of the translations; a document that states its language then states this one

    Raises KeyError for an unknown id, and DataError for a text that the encoding of a document without `convert` cannot write.
    """
    if not translations:
        return document.content
    units = {unit.id: unit for unit in (*document.units, *document.other_units)}

    def make_edits() -> Iterator[Edit]:
        for name, translation in translations.items():
            check_goes_on()
            yield from document.make_edits(units[name], translation)

    try:
        return document.assemble(document.content, chain(make_edits(), document.make_document_edits(translations, language)))
    except DataError as error:
        if error.code != "invalid-encoding" or document.convert is None:
            raise
    return write_document(document.convert(), translations, language)


class UnwritableUnitsError(DataError):
    """Translations that a format cannot write so that they are read again.

    unit_ids: the first units that differ; empty if it is the document as a whole
    """

    def __init__(self, message: str, unit_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.unit_ids = tuple(unit_ids)


def check_written(
    document: Document, translations: Mapping[str, UnitTranslation], content: bytes, parse: Callable[[bytes], Document]
) -> None:
    """Raise UnwritableUnitsError if written bytes do not read as the translations, with every other unit as it was."""
    if document.is_written is not None:
        if not document.is_written(content, translations):
            raise UnwritableUnitsError(f"the {document.format} file cannot be written back: it would have other texts")
        return
    with suppress(DataError):  # then reading tells what is wrong
        if document.keeps_tags is not None and document.keeps_tags(content, translations):
            return
    units = {unit.id: unit for unit in (*document.units, *document.other_units)}
    num_units = 0
    differing: list[tuple[Unit, Unit]] = []
    try:
        with repeated_boundaries(document.boundaries):
            for after in document.iter_units(content) if document.iter_units else list_all_units(parse(content)):
                num_units += 1
                if (before := units.get(after.id)) is None or not _is_written(document, before, after, translations):
                    differing.append((before or after, after))
    except DataError as error:
        raise UnwritableUnitsError(f"the translation cannot be written into the {document.format} file: {error}") from None
    if not differing and num_units == len(units):
        return
    detail = "it would have other texts"
    if differing:
        before, after = differing[0]
        detail = f"{before.source[:40]!r} would read {(after.target or after.source)[:40]!r}"
    # If the numbers differ, the units behind the first are others.
    names = [before.id for before, _ in differing[: None if num_units == len(units) else 1]]
    raise UnwritableUnitsError(
        f"the {document.format} file cannot be written back: {detail}; translate this file by hand", names
    )


def has_same_tags(before: Iterable[str], after: Iterable[str], texts: Iterable[str]) -> bool:
    """Return whether two markups have the same tags in the same order, and the second one has these texts between them.

    Then both are read with the same structure. Languages and directions that tags state may differ. A text with letters has to
    have some, and one of white space stays. False also if the end of a tag cannot be told by its form, and for a new text that
    shows a <, which may be read as a code.

    before, after: parts of the markups, which end behind a tag
    texts: texts of the units in order, with tags and character references
    """
    expected = (piece for text in texts for piece in _ANY_TAG.split(text)[::2] if _fold_markup(piece))
    known = {""}
    for pieces, new_pieces in _pair_pieces(before, after):
        tags, new_tags = pieces[1::2], new_pieces[1::2]
        if tags != new_tags and [_LANGUAGE_ATTRIBUTE.sub("", tag) for tag in tags] != [
            _LANGUAGE_ATTRIBUTE.sub("", tag) for tag in new_tags
        ]:
            return False
        unknown = set(new_tags if tags == new_tags else tags + new_tags) - known
        if not all(map(_WHOLE_TAG.fullmatch, unknown)):
            return False
        known |= unknown if len(known) < _MAX_KNOWN_TAGS else set()
        for text, new_text in zip(pieces[::2], new_pieces[::2], strict=True):
            if not new_text or new_text.isspace():
                if text and not text.isspace():
                    return False
                continue
            plain, new_plain = html.unescape(text), html.unescape(new_text)
            if (
                "<" in new_plain
                or ">" in new_text
                or any(map(str.isalpha, plain)) != any(map(str.isalpha, new_plain))
                or ((piece := next(expected, "")) != new_text and _fold_markup(piece) != _fold_markup(new_text))
            ):
                return False
    return next(expected, "") == ""


def _pair_pieces(before: Iterable[str], after: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield equally many texts and tags of two markups, in turn. The end of a shorter one is filled with empty ones."""
    sides = [filter(None, map(_split_tags, parts)) for parts in (before, after)]
    left: list[str] = []
    right: list[str] = []
    while True:
        left, right = left or next(sides[0], []), right or next(sides[1], [])
        if not (count := min(len(left), len(right)) or len(left + right)):
            return
        yield left[:count] or [""] * count, right[:count] or [""] * count
        left, right = left[count:], right[count:]


def _split_tags(part: str) -> list[str]:
    """Return the texts and the tags of a markup in turn. An empty tag is behind a text at the end."""
    check_goes_on()
    pieces = _ANY_TAG.split(part)
    return [*pieces, ""] if pieces[-1] else pieces[:-1]


def _fold_markup(text: str) -> str:
    return " ".join((html.unescape(text) if "&" in text else text).split())


def list_all_units(document: Document) -> list[Unit]:
    """Return the units, with or without language, in the order of the document if their ids count them."""
    units = [*document.units, *document.other_units]
    return sorted(units, key=lambda unit: int(unit.id)) if all(unit.id.isdecimal() for unit in units) else units


def _is_written(document: Document, before: Unit, after: Unit, translations: Mapping[str, UnitTranslation]) -> bool:
    """Return whether a unit reads as its translation, or as before if it has none."""
    if after.id != before.id:
        return False
    translation = translations.get(before.id)

    def is_equal(text: str, expected: str) -> bool:
        if before.seconds is not None and before.markup != after.markup:  # classes stood beside a time stamp without words
            text = html.unescape(_CUE_CLASS.sub("", text))
        if (
            before.seconds is not None
        ):  # what stands at the ends of a cue, such as the dash of a dialogue, is outside of its text
            text, expected = ("".join(_CUE_CODE.sub("", part).split()).lstrip("-–—") for part in (text, expected))
        if before.markup == "html" and text != expected:  # a text in no block gets a span with its direction, or loses it
            text, expected = (
                directed[1] if (directed := _DIRECTED_TEXT.fullmatch(part)) else part for part in (text, expected)
            )
        if "html" in (before.markup, after.markup):  # a character that the encoding does not have is written as a reference
            text, expected = (
                _fold(before, _LANGUAGE_ATTRIBUTE.sub("", html.unescape(part) if unit.markup == "html" else part))
                for unit, part in ((after, text), (before, expected))
            )
            return text == expected
        return _remove_tags(after, text) == _remove_tags(before, expected)

    if translation is not None and is_equal(after.source, translation.text):
        return True
    target = before.target if translation is None else translation.text
    return is_equal(after.source, before.source) and is_equal(after.target, target)


def _remove_tags(unit: Unit, text: str) -> str:
    """Return a text of a unit without what a second reading may change: the numbers of XML tags, and white space that folds."""
    text = html.unescape(_SHORT_TAG.sub("", text)) if unit.markup == "xml" else text
    return _fold(unit, text)


def _fold(unit: Unit, text: str) -> str:
    """Return a text with one space for each run of white space, if the format reads it so."""
    return text if unit.keep_line_breaks else " ".join(text.split())
