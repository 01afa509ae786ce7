"""Markdown files: the text of each paragraph, heading, list item and table cell.

markdown-it-py finds the blocks and what is in them, with the rules of `markdown_dialects`. Emphasis and links become numbered
elements `<g1>…</g1>` of a text, and so do plain descriptions of images. Code, addresses, HTML and line breaks become `<x1/>`.
Titles are texts of their own. The texts of HTML blocks are read as those of pages. Code blocks and link definitions are kept,
and so is front matter, but for its titles and descriptions.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import EncodedText, decode, split_lines
from dragoman.documents.front_matter import LANGUAGE_KEY, FrontText, read_front_matter
from dragoman.documents.heading_anchors import find_linked, list_anchors
from dragoman.documents.html_file import read_fragment
from dragoman.documents.markdown_dialects import add_dialects, divide_elements
from dragoman.documents.markdown_titles import COMPONENT, Title, assemble, read_attributes, read_definition, read_title
from dragoman.documents.marked_text import GLUED, MIN_WRAP_WIDTH, glue, wrap_pieces
from dragoman.documents.reading import check_codes, check_goes_on, check_lines, check_parts, check_text, check_texts
from dragoman.errors import DataError, MissingDependencyError
from dragoman.text.inline_codes import parse_markup
from dragoman.text.inline_tokens import KNOWN_TAGS, OPAQUE_TAGS, VOID_TAGS
from dragoman.text.placeholders import find_placeholders

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

Span = tuple[int, int]

MIN_BLOCK_LINES = 400_000
"""Lines that a file of any size may have. markdown-it-py takes some 150 bytes for each."""
MAX_BLOCK_TEXT = 500_000
"""Most characters of a paragraph or another text. markdown-it-py copies the rest of it at each code."""
MAX_OPEN_BRACKETS = 300
"""Most opening brackets in a text that are not closed yet. markdown-it-py reads on from each of them."""

_FRONT_MATTER = re.compile(
    r"(?:---[ \t]*\r?\n(?:.*?\r?\n)?(?:---|\.\.\.)|\+\+\+[ \t]*\r?\n(?:.*?\r?\n)?\+\+\+|\{[ \t]*\r?\n.*?\n\})[ \t]*(?:\r?\n|$)",
    re.DOTALL,
)
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_LINK_END = re.compile(
    r"""\]\([ \t\n]*(?:<[^<>\n]*>|(?:\\.|[^\s()\\]|\((?:\\.|[^\s()\\]|\([^\s()]*\))*\))*)"""
    r"""(?:[ \t\n]+("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\((?:\\.|[^()\\])*\)))?[ \t\n]*\)"""
)
_TITLE_OF_TEMPLATE = re.compile(r"""\}[^\s"']*+[ \t]++("(?:\\.|[^"\\])*+"|'(?:\\.|[^'\\])*+')[ \t]*+\)$""")
_REFERENCE_END = re.compile(r"\](?:\[(?:\\.|[^\[\]\\])*\])?")
_BRACKET = re.compile(r"[\[\]]")
_AUTOLINK = re.compile(r"<[^<>\s]*>")
_ANCHORS_BEFORE = re.compile(r"(?:<a (?:id|name)=\"[^\"<>\n]*\"></a>)+(?=\S)")
_ATTRIBUTES_AFTER = re.compile(r"(?<![ \t])[ \t]*+\{[#.:][^{}\n]*\}$")
_GLUED_ATTRIBUTES = re.compile(r"\{[ \t]*(?:[:#.]|[\w-]+=)")
_OWN_ANCHOR = re.compile(r"\{#|\sid=|<a\s")
_SOFT_BREAK = re.compile(r"[ \t]*\n[ \t]*")
_HARD_BREAK = re.compile(r"( {2,}|\\)\n[ \t]*")
_CLOSED = re.compile(r"</([^\s<>]++)")
_HTML_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TAG = re.compile(r"(</?g\d+>|<(?:x|br)\d+/>)")
_ELEMENT = re.compile(r"<[^<>]*>")
_HTML_TAG = re.compile(r"<(/?)([a-zA-Z][\w.:-]*+)(?![^<>]*/>)")
_RAISED_ELEMENTS = frozenset(("sub", "sup"))
_MARKDOWN_INSIDE = re.compile(r"\smarkdown(?:[\s=>])")
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_SIGNS_OF_PROGRAMS = frozenset("<>{}@#:~^=")
_SPECIAL = re.compile(
    r"[\\`\[\]$]|\*(?<! \*(?= ))|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?>])|~(?=~)|(?<=~)~|&(?=#?\w+;)"
    r"|\{(?=[#.:/{%\w\t ])|=(?==)|%(?=%)|\+(?=\+)|(?<!\S)#(?=[a-zA-Z])|(?<![\w@./])@(?=[a-zA-Z\d])|\^(?=\[|[\w-]+$)"
)
# The place of a backslash in a text that would begin another block than a paragraph.
_BLOCK_START = re.compile(
    r"^(?:(\d{1,9}(?=[.)](?:\s|$))|\((?:[a-zA-Z]|[ivxlc]{1,5}|\d{1,3}|@[\w-]{0,80})(?=\)[ \t])"
    r"|(?:[a-z]|[ivxlc]{1,5}|#)(?=[.)][ \t])|[A-Z](?=\)[ \t]|\.[ ][ \t]))|"
    r"(?=[-+*:](?:\s|$)|[-=_*][-=_* \t]*$|#{1,6}(?:\s|$)|[>|<]|~~~|```|:::|!!!|\?\?\?|==="
    r"|///|%[%\s]|\$\$|\{[{%:#./]|\[[!^]|\[[^\[\]]*\]:|\*\[|--8|\+[-=]))"
)


class _UnreadableInlineError(Exception):
    """Text in which the reader and markdown-it-py see different codes."""


@dataclass(frozen=True)
class _PlaceInMarkdown:
    """Place of a text.

    start, end: its characters in the file
    codes: what the file has for each tag
    full_ends: what it gets for the end tag of a link whose text is its label, if the text changes
    is_cell: the text is a cell of a table
    is_block: another block could begin with the text
    width: columns of the longest line, or 0 for a text in one line
    prefix: what stands before the second line and those after it
    escaped: signs with a meaning for some programs only, which have none where the file escapes them
    """

    start: int
    end: int
    codes: dict[str, str]
    full_ends: dict[str, str]
    is_cell: bool
    is_block: bool
    width: int
    prefix: str
    escaped: str


def parse_mdx(content: bytes) -> Document:
    """Return the document of an MDX file, as `parse` does. Expressions in braces are codes."""
    return parse(content, is_mdx=True)


def parse(content: bytes, *, is_mdx: bool = False) -> Document:
    """Return the document of a Markdown file.

    is_mdx: it is MDX, also without imports and components, which tell it otherwise

    Raises MissingDependencyError without markdown-it-py, and DataError for bytes that are no text.
    """
    try:
        from markdown_it import MarkdownIt
        from markdown_it.rules_core import StateCore, inline, text_join
        from markdown_it.token import Token
    except ImportError:
        raise MissingDependencyError("markdown-it-py", "documents", "Markdown") from None
    text = decode(content)
    if text.text.lstrip()[:9].lower().startswith(("<!doctype", "<html", "<?xml")):
        raise DataError("the file is HTML or XML, not Markdown", code="invalid-format")
    front = _FRONT_MATTER.match(text.text)
    body = text.text if front is None else "\n" * front[0].count("\n") + text.text[front.end() :]
    parser = MarkdownIt("commonmark", {"store_labels": True}).enable(["table", "strikethrough"])
    add_dialects(parser)
    _limit_blocks(parser)
    env: dict[str, Any] = {"is_mdx": is_mdx}
    tokens = _LimitedTokens()
    body = body.replace("\r\n", "\n").replace("\r", " ").replace("\0", "\ufffd")
    check_lines(body.count("\n"), len(body), min_lines=MIN_BLOCK_LINES)
    parser.block.parse(body, parser, env, tokens)
    reader = _BlockReader(text, parser, env)
    front_texts = [] if front is None else read_front_matter(text, front.end())
    reader.add_front_matter([item for item in front_texts if item.key != LANGUAGE_KEY])
    stated = next((item for item in front_texts if item.key == LANGUAGE_KEY), None)

    def make_document_edits(translations: Mapping[str, UnitTranslation], language: str) -> Iterator[Edit]:
        if stated is not None and language:
            yield text.make_edit(stated.start, stated.end, stated.write(language))
        yield from reader.make_html_edits(translations, language)

    def read_text(token: Token, before: Token) -> None:
        check_texts(len(reader.units), len(content))
        _check_block_text(token.content)
        env["num_tries"] = 0
        state = StateCore("", parser, env, [token])  # memory holds what is in one block
        inline(state)
        text_join(state)
        reader.add(token, before)
        token.children = None

    num_elements = 0
    for before, token in pairwise(chain((Token("", "", 0),), tokens)):
        if token.type == "dialect_tags":
            reader.add_components(token)
        elif token.type == "html_block" and env["is_mdx"]:
            for part in divide_elements(token):
                if part.type == "inline":
                    read_text(part, Token("dialect_title_open", "", 1))
                else:
                    reader.add_components(part)
                    num_elements += any(map(str.isalpha, _ELEMENT.sub("", part.content)))
        elif token.type == "html_block":
            reader.add_html(token)
        elif token.type == "inline":
            read_text(token, before)
    reader.find_anchors()
    reader.add_definitions(reference["map"] for reference in env.get("references", {}).values() if reference["title"])
    texts, others = divide_units(reader.units)
    return Document(
        content,
        texts,
        "markdown",
        make_edits=reader.make_edits,
        source_language="" if stated is None else stated.value,
        make_document_edits=make_document_edits,
        other_units=others,
        keep_anchors=reader.find_anchors,
        assemble=reader.assemble,
        skipped={"blocks of elements of MDX": num_elements} if num_elements else {},
    )


class _LimitedTokens(list["Token"]):
    """Tokens of blocks. One too many ends the work, also within a block, such as a table."""

    def append(self, token: Token) -> None:
        """Add a token. Raises DataError if there are too many."""
        check_parts(len(self))
        super().append(token)


def _check_block_text(text: str) -> None:
    """Raise DataError for a text that markdown-it-py would read for minutes."""
    check_text(len(text), MAX_BLOCK_TEXT)
    depth = 0
    for match in _BRACKET.finditer(text):
        depth = depth + 1 if match[0] == "[" else max(depth - 1, 0)
        if depth > MAX_OPEN_BRACKETS:
            raise DataError(
                f"one text has more than {MAX_OPEN_BRACKETS} opening brackets that are not closed; divide it",
                code="input-too-long",
            )


def _limit_blocks(parser: MarkdownIt) -> None:
    """Let a parser end the work as the limits of reading tell, before each block and each code or text in one."""

    def check_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
        check_goes_on()
        check_parts(sum(len(state.env.get(name, ())) for name in ("references", "duplicate_refs")))
        return False

    def check_inline(state: StateInline, silent: bool) -> bool:
        state.env["num_tries"] = num_tries = state.env.get("num_tries", 0) + 1
        check_codes(len(state.tokens), num_tries)
        return False

    parser.block.ruler.before("table", "limits", check_block)
    parser.inline.ruler.before("text", "limits", check_inline)


class _BlockReader:
    """Reader of the units, and writer of their edits."""

    def __init__(self, text: EncodedText, parser: MarkdownIt, env: dict[str, Any]) -> None:
        self.text = text
        self._parser = parser
        self._env = env  # of the parser, with the definitions of links
        self._headings: list[tuple[str, str]] = []  # the id of each, if it is a unit without an anchor of its own, and its text
        self._fragments: set[str] = set()
        self._anchors: dict[str, tuple[str, ...]] = {}
        self._has_attributes = False
        self.units: list[Unit] = []
        self._places: dict[str, _PlaceInMarkdown] = {}
        self._front_texts: dict[str, FrontText] = {}
        self._html_blocks: list[tuple[Span, Sequence[str]]] = []  # the characters of each, and the ids of its units
        self._html_names: set[str] = set()
        self._lines = split_lines(text.text)
        self._line_starts = list(accumulate(map(len, self._lines), initial=0))
        self._titles: dict[str, Title] = {}
        self._cell_end = 0

    def add(self, token: Token, opening: Token) -> None:
        """Add the unit of an inline token. A text whose place or codes are in doubt stays as it is.

        opening: token of the block whose text it is
        """
        is_cell = opening.type in ("td_open", "th_open")
        self._note_links(token, opening)
        spans = self._find_cell(token) if is_cell else self._find_lines(token)
        if not spans:
            return
        content = token.content
        children: Sequence[Token] = token.children or ()
        if opening.type == "heading_open" and len(spans) == 1:
            content, children, start, end = _cut_anchors(content, children)
            spans = [(spans[0][0] + start, spans[0][1] - end)]
        reader = _InlineReader(content)
        try:
            source = reader.read(children)
        except _UnreadableInlineError:
            return
        if parse_markup(source, is_html=False).has_text:
            self._add_text(token, opening, reader, source, spans)
        lines = content.split("\n")
        starts = [
            start + len(line) - len(line.lstrip())
            for start, line in zip(accumulate((len(line) + 1 for line in lines), initial=0), lines, strict=False)
        ]

        def locate(position: int) -> int:
            number = bisect_right(starts, position) - 1
            position -= starts[number]
            return spans[number][0] + position + (content[:position].count("|") if is_cell else 0)

        for title in reader.titles:
            code = locate(title.code[0]), locate(title.code[1])
            self._add_title(replace(title, start=locate(title.start), end=locate(title.end), code=code), is_cell=is_cell)

    def _add_title(self, title: Title, *, is_cell: bool = False) -> None:
        check_texts(len(self.units), len(self.text.content))
        if is_cell:
            escape = title.escape
            title = replace(title, escape=lambda text: escape(text).replace("|", "\\|"))
        self.units.append(Unit(name := self._make_name(), title.text, context="title", keep_line_breaks=False))
        self._titles[name] = title

    def add_definitions(self, maps: Iterable[Span]) -> None:
        """Add the titles in definitions of links. maps: the first line of each, and that behind it"""
        for first, last in maps:
            for title in read_definition(self.text.text, self._line_starts[first], self._line_starts[last]):
                self._add_title(title)

    def add_components(self, token: Token) -> None:
        """Add the titles and labels of tags and shortcodes in a block."""
        first, last = token.map or (0, 0)
        for match in COMPONENT.finditer(self.text.text, self._line_starts[first], self._line_starts[last]):
            for title in read_attributes(self.text.text, match.span()):
                self._add_title(title)

    def _make_name(self) -> str:
        return str(len(self._places) + len(self._html_names) + len(self._titles))

    def _add_text(self, token: Token, opening: Token, reader: _InlineReader, source: str, spans: Sequence[Span]) -> None:
        """Add the unit of a text. spans: the characters of its lines"""
        width, prefix = 0, ""
        if len(spans) > 1:
            second = self._get_line_start(spans[1][0])
            prefix = self.text.text[second : spans[1][0]]
            width = max(MIN_WRAP_WIDTH, *(end - self._get_line_start(start) for start, end in spans))
        name = self._make_name()
        self.units.append(Unit(name, source, markup="xml", keep_line_breaks=False))
        is_cell = opening.type in ("td_open", "th_open")
        is_block = not is_cell and opening.type != "dialect_title_open" and not opening.markup.startswith("#")
        self._places[name] = _PlaceInMarkdown(
            spans[0][0],
            spans[-1][1],
            reader.codes,
            reader.full_ends,
            is_cell,
            is_block,
            width,
            prefix,
            "".join(sorted(reader.escaped)),
        )
        if opening.type == "heading_open" and not _OWN_ANCHOR.search(token.content):
            self._headings[-1] = name, self._headings[-1][1]

    def add_html(self, token: Token) -> None:
        """Add the texts of a block of HTML. One in a quotation, one with Markdown in it, and a template stay."""
        first, last = token.map or (0, 0)
        start, end = self._line_starts[first], self._line_starts[last]
        source = self.text.text[start:end]
        lines, own_lines = source.split("\n"), token.content.split("\n")
        if _MARKDOWN_INSIDE.search(source) or any(
            line.strip() != own.strip() for line, own in zip(lines, own_lines, strict=False)
        ):
            return
        try:
            units, _ = self._read_html(start, end)
        except DataError as error:
            if error.code != "invalid-format":
                raise
            return
        check_texts(len(self.units) + len(units), len(self.text.content))
        names = [str(number) for number, _ in enumerate(units, start=int(self._make_name()))]
        self._html_names.update(names)
        self.units += (replace(unit, id=name) for unit, name in zip(units, names, strict=True))
        if names:
            self._html_blocks.append(((start, end), names))

    def _read_html(
        self, start: int, end: int
    ) -> tuple[list[Unit], Callable[[Mapping[str, UnitTranslation], str], Iterator[Edit]]]:
        source = self.text.text[start:end]
        return read_fragment(
            EncodedText(self.text.encode(source), source, self.text.encoding, 0, self.text.has_carriage_returns)
        )

    def make_html_edits(self, translations: Mapping[str, UnitTranslation], language: str) -> Iterator[Edit]:
        """Yield the edits of the blocks of HTML. Each is read again, because its reader takes much memory."""
        for (start, end), names in self._html_blocks:
            if translations.keys().isdisjoint(names):
                continue
            units, make_edits = self._read_html(start, end)
            pairs = zip(units, names, strict=True)
            own = {unit.id: translations[name] for unit, name in pairs if name in translations}
            first = self.text.get_byte(start)
            for edit in make_edits(own, language):
                yield Edit(edit.start + first, edit.end + first, edit.content)

    def _note_links(self, token: Token, opening: Token) -> None:
        """Note the anchors that a text links to, and the text itself if it is a heading."""
        children = token.children or []
        hrefs = (str(child.attrs.get("href", "")) for child in children if child.type == "link_open")
        self._fragments |= {unquote(href[1:]) for href in hrefs if href.startswith("#")}
        if opening.type == "heading_open":
            plain = "".join(child.content for child in children if child.type in ("text", "code_inline"))
            self._headings.append(("", plain))
            self._has_attributes |= "{#" in token.content

    def find_anchors(self, linked: Collection[str] = (), is_hugo: bool = False) -> None:
        """Find the anchors that headings have to keep because the file links to them. Called when all texts are added.

        linked: anchors that other pages link to
        is_hugo: the page is one of Hugo, which drops HTML
        """
        self._has_attributes |= is_hugo
        for number, names in find_linked([text for _, text in self._headings], self._fragments.union(linked)).items():
            self._anchors[self._headings[number][0]] = tuple(names)

    def add_front_matter(self, texts: Sequence[FrontText]) -> None:
        """Add the units of the front matter, which are named by their keys."""
        for item in texts:
            self.units.append(Unit(item.key, item.value, context=item.key, key=item.key))
            self._front_texts[item.key] = item

    def _get_line_start(self, position: int) -> int:
        return self._line_starts[bisect_right(self._line_starts, position) - 1]

    def _find_lines(self, token: Token) -> list[Span]:
        """Return the spans of the lines of a block, or none if one is not where it should be."""
        first = token.map[0] if token.map else 0
        spans: list[Span] = []
        for number, content in enumerate(token.content.split("\n"), start=first):
            content = content.strip()
            line = self._lines[number].rstrip() if number < len(self._lines) else ""
            column = line.rfind(content, 0, len(line) - token.meta.get("following", 0))
            if column < 0 or not content:
                return []
            start = self._line_starts[number] + column
            spans.append((start, start + len(content)))
        return spans

    def _find_cell(self, token: Token) -> list[Span]:
        """Return the span of a cell behind the cell before it, or none for an empty one."""
        number = token.map[0] if token.map else 0
        content = token.content.replace("|", "\\|")
        start = self.text.text.find(content, max(self._cell_end, self._line_starts[number]), self._line_starts[number + 1])
        if start < 0 or not content:
            return []
        self._cell_end = start + len(content)
        return [(start, self._cell_end)]

    def make_edits(self, unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        """Return the edit that writes a text. A text of several lines is wrapped at the width of the longest one."""
        if unit.id in self._front_texts:
            item = self._front_texts[unit.id]
            return [self.text.make_edit(item.start, item.end, item.write(translation.text))]
        if unit.id in self._html_names:
            return []  # `make_html_edits` makes them
        if title := self._titles.get(unit.id):
            return [self.text.make_edit(title.start, title.end, title.escape(" ".join(translation.text.split())))]
        place = self._places[unit.id]
        old, new = (_read_insides(text, place.full_ends) for text in (unit.source, translation.text))
        codes = place.codes | {tag: end for tag, end in place.full_ends.items() if new.get(tag) != old.get(tag)}
        pieces = _TAG.split(translation.text.strip())
        if not self._reads_as(pieces, codes, escaped := self._write_pieces(pieces, codes, place, is_escaped=False)):
            escaped = self._write_pieces(pieces, codes, place, is_escaped=True)
        text = wrap_pieces(escaped, place.width, f"{self.text.newline}{place.prefix}")
        if place.is_cell:
            text = text.replace("|", "\\|")
        return [self.text.make_edit(place.start, place.end, self._add_anchors(unit, translation, text))]

    def assemble(self, content: bytes, edits: Iterable[Edit]) -> bytes:
        """Return the bytes with replaced spans, also with titles in texts."""
        get_byte = self.text.get_byte
        codes = {get_byte(title.start): (get_byte(title.code[0]), get_byte(title.code[1])) for title in self._titles.values()}
        return assemble(content, edits, codes)

    def _write_pieces(
        self, pieces: Sequence[str], codes: Mapping[str, str], place: _PlaceInMarkdown, *, is_escaped: bool
    ) -> list[str]:
        """Return what the file gets for texts and tags in turn.

        is_escaped: give a backslash to all characters that can be marks, and not only to those at which blocks begin
        """
        output: list[str] = []
        written = ""  # last piece that is not empty
        for index, piece in enumerate(pieces):
            if index % 2:
                output.append(codes.get(piece, ""))
            else:
                following = codes.get(pieces[index + 1], "") if index + 1 < len(pieces) else ""
                is_line_start = place.is_block and (not written or (place.width > 0 and written.endswith("\n")))
                plain = html.unescape(piece).replace("\n", " ")
                escape = _escape if is_escaped else _escape_ends
                text = escape(plain, is_line_start=is_line_start, following=following)
                output.append(re.sub(rf"(?<!\\)(?=[{re.escape(place.escaped)}])", r"\\", text) if place.escaped else text)
            written = output[-1] or written
        return glue(output)

    def _reads_as(self, pieces: Sequence[str], codes: Mapping[str, str], written: Sequence[str]) -> bool:
        """Return whether written texts and codes are read as they are meant."""
        if not any(_SPECIAL.search(piece) for piece in written[::2]):
            return True
        check_goes_on()
        text = "".join(written)
        try:
            _check_block_text(text)
            self._env["num_tries"] = 0
            reader = _InlineReader(text)
            read = _TAG.split(reader.read(self._parser.parseInline(text, self._env)[0].children or ()))
        except (DataError, _UnreadableInlineError):
            return False
        meant, actual = (
            [
                texts[tag] if number % 2 and tag in texts else " ".join(html.unescape(tag).split())
                for number, tag in enumerate(parts)
            ]
            for parts, texts in ((pieces, codes), (read, reader.codes))
        )
        return meant == actual

    def _add_anchors(self, unit: Unit, translation: UnitTranslation, text: str) -> str:
        """Return the text of a heading with the anchors that it had, if other texts link to them."""
        plain = html.unescape(_TAG.sub("", translation.text))
        names = [name for name in self._anchors.get(unit.id, ()) if name not in list_anchors(plain)]
        if not names or translation.text == unit.source:
            return text
        if self._has_attributes:
            return f"{text} {{#{names[0]}}}"
        return "".join(f'<a id="{html.escape(name)}"></a>' for name in names) + text


def _read_insides(text: str, end_tags: Collection[str]) -> dict[str, str]:
    """Return what is inside the pairs with these end tags, none of which is in another."""
    places = {match[0]: match.span() for match in _TAG.finditer(text)} if end_tags else {}
    starts = {tag: places.get(tag.replace("/", ""), (0, 0))[1] for tag in end_tags}
    return {tag: text[starts[tag] : places[tag][0]] for tag in end_tags if tag in places}


def _cut_anchors(content: str, tokens: Sequence[Token]) -> tuple[str, Sequence[Token], int, int]:
    """Return a heading and its tokens without anchors at its ends, and the numbers of characters before and after it."""
    before, after = _ANCHORS_BEFORE.match(content), _ATTRIBUTES_AFTER.search(content)
    start, end = before.end() if before else 0, len(content)
    if after and tokens and tokens[-1].type == "dialect_code" and tokens[-1].content.strip() == after[0].strip():
        end, tokens = after.start(), tokens[:-1]
    if start >= end:
        return content, tokens, 0, 0
    return content[start:end], tokens[2 * content[:start].count("</a>") :], start, len(content) - end


def _pair_tags(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the number of the other tag for each start and end tag of HTML or MDX that have the same parent."""
    pairs: dict[int, int] = {}
    open_tags: list[list[tuple[str, int]]] = [[]]  # of each mark that is open
    counts = [Counter[str]()]
    for number, token in enumerate(tokens):
        if token.nesting > 0:
            open_tags.append([])
            counts.append(Counter())
        elif token.nesting < 0:
            open_tags.pop()
            counts.pop()
        elif token.type in ("html_inline", "dialect_code") and (match := _HTML_TAG.match(token.content)):
            name = match[2]
            if not match[1] and name.lower() not in VOID_TAGS:
                open_tags[-1].append((name, number))
                counts[-1][name] += 1
            while match[1] and counts[-1][name]:  # tags between the two have no end
                last, start = open_tags[-1].pop()
                counts[-1][last] -= 1
                if last == name:
                    pairs[start], pairs[number] = number, start
                    break
    return pairs


class _InlineReader:
    """Reader of one text. It follows the tokens of markdown-it-py through the characters.

    codes: what each tag stands for
    full_ends, escaped: as in `_PlaceInMarkdown`
    titles: those in its codes, with characters of the text
    """

    def __init__(self, content: str) -> None:
        self.content = content
        self.codes: dict[str, str] = {}
        self.full_ends: dict[str, str] = {}
        self.escaped: set[str] = set()
        self.titles: list[Title] = []
        self._spans = find_placeholders(content) if _SPECIAL.search(content) else []
        self._closed = frozenset(_CLOSED.findall(content))
        self._position = 0
        self._output: list[str] = []
        self._open_tags: list[int] = []
        self._open_links: list[int | None] = []  # start of the label of a link with a label
        self._num_codes = 0

    def read(self, tokens: Sequence[Token]) -> str:
        """Return the text with tags. Raises _UnreadableInlineError if the tokens are not those of the text."""
        index = 0
        pairs = _pair_tags(tokens)
        starts: dict[int, tuple[int, int, int]] = {}
        while index < len(tokens):
            token = tokens[index]
            match token.type:
                case "html_inline" | "dialect_code" if index in pairs:
                    self._expect(token.content)
                    self._note_attributes()
                    if pairs[index] > index:
                        starts[index] = len(self._output), self._position, self._num_codes
                        self._open(token.content)
                    else:
                        self._close(token.content)
                        self._join(token.content, *starts[pairs[index]])
                case "text":
                    self._read_text(token.content)
                case "softbreak":
                    self._read_soft_break()
                case "hardbreak":
                    match_ = self._match(_HARD_BREAK)
                    self._add_point(f"{match_[1]}\n", match_.end(), "br")
                case "code_inline":
                    self._add_point_to(self._find_code_end(len(token.markup)))
                case "html_inline" | "dialect_code":
                    self._expect(token.content)
                    self._note_attributes()
                    if self._output and _GLUED_ATTRIBUTES.match(token.content) and self._output[-1].startswith(("</g", "<x")):
                        self._extend(self._output[-1], token.content)
                    elif self._is_in_type(token.content):
                        self._read_text(token.content)
                    else:
                        kind = "br" if _HTML_BREAK.fullmatch(token.content) else "x"
                        self._add_point(token.content, self._position + len(token.content), kind)
                case "image":
                    self._read_image(token)
                case "link_open" if token.markup == "autolink":
                    self._add_point_to(self._match(_AUTOLINK).end())
                    index += 2
                case "link_open":
                    self._expect("[")
                    self._open("[")
                    self._open_links.append(self._position if "label" in token.meta else None)
                case "link_close":
                    label_start = self._open_links.pop()
                    end = self._match_end(is_reference=label_start is not None)
                    if label_start is not None and end in ("]", "][]"):
                        label = " ".join(self.content[label_start : self._position].split())
                        self.full_ends[f"</g{self._open_tags[-1]}>"] = f"][{label}]"
                    self._close(end)
                case "strong_open" | "dialect_open" | "em_open" | "s_open":
                    self._expect(token.markup)
                    is_glued = token.markup == "^[" and not self.content[self._position - 1 : self._position].isspace()
                    self._open(token.markup, is_glued=is_glued and self._position > 0)
                case "strong_close" | "dialect_close" | "em_close" | "s_close":
                    self._expect(token.markup)
                    if title := _TITLE_OF_TEMPLATE.match(token.markup, max(token.markup.rfind("}"), 0)):
                        first, last = (self._position + position for position in title.span(1))
                        self.titles += read_title(self.content, (first, last), (self._position, last + 1))
                    self._close(token.markup)
                case _:
                    raise _UnreadableInlineError
            index += 1
        if self.content[self._position :].strip():
            raise _UnreadableInlineError
        return "".join(self._output)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match_ = pattern.match(self.content, self._position)
        if match_ is None:
            raise _UnreadableInlineError
        return match_

    def _expect(self, markup: str) -> None:
        if not self.content.startswith(markup, self._position):
            raise _UnreadableInlineError

    def _open(self, markup: str, *, is_glued: bool = False) -> None:
        """Add the start of a pair. is_glued: the model reads a space before it"""
        self._num_codes += 1
        self._open_tags.append(self._num_codes)
        self._output.append(" " if is_glued else "")
        self._add(tag := f"<g{self._num_codes}>", markup)
        self.codes[tag] = GLUED * is_glued + markup

    def _close(self, markup: str) -> None:
        self._add(f"</g{self._open_tags.pop()}>", markup)

    def _join(self, end_tag: str, output: int, position: int, num_codes: int) -> None:
        """Make one point of an element for code, of one without text, and of a raised one without letters: `<sup>1</sup>`.

        output, position, num_codes: what was read before the element
        """
        name = end_tag[2:-1].strip().lower()
        text = _TAG.sub("", "".join(self._output[output:])).strip()
        if name in OPAQUE_TAGS or not text or (name in _RAISED_ELEMENTS and not any(map(str.isalpha, text))):
            self._num_codes = num_codes
            while name in OPAQUE_TAGS and self.titles and self.titles[-1].start >= position:
                self.titles.pop()
            del self._output[output:]
            markup, end = self.content[position : self._position], self._position
            self._position = position
            self._add_point(markup, end)

    def _add(self, tag: str, markup: str) -> None:
        self.codes[tag] = markup
        self._output.append(tag)
        self._position += len(markup)

    def _add_point_to(self, end: int) -> None:
        self._add_point(self.content[self._position : end], end)

    def _add_point(self, markup: str, end: int, letters: str = "x") -> None:
        self._num_codes += 1
        self._add(f"<{letters}{self._num_codes}/>", markup)
        self._position = end

    def _find_code_end(self, num_marks: int) -> int:
        self._expect("`" * num_marks)
        pattern = re.compile(rf"(?<!`)`{{{num_marks}}}(?!`)")
        if (match_ := pattern.search(self.content, self._position + num_marks)) is None:
            raise _UnreadableInlineError
        return match_.end()

    def _read_image(self, token: Token) -> None:
        """Add an image: a pair around a plain description, otherwise a point. A description that names the image stays."""
        self._expect(f"![{token.content}]")
        self._position, start = self._position + 2 + len(token.content), self._position
        end = self._match_end(is_reference="label" in token.meta)
        point_end = self._position + len(end)
        self._position = start
        names_image = "label" in token.meta and end in ("]", "][]")
        is_plain = bool(token.children) and all(child.type in ("text", "softbreak") for child in token.children or ())
        if names_image or not is_plain or not any(map(str.isalpha, token.content)):
            self._add_point_to(point_end)
            return
        self._open("![")
        for child in token.children or ():
            if child.type == "text":
                self._read_text(child.content)
            else:
                self._read_soft_break()
        self._close(end)

    def _match_end(self, *, is_reference: bool) -> str:
        """Return the end of a link or an image, and note its title."""
        match_ = self._match(_REFERENCE_END if is_reference else _LINK_END)
        if not is_reference and match_[1]:
            self.titles += read_title(self.content, match_.span(1), match_.span())
        return match_[0]

    def _note_attributes(self) -> None:
        """Note the texts in attributes of the tag or shortcode that is next."""
        if match_ := COMPONENT.match(self.content, self._position):
            self.titles += read_attributes(self.content, match_.span())

    def _extend(self, tag: str, markup: str) -> None:
        """Let attributes belong to the code before them."""
        for codes in (self.codes, self.full_ends):
            if tag in codes:
                codes[tag] += markup
        self._position += len(markup)

    def _read_soft_break(self) -> None:
        self._position = self._match(_SOFT_BREAK).end()
        self._output.append(" ")

    def _is_in_type(self, tag: str) -> bool:
        """Return whether a tag is a part of a type of a program, such as `List<T>`."""
        number = bisect_right(self._spans, self._position, key=itemgetter(0)) - 1
        start, end = self._spans[number] if number >= 0 else (0, 0)
        is_inside = start < self._position and self._position + len(tag) <= end
        return is_inside and tag[1:-1].lower() not in KNOWN_TAGS and tag[1:-1] not in self._closed

    def _read_text(self, text: str) -> None:
        """Add a text. The file may have an escape or a reference for each of its characters."""
        done = 0
        plain = ""
        while done < len(text):
            position = self._position
            character, length = self.content[position : position + 1], 1
            entity = _ENTITY.match(self.content, position) if character == "&" else None
            if entity and html.unescape(entity[0]) != entity[0] and text.startswith(html.unescape(entity[0]), done):
                character, length = html.unescape(entity[0]), len(entity[0])
            elif character == "\\" and self.content[position + 1 : position + 2] in _PUNCTUATION:
                character, length = self.content[position + 1], 2
            if not text.startswith(character, done) or not character:
                raise _UnreadableInlineError
            if length > 1 and character in _SIGNS_OF_PROGRAMS:
                self.escaped.add(character)
            plain += character
            done += len(character)
            self._position += length
        self._output.append(html.escape(plain, quote=False))


def _escape(text: str, *, is_line_start: bool, following: str) -> str:
    """Return a text with backslashes before the characters that Markdown would read as marks.

    is_line_start: a block could begin with the text
    following: what the file has behind the text
    """
    return _escape_ends(_SPECIAL.sub(r"\\\g<0>", text), is_line_start=is_line_start, following=following)


def _escape_ends(text: str, *, is_line_start: bool, following: str) -> str:
    """Return a text with backslashes where Markdown would read the start of a block or the end of a heading."""
    if following.startswith("["):
        text = re.sub(r"!$", r"\\!", text)
    if is_line_start:
        text = _BLOCK_START.sub(r"\1\\", text.lstrip(" \t"))
    return text if following else re.sub(r"(?<!\\)#$", r"\\#", text)
