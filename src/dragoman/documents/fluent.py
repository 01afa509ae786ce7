"""Fluent files (.ftl): the patterns of messages, terms and attributes of messages, and each variant of a selector.

A placeable such as `{ $name }` stays in its text. In a pattern with a selector, the variants are texts, each for itself. If a
selector stands inside a text, each of its variants becomes a whole sentence before the translation.
Source: the grammar of Fluent 1.0, https://github.com/projectfluent/fluent/blob/main/spec/fluent.ebnf
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import EncodedText, decode, make_line_error
from dragoman.documents.plural_forms import CATEGORIES, list_missing_categories
from dragoman.documents.reading import check_goes_on, check_texts
from dragoman.errors import DataError

_ENTRY = re.compile(r"(-?[a-zA-Z][\w-]*+)[ ]*+=[ ]*+")
_ATTRIBUTE = re.compile(r"[ ]++\.([a-zA-Z][\w-]*+)[ ]*+=[ ]*+")
_VARIANT = re.compile(r"[ \t\r\n]*+(\*?)\[[ \t\r\n]*+([\w.-]++)[ \t\r\n]*+\][ ]*+")
_STRING = r'"[^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+"'
_SELECTOR = re.compile(rf"\{{[ \t\r\n]*+(?:[^{{}}\"\r\n-]++|-(?!>[ ]*+\r?\n)|{_STRING}|\{{[^{{}}\r\n]*+\}})*+->[ ]*+\r?\n")
_LITERAL = rf"\{{[ \t\r\n]*+{_STRING}[ \t\r\n]*+\}}"
_PIECE = re.compile(rf"{_LITERAL}|\n[ \t\r\n]*+|[{{}}]|[^{{}}\n]++")
_ARROW_OR_BRACE = re.compile(rf"{_LITERAL}|->|[{{}}]")
_CONTINUATION = re.compile(r"(?:\n[ ]*+\r?(?=\n))*+\n[ ]++(?![.\[*}\s])")
_CLOSE = re.compile(r"[ \t\r\n]*+\}")
MAX_DEPTH = 20
"""Most selectors in selectors."""
MAX_SENTENCES = 36
"""Most sentences of a text with selectors, of which one of a plural counts six: as many as two plurals have in Arabic."""
MAX_CHARACTERS = 10_000
"""Most characters of a text with selectors inside."""
_MAX_ADDED_CHARACTERS = 2**23
_MIXED = "messages with a selector inside a text"
_UNREAD = f"messages whose selectors give more than {MAX_SENTENCES} sentences or hold others that are not read"


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Text of a message or a variant. start, end: its characters. key: with the attribute. form: key of the variant"""

    key: str
    start: int
    end: int
    form: str = ""


@dataclass(frozen=True, slots=True)
class _Selector:
    """Selector inside a text. header: what stands before its arrow. variants: key, with `*` of the default, and text"""

    header: str
    variants: tuple[tuple[str, _Text], ...]

    @property
    def has_plural(self) -> bool:
        """Return whether the variants are plural forms of a number of things."""
        return {"one", "other"} <= self.forms and "ordinal" not in self.header

    @property
    def forms(self) -> set[str]:
        """Return the keys of the variants."""
        return {key.lstrip("*") for key, _ in self.variants}

    def add_forms(self, language: str) -> _Selector:
        """Return the selector with the plural forms of a language that it lacks, with the text of `other`."""
        missing = list_missing_categories(language, self.forms & set(CATEGORIES)) if self.has_plural else []
        variants: list[tuple[str, _Text]] = []
        for key, text in self.variants:
            if key.lstrip("*") == "other":
                variants += [(name, text) for name in missing]
            variants.append((key, text))
        return _Selector(self.header, tuple(variants))


_Text = list[str | _Selector]


