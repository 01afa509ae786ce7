"""Tokens of a text with codes: texts, codes, and the starts and ends of pairs.

A text without markup has HTML tags, named and numbered elements of web applications, Markdown, reStructuredText and BBCode only
where they are meant as such. An unknown name is a tag if the text has both its start and its end, or if it ends in `/>`. So
`List<int>`, `a < b` and `2 * 3` are texts.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dragoman.text.inline_rules import COMMON_RULES, EDITOR_WORDS, InlineRules
from dragoman.text.nesting import Nested
from dragoman.text.placeholders import (
    FoundCode,
    compile_first_characters,
    find_code_at,
    find_codes,
    may_have_codes,
    select_styles,
)

MAX_DEPTH = 64
"""Depth of elements in elements; the tags of deeper ones are points."""

VOID_TAGS = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
"""HTML elements without content and without an end tag."""
BLOCK_TAGS = frozenset(
    (
        "address", "article", "aside", "blockquote", "body", "button", "canvas", "caption", "dd", "details", "dialog",
        "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6",
        "head", "header", "hr", "html", "iframe", "legend", "li", "link", "main", "menu", "meta", "nav", "noscript",
        "ol", "optgroup", "option", "p", "pre", "script", "section", "select", "style", "summary", "table", "tbody",
        "td", "template", "textarea", "tfoot", "th", "thead", "title", "tr", "ul", "video",
    )
)  # fmt: skip
"""HTML elements that end the sentence before them."""
BREAK_TAGS = frozenset(("br", "hr"))
"""Void elements that end the sentence before them."""
OPAQUE_TAGS = frozenset(("code", "kbd", "math", "samp", "script", "style", "svg", "var"))
"""HTML elements whose content is no text for translation."""
XLIFF_TAGS = frozenset(("g", "x", "bx", "ex", "bpt", "ept", "ph", "it", "mrk", "pc", "sc", "ec"))
"""Elements of XLIFF for parts of a sentence."""
INLINE_TAGS = frozenset(
    (
        "a", "abbr", "acronym", "audio", "b", "bdi", "bdo", "big", "center", "cite", "data", "del", "dfn", "em", "font",
        "i", "ins", "label", "map", "mark", "meter", "object", "output", "picture", "progress", "q", "rp", "rt", "ruby",
        "s", "slot", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u",
    )
) | XLIFF_TAGS  # fmt: skip
"""Elements of HTML and XLIFF for parts of a sentence."""
CODE_ELEMENTS = frozenset(
    ("bcode", "command", "computeroutput", "envar", "filename", "icode", "literal", "userinput", "varname")
)
"""Elements of KDE and DocBook whose content is no text for translation."""
KNOWN_TAGS = VOID_TAGS | BLOCK_TAGS | OPAQUE_TAGS | INLINE_TAGS
"""HTML elements that a text may have without their partner."""

# HTML that stands in XML or JSON once more escaped. Only names of HTML are tags; `&lt;your name&gt;` is text.
_ESCAPED_TAG = rf"&lt;/?(?i:{'|'.join(sorted(KNOWN_TAGS - XLIFF_TAGS))})(?![\w-])(?:[^<>&]|&(?!lt;|gt;))*+&gt;"
_ESCAPED_TAGS = re.compile(_ESCAPED_TAG)
_ESCAPED_NAME = re.compile(r"&lt;/?(\w+)")
_CDATA = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)
_COMMENT_OR_CDATA = r"<!--(?:[^<-]++|<(?!!--)|-(?!->))*+-->|<!\[CDATA\[(?:[^<\]]++|<(?!!\[)|\](?!\]>))*+\]\]>"
# Neither < nor > stands inside a tag, and no part gives characters back, so a search takes time in proportion to the text.
_MARKUP = re.compile(
    rf"{_ESCAPED_TAG}|{_COMMENT_OR_CDATA}|<\?(?:[^<?]++|<(?!\?)|\?(?!>))*+\?>"
    r"|<!(?:DOCTYPE|doctype)[^<>\[]*+\[(?:[^<\]]++|<(?!!DOCTYPE))*+\]\s*+>"
    r"|<(?P<slash>/?)(?P<name>[A-Za-z][^\s<>/]*+|\d{1,3}(?=/?>))[^<>]*+(?:(?<=(?P<end>/)))?>|<[!?][^<>]*+>"
)
# In a text, a tag has the form of one, and a value in quotation marks may hold >.
_TAG = re.compile(
    r"<(?P<slash>/?)(?P<name>[A-Za-z][\w:.-]*+|\d{1,3})"
    r"""(?P<attributes>(?:=(?:"[^"<>]*+"|'[^'<>]*+'|[^\s"'<>=`/]++))?+(?:\s++[\w:@.-]++(?:\s*+=\s*+(?:"[^"<]*+"|'[^'<]*+'|[^\s"'<>=`][^\s"'<>`]*+(?<!/)))?)*+)\s*+(?P<end>/?)>"""
)
_END_TAG = re.compile(r"</([A-Za-z][\w:.-]*+|\d{1,3})")
_COMMENT = re.compile(rf"{_COMMENT_OR_CDATA}|<!(?i:doctype)[^<>]*+>")
_POD_LITERAL = re.compile(r"(?:^|\W)[BCEFLXZ]<[^<>\s]++>$")
_BARE_ATTRIBUTE = re.compile(r"\s[\w:@.-]++(?=\s++[\w:@.-]|\s*+$)")
_EMPHASIS = re.compile(r"\*{1,3}(?!\*)|_{1,3}(?!_)|~~(?!~)")
_LINK = re.compile(
    r"(\[)([^\[\]\n]++)(\]\((?:[^()\s]|\([^()\s]*+\))*+(?:[ \t]++(?:\"[^\"\n]*+\"|'[^'\n]*+'))?\)"
    r"|\]\(inflect:[^()\n]*+\)|\]\[[^\[\]\n]*+\])"
)
_IMAGE = re.compile(r"!\[[^\[\]\n]*+\]\((?:[^()\s]|\([^()\s]*+\))*+(?:[ \t]++\"[^\"\n]*+\")?\)")
_ROLE_NAME = r"(?<![\w:]):[A-Za-z][\w+.-]{0,40}+(?::[\w+.-]{1,40}+){0,3}+:`"
_ROLE = re.compile(rf"({_ROLE_NAME})([^`<>\n]*[^`<>\s])(\s*<[^<>`\n]+>`)|{_ROLE_NAME}[^`\n]++`")
_RST_LINK = re.compile(r"(`)([^`<>\n]*[^`<>\s])(\s*<[^<>`\n]+>`__?(?!\w))")
_BRACKET_TAG = re.compile(r"\[(?P<slash>/?)(?P<name>[A-Za-z*]\w*)(?:=[^\[\]\n]*+)?\]|\{(?P<slash2>/?)(?P<name2>[A-Za-z]\w*)\}")
_BRACKET_END = re.compile(r"\[/([A-Za-z*]\w*)\]|\{/([A-Za-z]\w*)\}")
_SECTION = re.compile(r"\{\{(?P<sign>[#^/])\s*(?P<name>[\w.-]+)[^{}]*+\}\}")
_START_NAME = re.compile(
    r"\W*(?:(?:START|OPEN)_([A-Z_]+?)(?:_\d+)?|(\w*?)_?(?:[sS]tart|START|[oO]pen|OPEN|[bB]egin))(?:\W+[sd]?)?"
)
_END_NAME = re.compile(r"\W*(?:(?:CLOSE|END)_([A-Z_]+?)(?:_\d+)?|(\w*?)_?(?:[eE]nd|END|[cC]lose|CLOSE))(?:\W+[sd]?)?")
# A bar between spaces divides texts as a line break does: the forms of a plural in Vue I18n, or a page and its site.
LINE_BREAK = re.compile(r"\r\n|\t++| \| |[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")

MAX_PAIR_NAME = 60
"""Most characters of a placeholder that is one end of a pair."""

TokenKind = Literal["text", "point", "start", "end"]


@dataclass(slots=True)
class Token(Nested):
    """Text, code, or one end of a pair.

    name: of a tag or another pair; empty for text, placeholders, comments and the like
    plain: a placeholder without its character references, if it has any
    is_text_alone: a start or an end without its partner is text
    is_break, is_space: as in `Point`
    """

    markup: str
    name: str = ""
    kind: TokenKind = "text"
    plain: str = ""
    is_text_alone: bool = False
    is_break: bool = False
    is_space: bool = False


def tokenize_markup(text: str, *, is_html: bool, keep_line_breaks: bool = False) -> Iterator[Token]:
    """Yield the tags of XML or HTML and the texts between them, which may have placeholders.

    keep_line_breaks: line breaks in the texts are codes
    """
    position = 0
    for match in _MARKUP.finditer(text):
        yield from _divide_lines(text[position : match.start()], keep_line_breaks=keep_line_breaks)
        position = match.end()
        if match[0][0] == "&":
            yield _make_escaped_tag(match[0])
            continue
        if not is_html and (section := _CDATA.fullmatch(match[0])):
            yield from _tokenize_section(section[1])
            continue
        name = match["name"] or ""
        name = name.lower() if is_html else name
        if not name or match["end"] or (is_html and name in VOID_TAGS):
            yield Token(match[0], name, "point", is_break=is_html and name in BREAK_TAGS)
        else:
            yield Token(match[0], name, "end" if match["slash"] else "start")
    yield from _divide_lines(text[position:], keep_line_breaks=keep_line_breaks)


def _divide_lines(text: str, *, keep_line_breaks: bool) -> Iterator[Token]:
    """Yield a text between two tags, and its line breaks as codes if they are kept."""
    position = 0
    for match in LINE_BREAK.finditer(text) if keep_line_breaks else ():
        if match.start() > position:
            yield Token(text[position : match.start()])
        yield Token(match[0], "", "point", is_break=True)
        position = match.end()
    if position < len(text):
        yield Token(text[position:])


def _tokenize_section(text: str) -> Iterator[Token]:
    """Yield the tokens of a section CDATA, as the same text without one: with character references."""
    for token in tokenize_text(text, COMMON_RULES.disable("markdown")):
        markup = html.escape(token.markup, quote=False)
        name = f"escaped {token.name}" if token.name else ""
        plain = token.markup if markup != token.markup and token.kind == "point" and not name else token.plain
        yield replace(token, markup=markup, name=name, plain=plain)


def _make_escaped_tag(markup: str) -> Token:
    """Return the token of a tag that is written with character references."""
    match = _ESCAPED_NAME.match(markup)
    name = match[1].lower() if match else ""
    if markup.endswith("/&gt;") or name in VOID_TAGS:
        return Token(markup, name, "point", is_break=name in BREAK_TAGS)
    return Token(markup, f"escaped {name}", "end" if markup.startswith("&lt;/") else "start")


def tokenize_codes(text: str, rules: InlineRules = COMMON_RULES) -> Iterator[Token]:
    """Yield the placeholders of a text and the texts between them."""
    position = 0
    for code in find_codes(text, rules):
        if code.start > position:
            yield Token(text[position : code.start])
        yield make_code_token(text, code)
        position = code.end
    if position < len(text):
        yield Token(text[position:])


def is_plain(text: str, rules: InlineRules, *, keep_line_breaks: bool) -> bool:
    """Return whether a text has nothing that a code begins with; most texts are such, and this is fast."""
    return not rules.kept and not may_have_codes(text) and not (keep_line_breaks and LINE_BREAK.search(text))


def tokenize_text(text: str, rules: InlineRules = COMMON_RULES, *, keep_line_breaks: bool = False) -> list[Token]:
    """Return the tokens of a text without markup; line breaks are codes if they are kept."""
    reader = _TextReader(text, rules)
    for match in compile_first_characters(rules.kept, LINE_BREAK.pattern if keep_line_breaks else "").finditer(text):
        if match.start() >= reader.position:
            reader.read(match)
    reader.add_text(len(text))
    return reader.tokens


def make_code_token(text: str, code: FoundCode) -> Token:
    """Return the token of a code that was found in a text."""
    markup = text[code.start : code.end]
    plain = html.unescape(markup) if markup.startswith("&") else ""
    return Token(markup, "", "point", plain, is_break=code.kind == "break", is_space=code.kind == "space")


class _TextReader:
    """Reader of the tokens of a text. position: end of those that were read"""

    def __init__(self, text: str, rules: InlineRules) -> None:
        self.text, self.rules = text, rules
        self.position = 0
        self.tokens: list[Token] = []
        self._styles = select_styles(text, rules)
        has_ends = "[/" in text or "{/" in text
        self._closed = {name for match in _BRACKET_END.finditer(text) for name in match.groups()} if has_ends else set()
        self._closed_tags = {name.lower() for name in _END_TAG.findall(text)} if "</" in text else set()

    def add_text(self, end: int) -> None:
        """Add the text up to a position."""
        if end > self.position:
            self.tokens.append(Token(self.text[self.position : end]))
            self.position = end

    def add(self, start: int, *tokens: Token) -> None:
        """Add the text before a position, and the tokens there."""
        self.add_text(start)
        self.tokens += tokens
        self.position = start + sum(len(token.markup) for token in tokens)

    def read(self, match: re.Match[str]) -> None:
        """Read what begins with a character, unless it is text."""
        start, character = match.start(), match[0]
        if self._read_break(match):
            return
        if "tags" not in self.rules.disabled and character in "<&" and self._read_tag(start):
            return
        if "markdown" not in self.rules.disabled and character in "[{:`!" and self._read_pair(start):
            return
        code = find_code_at(self.text, match, self.position, self._styles)
        if code is not None:
            self.add(code.start, _pair_code(make_code_token(self.text, code)))
        elif "markdown" not in self.rules.disabled and character in "*_~":
            self._read_emphasis(start)

    def _read_break(self, match: re.Match[str]) -> bool:
        if not LINE_BREAK.fullmatch(match[0]):
            return False
        self.add(match.start(), Token(match[0], "", "point", is_break=True))
        return True

    def _is_joined(self, start: int) -> bool:
        """Return whether a letter or a digit stands before a place."""
        return start > 0 and self.text[start - 1].isalnum()

    def _read_tag(self, start: int) -> bool:
        if tag := _ESCAPED_TAGS.match(self.text, start):
            self.add(start, _make_escaped_tag(tag[0]))
            return True
        if comment := _COMMENT.match(self.text, start):
            self.add(start, Token(comment[0], "", "point"))
            return True
        match = _TAG.match(self.text, start)
        if match is None:
            return False
        name = match["name"].lower()
        is_known = name in KNOWN_TAGS
        is_joined = self._is_joined(start)
        if is_joined and not is_known and not match["end"] and name not in self._closed_tags:
            return False  # as in `List<int>`
        if not is_known and _POD_LITERAL.match(self.text, max(start - 2, 0), match.end()):
            return False
        if match["end"] or (name in VOID_TAGS and not match["slash"]):
            self.add(start, Token(match[0], name, "point", is_break=name in BREAK_TAGS))
            return True
        # `<Ctrl>` and `<port>` are codes. `<your name>` and `<none>` are texts, unless they have an end tag.
        is_word = not is_known and (is_joined or name in EDITOR_WORDS or name.isdecimal())
        is_text_alone = is_word or _BARE_ATTRIBUTE.search(match["attributes"]) is not None
        self.add(start, Token(match[0], name, "end" if match["slash"] else "start", is_text_alone=is_text_alone))
        return True

    def _read_pair(self, start: int) -> bool:
        """Read a link, a role, or one end of a pair in brackets."""
        for pattern in _PAIRS_BY_FIRST[self.text[start]]:
            if match := pattern.match(self.text, start):
                break
        else:
            return False
        if pattern is _LINK and match[3][1] == "[" and self._is_joined(start):
            return False  # as in `a[0][1]`
        if pattern in (_LINK, _RST_LINK, _ROLE) and match[1]:
            name = f"link {start}"
            inner = tokenize_text(match[2], self.rules)
            # `^[x](inflect: true)` is Swift's, whose sign belongs to the bracket.
            sign = "^" if match[3].startswith("](inflect:") and self.text[self.position : start].endswith("^") else ""
            self.add(start - len(sign), Token(sign + match[1], name, "start"), *inner, Token(match[3], name, "end"))
        elif pattern in (_ROLE, _IMAGE):
            self.add(start, Token(match[0], "", "point"))
        elif pattern is _SECTION:
            kind: TokenKind = "end" if match["sign"] == "/" else "start"
            self.add(start, Token(match[0], f"section {match['name']}", kind))
        else:
            bracket_name = match["name"] or match["name2"]
            if bracket_name not in self._closed:
                return False
            kind = "end" if match["slash"] or match["slash2"] else "start"
            self.add(start, Token(match[0], f"bracket {match[0][0]}{bracket_name}", kind))
        return True

    def _read_emphasis(self, start: int) -> None:
        """Read the start or the end of emphasis, which stand at the edges of words."""
        match = _EMPHASIS.match(self.text, start)
        if match is None or self.text[start - 1 : start] in (match[0][0], "\\"):
            return
        before, after = self.text[start - 1 : start] or " ", self.text[match.end() : match.end() + 1] or " "
        is_start = not before.isalnum() and not after.isspace()
        is_end = not before.isspace() and not after.isalnum()
        if is_start != is_end:
            self.add(start, Token(match[0], f"emphasis {match[0]}", "start" if is_start else "end", is_text_alone=True))


_PAIRS_BY_FIRST = {
    "[": (_LINK, _BRACKET_TAG),
    "{": (_SECTION, _BRACKET_TAG),
    ":": (_ROLE,),
    "`": (_RST_LINK,),
    "!": (_IMAGE,),
}


def _pair_code(token: Token) -> Token:
    """Return a placeholder such as `{$START_LINK}` or `%{linkEnd}` as one end of a pair."""
    if len(token.markup) > MAX_PAIR_NAME or (token.markup[0] not in "%{$[" and "_" not in token.markup):
        return token
    if (match := _START_NAME.fullmatch(token.markup)) and (name := match[1] or match[2]):
        return replace(token, name=f"placeholder {name}", kind="start")
    if (match := _END_NAME.fullmatch(token.markup)) and (name := match[1] or match[2]):
        return replace(token, name=f"placeholder {name}", kind="end")
    return token


def match_pairs(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the index of the end of each start that has one. Pairs nest; one that would cross another is left out."""
    partners: dict[int, int] = {}
    open_tokens: list[int] = []
    counts: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.is_start:
            open_tokens.append(index)
            counts[token.name] = counts.get(token.name, 0) + 1
        elif token.is_end and counts.get(token.name):
            while tokens[start := open_tokens.pop()].name != token.name:
                counts[tokens[start].name] -= 1
            counts[token.name] -= 1
            if len(open_tokens) < MAX_DEPTH:
                partners[start] = index
    return partners
