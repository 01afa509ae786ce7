"""Rules for markdown-it-py that read the blocks and codes of GitHub, MDX, MkDocs, Hugo, Jekyll, Pandoc, Obsidian and DocFX.

A line of structure, such as `:::note`, is kept, and so are math, comments, imports and the code in shortcodes for it. What
stands inside a directive, a definition or a footnote is read as Markdown. Codes within a text are tokens `dialect_code`, and
pairs around a text are tokens `dialect_open` and `dialect_close`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.ruler import RuleOptionsType
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

MAX_CODE = 500
"""Most characters of a code within a text."""

_TEMPLATE_TAG = (
    r"(?:\{%(?:[^%\n]|%(?!\})){0,500}+%\}|\{\{<(?:[^>\n]|>(?!\}\})){0,500}+>\}\}|\{\{%(?:[^%\n]|%(?!\}\})){0,500}+%\}\}"
    r"|\{\{(?![<%])(?:[^{}\n]|\}(?!\})){0,500}+\}\})"
)
_HIGHLIGHT = rf"\{{\{{[<%][ \t]*+highlight\b.{{0,{MAX_CODE}}}?/highlight[ \t]*+[>%]\}}\}}"
_ATTRIBUTES = r"\{[ \t]*+(?:[:#.][^{}\n]*+|[\w-]++=[^{}\n]*+)\}"
_BRACES = r"\{[^{}]*+\}"
for _ in range(4):
    _BRACES = rf"\{{(?:[^{{}}]++|{_BRACES}){{0,60}}+\}}"
_PROPERTIES = r"""(?:[^<>{}"']++|"[^"]*+"|'[^']*+'){0,60}+"""
_COMPONENT = (
    rf"<(?:/?[A-Z][\w.]{{0,80}}+(?=[\s/>])(?:{_PROPERTIES}{_BRACES}){{0,60}}+{_PROPERTIES}|/?"
    rf"|[a-z][\w-]{{0,80}}+(?=\s)(?:(?:{_PROPERTIES}{_BRACES}){{1,60}}+|\s++[#@][a-z]){_PROPERTIES})>"
)
"""Tag of MDX or Vue: of a component, of a fragment, with an expression, or with a slot or an event."""

# Lines that are structure as a whole.
_KEPT_LINE = re.compile(
    rf"(?:(?:{_TEMPLATE_TAG}[ \t]*+)++|{_ATTRIBUTES}|\[\[?_?(?:TOC|toc)_?\]?\]|--8<--.*|:::image .*"
    r"|\[!(?i:include|code|video)\b.*|\[![a-z]+ .*\]|\\[a-z]+(?:\{.*\})?|\([\w-]+\)=|%[ \t].*|:{3,}|/{3,})[ \t]*"
)
# Starts of lines of structure, and what follows a title in them.
_TITLED_LINES = (
    (re.compile(r":{3,}[ \t]*+\{?[\w-]++\}?(?:\{[^{}\n]*+\})?\[(?=[^\]\n])"), "]"),
    (re.compile(r":{3,}[ \t]*+(?:\{[\w-]++\}|[\w-]++)[ \t]++(?!\{|[\w-]++=)"), ":"),
    (re.compile(r":{3,}[ \t]*+(?:\{[^{}\n]*+\}|[\w-]++)"), ""),
    (re.compile(r'(?:!!!|\?\?\?\+?)(?:(?:[ \t]++[\w-]++)++[ \t]*+(?:"(?=.*"$)|$)|[ \t]++"(?=.*"$))'), '"'),
    (re.compile(r'===[!+]?[ \t]++"(?=.*"$)'), '"'),
    (re.compile(r"/{3,}[ \t]++[\w-]++(?:[ \t]++\|[ \t]*+|$)"), " "),
    (re.compile(r"\*\[[^\[\]]++\]:[ \t]*+"), " "),
    (re.compile(r"\[![\w-]++(?:\|[^\]\n]*+)?\][+-]?[ \t]*+"), " "),
)
# An object that mkdocstrings describes, and the first of its options.
_DESCRIBED = re.compile(r":::[ \t]++[A-Za-z_][\w.:/-]*+")
_OPTION_KEY = re.compile(r"[a-z_]++:(?:\s|$)")
_OPTION_LINE = re.compile(r":[\w-]+:(?:[ \t].*)?$")
# Blocks that are kept from the first sign to the second, which ends a line.
_KEPT_BLOCKS = (
    (re.compile(r"\$\$"), "$$"),
    (re.compile(r"%%(?!.*%%.*\S)"), "%%"),
    (re.compile(r"\{/\*"), "*/}"),
    (re.compile(r"\\begin\{"), "\\end{"),
    (re.compile(r"\{%-?[ \t]*highlight\b"), "endhighlight"),
    (re.compile(r"\{%-?[ \t]*comment\b"), "endcomment"),
    (re.compile(r"\{\{[<%][ \t]*highlight\b"), "/highlight"),
    (re.compile(r"\{\{[<%][ \t]*mermaid\b"), "/mermaid"),
    (re.compile(r"\{\{[<%](?!.*[>%]\}\})"), "}}"),
    (re.compile(r"\+(?:[-=:]{2,}\+){2,}[ \t]*$"), "\n\n"),
)
# Directives of MyST around Markdown. The first ones have a text behind their name.
_PROSE_FENCE = re.compile(
    r"(`{3,12})\{(?:(note|tip|hint|warning|caution|attention|important|danger|error|seealso|admonition|dropdown|margin|sidebar|topic)"
    r"|figure|versionadded|versionchanged|deprecated)\}[ \t]*"
)
_SCRIPT = re.compile(
    r"import[ \t]++(?:(?:(?!from[ \t]*+['\"])[^ \t]++[ \t]++)++from[ \t]*+)?+['\"]|import[ \t]*+\{|export[ \t]*+[{*]|"
    r"export[ \t]++(?:const|let|var)[ \t][^=]*+=|export[ \t]++(?:default[ \t]++)?+(?:async[ \t]++)?+(?:function|class)\b|"
    r"export[ \t]++default[ \t].*+(?<=[;({\[>}\])])"
)
_COMPONENT_START = re.compile(_COMPONENT)
_BRACE = re.compile(r"[{}]")
# Tables of Pandoc: the line under their heads, the lines around one whose rows have several lines, and the start of a caption.
_COLUMN_LINE = re.compile(r"-{2,}(?:[ ]+-{2,})+")
_TABLE_END = re.compile(r"-{3,}")
_CAPTION = re.compile(r"[Tt]able:[ \t]+(?=\S)")
_MAX_HEAD_LINES = 4
_LABEL = re.compile(r"\[\^[^\[\]\s]{1,200}\]:[ \t]*|[:|][ \t]+(?=\S)")
_LETTERED_ITEM = re.compile(
    r"(?:\((?:[a-zA-Z]|[ivxlc]{1,5}|\d{1,3}|@[\w-]{0,80})\)|(?:[a-z]|[ivxlc]{1,5}|#)\.|(?:[a-zA-Z]|[ivxlc]{1,5})\)|[A-Z]\.[ ])"
    r"[ \t]+(?=\S)"
)
"""Start of an item in a list of Pandoc that Markdown has not."""

_TEXT_ELEMENT = re.compile(
    r"<(summary|p|h[1-6]|li|td|th|dt|dd|figcaption|caption|legend|button|div)(?:[ \t][^<>{}\n]*+)?>((?:(?!</?\1)[^\n])++)</\1>"
)
"""Element of HTML in a line of MDX, and its text."""

# Codes within a text, by their first character.
_CODES = {
    "$": re.compile(
        rf"\$\$(?:[^$\n]|\n(?!\n)){{1,{MAX_CODE}}}\$\$|\$(?![\s$])(?:[^$\n\\`]|\\.){{1,{MAX_CODE}}}(?<!\s)\$(?![\w$])"
        rf"|\$`[^`\n]{{1,{MAX_CODE}}}`\$(?![\w$])",
        re.DOTALL,
    ),
    "{": re.compile(
        rf"{_HIGHLIGHT}|{_TEMPLATE_TAG}|\{{>>[^{{}}\n]{{0,{MAX_CODE}}}<<\}}|\{{/\*[^*\n]{{0,{MAX_CODE}}}\*/\}}|{_ATTRIBUTES}"
        r"|\{[a-z][\w:-]{0,60}+\}(?=`)"
    ),
    "[": re.compile(r"\[\^[^\[\]\s]{1,200}\]|\[\[[^\[\]|\n]{1,300}\]\]|\[-?@[^\[\]\n]{1,300}\](?![(\[])|\[[ xX/-]\][ \t]++"),
    "!": re.compile(r"!\[\[[^\[\]\n]{1,300}\]\]"),
    "%": re.compile(rf"%%(?:[^%\n]|%(?!%)){{1,{MAX_CODE}}}%%"),
    "^": re.compile(r"(?<=[ \t])\^[\w-]++$|(?<=\w)\^[\w+-]{1,8}\^"),
    "~": re.compile(r"(?<=\w)~[\w+-]{1,8}~(?!~)"),
    "<": re.compile(_COMPONENT),
    "+": re.compile(r"\+\+[a-z][\w+-]*?\+\+"),
    "@": re.compile(r"(?<![\w@./])@[a-zA-Z\d][\w-]{0,80}"),
    "#": re.compile(r"(?<!\S)#[a-zA-Z][\w/-]*+(?!\S)"),
}
_EXPRESSION = re.compile(rf"{_TEMPLATE_TAG}|{_BRACES}")
_TEMPLATE_TARGET = rf"\([^()\s{{}}]{{0,300}}{_TEMPLATE_TAG}[^()\n]{{0,300}}\)"
"""Target of a link or an image with code of a template, which may have spaces."""
_IMAGE = r"!\[[^\[\]\n]{0,300}\]\([^()\n]{0,300}\)"
# Pairs around a text, by their first character: the start, the text, and the end.
_PAIRS = {
    "[": re.compile(
        rf"(\[\[[^\[\]|\n]{{1,300}}\|)([^\[\]\n]{{1,300}})(\]\])|(\[)((?:[^\[\]\n]|{_IMAGE}){{1,300}})(\](?:{_ATTRIBUTES}|{_TEMPLATE_TARGET}))"
    ),
    "!": re.compile(rf"(!\[)([^\[\]\n]{{1,300}})(\]{_TEMPLATE_TARGET})"),
    "{": re.compile(
        r"(\{(?:\+\+|--|==))(?=[^\s+=-])([^{}\n]{1,500}?)((?:\+\+|--|==)\})|(\{~~[^{}\n~]{0,500}~>)([^{}\n~]{1,500})(~~\})"
    ),
    "^": re.compile(r"(\^\[)([^\[\]\n]{1,500})(\])"),
    "=": re.compile(r"(==)(?=[^\s=])([^=\n]{1,500})(?<!\s)(==)(?!=)"),
}


def add_dialects(parser: MarkdownIt) -> None:
    """Let a parser read the dialects. What is no structure of any of them is read as by CommonMark."""
    parsers = parser.block.ruler
    interrupting: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parsers.before("table", "dialect_block", _read_kept_block, interrupting)
    parsers.before("table", "dialect_line", _read_line, interrupting)
    parsers.after("table", "dialect_label", _read_label, {"alt": ["paragraph", "reference"]})
    parsers.before("table", "dialect_script", _read_script)
    parsers.before("table", "dialect_expression", _read_expression)
    parsers.before("table", "dialect_columns", _read_columns)
    parser.inline.ruler.before("escape", "dialect_codes", _read_code)


def _read_kept_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Read math, a comment, code in a shortcode, or a table of lines, none of which has texts."""
    if state.is_code_block(start_line):
        return False
    line = _get_line(state, start_line)
    for start, end in _KEPT_BLOCKS:
        if match := start.match(line):
            last = _find_last_line(state, end, state.bMarks[start_line] + state.tShift[start_line] + match.end())
            if last < end_line:
                return _keep(state, last + 1, silent, has_tags=end == "}}")
    return False


def _find_last_line(state: StateBlock, end: str, position: int) -> int:
    """Return the line that the next end sign ends, or the number of all lines if there is no sign or it does not end its line.

    The place of the sign is remembered, so that each part of a document is searched once for all the starts in it.
    """
    name = f"next {end}"
    first, place, last = state.env.get(name, (len(state.src), 0, 0))
    if not first <= position <= place:
        place = state.src.find(end, position)
        last = bisect_left(state.eMarks, place + len(end.rstrip("\n")))
        if place < 0 or (not end.endswith("{") and state.src[place + len(end) : state.eMarks[last]].strip(" \t-%}>{")):
            last = len(state.eMarks)
        state.env[name] = position, place if place >= 0 else len(state.src), last
    return int(last)


def _read_script(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Read imports and exports of MDX, up to a blank line outside of brackets."""
    if silent or state.sCount[start_line] or _SCRIPT.match(_get_line(state, start_line)) is None:
        return False
    state.env["is_mdx"] = True
    first_blank = next((number for number in range(start_line, end_line) if not _get_line(state, number)), end_line)
    if start_line < state.env.get("open script", 0):
        return _keep(state, first_blank, silent)
    depth = 0
    for number in range(start_line, end_line):
        line = _get_line(state, number)
        if not line and depth <= 0:
            return _keep(state, number, silent)
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
    state.env["open script"] = end_line  # brackets stay open, so that scripts end at a blank line
    return _keep(state, end_line if depth <= 0 else first_blank, silent)


def _read_expression(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Read an expression of MDX whose last brace ends a line."""
    start = state.bMarks[start_line] + state.tShift[start_line]
    if not state.env["is_mdx"] or not state.src.startswith("{", start) or start < state.env.get("open braces", 0):
        return False
    depth = 0
    for match in _BRACE.finditer(state.src, start, state.eMarks[end_line - 1]):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            last = bisect_left(state.eMarks, match.end())
            return not state.src[match.end() : state.eMarks[last]].strip() and _keep(state, last + 1, silent)
    state.env["open braces"] = state.eMarks[end_line - 1]  # no later one has an end, either
    return False


def _read_columns(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Read a table of Pandoc, whose columns are those of its lines, or the caption before or after a table."""
    if silent or state.is_code_block(start_line):
        return False
    if caption := _CAPTION.match(_get_line(state, start_line)):
        return _read_caption(state, start_line, end_line, caption.end())
    for number in range(start_line, min(start_line + _MAX_HEAD_LINES, end_line)):
        line = _get_line(state, number)
        if number > start_line and _COLUMN_LINE.fullmatch(line):
            break
        if not line or "|" in line or line[0] in "-+*>`#":
            return False
    else:
        return False
    is_open = start_line > 0 and _TABLE_END.fullmatch(_get_line(state, start_line - 1)) is not None
    for last in range(number + 1, end_line):
        line = _get_line(state, last)
        if _TABLE_END.fullmatch(line) if is_open else not line:
            state.env["table end"] = last
            return _keep(state, last + is_open, silent)
        if is_open and not line and last + 1 < end_line and not _get_line(state, last + 1):
            return False
    return False if is_open else _keep(state, end_line, silent)


def _read_caption(state: StateBlock, start_line: int, end_line: int, start: int) -> bool:
    """Read the caption of a table, which begins with `Table:`. Elsewhere, this is a word."""
    before, after = start_line - 1, start_line + 1
    while before >= 0 and not _get_line(state, before):
        before -= 1
    while after < end_line and not _get_line(state, after):
        after += 1
    near = [_get_line(state, number) for number in (before, after, after + 1) if 0 <= number < end_line]
    if state.env.get("table end", -2) - before not in (0, 1) and not any(
        line.startswith(("|", "+-")) or _COLUMN_LINE.fullmatch(line) or _TABLE_END.fullmatch(line) for line in near
    ):
        return False
    last = start_line + 1
    while last < end_line and _get_line(state, last):
        last += 1
    lines = [_get_line(state, number) for number in range(start_line, last)]
    _add_text(state, start_line, "\n".join([lines[0][start:], *lines[1:]]), last)
    state.line = last
    return True


def _read_line(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Read a line of structure. Its title is a text. What is indented behind it is Markdown, and so is what is in a fence."""
    if state.is_code_block(start_line):
        return False
    line = _get_line(state, start_line)
    if not line or line[0] not in ":!?=/[{\\-<`*(%":
        return False
    if fence := _PROSE_FENCE.match(line):
        return _read_prose_fence(state, start_line, end_line, fence, silent)
    if line.startswith("<<< "):  # VitePress takes the code of a file
        return _keep(state, start_line + 1, silent)
    if line[0] == "<":
        return _read_component(state, start_line, end_line, silent)
    if _KEPT_LINE.fullmatch(line):
        if line[0] == "%" and not start_line and not silent:  # the title of Pandoc
            _add_text(state, start_line, line[1:])
        return _keep(state, start_line + 1, silent, has_tags=line[0] == "{")
    last = start_line + 1
    if _DESCRIBED.fullmatch(line) and last < end_line and _OPTION_KEY.match(_get_line(state, last)):
        while last < end_line and state.sCount[last] >= state.blkIndent + 4:
            last += 1
        if last > start_line + 1:
            return _keep(state, last, silent)
    for start, end in _TITLED_LINES:
        if (match := start.match(line)) is None:
            continue
        if line[0] == "[" and state.parentType != "blockquote":
            return False
        if not silent:
            if line[0] == ":":
                state.push("dialect_tags", "", 0).map = [start_line, start_line + 1]
            _add_text(state, start_line, _cut_title(line[match.end() :], end))
            first = start_line + 1
            while line[0] == ":" and first < end_line and _OPTION_LINE.match(_get_line(state, first)):
                first += 1
            _read_indented(state, first, end_line)
        return True
    return False


def _cut_title(text: str, end: str) -> str:
    """Return a title in front of what ends it, and of attributes."""
    if end in ("", "]"):
        return text[: text.rfind("]")] if end else ""
    if end == ":" and text.endswith("}"):
        text = text[: max(text.rfind("{"), 0)]
    return text.rstrip(f"{end} \t")


def _read_indented(state: StateBlock, first_line: int, end_line: int) -> None:
    """Read lines that are indented behind a line of structure as Markdown."""
    state.line = first_line
    following = first_line
    while following < end_line and state.isEmpty(following):
        following += 1
    if following >= end_line or state.sCount[following] < state.blkIndent + 2:
        return
    indent, parent = state.blkIndent, state.parentType
    state.blkIndent = state.sCount[following]
    state.push("dialect_block_open", "", 1)
    state.md.block.tokenize(state, following, end_line)
    state.push("dialect_block_close", "", -1)
    state.blkIndent, state.parentType = indent, parent


def _read_prose_fence(state: StateBlock, start_line: int, end_line: int, fence: re.Match[str], silent: bool) -> bool:
    """Read a directive of MyST, whose fence encloses Markdown."""
    unclosed = f"unclosed {fence[1]} {state.level} {end_line}"  # a quotation in this container can end at the same line
    if state.env.get(unclosed, end_line) <= start_line:
        return False
    last = next((number for number in range(start_line + 1, end_line) if _get_line(state, number) == fence[1]), 0)
    if not last:
        state.env[unclosed] = start_line  # no later one has an end, either
        return False
    if silent:
        return True
    _add_text(state, start_line, _get_line(state, start_line)[fence.end() :] if fence[2] else "")
    first = start_line + 1
    while first < last and _OPTION_LINE.match(_get_line(state, first)):
        first += 1
    line_max = state.lineMax
    state.lineMax = last
    state.push("dialect_block_open", "", 1)
    state.md.block.tokenize(state, first, last)
    state.push("dialect_block_close", "", -1)
    state.lineMax = line_max
    state.line = last + 1
    return True


def _read_component(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Read a tag of a component of MDX that ends its line."""
    start = state.bMarks[start_line] + state.tShift[start_line]
    match = _COMPONENT_START.match(state.src, start)
    if match is None:
        return False
    last = bisect_left(state.eMarks, match.end())
    if last >= end_line or state.src[match.end() : state.eMarks[last]].strip():
        return False
    if not silent:
        state.env["is_mdx"] = True
        _keep(state, last + 1, silent, has_tags=True)
        _read_indented(state, last + 1, end_line)
    return True


def divide_elements(block: Token) -> Iterator[Token]:
    """Yield a text for each line of a block of HTML in MDX that is an element, and the tags between them. Code stays whole."""
    from markdown_it.token import Token

    first = block.map[0] if block.map else 0
    lines = block.content.removesuffix("\n").split("\n")
    others: list[str] = []
    for number, line in enumerate([*lines, ""], start=first):
        element = (
            None if block.content.startswith(("<pre", "<script", "<style", "<!--")) else _TEXT_ELEMENT.fullmatch(line.strip())
        )
        if (element or number == first + len(lines)) and others:
            yield Token("dialect_tags", "", 0, content="\n".join(others), map=[number - len(others), number])
            others = []
        if element is None:
            others.append(line)
        else:
            text = Token("inline", "", 0, content=element[2].strip(), map=[number, number + 1], children=[])
            text.meta["following"] = len(f"</{element[1]}>")
            yield text


def _read_label(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Read a footnote, a definition or a lettered item: what is behind its label, and indented lines, as Markdown.

    A lettered item does not interrupt a paragraph, unless that is in another such item.
    """
    if state.is_code_block(start_line):
        return False
    start = state.bMarks[start_line] + state.tShift[start_line]
    match = _LABEL.match(state.src, start, state.eMarks[start_line])
    is_item = match is None and (not silent or state.env.get("lettered item", False))
    match = _LETTERED_ITEM.match(state.src, start, state.eMarks[start_line]) if is_item else match
    if match is None:
        return False
    if silent:
        return True
    old = state.bMarks[start_line], state.tShift[start_line], state.sCount[start_line], state.blkIndent, state.parentType
    state.bMarks[start_line], state.tShift[start_line] = match.end(), 0
    state.blkIndent += 4
    state.sCount[start_line] = state.blkIndent
    state.parentType = "footnote"
    was_item, state.env["lettered item"] = state.env.get("lettered item", False), is_item
    state.push("dialect_block_open", "", 1)
    state.md.block.tokenize(state, start_line, end_line)
    state.push("dialect_block_close", "", -1)
    state.env["lettered item"] = was_item
    state.line = max(state.line, start_line + 1)
    state.bMarks[start_line], state.tShift[start_line], state.sCount[start_line], state.blkIndent, state.parentType = old
    return True


def _get_line(state: StateBlock, number: int) -> str:
    """Return the text of a line in its container."""
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()


def _keep(state: StateBlock, next_line: int, silent: bool, *, has_tags: bool = False) -> bool:
    """Keep the lines up to the next one. has_tags: their tags or shortcodes can have titles"""
    if not silent:
        if has_tags:
            state.push("dialect_tags", "", 0).map = [state.line, next_line]
        state.line = next_line
    return True


def _add_text(state: StateBlock, number: int, text: str, end: int = 0) -> None:
    """Add the title of a line of structure, or a text of lines up to `end`."""
    state.push("dialect_title_open", "", 1)
    if text.strip():
        token = state.push("inline", "", 0)
        token.content, token.map, token.children = text.strip(), [number, end or number + 1], []
    state.push("dialect_title_close", "", -1)


def _read_code(state: StateInline, silent: bool) -> bool:
    """Read a code, or a pair around a text."""
    first = state.src[state.pos]
    pattern = _EXPRESSION if first == "{" and state.env.get("is_mdx") else _CODES.get(first)
    if pattern and (match := pattern.match(state.src, state.pos, state.posMax)):
        if state.pos and match[0][2:3] == "]":
            return False  # the box of a task begins its text
        if not silent:
            spaces = (
                len(state.pending) - len(state.pending.rstrip(" \t")) if match[0].lstrip("{ ")[:1] in ("#", ".", ":") else 0
            )
            state.pending = state.pending[: len(state.pending) - spaces]
            token = state.push("dialect_code", "", 0)
            token.content = state.src[state.pos - spaces : match.end()]
        state.pos = match.end()
        return True
    if (pattern := _PAIRS.get(first)) is None or (match := pattern.match(state.src, state.pos, state.posMax)) is None:
        return False
    content = 2 if match[2] is not None else 5
    if not silent:
        end = state.posMax
        state.push("dialect_open", "", 1).markup = match[content - 1]
        state.pos, state.posMax = match.span(content)
        state.md.inline.tokenize(state)
        state.push("dialect_close", "", -1).markup = match[content + 1]
        state.posMax = end
    state.pos = match.end()
    return True