def parse_ftl(content: bytes) -> Document:
    """Return the document of a Fluent file. Raises DataError for a line that is no part of an entry."""
    text = decode(content)
    patterns = list(_read_patterns(text.text))
    skipped: Counter[str] = Counter()
    units: list[Unit] = []
    places: dict[str, _Pattern] = {}
    for number, pattern in enumerate(patterns):
        source = _read_text(text.text, pattern.start, pattern.end)
        if _has_selector(source):
            skipped[_UNREAD if _read_selectors(text.text, pattern) is None else _MIXED] += 1
        elif source.strip():
            key = f"{pattern.key}[{pattern.form}]" if pattern.form else pattern.key
            unit = Unit(str(number), source, context=key, key=key, plural_form=_find_plural_form(pattern.form))
            units.append(unit)
            check_texts(len(units), len(content))
            places[unit.id] = pattern
    if not patterns:
        raise DataError("the file has no message, so it is no Fluent file", code="invalid-format")

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        pattern = places[unit.id]
        indent, is_block = _measure_indent(text.text, pattern.start)
        written = _write_text(translation.text, text.newline, " " * (indent if is_block else indent + 4))
        return [text.make_edit(pattern.start, pattern.end, written)]

    texts, others = divide_units(units)
    return Document(
        content,
        texts,
        "ftl",
        make_edits,
        make_plural_edits=partial(_make_plural_edits, text, patterns),
        other_units=others,
        skipped=skipped,
    )


def _make_plural_edits(text: EncodedText, patterns: Sequence[_Pattern], language: str) -> Sequence[Edit]:
    """Return the edits that add variants of missing categories before `other`, and make sentences of variants."""
    edits = []
    num_added = 0
    forms = {(pattern.key, pattern.form) for pattern in patterns}
    for pattern in patterns:
        value = text.text[pattern.start : pattern.end]
        selectors = _read_selectors(text.text, pattern) if _has_selector(value) else None
        if selectors is not None and num_added < _MAX_ADDED_CHARACTERS:
            indent, _ = _measure_indent(text.text, pattern.start)
            value = _write_sentences(_divide_by_variants(selectors, language, {}), indent, text.newline)
            num_added += len(value)
            edits.append(text.make_edit(pattern.start, pattern.end, value))
        stem, dot, form = pattern.form.rpartition(".")
        present = {name for name in CATEGORIES if (pattern.key, f"{stem}{dot}{name}") in forms}
        if form != "other" or "one" not in present:
            continue
        bracket = text.text.rfind("[", 0, pattern.start)
        start = bracket - (text.text[bracket - 1] == "*")
        line = text.text[text.text.rfind("\n", 0, start) : start]
        if not line.strip():
            added = "".join(f"[{name}] {value}{line}" for name in list_missing_categories(language, present))
            edits += [text.make_edit(start, start, added)] if added else []
    return edits


def _has_selector(text: str) -> bool:
    """Return whether a text has an arrow inside braces."""
    depth = 0
    for match in _ARROW_OR_BRACE.finditer(text):
        if match[0] == "->" and depth:
            return True
        depth = max(depth + (match[0] == "{") - (match[0] == "}"), 0)
    return False


def _find_plural_form(form: str) -> str:
    """Return the category among the keys of nested variants. `other`, which other defaults are, too, counts last."""
    names = [name for name in form.split(".") if name in CATEGORIES]
    return next((name for name in reversed(names) if name != "other"), names[-1] if names else "")


def _measure_indent(text: str, start: int) -> tuple[int, bool]:
    """Return the spaces at the start of the line of a pattern, and whether nothing else stands before the pattern."""
    before = text[text.rfind("\n", 0, start) + 1 : start]
    return len(before) - len(before.lstrip(" ")), not before.strip(" ")


def _read_text(text: str, start: int, end: int) -> str:
    """Return a pattern as a reader sees it: the indentation of its lines is none of the text."""
    first, *rest = text[start:end].split("\n")
    indents = [len(line) - len(line.lstrip(" ")) for line in rest if line.strip()]
    indent, is_block = _measure_indent(text, start)
    common = min([indent, *indents] if is_block else indents, default=0)
    return "\n".join([first.rstrip("\r"), *(line[common:].rstrip("\r") for line in rest)]).strip("\n")


def _write_text(text: str, newline: str, indent: str) -> str:
    """Return a text as a pattern. A line that begins with a sign of the syntax gets a placeable, and a blank line no spaces."""
    first, *rest = text.split("\n")
    return first + "".join(newline + (indent + _escape_line(line) if line else "") for line in rest)


