"""AsciiDoc files: paragraphs, titles, items, cells and captions, as Asciidoctor reads them.

Blocks are found line by line, and marks within a text are codes. Listings, comments, attributes and macros stay, and a title
keeps the id to which the file refers.

A single mark stands at the border of a word, and a doubled one anywhere: https://docs.asciidoctor.org/asciidoc/latest/text/
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from dragoman.documents.document import PICTURES, Document, Edit
from dragoman.documents.encoded_text import EncodedText, decode, split_lines
from dragoman.documents.marked_text import Mark, MarkedTextReader, get_width
from dragoman.documents.reading import check_goes_on, check_text

TABLES = "tables of separated values"

_TITLE = re.compile(r"(?:={1,6}|#{1,6})[ \t]+(?=\S)")
_TITLE_END = re.compile(r"(?<![ \t])[ \t]++(?:={1,6}|#{1,6})$")
_TWO_LINES = re.compile(r"([=\-~^+])\1+$")
_KEPT_LINE = re.compile(
    r":!?\w[\w-]*!?:(?:[ \t].*)?$|//(?!//).*|[a-z]\w*::[^\[\]\n]{0,300}\[.*\]$|'{3,}$|<{3,}$|(?:---|\*\*\*|- - -|\* \* \*)$|\+$"
)
_ATTRIBUTES = re.compile(r"\[(?:[\w.#%,\"'*=|^<>&;:+\[{-].*)?\]$")
_KEPT_STYLE = re.compile(
    r"\[(?:source|listing|literal|stem|latexmath|asciimath|verse|pass|comment|plantuml|ditaa|graphviz|mermaid)\b"
)
_SEPARATED = re.compile(r"format\s*=\s*\"?(?:csv|tsv|dsv)|separator\s*=")
_KEPT_FENCE = re.compile(r"(?:-{4,}|\.{4,}|\+{4,}|/{4,})$|```")
_OPEN_FENCE = re.compile(r"(?:={4,}|\*{4,}|_{4,}|--)$")
_TABLE_FENCE = re.compile(r"[|,:!]={3,}$")
_BLOCK_TITLE = re.compile(r"\.(?=[^\s.])")
_ADMONITION = re.compile(r"(?:NOTE|TIP|IMPORTANT|WARNING|CAUTION):[ \t]+")
_ITEM = re.compile(
    r"[ \t]*(?:\*{1,5}|-|\.{1,5}|\d{1,9}\.|[a-zA-Z]\.|[ivxIVX]{1,6}\)|<(?:\d{1,4}|\.)>)[ \t]+(?:\[[ xX*]\][ \t]+)?(?=\S)"
)
_TERM = re.compile(r"[ \t]*((?=[^\s/])(?:[^:;\n]|:(?!:)|;(?!;)){1,400}+)(?::{2,4}|;;)(?:[ \t]+|$)")
_CELL = re.compile(r"(?<!\S)(?:\d{1,4}(?:\.\d{1,4})?[*+]|\.\d{1,4}[*+])?[<^>]?(?:\.[<^>])?([adehlmsv]?)\||(?<!\\)\|")
_COLUMNS = re.compile(r"\bcols\s*=\s*(?:\"([^\"]{0,500})\"|([^,\]]{1,500}))")
_KEPT_COLUMN = re.compile(r"[lm]$")
_ID_PART = re.compile(r"^:id(prefix|separator):[ \t]*([^\s]{0,9})", re.MULTILINE)
_BLOCK_PICTURE = re.compile(
    r"image::[^\s\[\]]{1,300}+\[[ \t]*+(?:\"([^\"\\\n]++)\"|(?![.#%\s])([^\[\]\n\",=]++)(?=[\],])(?<![ \t]))"
)
_PICTURE = re.compile(r"\bimage:(?!:)[^\s\[\]]{1,300}+\[\s*+\"?([^\[\]\n\",=]{1,300}+)(?![^\[\]\n\",=]|=)")
_LINK = re.compile(r"(?:<<|xref:|link:)#?([^,>\[\]\n]{1,200})")
_BEFORE, _AFTER = r"(?<![\w\\;:}])", r"(?!\w)"
_POINTS = rf"""
    \\(?=[*_`\#^~{{<:\[+])|\+\+\+[^+]{{1,300}}+\+\+\+|\+\+[^+\s][^+]{{0,300}}+\+\+
    |{_BEFORE}\+(?=\S)[^+\n]{{1,300}}+(?<!\s)\+{_AFTER}
    |``[^`]{{1,300}}+``|{_BEFORE}`(?=\S)[^`]{{1,300}}+(?<!\s)`{_AFTER}
    |\{{[\w:!][^{{}}\n]{{0,200}}+\}}|&(?:\w{{2,31}}+|\#\w{{2,8}}+);
    |\(\(\([^()\n]{{1,200}}+\)\)\)|\[\[[^\[\]\n]{{1,200}}+\]\]|<<[^<>,\n]{{1,200}}+>>
    |(?<!\w)(?:image|icon|kbd|menu|pass|stem|latexmath|asciimath|anchor|indexterm2?|counter2?|include|toc):
        [^\s\[\]]{{0,300}}+\[[^\[\]]{{0,300}}+\]
    |(?<!\w)[a-z]{{3,20}}+:[^\s\[\]<>]{{1,300}}+\[\]"""
_PAIRS = rf"""
    (?:(?<!\w)(?:xref|link|https?|ftp|irc|mailto|btn):|footnote(?:ref)?:|\{{[\w-]{{1,100}}+\}})[^\s\[\]<>]{{0,300}}+\[
        (?P<label>(?:[^\[\]\\]|\\.|\[[^\[\]\n]{{0,200}}+\]){{1,300}}+)\]
    |<<[^<>,\n]{{1,200}}+,[ \n]*+(?P<named>[^<>]{{1,300}}+)>>
    |{_BEFORE}(?P<quote>["'])`(?P<quoted>(?=\S)(?:(?!`(?P=quote)).){{1,300}}+)(?<!\s)`(?P=quote){_AFTER}
    |(?:\[[^\[\]\n]{{1,100}}+\])?+(?P<double>\*\*|__|\#\#)(?P<inner>(?=\S)(?:(?!(?P=double)).){{1,300}}+)(?P=double)
    |{_BEFORE}(?:\[[^\[\]\n]{{1,100}}+\])?+(?P<single>[*_\#])
        (?P<text>(?!(?P=single))(?=\S)(?:(?!(?<=\S)(?P=single)(?!\w)).){{1,300}}+)(?<!\s)(?P=single){_AFTER}
    |(?P<script>[\^~])(?P<raised>(?:(?!(?P=script))\S){{1,100}}+)(?P=script)"""
_NAME = re.compile(r"\{(?=[\w-]{1,100}\})")
_MARK = re.compile(
    rf"(?P<escape>\\{_NAME.pattern}[^}}]+\}})|(?P<br>\ \+\n)|(?P<apostrophe>(?<=\w)`'(?=\w))|(?:{_PAIRS})|(?:{_POINTS})",
    re.VERBOSE | re.DOTALL,
)
_MAX_INNER_DEPTH = 8
_CHARACTERS = {
    "{sp}": " ", "{vbar}": "|", "{nbsp}": "\u00a0", "{apos}": "'", "{deg}": "\u00b0",
    "{lsquo}": "\u2018", "{rsquo}": "\u2019", "{ldquo}": "\u201c", "{rdquo}": "\u201d",
}  # fmt: skip
"""Attributes of Asciidoctor that are characters of words, spaces and quotation marks"""
_FIRST_OPTION = re.compile(r",[ \n]*[\w-]{1,40}=|\^$")
_BLOCK_START = re.compile(
    r"[*.-]{1,5}\s|\d{1,9}\.\s|[a-zA-Z]\.\s|={1,6}\s|#{1,6}\s|//|:!?\w[\w-]*!?:|"
    r"\[[^\n]*\][ \t]*(?:\n|$)|\.[^\s.]|\||(?:NOTE|TIP|IMPORTANT|WARNING|CAUTION):\s"
    r"|(?:-{2,}|\.{4,}|={4,}|\*{4,}|_{4,}|\+{4,}|```|'''|<<<)"
)


def parse_asciidoc(content: bytes) -> Document:
    """Return the document of an AsciiDoc file. Raises DataError for bytes that are no text."""
    reader = _AsciidocReader(decode(content))
    reader.read()
    return replace(reader.texts.make_document("asciidoc"), keep_anchors=lambda names, is_hugo: reader.linked.update(names))


def _quote_attribute(text: str) -> str:
    return f'"{text}"' if re.search(r"[\[\],=]|^[.#%]", text) else text


class _AsciidocReader:
    """Reader of blocks, line by line.

    linked: ids and titles to which links lead
    """

    def __init__(self, text: EncodedText) -> None:
        self.text = text
        self.texts = MarkedTextReader(text, _AsciidocSyntax())
        self.linked = {match[1].strip() for match in _LINK.finditer(text.text)}
        self._id_parts = {match[1]: match[2] for match in _ID_PART.finditer(text.text)}
        lines = split_lines(text.text)
        check_text(max(map(len, lines), default=0))
        self._lines = [line.rstrip() for line in lines]
        self._starts = list(accumulate(map(len, lines), initial=0))
        self._has_id = False
        self._in_item = False

    def _add(self, number: int, end: int, start: int = 0, *, is_block: bool = True) -> None:
        """Add the text of lines from a column of the first one."""
        spans = []
        for line in range(number, end):
            content = self._lines[line]
            column = start if line == number else len(content) - len(content.lstrip())
            if column < len(content):
                spans.append((self._starts[line] + column, self._starts[line] + len(content)))
        if spans:
            self.texts.add(spans, is_block=is_block)

    def read(self) -> None:
        """Read the file."""
        if num_pictures := sum(any(map(str.isalpha, match[1])) for match in _PICTURE.finditer(self.text.text)):
            self.texts.skip(PICTURES, num_pictures)
        number = self._read_header()
        styles: list[str] = []
        while number < len(self._lines):
            check_goes_on()
            line = self._lines[number]
            if line.startswith("[") and _ATTRIBUTES.match(line):
                styles.append(line)
                number += 1
                continue
            if not line:
                number += 1
                continue
            if line[0] == "." and _BLOCK_TITLE.match(line) and not _KEPT_FENCE.match(line):
                self._add(number, number + 1, 1, is_block=False)
                number += 1
                continue
            number = self._read_block(number, "".join(styles))
            styles = []

    def _read_header(self) -> int:
        """Read the title of the document. Its authors and attributes stay."""
        number = 0
        if self._lines and self._lines[0] == "---":
            number = next((line + 1 for line in range(1, len(self._lines)) if self._lines[line] == "---"), 0)
        while number < len(self._lines) and (not self._lines[number] or _KEPT_LINE.match(self._lines[number])):
            number += 1
        if number < len(self._lines) and self._lines[number].startswith(("= ", "# ")):
            self._read_title(number, "")
            number += 1
            while number < len(self._lines) and self._lines[number]:
                number += 1
        return number

    def _read_block(self, number: int, style: str) -> int:
        """Read one block, and return the number of the line behind it."""
        line = self._lines[number]
        if _KEPT_FENCE.match(line):
            return self._skip_fence(number, "```" if line.startswith("```") else line)
        if _TABLE_FENCE.match(line):
            return self._read_table(number, style)
        if _OPEN_FENCE.match(line):
            self._in_item = False
            return self._skip_fence(number, line) if _KEPT_STYLE.search(style) else number + 1
        if _KEPT_STYLE.search(style):
            return self._find_end(number, is_kept=True)
        if (end := self._read_title(number, style)) > number:
            return end
        if _KEPT_LINE.match(line):
            if match := _BLOCK_PICTURE.match(line):
                span = match.span(1 if match[1] else 2)
                protect = str if match[1] else _quote_attribute
                place = (self._starts[number] + span[0], self._starts[number] + span[1])
                self.texts.add([place], is_block=False, protect=protect)
            if line.startswith(":"):
                while line.endswith("\\") and number + 1 < len(self._lines):
                    number += 1
                    line = self._lines[number]
            return number + 1
        if match := _ITEM.match(line) or _TERM.match(line):
            self._in_item = True
            if match.re is _TERM:
                self.texts.add([(self._starts[number] + match.start(1), self._starts[number] + match.end(1))])
            end = self._find_end(number + 1)
            self._add(number, end, match.end())
            return end
        if line[0] in " \t" and not self._in_item:
            return self._find_end(number, is_kept=True)
        if not line[0].isspace():
            self._in_item = self._in_item and self._lines[number - 1] == "+"
        end = self._find_end(number + 1)
        match = _ADMONITION.match(line)
        self._add(number, end, match.end() if match else len(line) - len(line.lstrip()))
        return end

    def _find_end(self, number: int, *, is_kept: bool = False) -> int:
        """Return the number of the line that ends a paragraph."""
        while number < len(self._lines) and (line := self._lines[number]):
            if not is_kept and (
                _KEPT_FENCE.match(line)
                or _OPEN_FENCE.match(line)
                or _TABLE_FENCE.match(line)
                or (line[0] == "[" and _ATTRIBUTES.match(line))
                or line == "+"
                or line.startswith("//")
                or (self._in_item and (_ITEM.match(line) or _TERM.match(line)))
                or re.match(r"(?:ifn?def|ifeval|endif|include)::", line)
            ):
                break
            number += 1
        return number

    def _skip_fence(self, number: int, fence: str) -> int:
        for line in range(number + 1, len(self._lines)):
            if self._lines[line] == fence:
                return line + 1
        return len(self._lines)

    def _read_title(self, number: int, style: str) -> int:
        """Read a title, which keeps its id if the file refers to it. Return the number of the line behind it, if it is one."""
        line = self._lines[number]
        start, end, two_lines = 0, len(line), False
        if match := _TITLE.match(line):
            start = match.end()
            if last := _TITLE_END.search(line, start):
                end = last.start()
        elif number + 1 < len(self._lines) and _TWO_LINES.match(self._lines[number + 1]) and line[:1].isalnum():
            two_lines = abs(len(self._lines[number + 1]) - len(line)) <= 1
            if not two_lines:
                return number
        else:
            return number
        self._in_item = False
        old = line[start:end]
        name = self._make_id(old)
        has_id = "[[" in style or "[#" in style or ",id=" in style or "[id=" in style
        first = self._starts[number]

        def add_edits(text: str) -> list[Edit]:
            edits: list[Edit] = []
            if two_lines:
                place = self._starts[number + 1]
                mark = self._lines[number + 1][0]
                edits.append(self.text.make_edit(place, place + len(self._lines[number + 1]), mark * max(get_width(text), 2)))
            if (name in self.linked or old in self.linked) and text != old and not has_id:
                edits.append(self.text.make_edit(first, first, f"[[{name}]]{self.text.newline}"))
            return edits

        self.texts.add([(first + start, first + end)], is_block=False, add_edits=add_edits)
        return number + 1 + two_lines

    def _read_table(self, number: int, style: str) -> int:
        """Read the cells of a table. Those of code, and separated values, stay."""
        fence = self._lines[number]
        end = self._skip_fence(number, fence)
        if fence[0] != "|" or _SEPARATED.search(style):
            self.texts.skip(TABLES)
            return end
        last = end - 1 if end > number + 1 and self._lines[end - 1] == fence else end
        columns = _COLUMNS.search(style)
        specs = re.split(r"[,;]", columns[1] or columns[2]) if columns else []
        kept = [bool(_KEPT_COLUMN.search(spec.strip())) for spec in specs]
        cell = -1
        is_kept = True
        spans: list[tuple[int, int]] = []
        for line in range(number + 1, last):
            content = self._lines[line]
            is_head = line == number + 1 and line + 1 < last and not self._lines[line + 1]
            position = 0
            matches = list(_CELL.finditer(content))
            for match in [*matches, None]:
                segment = content[position : match.start() if match else len(content)]
                if segment.strip():
                    first = self._starts[line] + position + len(segment) - len(segment.lstrip())
                    spans.append((first, first + len(segment.strip())))
                if match or not content:
                    if not is_kept:
                        self._add_cell(spans)
                    spans = []
                if match:
                    cell += 1
                    position = match.end()
                    is_kept = match[1] in ("l", "m") if match[1] else bool(kept and kept[cell % len(kept)] and not is_head)
        if not is_kept:
            self._add_cell(spans)
        return end

    def _add_cell(self, spans: Sequence[tuple[int, int]]) -> None:
        """Add the text of a paragraph of a cell. One with lists or other blocks is divided at their lines."""
        group: list[tuple[int, int]] = []
        is_code = False
        for start, end in spans:
            line = self.text.text[start:end]
            match = _ITEM.match(line)
            if match or _KEPT_FENCE.match(line) or _OPEN_FENCE.match(line) or _KEPT_LINE.match(line) or is_code:
                if group:
                    self.texts.add(group, protect=_protect_cell)
                group = []
            if _KEPT_FENCE.match(line):
                is_code = not is_code
            elif match and not is_code:
                group = [(start + match.end(), end)]
            elif not is_code and not _OPEN_FENCE.match(line) and not _KEPT_LINE.match(line) and not _ATTRIBUTES.match(line):
                group.append((start, end))
        if group:
            self.texts.add(group, protect=_protect_cell)

    def _make_id(self, title: str) -> str:
        """Return the id that Asciidoctor gives to a title."""
        prefix, separator = (self._id_parts.get(name, "_") for name in ("prefix", "separator"))
        plain = re.sub(r"[^\w .-]", "", re.sub(r"[*_`#](?=\w)|(?<=\w)[*_`#](?!\w)|\{[^{}]*\}", "", title.lower()))
        return prefix + re.sub(r"[ .-]+", separator, plain).strip(separator)


class _AsciidocSyntax:
    """Rules of AsciiDoc for the marks in a text."""

    def find_marks(self, content: str) -> Sequence[Mark]:
        """Return the marks of a text in order. Pairs nest."""
        marks: list[Mark] = []
        _add_marks(marks, content, 0, len(content), 0)
        return marks

    def write(self, pieces: Sequence[str], tags: Sequence[str], *, is_escaped: bool) -> Sequence[str]:
        """Return what the file gets for texts and codes in turn.

        A single mark in a word is doubled, and the name of an attribute in a text has a backslash before it.
        """
        output = [piece if number % 2 or not is_escaped else _NAME.sub(r"\\{", piece) for number, piece in enumerate(pieces)]
        opened: list[int] = []
        for number, tag in enumerate(tags):
            place = 2 * number + 1
            if tag.startswith("</"):
                start = opened.pop()
                mark = pieces[place]
                before = next((output[index] for index in range(start - 1, -1, -1) if output[index]), "")[-1:]
                after = next((pieces[index] for index in range(place + 1, len(pieces)) if pieces[index]), "")[:1]
                if mark in ("*", "_", "#") and (_is_joined(before) or _is_joined(after)):
                    output[start] = output[start] + mark
                    output[place] = mark * 2
            elif tag.startswith("<g"):
                opened.append(place)
        return output

    def protect_start(self, text: str) -> str:
        """Return a text with an empty attribute where another block would begin."""
        return f"{{empty}}{text}" if _BLOCK_START.match(text) else text


def _protect_cell(text: str) -> str:
    """Return the text of a cell with an attribute for each sign that would begin another cell."""
    return re.sub(r"(?<!\\)\|", "{vbar}", text)


def _is_joined(character: str) -> bool:
    return character.isalnum() or character == "_"


def _add_marks(marks: list[Mark], content: str, start: int, end: int, depth: int) -> None:
    for match in _MARK.finditer(content, start, end):
        if match["br"]:
            marks.append(Mark(*match.span(), "br"))
            continue
        if match["escape"]:
            marks.append(Mark(*match.span(), "text", match[0][1:]))
            continue
        if match["apostrophe"]:
            marks.append(Mark(*match.span(), "text", "’"))
            continue
        if match[0] in _CHARACTERS:
            marks.append(Mark(*match.span(), "text", _CHARACTERS[match[0]]))
            continue
        name = next((name for name in ("label", "named", "quoted", "inner", "text", "raised") if match[name]), "")
        if not name or depth > _MAX_INNER_DEPTH:
            marks.append(Mark(*match.span(), "point"))
            continue
        first, last = match.span(name)
        if name == "label" and (option := _FIRST_OPTION.search(match[name])):
            last = first + option.start()
        if first == last:
            marks.append(Mark(*match.span(), "point"))
            continue
        marks.append(Mark(match.start(), first, "start", " " if match[0].startswith("footnote") else ""))
        _add_marks(marks, content, first, last, depth + 1)
        marks.append(Mark(last, match.end(), "end"))
