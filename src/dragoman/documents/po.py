"""Message catalogs of gettext, PO and POT.

Only the strings of `msgstr`, the flag `fuzzy` and the previous source of a fuzzy translation (`#| msgid`) change. Obsolete
entries, other comments and the header stay as they are. A string is wrapped as msgmerge wraps it, unless the file has longer
lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby

from dragoman.documents.document import Document, Edit, Remark, Remarks, Unit, UnitState, UnitTranslation
from dragoman.documents.encoded_text import EncodedText, decode, split_lines
from dragoman.documents.plural_forms import count_placeholders
from dragoman.documents.plural_rules import find_form_numbers, get_plural_rule
from dragoman.documents.reading import check_text, check_texts
from dragoman.errors import DataError
from dragoman.formats.po import ESCAPES, HEAD_BYTES, PoComments, PoEntry, Span, find_charset, read_entries
from dragoman.languages import is_same_language
from dragoman.text.encodings import find_codec
from dragoman.text.inline_rules import InlineRules

LINE_WIDTH = 79
"""Most columns of a line, as msgmerge writes it."""
MAX_FORMS = 6
"""Most plural forms of a language, which is the number of Arabic."""

_RULES_OF_FLAGS = {
    "c-format": ("spaces",),
    "objc-format": ("spaces",),
    "python-format": ("spaces",),
    "go-format": ("spaces",),
    "java-printf-format": ("spaces",),
    "gcc-internal-format": ("spaces", "gcc"),
    "java-format": ("apostrophes",),
    "java-messageformat": ("apostrophes",),
    "lisp-format": ("~",),
    "scheme-format": ("~",),
    "laravel-format": (":name",),
    "qt-format": ("&",),
    "kde-format": ("&",),
    "rst-text": ("rst",),
}
"""Optional styles that flags of gettext and Weblate declare."""
_PLURAL_FORMS = re.compile(r"nplurals\s*=\s*(\d)(?:\s*;\s*plural\s*=(?=([^;?\n]*))([^;\n]*))?")
_LANGUAGE = re.compile(r"^Language:[ \t]*([\w@.-]+)", re.MULTILINE)
_CHARSET = re.compile(r"charset=([\w.:-]+)")
_TEMPLATE = re.compile(r"charset=CHARSET\b|nplurals=INTEGER|YEAR-MO-DA|YYYY-MM-DD|PACKAGE VERSION|FULL NAME <")
_UNESCAPED = {character: f"\\{letter}" for letter, character in ESCAPES.items()}
_PIECE = r'(?:[^"\\\n]++|\\[^n\n])*+'
_FIELD = re.compile(rf'\r?\n"([\w-]+):[ ]*({_PIECE})(?:"\r?\n"{_PIECE}){{0,8}}+\\n"')
_FIELDS_OF_SOURCE = frozenset(
    ("POT-Creation-Date", "Report-Msgid-Bugs-To", "MIME-Version", "Content-Type", "Content-Transfer-Encoding")
)
_COMPARED_FIELDS = {"Language": 2, "Plural-Forms": len("nplurals=2")}
"""Fields of which a translator's is taken if it begins alike, and how many characters have to be equal."""
_MAX_LENGTH = re.compile(r"max-length:\s*([0-9]{1,6})")
_WORD = re.compile(r"(?:\\.|[^\\ ]++)*+[ ]*+", re.DOTALL)


@lru_cache
def _read_rules(flags: frozenset[str]) -> InlineRules:
    """Return the rules that flags declare. Weblate's `placeholders:X:Y` names words that stay."""
    styles = [style for flag in flags for style in _RULES_OF_FLAGS.get(flag, ())]
    words = [word.strip('"') for flag in flags if flag.startswith("placeholders:") for word in flag.split(":")[1:]]
    formats = [flag for flag in flags if flag.endswith("-format")]
    has_no_format = bool(formats) and all(flag.startswith("no-") for flag in formats)
    kept = tuple(word for word in sorted(words) if word and not word.startswith('r"'))
    return InlineRules(frozenset(styles), frozenset(("printf",) if has_no_format else ()), kept)