def _escape_line(line: str) -> str:
    return re.sub(r"^( *)([\[*.])", r'\1{"\2"}', line)


def _read_selectors(text: str, pattern: _Pattern) -> _Text | None:
    """Return a text with its selectors; None if it has too many sentences, or a selector in another place than a text."""
    if pattern.end - pattern.start > MAX_CHARACTERS:
        return None
    parts = _read_parts(text, pattern.start, pattern.end, 0)
    return None if parts is None or _count_sentences(parts) > MAX_SENTENCES else parts


def _count_sentences(parts: _Text) -> int:
    number = 1
    for part in parts:
        if isinstance(part, _Selector):
            counts = [_count_sentences(text) for _, text in part.variants]
            number *= max(sum(counts), 6 * max(counts) if part.has_plural else 0)
    return number


def _read_parts(text: str, start: int, end: int, depth: int) -> _Text | None:
    """Return the texts, with their placeables, and the selectors of a pattern; None as `_read_selectors` does."""
    indent, is_block = _measure_indent(text, start)
    indents = [indent] if is_block else []
    parts: list[str | _Selector | tuple[int, int]] = []  # line breaks are their number and the spaces behind
    position = start
    while position < end:
        selector = _SELECTOR.match(text, position, end)
        piece = _PIECE.match(text, position, end)
        if selector is not None:
            result = _read_selector(text, selector, end, depth)
            if result is None:
                return None
            position = result[1]
            parts.append(result[0])
            continue
        if piece is None or piece[0] == "}":
            return None
        if piece[0][0] == "\n":
            indents.append(len(piece[0]) - piece[0].rfind("\n") - 1)
            parts.append((piece[0].count("\n"), indents[-1]))
        elif piece[0] == "{":
            position = _find_placeable_end(text, position, end)
            placeable = text[piece.start() : position]
            if position == 0 or _has_selector(placeable):
                return None
            parts.append(" ".join(line.strip(" \r") for line in placeable.split("\n")))
            continue
        else:
            parts.append(piece[0].rstrip("\r"))
        position = piece.end()
    common = min(indents, default=0)
    return ["\n" * part[0] + " " * (part[1] - common) if isinstance(part, tuple) else part for part in parts]


def _read_selector(text: str, header: re.Match[str], end: int, depth: int) -> tuple[_Selector, int] | None:
    """Return a selector and the place behind it; None as `_read_selectors` does."""
    position = header.end()
    variants: list[tuple[str, _Text]] = []
    while depth < MAX_DEPTH and (variant := _VARIANT.match(text, position, end)):
        position = _find_variant_end(text, variant.end(), end)
        value = text[variant.end() : position]
        parts = _read_parts(text, variant.end() + len(value) - len(value.lstrip()), position, depth + 1)
        if not parts:
            return None
        variants.append((variant[1] + variant[2], parts))
    closing = _CLOSE.match(text, position, end)
    if closing is None or not variants:
        return None
    expression = header[0].strip()[1:-2].strip()
    return _Selector(expression, tuple(variants)), closing.end()


def _find_placeable_end(text: str, position: int, limit: int) -> int:
    """Return the place behind the brace that ends a placeable; 0 if there is none."""
    depth = 0
    while piece := _PIECE.match(text, position, limit):
        depth += (piece[0] == "{") - (piece[0] == "}")
        position = piece.end()
        if not depth:
            return position
    return 0


def _divide_by_variants(parts: _Text, language: str, chosen: Mapping[_Choice, str]) -> str | _Selector:
    """Return the text of parts without selectors, or the first selector around the sentences of its variants.

    chosen: keys of the variants of the selectors around the text, which equal selectors inside it have, too
    """
    number = next((number for number, part in enumerate(parts) if isinstance(part, _Selector)), None)
    if number is None:
        return "".join(part for part in parts if isinstance(part, str))
    part = parts[number]
    assert isinstance(part, _Selector)
    selector = part.add_forms(language)
    choice = selector.header, frozenset(key for key, _ in selector.variants)

    def divide(key: str, text: _Text) -> str | _Selector:
        return _divide_by_variants([*parts[:number], *text, *parts[number + 1 :]], language, {**chosen, choice: key})

    if choice in chosen:
        return divide(chosen[choice], next(text for key, text in selector.variants if key == chosen[choice]))
    return _Selector(selector.header, tuple((key, [divide(key, text)]) for key, text in selector.variants))


