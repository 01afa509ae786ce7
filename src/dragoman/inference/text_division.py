"""Division of whole texts into segments, usually sentences, and what stands between them, such as tags of blocks."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter
from typing import cast

from dragoman.inference.text_options import TextOptions
from dragoman.text.breaks import find_boundaries
from dragoman.text.inline_codes import BLOCK_TAGS, INLINE_TAGS, CodedText, Element, Part, Point, read_inline, write_parts
from dragoman.text.kept_terms import mark_kept_terms
from dragoman.text.other_scripts import mark_long_words
from dragoman.text.sentences import cut_long_spans, split_sentences
from dragoman.text.word_codes import mark_word_codes

MAX_SENTENCE_CHARACTERS = 2000
"""Longest sentence that is translated as one. To place its codes takes time and memory that grow with its square."""
_SPACES = re.compile(r"[ \t-\r\x1c-\x1e\x85\u2028\u2029]+")
_SPACE_RUN = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]|  ")
_BREAK_TAG = re.compile(r"<(?:br\d*(?:\s[^<>]*)?/?|tab\d+/)>", re.IGNORECASE)
_TAG_NAME = re.compile(r"(?:<|&lt;)/?([A-Za-z][^\s<>/&]*)")


@dataclass(frozen=True)
class Separator:
    """White space between two sentences of a line."""

    text: str

    def write(self) -> str:
        """Return the white space."""
        return self.text


Piece = str | Separator | CodedText
"""Something that is kept verbatim, white space between two sentences, or a segment."""


def count_segments(text: str, options: TextOptions) -> int:
    """Return the number of segments that a text is divided into."""
    return sum(isinstance(piece, CodedText) for piece in divide(text, options))


def divide(text: str, options: TextOptions) -> Iterator[Piece]:
    """Yield the segments of a text and what stands between them; written one after the other, they are the text."""
    coded = read_codes(text, options)
    if _is_one_sentence(text, coded, options):
        yield coded
        return
    blocks = set(_list_breaks(coded.parts, options)) if _has_break(coded.parts) else set()
    _add_blocks(coded.parts, options, blocks)
    yield from _divide_blocks(coded.parts, options, blocks, is_escaped=coded.is_escaped)


def _is_one_sentence(text: str, coded: CodedText, options: TextOptions) -> bool:
    """Return whether a text is one sentence of words and pairs of inline tags around words, which nothing divides.

    So are most texts, and this is fast. False if it is not certain.
    """
    is_shown = text.isprintable() and "  " not in text  # then no white space is folded
    if not is_shown or "&" in text or options.detects_outline or not _has_inline_pairs_only(coded.parts, options):
        return False
    if len(coded.parts) == 1 and isinstance(coded.parts[0], Element):
        return False
    words = coded.clean.text
    return (
        0 < len(words) <= MAX_SENTENCE_CHARACTERS
        and not words[0].isspace()
        and not words[-1].isspace()
        and split_sentences(words, options.source_language) == [(0, len(words))]
    )


def _has_inline_pairs_only(parts: Sequence[Part], options: TextOptions) -> bool:
    """Return whether the codes are pairs of inline tags, in each of which there is something."""
    for part in parts:
        if not isinstance(part, str) and (
            isinstance(part, Point)
            or not part.parts
            or _is_tag_of_block(part, options)
            or not _has_inline_pairs_only(part.parts, options)
        ):
            return False
    return True


def read_codes(text: str, options: TextOptions) -> CodedText:
    """Return a text with its tags, its placeholders, and the terms that are not translated as codes."""
    coded = read_inline(
        text,
        options.markup,
        options.rules,
        options.opaque_tags,
        keep_line_breaks=options.keep_line_breaks,
        language=options.source_language,
    )
    return mark_kept_terms(mark_long_words(mark_word_codes(coded)), options.glossary)


def _divide_blocks(parts: Sequence[Part], options: TextOptions, blocks: set[int], *, is_escaped: bool) -> Iterator[Piece]:
    """Yield the pieces of a text: breaks and tags of blocks are kept, and the text between two of them is divided.

    blocks: identities of the breaks that end a text, and what `_add_blocks` adds
    """
    run: list[Part] = []
    outline = _find_outline(parts, options)
    for number, part in enumerate(parts):
        if isinstance(part, str) or not (number in outline or id(part) in blocks):
            run.append(part)
            continue
        yield from _divide_run(run, options, is_escaped=is_escaped)
        run = []
        if isinstance(part, Point):
            yield part.markup
        else:
            yield part.start_tag
            yield from _divide_blocks(part.parts, options, blocks, is_escaped=is_escaped)
            yield part.end_tag
    yield from _divide_run(run, options, is_escaped=is_escaped)


def _add_blocks(parts: Sequence[Part], options: TextOptions, blocks: set[int]) -> int:
    """Add the identities of the codes that divide a text, and return the length of the text without codes.

    Such a code is the tag of a block, contains a break or such a code, or is an element longer than any sentence.
    """
    length = 0
    for part in parts:
        inner_length = _add_blocks(part.parts, options, blocks) if isinstance(part, Element) else len(get_surface(part))
        length += inner_length
        if not isinstance(part, str) and (
            (isinstance(part, Element) and inner_length > MAX_SENTENCE_CHARACTERS) or _is_block(part, options, blocks)
        ):
            blocks.add(id(part))
    return length


def _is_block(part: Point | Element, options: TextOptions, blocks: set[int]) -> bool:
    """Return whether a code is the tag of a block, or contains a break or one of the blocks."""
    if _is_tag_of_block(part, options):
        return True
    if not isinstance(part, Element):
        return False
    if _get_tag_name(part, options) in options.non_splitting_tags:
        return any(isinstance(child, Point) and id(child) in blocks for child in part.parts)
    return any(id(child) in blocks for child in part.parts) or bool(_find_outline(part.parts, options, min_elements=2))


def _is_tag_of_block(part: Point | Element, options: TextOptions) -> bool:
    name = _get_tag_name(part, options)
    if name in options.splitting_tags:
        return True
    is_html = options.markup != "xml" or _get_tag(part).startswith("&lt;")  # so has a section CDATA of XML
    return is_html and name in BLOCK_TAGS and name not in options.non_splitting_tags


def _get_tag(part: Point | Element) -> str:
    return part.markup if isinstance(part, Point) else part.start_tag


def _get_tag_name(part: Point | Element, options: TextOptions) -> str:
    """Return the name of a tag; in lower case, unless it is of XML. Other codes have none."""
    match = _TAG_NAME.match(_get_tag(part))
    name = match[1] if match else ""
    return name if options.markup == "xml" else name.lower()


def _find_outline(parts: Sequence[Part], options: TextOptions, *, min_elements: int = 1) -> set[int]:
    """Return the numbers of the elements that give XML its structure: no text is between them.

    Elements for parts of a sentence, such as `<b>`, give none, unless each stands on a line of its own.
    """
    if not options.detects_outline or any(get_surface(part).strip() for part in parts if not isinstance(part, Element)):
        return set()
    elements = [number for number, part in enumerate(parts) if isinstance(part, Element)]
    if len(elements) < min_elements:
        return set()
    gaps = ["".join(map(get_surface, parts[first + 1 : last])) for first, last in pairwise(elements)]
    is_laid_out = bool(gaps) and all("\n" in gap for gap in gaps)
    outline = set()
    for number in elements:
        name = _get_tag_name(cast(Element, parts[number]), options)
        if name not in options.non_splitting_tags and (is_laid_out or name.lower() not in INLINE_TAGS):
            outline.add(number)
    return outline


def _has_break(parts: Sequence[Part]) -> bool:
    return any(
        _is_break(part) if isinstance(part, Point) else isinstance(part, Element) and _has_break(part.parts) for part in parts
    )


@dataclass
class _Lines:
    """Lines of a text between two blocks, also those that begin or end inside an element.

    breaks: the break behind each line but the last
    hard: numbers of the breaks that always end a text
    inner: numbers of the breaks inside an element, if its line has text beside it
    """

    lines: list[list[str]]
    breaks: list[Point]
    hard: list[int]
    inner: list[int]


def _list_breaks(parts: Sequence[Part], options: TextOptions) -> Iterator[int]:
    """Yield the identities of the breaks that end a text: all but those `<br>` that `find_boundaries` finds in a sentence."""
    for group in _list_lines(parts, options):
        if group.breaks:
            boundaries = find_boundaries(["".join(line) for line in group.lines], group.hard, group.inner)
            yield from (id(point) for point, is_boundary in zip(group.breaks, boundaries, strict=True) if is_boundary)


def _list_lines(parts: Sequence[Part], options: TextOptions) -> list[_Lines]:
    """Return the lines of each stretch of a text without a block."""
    groups = [_Lines([[]], [], [], [])]

    def end_stretch() -> None:
        groups.append(_Lines([[]], [], [], []))

    def read(parts: Sequence[Part], is_inside: bool) -> None:
        is_beside_text = _find_neighbors(parts)
        for part, is_beside in zip(parts, is_beside_text, strict=True):
            group = groups[-1]
            if isinstance(part, str):
                group.lines[-1].append(part)
            elif isinstance(part, Point) and _is_break(part):
                if not _has_tag(part, "br"):
                    group.hard.append(len(group.breaks))
                if is_inside:
                    group.inner.append(len(group.breaks))
                group.breaks.append(part)
                group.lines.append([])
            elif _is_tag_of_block(part, options):
                end_stretch()
                read(part.parts if isinstance(part, Element) else (), is_inside=False)
                end_stretch()
            elif isinstance(part, Element):
                read(part.parts, is_inside or is_beside)
            else:
                group.lines[-1].append(part.text)

    read(parts, is_inside=False)
    return groups


def _find_neighbors(parts: Sequence[Part]) -> list[bool]:
    """Return for each part whether a text stands beside it on its first or its last line."""
    flags = [False] * len(parts)
    for order in (range(len(parts)), range(len(parts) - 1, -1, -1)):
        has_text = False
        for number in order:
            part = parts[number]
            flags[number] |= has_text
            if isinstance(part, Point) and _is_break(part):
                has_text = False
            else:
                has_text |= CodedText((part,)).has_text
    return flags


def _is_break(point: Point) -> bool:
    """Return whether a point is a break, also one with the short tag of a file."""
    return point.is_break or _BREAK_TAG.match(point.markup) is not None


def _has_tag(part: Part, name: str) -> bool:
    return isinstance(part, Point) and part.markup.removeprefix("&lt;").removeprefix("<")[: len(name)].lower() == name


def _divide_run(parts: Sequence[Part], options: TextOptions, *, is_escaped: bool) -> Iterator[Piece]:
    """Yield the sentences of a text with codes, and the white space and tags between them."""
    before, core, after = _peel(parts, is_escaped=is_escaped)
    if before:
        yield before
    if len(core) == 1 and isinstance(core[0], Element):
        yield core[0].start_tag
        yield from _divide_run(core[0].parts, options, is_escaped=is_escaped)
        yield core[0].end_tag
    elif core:
        for is_sentence, sentence in _cut_sentences(core, options):
            if is_sentence:
                left, inner, right = ("", core, "") if sentence is core else _peel(sentence, is_escaped=is_escaped)
                is_folded = options.markup == "html" or not options.keep_line_breaks
                if is_folded and _SPACE_RUN.search("".join(map(get_surface, inner))):
                    inner = tuple(map(_collapse_spaces, inner))
                yield from (piece for piece in (left, CodedText(inner, is_escaped), right) if piece)
            else:
                between = write_parts(sentence, is_escaped=is_escaped)
                yield between if between.strip() else Separator(between)
    if after:
        yield after


def _collapse_spaces(part: Part) -> Part:
    """Return a part of a text with one space for each run of white space, as a browser shows markup."""
    if isinstance(part, str):
        return _SPACES.sub(" ", part)
    return replace(part, parts=tuple(map(_collapse_spaces, part.parts))) if isinstance(part, Element) else part


def _peel(parts: Sequence[Part], *, is_escaped: bool) -> tuple[str, tuple[Part, ...], str]:
    """Return the white space and tags before and after the text, and what is between them."""
    start, end = 0, len(parts)
    while start < end and _is_edge(parts[start]):
        start += 1
    while end > start and _is_edge(parts[end - 1]):
        end -= 1
    core = list(parts[start:end])
    left = right = ""
    if core and isinstance(core[0], str):
        left = core[0][: len(core[0]) - len(core[0].lstrip())]
        core[0] = core[0].lstrip()
    if core and isinstance(core[-1], str):
        right = core[-1][len(core[-1].rstrip()) :]
        core[-1] = core[-1].rstrip()
    before, after = (write_parts(side, is_escaped=is_escaped) for side in (parts[:start], parts[end:]))
    return before + left, tuple(core), right + after


def _is_edge(part: Part) -> bool:
    """Return whether a part at the edge of a text is no text: white space, or a code without text."""
    return not part.strip() if isinstance(part, str) else isinstance(part, Point) and not part.text


def _cut_sentences(parts: tuple[Part, ...], options: TextOptions) -> Iterator[tuple[bool, tuple[Part, ...]]]:
    """Yield the sentences of parts (true) and what is between them (false). No sentence ends inside a code."""
    surfaces = [get_surface(part) for part in parts]
    ends = list(accumulate(map(len, surfaces)))
    protected = [
        (end - len(surface), end) for part, surface, end in zip(parts, surfaces, ends, strict=True) if part is not surface
    ]
    text = "".join(surfaces)
    spans = split_sentences(text, options.source_language, protected) if options.split_sentences else [(0, len(text))]
    spans = cut_long_spans(text, spans, protected, MAX_SENTENCE_CHARACTERS)
    if spans == [(0, len(text))] and surfaces[-1] and "" not in parts:  # so are most
        yield True, parts
        return
    span_ends, edges = [end for _, end in spans], list(chain.from_iterable(spans))

    def find_sentence(start: int, end: int) -> int:
        """Return the number of the sentence that a piece of the text is in, or -1 if it is between two."""
        number = bisect_right(span_ends, start)
        return number if number < len(spans) and spans[number][0] < end else -1

    owned: list[tuple[int, Part]] = []
    for part, surface, end in zip(parts, surfaces, ends, strict=True):
        start = end - len(surface)
        if isinstance(part, str):
            cuts = [start, *edges[bisect_right(edges, start) : bisect_left(edges, end)], end]
            owned += [(find_sentence(a, b), part[a - start : b - start]) for a, b in pairwise(cuts) if a < b]
        else:
            owned.append((find_sentence(start, end), part))
    for number, group in groupby(owned, key=itemgetter(0)):
        yield number >= 0, tuple(part for _, part in group)


def get_surface(part: Part, *, space: str = "") -> str:
    """Return the text of a part, in which sentences and terms are looked for. space: text of a code that is white space"""
    if isinstance(part, str):
        return part
    if isinstance(part, Point):
        return space if part.is_space else part.text
    return "".join(get_surface(child, space=space) for child in part.parts)
