"""Marks in texts of reStructuredText: emphasis, literals, roles, references and escapes.

The rules are those of https://docutils.sourceforge.io/docs/ref/rst/restructuredtext.html#inline-markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.documents.marked_text import Mark

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
_LABEL = re.compile(r"[^\\<>]*+$")
_REFERENCE = re.compile(
    rf"(?<!`)`([^`<>]{{1,500}}+)`_(?!\w)|{_ROLE}`(?:[^`<>]{{0,300}}+<)?+([^`<>]{{1,300}}+)>?`|(?<!\w)([^\W_]{{1,80}}+)_(?!\w)"
)


def list_references(text: str) -> set[str]:
    """Return the names to which a file refers, in the form of `normalize_name`."""
    return {
        normalize_name(name.rpartition(":")[2] if number == 1 else name)
        for match in _REFERENCE.finditer(text)
        for number, name in enumerate(match.groups())
        if name and (number != 1 or " " in name or name != name.lower())
    }


def normalize_name(name: str) -> str:
    """Return the form of a name in which it is compared."""
    return " ".join(name.split()).lower()


class RstSyntax:
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
                if is_named and not _LABEL.match(match["content"]):
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
        return f"{text[:place]}\\{text[place:]}" if BLOCK_START.match(text) else text


BLOCK_START = re.compile(
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