def _read_max_length(flags: frozenset[str]) -> int | None:
    """Return the most characters of a translation, by Weblate's flag `max-length:N`."""
    lengths = [match[1] for flag in flags if (match := _MAX_LENGTH.fullmatch(flag))]
    return int(lengths[0]) if lengths else None


def parse(content: bytes) -> Document:
    """Return the document of a PO or POT file. Raises DataError for a file that is not one."""
    catalog = _Catalog(content)
    writer = _CatalogWriter(catalog.text, is_wrapped=_is_wrapped(catalog.text.text), header=catalog.header)
    units: list[Unit] = []
    for unit, place in catalog.read():
        units.append(unit)
        writer.places[unit.id] = place
    return Document(
        content,
        units,
        "po",
        writer.make_edits,
        target_language=catalog.language,
        make_document_edits=writer.make_flag_edits,
        make_plural_edits=lambda language: catalog.make_template_edits(language, writer.quote),
        list_remarks=writer.list_remarks,
        iter_units=lambda content: (unit for unit, _ in _Catalog(content).read()),
        convert=None if catalog.text.encoding == "utf-8" else lambda: parse(_convert(catalog.text)),
    )


def _convert(text: EncodedText) -> bytes:
    """Return a catalog in UTF-8, whose header states it."""
    return _CHARSET.sub("charset=UTF-8", text.text, count=1).encode()


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a unit in the file.

    Attributes:
        entry_start, entry_end: position of the first line of its entry that is no comment, and of the end
        comments: comments of its entry
        form: keyword of the translation
        span: its strings in quotation marks; if the catalog has fewer forms than its header says, the end of the last form
        is_new: the catalog lacks the form
    """

    entry_start: int
    entry_end: int
    comments: PoComments
    form: str
    span: Span
    is_new: bool


class _Catalog:
    """Reader of a catalog. Memory holds one entry at a time."""

    def __init__(self, content: bytes) -> None:
        self.text = decode(content, find_charset(content[:HEAD_BYTES]))
        self._num_bytes = len(content)
        self._lines = split_lines(self.text.text)
        check_text(max(map(len, self._lines), default=0))
        header = next((entry for entry in read_entries(self._lines) if entry.is_header), None)
        header_text = header.strings["msgstr"] if header else ""
        language = _LANGUAGE.search(header_text)
        self.language = language[1] if language else ""
        self.header, self._header_text = header, header_text
        self._header_start = header.start if header else -1
        plurals = _PLURAL_FORMS.search(header_text)
        # The first form is also for numbers such as 21 if the condition before its `?` has a remainder.
        self._num_plurals, self._is_for_many = (int(plurals[1]), "%" in (plurals[2] or "")) if plurals else (0, False)
        self._numbers = find_form_numbers(plurals[3].strip()) if plurals and plurals[3] and self._num_plurals > 2 else {}

    def read(self) -> Iterator[tuple[Unit, _Place]]:
        """Yield the units with their places. Raises DataError for a file without an entry, and for a damaged one."""
        num_units, number = 0, -1
        for number, entry in enumerate(read_entries(self._lines)):
            if entry.start == self._header_start:
                continue
            for unit, form in self._list_units(entry, number):
                num_units += 1
                check_texts(num_units, self._num_bytes)
                end = entry.spans[entry.forms[-1]][1]
                span = entry.spans.get(form, (end, end))
                is_new = form not in entry.spans
                yield unit, _Place(entry.start, end, entry.comments, form, span, is_new)
        if number < 0:
            raise DataError("the file has no entry, so it is no PO file", code="invalid-format")

    def _list_units(self, entry: PoEntry, number: int) -> Iterator[tuple[Unit, str]]:
        """Yield the unit of each form of an entry, with its keyword.

        The form of 1, or the first one, is that of the singular, unless it has several numbers and the singular names none.
        """
        forms = entry.forms
        singular, plural = entry.strings["msgid"], entry.strings.get("msgid_plural", "")
        if plural:
            forms = [f"msgstr[{form}]" for form in range(min(self._num_plurals or len(forms), MAX_FORMS))]
        has_singular = len(forms) > 1 and not (self._is_for_many and count_placeholders(singular) != count_placeholders(plural))
        form_of_one = next((form for form, sample in self._numbers.items() if sample == 1), 0)
        for form in forms:
            source = singular if form == "msgstr" or (form == f"msgstr[{form_of_one}]" and has_singular) else plural
            target = entry.strings.get(form, "")
            state: UnitState = "untranslated" if not target else "fuzzy" if entry.comments.is_fuzzy else "translated"
            if "read-only" in entry.comments.declared:
                state = "locked"
            if source:
                name = f"{number}{form.removeprefix('msgstr')}"
                number_of_form = self._numbers.get(int(form[7:-1])) if plural else None
                yield (
                    Unit(
                        name,
                        source,
                        target=target,
                        state=state,
                        context=entry.strings.get("msgctxt", ""),
                        max_length=_read_max_length(entry.comments.declared),
                        plural_form="" if number_of_form is None else f"={number_of_form}",
                        rules=_read_rules(entry.comments.declared),
                    ),
                    form,
                )

    def _has_translation(self) -> bool:
        entries = (entry for entry in read_entries(self._lines) if entry.start != self._header_start)
        return any(entry.strings.get(form) for entry in entries for form in entry.forms)

    def make_template_edits(self, language: str, quote: Callable[[str, int], str]) -> list[Edit]:
        """Return the edits that make a catalog of this language of a template, as msginit does; none for other files.

        A catalog in the language of its sources is such a template, too.

        The header states the language, UTF-8 and the plural forms, and is fuzzy no more. Plurals have the language's forms.

        quote: function from a text, and the columns before it, to its strings
        """
        is_template = self.header is None or _TEMPLATE.search(self._header_text) is not None
        has_translation = self._has_translation()
        is_template |= self.language != "" and not is_same_language(self.language, language) and not has_translation
        if not is_template and (self.language or _PLURAL_FORMS.search(self._header_text) or has_translation):
            return []
        header = complete_header(self._header_text, language)
        num_forms = get_plural_rule(language)[0]
        newline = self.text.newline
        if self.header is None:
            edits = [self.text.make_edit(0, 0, f'msgid ""{newline}msgstr {quote(header, 7)}{newline}{newline}')]
        else:
            edits = [self.text.make_edit(*self.header.spans["msgstr"], quote(header, 7))]
            if self.header.comments.flags is not None:
                start, end = self.header.comments.flags
                edits.append(self.text.make_edit(start, end + len(newline), ""))
        for entry in read_entries(self._lines):
            forms = entry.forms
            if "msgid_plural" in entry.strings and not any(entry.strings.get(form) for form in forms):
                written = newline.join(f'msgstr[{number}] ""' for number in range(num_forms))
                start = entry.spans[forms[0]][0] - len(f"{forms[0]} ")
                edits.append(self.text.make_edit(start, entry.spans[forms[-1]][1], written))
        return edits


def complete_header(header: str, language: str) -> str:
    """Return the header of a template with a language, UTF-8, and the plural forms of the language."""
    count, expression = get_plural_rule(language)
    stated = _LANGUAGE.search(header)
    is_of_source = stated is not None and not is_same_language(stated[1], language)
    header = re.sub(r"charset=CHARSET\b", "charset=UTF-8", header)
    values = {
        "Content-Type": "text/plain; charset=UTF-8",
        "Language": language.replace("-", "_"),
        "Plural-Forms": f"nplurals={count}; plural=({expression});",
    }
    for name, value in values.items():
        line = re.search(rf"^{name}:[ \t]*(.*)$", header, re.MULTILINE)
        if line is None:
            header = f"{header.rstrip(chr(10))}\n{name}: {value}\n".lstrip("\n")
        elif (is_of_source and name != "Content-Type") or not line[1].strip() or "INTEGER" in line[1]:
            header = f"{header[: line.start()]}{name}: {value}{header[line.end() :]}"
    return header


def _is_wrapped(text: str) -> bool:
    """Return whether the lines of a catalog are wrapped: no line is long that could be broken."""
    lines = (line.rstrip() for line in split_lines(text) if line.startswith(("msg", '"')))
    return not any(len(line) > LINE_WIDTH + 2 and " " in line[8:LINE_WIDTH] for line in lines)


@dataclass
class _CatalogWriter:
    """Writer of edits. header: entry of the header, if there is one. places: place of each unit"""

    text: EncodedText
    is_wrapped: bool
    header: PoEntry | None
    places: dict[str, _Place] = field(default_factory=dict)

    def make_edits(self, unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        place = self.places[unit.id]
        quoted = self.quote(translation.text, len(place.form) + 1)
        return [self.text.make_edit(*place.span, f"{self.text.newline}{place.form} {quoted}" if place.is_new else quoted)]

    def make_flag_edits(self, translations: Mapping[str, UnitTranslation], language: str) -> Iterator[Edit]:
        """Yield the edits that set and remove `fuzzy` and the previous source. An entry is fuzzy if one of its forms is."""
        if not all(translation.text.isascii() for translation in translations.values()):
            yield from self._state_encoding()
        translated = (name for name in self.places if name in translations)
        for _, group in groupby(translated, lambda name: self.places[name].entry_start):
            names = list(group)
            place, texts = self.places[names[0]], [translations[name] for name in names]
            is_fuzzy = any(text.state == "fuzzy" for text in texts)
            if is_fuzzy and not place.comments.is_fuzzy:
                yield self._set_fuzzy(place)
            elif place.comments.is_fuzzy and not is_fuzzy:
                yield self._remove_fuzzy(place)
            yield from self._write_previous(place, next((text.match.source for text in texts if text.match is not None), ""))

    def _state_encoding(self) -> Iterator[Edit]:
        """Yield the edit of the header of a catalog in ASCII that is in UTF-8 now."""
        match = _CHARSET.search(self.text.text, 0, HEAD_BYTES)
        if match is not None and find_codec(match[1]) == "ascii":
            yield self.text.make_edit(*match.span(1), "UTF-8")

    def _write_previous(self, place: _Place, source: str) -> list[Edit]:
        """Return the edit of the lines `#|`, as msgmerge writes them: the source of a similar text, or nothing."""
        lines = f"msgid {self.quote(source, len('#| msgid') + 1)}".split(self.text.newline) if source else []
        written = "".join(f"#| {line}{self.text.newline}" for line in lines)
        start, end = place.comments.previous or (place.entry_start, place.entry_start)
        return [self.text.make_edit(start, end, written)] if written or place.comments.previous else []

    def list_remarks(self, name: str) -> Remarks:
        """Return the comments of a translator, the flags and the previous source of an entry."""
        if not name:
            return self._list_file_remarks()
        place = self.places[name]
        comments, start = place.comments, place.entry_start
        remarks = self._read_notes(comments, start)
        formats = sorted(flag for flag in comments.declared if flag.endswith("-format"))
        flags_end = comments.flags[1] + len(self.text.newline) if comments.flags else start
        remarks[" ".join(["state", *formats]), ""] = self.make_remark(comments.flags[0] if comments.flags else start, flags_end)
        remarks["state previous", ""] = self.make_remark(*comments.previous or (start, start))
        span = comments.start if comments.start >= 0 else start, place.entry_end
        lines = [line for line in self.text.text[slice(*span)].splitlines() if line[:2] not in ("#:", "#.", "#|")]
        entry = "\n".join(line if line.startswith("#") else f"#~ {line}" for line in lines)
        return {**remarks, ("obsolete", entry): self._make_obsolete(entry)}

    def _make_obsolete(self, entry: str) -> Remark:
        return replace(self.make_remark(0, 0), text=f"\n{entry}\n")

    def _list_file_remarks(self) -> Remarks:
        """Return the comments and fields of the header that belong to the translation, and the obsolete entries."""
        text, remarks = self.text.text, dict[tuple[str, str], Remark]()
        if self.header is not None:
            start, end = self.header.spans["msgstr"]
            for match in _FIELD.finditer(text, start, end):
                name, length = match[1], _COMPARED_FIELDS.get(match[1], 0)
                if name not in _FIELDS_OF_SOURCE:
                    key = ("compared field", name + match[2][:length]) if length else ("field", name)
                    remarks[key] = self.make_remark(*match.span())
            remarks["field", ""] = self.make_remark(end, end)
            notes = self.header.comments.notes
            first = notes[0][0] if notes else max(self.header.comments.start, 0)
            remarks["notes", ""] = self.make_remark(first, notes[-1][1] if notes else first)
        obsolete = [part.strip() for part in text.replace("\r", "").split("\n\n") if "\n#~ msgstr" in part]
        remarks |= {("obsolete", part): self._make_obsolete(part) for part in obsolete}
        return {**remarks, ("obsolete", ""): self.make_remark(len(text), len(text))}

    def _read_notes(self, comments: PoComments, start: int) -> dict[tuple[str, str], Remark]:
        """Return the comments of a translator, and the place for more. start: position of the first line behind them"""
        spans, text = comments.notes, self.text.text
        place = spans[-1][1] if spans else start if comments.start < 0 else comments.start
        notes = {("note", text[slice(*span)].strip()): self.make_remark(*span) for span in spans}
        return {**notes, ("note", ""): self.make_remark(place, place)}

    def make_remark(self, start: int, end: int) -> Remark:
        """Return a part of the catalog, or a place in it, as a remark."""

        def write(text: str) -> Edit:
            return self.text.make_edit(start, end, text.replace("\r\n", "\n").replace("\n", self.text.newline))

        return Remark(self.text.text[start:end], write)

    def _set_fuzzy(self, place: _Place) -> Edit:
        if place.comments.flags is None:
            return self.text.make_edit(place.entry_start, place.entry_start, f"#, fuzzy{self.text.newline}")
        start = self.text.text.index("#,", place.comments.flags[0]) + 2
        return self.text.make_edit(start, start, " fuzzy,")

    def _remove_fuzzy(self, place: _Place) -> Edit:
        assert place.comments.flags is not None
        start, end = place.comments.flags
        line = self.text.text[start:end]
        rest = [flag for flag in line.strip()[2:].split(",") if flag.strip() != "fuzzy"]
        if rest:
            return self.text.make_edit(start, end, "#," + ",".join(rest))
        return self.text.make_edit(start, end + len(self.text.newline), "")

    def quote(self, text: str, indent: int) -> str:
        """Return a text as strings in quotation marks, one a line. indent: columns before the first"""
        escaped = "".join(_UNESCAPED.get(character, character) for character in text)
        lines = _split_after_newlines(escaped) if "\n" in text else [escaped]
        if self.is_wrapped and (len(lines) > 1 or indent + len(escaped) + 2 > LINE_WIDTH):
            lines = ["", *(wrapped for line in lines for wrapped in _wrap(line))]
        elif len(lines) > 1:
            lines = ["", *lines]
        return self.text.newline.join(f'"{line}"' for line in lines)


def _split_after_newlines(escaped: str) -> list[str]:
    r"""Return the parts of an escaped text that end with `\n`, and the rest. An escaped backslash is not part of one."""
    parts = re.findall(r"(?:\\[^n]|[^\\]++)*+(?:\\n|$)", escaped)
    return [part for part in parts if part]


def _wrap(line: str) -> Iterator[str]:
    """Yield pieces of an escaped line that fit between quotation marks, broken after spaces."""
    piece = ""
    for word in _WORD.findall(line):
        if piece and len(piece) + len(word) + 2 > LINE_WIDTH:
            yield piece
            piece = ""
        piece += word
    if piece:
        yield piece
