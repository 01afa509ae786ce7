"""Marks in texts of AsciiDoc: bold and italic text, code, macros, references and attributes.

The rules are those of https://docs.asciidoctor.org/asciidoc/latest/text/, where a single mark stands at the border of a word
and a doubled one anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.documents.marked_text import Mark

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


class AsciidocSyntax:
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


def protect_cell(text: str) -> str:
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
