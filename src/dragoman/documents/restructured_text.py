"""reStructuredText files: paragraphs, titles, items, and the texts of directives, as docutils and Sphinx read them.

Blocks are found by their indentation, and marks within a text are codes. Code, comments, tables in lines, terms of glossaries
and directives without prose stay. The lines under and above a title grow with it, and a title keeps the name by which
the file refers to it.

The rules of marks are those of https://docutils.sourceforge.io/docs/ref/rst/restructuredtext.html#inline-markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.documents.document import Document, Edit
from dragoman.documents.encoded_text import EncodedText, decode, split_lines
from dragoman.documents.marked_text import MAX_DEPTH, Mark, MarkedTextReader, get_width
from dragoman.documents.reading import check_goes_on, check_text
from dragoman.errors import DataError

TABLES, TERMS, UNKNOWN = "tables in lines", "terms of glossaries", "directives of unknown kinds"

# Directives by what stands behind their name.
_WITH_TEXT = frozenset(
    ("note", "warning", "tip", "hint", "important", "caution", "danger", "error", "attention", "seealso", "todo", "centered")
)
_WITH_VERSION = frozenset(("versionadded", "versionchanged", "deprecated", "versionremoved"))
_WITH_TITLE = frozenset(
    ("admonition", "topic", "sidebar", "rubric", "list-table", "table", "csv-table", "tab", "tab-item", "dropdown", "card")
)
_WITH_NAMES = frozenset(
    (
        "figure", "container", "class", "only", "ifconfig", "compound", "epigraph", "highlights", "pull-quote", "tab-set",
        "grid",
        "function", "method", "attribute", "data", "exception", "decorator", "describe", "object", "option", "confval",
        "envvar",
        "program", "cmdoption", "module", "hlist", "glossary", "header", "footer", "staticmethod", "classmethod", "property",
    )
)  # fmt: skip
_KEPT = frozenset(
    (
        "code", "code-block", "sourcecode", "literalinclude", "include", "image", "math", "raw", "highlight", "parsed-literal",
        "toctree", "contents", "sectnum", "default-role", "role", "meta", "index", "currentmodule", "tabularcolumns",
        "productionlist", "doctest", "testcode", "testoutput", "testsetup", "testcleanup", "graphviz", "digraph", "graph",
        "plot",
        "bibliography", "moduleauthor", "sectionauthor", "codeauthor", "title", "target-notes", "date", "unicode", "ipython",
    )
)  # fmt: skip
_TEXT_OPTIONS = frozenset(("alt", "caption"))
_KEPT_FIELDS = frozenset(
    ("author", "authors", "orphan", "address", "contact", "organization", "date", "version", "revision", "copyright", "status")
)
_TYPE_FIELDS = frozenset(("type", "rtype", "vartype", "kwtype"))

_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1*$")
_BULLET = re.compile(r"[-*+\u2022\u2023\u2043](?:[ \t]+|$)")
_ENUMERATOR = re.compile(r"\(?(?:\d{1,9}|[A-Za-z]|[ivxlcdmIVXLCDM]{1,10}|#)[.)](?:[ \t]+|$)")
_FIELD = re.compile(r":(?![: ])((?:[^:\\\n]|\\.|:(?![ `\n]|$)){1,200}+)(?<! ):(?:[ \t]+|$)")
_OPTION = re.compile(
    r"(?:--?\w[\w-]{0,60}+|/\w)(?:[ =](?:<[^<>\n]{1,60}+>|[\w-]{1,60}+))?+"
    r"(?:, (?:--?\w[\w-]{0,60}+|/\w)(?:[ =](?:<[^<>\n]{1,60}+>|[\w-]{1,60}+))?+){0,10}+(?:[ \t]{2,}|$)"
)
_SIMPLE_BORDER = re.compile(r"=+(?:[ ]+=+)+$")
_DIRECTIVE = re.compile(r"([a-zA-Z][\w.+:-]{0,80}?) ?::(?:[ \t]+|$)")
_FOOTNOTE = re.compile(r"\[(?:#[\w.-]{0,80}|\*|[\w.-]{1,80})\](?:[ \t]+|$)")
_SUBSTITUTION = re.compile(r"\|[^|\n]{1,200}\|[ \t]+(?=replace::)")
_TARGET = re.compile(r"^[ \t]*\.\. _(?:`([^`\n]{1,300})`|([^:`\n]{1,300})):", re.MULTILINE)
_TOC_ENTRY = re.compile(r"([^<>\n]{1,300}\S)[ \t]+<[^<>\n]+>$")
_LITERAL = re.compile(r"``((?:[^`]|`(?!`))++)``")
_NAME_CHARACTERS = re.compile(r"[\w ]+")
_BEFORE = r"""(?<![^\s'"(\[{<\-/:\u2010-\u2015\u201e\u201c\u2018\u00ab\u00a1\u00bf])"""
_AFTER = r"""(?![^\s'")\]}>\-/\\:.,;!?\u2010-\u2015\u201d\u2019\u00bb\u201c\u2026\u3002\u3001\uff0c])"""
_IS_BEFORE = re.compile(r"""[\s'"(\[{<\-/:\u2010-\u2015\u201e\u201c\u2018\u00ab\u00a1\u00bf]$""")
_IS_AFTER = re.compile(rf"{_AFTER}(?=.)", re.DOTALL)
_ROLE = r":[a-zA-Z][\w.+-]{0,60}+(?::[\w.+-]{1,60}+){0,3}+:"
_ESCAPE = r"\\[\W_]"
_MARK = re.compile(
    rf"""(?P<escape>{_ESCAPE})
    |{_BEFORE}(?:
      (?P<point>``(?=\S)`*+(?:[^`]|`(?!`(?!`))){{1,500}}+``|_`[^`]{{1,500}}+`|\[(?:\#[\w.-]{{0,80}}+|\*|[\w.-]{{1,80}}+)\]_|
        \|(?=\S)[^|\n]{{1,200}}+(?<!\s)\|_{{0,2}}+|[^\W_]{{1,80}}+(?:[-._+:][^\W_]{{1,80}}+){{0,10}}+_{{1,2}}+){_AFTER}
      |(?P<pair>\*\*)(?=\S)(?P<strong>(?:[^*\\]|\\.|\*(?!\*)){{1,500}}+)(?<!\s)\*\*{_AFTER}
      |(?P<single>\*)(?=[^\s*])(?P<emphasis>(?:[^*\\]|\\.){{1,500}}+)(?<!\s)\*{_AFTER}
      |(?P<role>{_ROLE})?+`(?=[^\s`])(?P<content>(?:[^`\\]|\\.){{1,500}}+)(?<!\s)`(?P<suffix>{_ROLE}|__?|){_AFTER}
    )""",
    re.VERBOSE | re.DOTALL,
)
_INNER_ESCAPE = re.compile(_ESCAPE)
_SPECIAL = re.compile(r"[*`|]|(?<=\w)_(?!\w)|(?<!\w)_(?=`)")
_TEXT_ROLES = frozenset(("emphasis", "strong", "guilabel", "dfn", "sub", "sup", "subscript", "superscript"))
_CODE_ROLES = frozenset(("code", "literal", "math", "kbd", "file", "samp", "command", "program", "raw", "option", "envvar"))
_PLAIN_LABEL = re.compile(r"[^\\<>]*+$")
_REFERENCE = re.compile(
    rf"(?<!`)`([^`<>]{{1,500}}+)`_(?!\w)|{_ROLE}`(?:[^`<>]{{0,300}}+<)?+([^`<>]{{1,300}}+)>?`|(?<!\w)([^\W_]{{1,80}}+)_(?!\w)"
)


def parse_rst(content: bytes) -> Document:
    """Return the document of a reStructuredText file. Raises DataError for bytes that are no text, and for deep nesting."""
    text = decode(content)
    reader = _RstReader(text)
    reader.read_blocks(0, reader.num_lines, 0, 0)
    return reader.texts.make_document("rst")


class _RstReader:
    """Reader of blocks. A line has the place of its content, which moves behind the mark of an item, and its indentation."""

    def __init__(self, text: EncodedText) -> None:
        self.text = text
        self.texts = MarkedTextReader(text, _RstSyntax())
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._indents: list[int] = []
        self._is_first_field = True
        self._term_indent = -1  # of the glossary that is read
        self._references = _list_references(text.text)
        self._targets = {_normalize_name(match[1] or match[2]) for match in _TARGET.finditer(text.text)}
        position = 0
        lines = split_lines(text.text)
        check_text(max(map(len, lines), default=0))
        for line in lines:
            content = line.lstrip(" \t\r\n\f\v")
            blanks = line[: len(line) - len(content)] if content else ""
            self._starts.append(position + len(blanks))
            self._ends.append(position + len(line.rstrip()) if content else position)
            self._indents.append(len(blanks.expandtabs()))
            position += len(line)
        self.num_lines = len(self._starts)

    def _get(self, number: int) -> str:
        """Return the content of a line."""
        return self.text.text[self._starts[number] : self._ends[number]]

    def _is_blank(self, number: int) -> bool:
        return self._starts[number] >= self._ends[number]

    def _find_end(self, number: int, last: int, indent: int) -> int:
        """Return the number of the first line from a line on that is indented less."""
        while number < last and (self._is_blank(number) or self._indents[number] >= indent):
            number += 1
        return number

    def _get_indent(self, number: int, end: int, default: int) -> int:
        """Return the least indentation of lines with text."""
        return min((self._indents[line] for line in range(number, end) if not self._is_blank(line)), default=default)

    def _add_lines(self, number: int, end: int, cut: int = 0) -> None:
        """Add the text of lines, without the last characters."""
        spans = [(self._starts[line], self._ends[line]) for line in range(number, end) if not self._is_blank(line)]
        if spans:
            start, last = spans[-1]
            last = max(start, last - cut)
            spans[-1] = (start, start + len(self.text.text[start:last].rstrip()))
            self.texts.add([span for span in spans if span[0] < span[1]] or [(start, start)])

    def read_blocks(self, number: int, last: int, indent: int, depth: int) -> None:
        """Read the blocks of lines that begin at an indentation. Raises DataError for blocks that are too deep."""
        if depth > MAX_DEPTH:
            raise DataError(f"the file has more than {MAX_DEPTH} blocks in one another; divide it", code="input-too-long")
        while number < last:
            check_goes_on()
            if self._is_blank(number):
                number += 1
            elif self._indents[number] > indent:
                end = self._find_end(number, last, indent + 1)
                self.read_blocks(number, end, self._get_indent(number, end, indent), depth + 1)
                number = end
            else:
                number = self._read_block(number, last, indent, depth)

    def _read_block(self, number: int, last: int, indent: int, depth: int) -> int:
        """Read one block, and return the number of the line behind it."""
        content = self._get(number)
        if indent == self._term_indent and not content.startswith(".."):
            self.texts.skip(TERMS)
            return number + 1
        if content == ".." or content.startswith((".. ", "..\t")):
            end = self._find_end(number + 1, last, indent + 1)
            self._read_explicit(number, end, indent, depth)
            return end
        if content == "__" or content.startswith("__ "):
            return self._find_end(number + 1, last, indent + 1)
        if content.startswith((">>>", "+-", "+=")):
            if content[0] == "+":
                self.texts.skip(TABLES)
            return self._find_blank(number, last)
        if content == "|" or content.startswith("| "):
            self._starts[number] += len(content) - len(content[1:].lstrip())
            end = number + 1
            while end < last and not self._is_blank(end) and self._indents[end] > indent:
                end += 1
            self._add_lines(number, end)
            return end
        if _SIMPLE_BORDER.match(content):
            self.texts.skip(TABLES)
            return self._find_table_end(number, last)
        for pattern in (_BULLET, _ENUMERATOR, _FIELD, _OPTION):
            if (match := pattern.match(content)) and self._is_item(pattern, number, last, indent):
                return self._read_item(pattern, match, number, last, indent, depth)
        if (end := self._read_title(number, last)) > number:
            return end
        if number + 1 < last and not self._is_blank(number + 1) and self._indents[number + 1] > indent:
            return self._read_definition(number, last, indent, depth)
        end = number + 1
        while end < last and not self._is_blank(end) and self._indents[end] == indent:
            end += 1
        if not self._get(end - 1).endswith("::"):
            self._add_lines(number, end)
            return end
        self._add_lines(number, end, cut=2)
        return self._skip_literal(end, last, indent)

    def _find_blank(self, number: int, last: int) -> int:
        while number < last and not self._is_blank(number):
            number += 1
        return number

    def _find_table_end(self, number: int, last: int) -> int:
        """Return the number of the line behind a simple table."""
        num_borders = 0
        for line in range(number + 1, last):
            if not self._is_blank(line) and _SIMPLE_BORDER.match(self._get(line)):
                num_borders += 1
                if num_borders == 2 or line + 1 == last or self._is_blank(line + 1):
                    return line + 1
        return self._find_blank(number, last)

    def _skip_literal(self, number: int, last: int, indent: int) -> int:
        """Return the number of the line behind a literal block."""
        while number < last and self._is_blank(number):
            number += 1
        if number < last and self._indents[number] > indent:
            return self._find_end(number, last, indent + 1)
        mark = self._get(number)[:1] if number < last else ""
        if mark and not mark.isalnum() and mark.isprintable():
            while number < last and self._get(number).startswith(mark):
                number += 1
        return number

    def _is_item(self, pattern: re.Pattern[str], number: int, last: int, indent: int) -> bool:
        """Return whether what looks like an item is one, by the line behind it."""
        if pattern is not _ENUMERATOR or number + 1 >= last or self._is_blank(number + 1):
            return True
        return self._indents[number + 1] > indent or bool(_ENUMERATOR.match(self._get(number + 1)))

    def _read_item(
        self, pattern: re.Pattern[str], match: re.Match[str], number: int, last: int, indent: int, depth: int
    ) -> int:
        has_own_indent = pattern in (_BULLET, _ENUMERATOR) and match.end() < len(match.string)
        inner = indent + match.end() if has_own_indent else indent + 1
        end = self._find_end(number + 1, last, inner)
        if pattern is _FIELD:
            name = match[1].lower().split()[0]
            if name in _TYPE_FIELDS or (self._is_first_field and name in _KEPT_FIELDS):
                return end
        if pattern is not _FIELD:
            self._is_first_field = False
        self._read_behind(number, end, match.end(), inner, depth, has_own_indent=has_own_indent)
        return end

    def _read_behind(self, number: int, end: int, length: int, inner: int, depth: int, *, has_own_indent: bool = False) -> None:
        """Read what stands behind the first characters of a line, and the lines that belong to it."""
        self._starts[number] += length
        if not has_own_indent:
            inner = self._get_indent(number + 1, end, inner)
        self._indents[number] = inner
        self.read_blocks(number, end, inner, depth + 1)

    def _read_title(self, number: int, last: int) -> int:
        """Read a title with its lines, or a line between two paragraphs. Return the number of the line behind it."""
        content = self._get(number)
        if _ADORNMENT.match(content):
            if number + 2 < last and content == self._get(number + 2) and not self._is_blank(number + 1):
                self._add_title(number + 1, [number, number + 2])
                return number + 3
            if len(content) >= 4 and (number + 1 == last or self._is_blank(number + 1)):
                return number + 1
        if number + 1 < last and self._indents[number] == self._indents[number + 1]:
            line = self._get(number + 1)
            if line and _ADORNMENT.match(line) and (len(line) >= 4 or len(line) >= get_width(content)) and line != "::":
                self._add_title(number, [number + 1])
                return number + 2
        return number

    def _add_title(self, number: int, lines: Sequence[int]) -> None:
        self._is_first_field = False
        start, end = self._starts[number], self._ends[number]
        old = self.text.text[start:end]
        literals = _LITERAL.split(old)  # between other texts
        literals[::2] = (re.sub(r"`_{0,2}|(?<=\w)_{1,2}(?!\w)|\*|\\(?=\W)", "", part) for part in literals[::2])
        plain = " ".join("".join(literals).split())
        name = _normalize_name(plain)
        is_linked = name in self._references and name not in self._targets
        if is_linked:
            self._targets.add(name)
        inset = self._indents[number]
        first = min(number, *lines)
        first_start = self._starts[first]

        def add_edits(text: str) -> list[Edit]:
            width = get_width(text) + inset
            edits: list[Edit] = []
            for line in lines:
                length = self._ends[line] - self._starts[line]
                is_exact = length == get_width(old) + 2 * inset
                new = width + inset if is_exact else max(length, width)
                if new != length:
                    mark = self.text.text[self._starts[line]]
                    edits.append(self.text.make_edit(self._starts[line], self._ends[line], mark * new))
            if is_linked and text != old:
                label = plain if _NAME_CHARACTERS.fullmatch(plain) else f"`{plain}`"
                newline = self.text.newline
                edits.append(self.text.make_edit(first_start, first_start, f".. _{label}:{newline}{newline}"))
            return edits

        self.texts.add([(start, end)], add_edits=add_edits)

    def _read_definition(self, number: int, last: int, indent: int, depth: int) -> int:
        """Read a term and its definition."""
        end = self._find_end(number + 1, last, indent + 1)
        content = self._get(number)
        if content.endswith("::"):
            self._add_lines(number, number + 1, cut=2)
            return end
        self._add_lines(number, number + 1, cut=len(content) - len(content.partition(" : ")[0]))
        self.read_blocks(number + 1, end, self._get_indent(number + 1, end, indent), depth + 1)
        return end

    def _read_explicit(self, number: int, end: int, indent: int, depth: int) -> None:
        """Read what begins with two dots: a directive, a footnote or a definition. Targets and comments stay."""
        content = self._get(number)
        rest = content[2:].lstrip()
        place = len(content) - len(rest)
        if rest.startswith("|") and (match := _SUBSTITUTION.match(rest)):
            place += match.end()
            rest = rest[match.end() :]
        if rest.startswith("[") and (match := _FOOTNOTE.match(rest)):
            self._read_behind(number, end, place + match.end(), indent + 1, depth)
        elif match := _DIRECTIVE.match(rest):
            self._read_directive(match[1], number, end, place + match.end(), indent, depth)

    def _read_directive(self, name: str, number: int, end: int, length: int, indent: int, depth: int) -> None:
        kind = name.lower()
        if kind in _WITH_VERSION:
            version = re.match(r"\S*\s*", self._get(number)[length:])
            length += version.end() if version else 0
            kind = "note"
        arguments = number + 1
        while arguments < end and not self._is_blank(arguments) and not _FIELD.match(self._get(arguments)):
            arguments += 1
        body = self._read_options(arguments, end)
        inner = self._get_indent(body, end, indent + 1)
        if kind in _WITH_TEXT or kind == "replace":
            if body == arguments:
                self._read_behind(number, end, length, indent + 1, depth)
                return
            self._starts[number] += length
            self._add_lines(number, arguments)
        elif kind in _WITH_TITLE:
            self._starts[number] += length
            self._add_lines(number, arguments)
            if kind == "csv-table":
                self.texts.skip(TABLES)
                return
        elif kind == "toctree":
            for line in range(body, end):
                if match := _TOC_ENTRY.match(self._get(line)):
                    self.texts.add([(self._starts[line], self._starts[line] + match.end(1))])
            return
        elif not (kind in _WITH_NAMES or ":" in kind or (kind.startswith("auto") and kind != "autosummary")):
            if kind not in _KEPT and any(not self._is_blank(line) for line in range(body, end)):
                self.texts.skip(UNKNOWN)
            return
        term_indent, self._term_indent = self._term_indent, inner if kind == "glossary" else -1
        self.read_blocks(body, end, inner, depth + 1)
        self._term_indent = term_indent

    def _read_options(self, number: int, end: int) -> int:
        """Add the texts among the options of a directive, and return the number of the line behind them."""
        while number < end and (match := _FIELD.match(self._get(number))):
            following = number + 1
            while following < end and not self._is_blank(following) and self._indents[following] > self._indents[number]:
                following += 1
            if match[1] in _TEXT_OPTIONS:
                self._starts[number] += match.end()
                self._add_lines(number, following)
            number = following
        return number


def _list_references(text: str) -> set[str]:
    """Return the names to which a file refers, in the form of `_normalize_name`."""
    return {
        _normalize_name(name.rpartition(":")[2] if number == 1 else name)
        for match in _REFERENCE.finditer(text)
        for number, name in enumerate(match.groups())
        if name and (number != 1 or " " in name or name != name.lower())
    }


def _normalize_name(name: str) -> str:
    """Return the form of a name in which it is compared."""
    return " ".join(name.split()).lower()


class _RstSyntax:
    """Rules of reStructuredText for the marks in a text."""

    def find_marks(self, content: str) -> Sequence[Mark]:
        """Return the marks of a text in order."""
        marks: list[Mark] = []
        for match in _MARK.finditer(content):
            if match["escape"]:
                marks.append(_make_escape(match))
            elif match["strong"]:
                _add_pair(marks, content, match.span(), match.span("strong"))
            elif match["emphasis"]:
                _add_pair(marks, content, match.span(), match.span("emphasis"))
            elif match["content"] and (span := _find_text(match)) is not None:
                is_named = match["suffix"] == "_" and span == match.span("content")
                if is_named and not _PLAIN_LABEL.match(match["content"]):
                    marks.append(Mark(*match.span(), "point"))
                    continue
                label = " ".join(match["content"].split())
                _add_pair(marks, content, match.span(), span, f" <{label}_>`__" if is_named else "")
            else:
                marks.append(Mark(*match.span(), "point"))
        return marks

    def write(self, pieces: Sequence[str], tags: Sequence[str], *, is_escaped: bool) -> Sequence[str]:
        r"""Return what the file gets for texts and codes in turn. `\ ` stands where a mark would touch a letter."""
        output: list[str] = []
        before = ""  # what stands before the next piece
        ended = False  # a mark ends there
        for number, piece in enumerate(pieces):
            written = piece
            if number % 2:
                is_end = tags[number // 2].startswith("</")
                if not is_end and ((before and not _IS_BEFORE.search(before)) or (ended and before)):
                    output[-1] += "\\ "
                ended = not tags[number // 2].startswith("<g")
            else:
                written = re.sub(r"\\(?=[\W_]|$)", r"\\\\", piece)
                written = _SPECIAL.sub(r"\\\g<0>", written) if is_escaped else written
                if ended and written and not _IS_AFTER.match(written):
                    written = f"\\ {written}"
                ended = ended and not written
            output.append(written)
            before = written[-1:] or before
        return output

    def protect_start(self, text: str) -> str:
        """Return a text with a backslash where another block would begin. One before a letter or a digit escapes nothing."""
        place = next((number for number, character in enumerate(text) if not character.isalnum()), 0)
        return f"{text[:place]}\\{text[place:]}" if _BLOCK_START.match(text) else text


_BLOCK_START = re.compile(
    r"(?:(?:[-*+|\u2022\u2023\u2043]|\(?(?:\d{1,9}|[A-Za-z]|[ivxlcdmIVXLCDM]{1,10}|#)[.)]|\.\.|__|>>>)(?:\s|$)"
    r"|:(?![: ])[^:\n]{1,200}:(?:\s|$)|--?\w[^ \n]{0,60}(?: {2}|$)|([^\w\s])\1{3,}[ \t]*$)"
)
"""Start of a text that begins another block than a paragraph."""


def _make_escape(match: re.Match[str]) -> Mark:
    character = match[0][1]
    return Mark(*match.span(), "text", "" if character.isspace() else character)


def _add_pair(marks: list[Mark], content: str, outer: tuple[int, int], inner: tuple[int, int], changed: str = "") -> None:
    marks.append(Mark(outer[0], inner[0], "start"))
    marks.extend(map(_make_escape, _INNER_ESCAPE.finditer(content, *inner)))
    marks.append(Mark(inner[1], outer[1], "end", changed=changed))


def _find_text(match: re.Match[str]) -> tuple[int, int] | None:
    """Return the span of the text in a role or a reference, or None if it is a name."""
    content, role = match["content"], (match["role"] or "").strip(":")
    start, end = match.span("content")
    if role in _CODE_ROLES or match["suffix"].startswith(":"):
        return None
    if content.endswith(">") and not content.endswith("\\>") and (place := content.rfind("<")) >= 0:
        text = content[:place].rstrip()
        return (start, start + len(text)) if text and len(text) < place else None
    if match["suffix"] and not role:
        return start, end
    return (start, end) if role in _TEXT_ROLES else None