_Choice = tuple[str, frozenset[str]]


def _write_sentences(sentences: str | _Selector, indent: int, newline: str) -> str:
    """Return a text, or a selector around such, as the file has them. indent: spaces before the line that it stands in"""
    if isinstance(sentences, str):
        if "\n" not in sentences:
            return sentences
        pad = newline + " " * (indent + 4)
        return "".join(pad + _escape_line(line) if line else newline for line in sentences.split("\n"))
    lines = [f"{{ {sentences.header} ->"]
    for key, (text,) in sentences.variants:
        mark = "*" if key[0] == "*" else " "
        written = _write_sentences(text, indent + 4, newline)
        space = "" if written.startswith(newline) else " "
        lines.append(f"{' ' * (indent + 3)}{mark}[{key.lstrip('*')}]{space}{written}")
    return newline.join([*lines, " " * indent + "}"])


def _read_patterns(text: str) -> Iterator[_Pattern]:
    """Yield the patterns of a file, and those of variants in the place of a pattern with a selector."""
    position = 0
    entry = ""
    while position < len(text):
        check_goes_on()
        end = text.find("\n", position) + 1 or len(text)
        line = text[position:end]
        if not line.strip() or line.startswith("#"):
            position = end
            continue
        attribute = _ATTRIBUTE.match(text, position) if entry else None
        match = attribute or _ENTRY.match(text, position)
        if match is None:
            raise make_line_error(text, position, "is no entry of Fluent")
        entry = entry if attribute else match[1]
        key = f"{entry}.{match[1]}" if attribute else entry
        last = _find_pattern_end(text, match.end())
        if not (attribute and entry[0] == "-"):  # the attribute of a term is a selector of messages, which nobody reads
            yield from _divide(text, key, match.end(), last, "", 0)
        position = text.find("\n", last) + 1 or len(text)


def _find_pattern_end(text: str, position: int) -> int:
    """Return the end of a pattern, which goes on in indented lines and inside braces."""
    depth = 0
    end = position
    while piece := _PIECE.match(text, position):
        check_goes_on()
        if not depth and piece[0][0] == "\n":
            piece = _CONTINUATION.match(text, position)
            if piece is None:
                break
        depth = max(depth + (piece[0] == "{") - (piece[0] == "}"), 0)
        position = piece.end()
        end = _find_visible_end(piece, end)
    return end


def _find_visible_end(piece: re.Match[str], end: int) -> int:
    """Return the end of a piece without the white space behind it, or `end` if it is nothing else."""
    length = len(piece[0].rstrip())
    return piece.start() + length if length else end


def _divide(text: str, key: str, start: int, end: int, form: str, depth: int) -> Iterator[_Pattern]:
    """Yield a pattern, or the variants of its selector if it is nothing else."""
    start += len(text[start:end]) - len(text[start:end].lstrip())
    selector = _SELECTOR.match(text, start, end)
    if selector is None or depth == MAX_DEPTH or text[end - 1] != "}":
        yield _Pattern(key, start, end, form)
        return
    position = selector.end()
    variants: list[tuple[str, int, int]] = []
    while match := _VARIANT.match(text, position, end):
        position = _find_variant_end(text, match.end(), end)
        variants.append((match[2], match.end(), position))
    closing = _CLOSE.match(text, position, end)
    if closing is None or closing.end() != end:
        yield _Pattern(key, start, end, form)
        return
    for name, first, last in variants:
        yield from _divide(text, key, first, last, f"{form}.{name}" if form else name, depth + 1)


def _find_variant_end(text: str, position: int, limit: int) -> int:
    """Return the end of the text of a variant: before the next one, or before the brace that ends the selector."""
    depth = 0
    end = position
    while piece := _PIECE.match(text, position, limit):
        check_goes_on()
        if not depth and (piece[0] == "}" or (piece[0][0] == "\n" and _VARIANT.match(text, piece.end(), limit))):
            break
        depth += (piece[0] == "{") - (piece[0] == "}")
        position = piece.end()
        end = _find_visible_end(piece, end)
    return end
