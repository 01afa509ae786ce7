"""Translation of whole texts: line breaks, spaces, markup and placeholders stay, and sentences are translated one by one.

`divide` cuts a text into segments and what stands between them. `translate_texts` translates the segments of many texts
together and puts them back. Placeholders are part of what the model reads. If the translation changes one, the segment is
translated again without placeholders, and attention places them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter
from typing import Literal

import numpy as np
import numpy.typing as npt

from dragoman.data.tokenization.subword_sampling import METASPACE
from dragoman.inference.translation_result import STATUSES_WORST_FIRST, Translation
from dragoman.languages import is_spaced_language
from dragoman.tasks.translation import TranslationStatus
from dragoman.text.inline_codes import (
    BLOCK_TAGS,
    CodedText,
    Element,
    Part,
    Point,
    escape,
    parse_markup,
    parse_placeholders,
    write_parts,
)
from dragoman.text.projection import project, split_units
from dragoman.text.sentences import split_sentences

Markup = Literal["none", "html", "xml"]
TranslateLines = Callable[[Sequence[str], bool], Sequence[Translation]]
"""Function that translates lines; with attention if the second argument is true."""

_LINE_BREAK = re.compile(r"(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
_TAG_NAME = re.compile(r"</?([A-Za-z][^\s<>/]*)")


@dataclass(frozen=True)
class TextOptions:
    """How texts are read.

    markup: "none" for plain text; "html" and "xml" keep tags, and character references are characters
    source_language, target_language: codes that select the rules for sentences and for the spaces between them
    split_sentences: translate each sentence by itself; if false, each line or block
    keep_line_breaks: a line break ends a sentence; without markup only
    opaque_tags: elements that are kept with their content
    """

    markup: Markup = "none"
    source_language: str = ""
    target_language: str = ""
    split_sentences: bool = True
    keep_line_breaks: bool = True
    opaque_tags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TranslatedSegment:
    """Segment of a text, usually a sentence.

    source, text: the segment and its translation, with their markup
    translation: translation of the text without markup, or None for a segment without a letter or digit
    """

    source: str
    text: str
    translation: Translation | None = None

    @property
    def status(self) -> TranslationStatus:
        """Status of the translation; "ok" for a segment that needs none."""
        return "ok" if self.translation is None else self.translation.status


@dataclass(frozen=True)
class TextTranslation:
    """Translation of a text.

    text: the translation, with everything that stands between the segments
    segments: translated segments in order
    """

    text: str
    segments: tuple[TranslatedSegment, ...]

    @property
    def status(self) -> TranslationStatus:
        """Worst status of the segments; "ok" for a text without segments."""
        return min((segment.status for segment in self.segments), key=STATUSES_WORST_FIRST.index, default="ok")


@dataclass(frozen=True)
class Separator:
    """White space between two sentences of a line."""

    text: str

    def write(self) -> str:
        """Return the white space."""
        return self.text


Piece = str | Separator | CodedText
"""Something that is kept verbatim, white space between two sentences, or a segment."""


def translate_texts(texts: Sequence[str], options: TextOptions, translate: TranslateLines) -> list[TextTranslation]:
    """Translate texts and return one result for each, in order. Equal segments are translated once.

    translate: function that translates lines in order
    """
    pieces_of_texts = [list(divide(text, options)) for text in texts]
    segments = list(dict.fromkeys(piece for piece in chain.from_iterable(pieces_of_texts) if isinstance(piece, CodedText)))
    translated = dict(zip(segments, _translate_segments(segments, translate), strict=True))
    separator = " " if is_spaced_language(options.target_language) else ""
    return [_join(pieces, translated, separator) for pieces in pieces_of_texts]


def _join(pieces: Sequence[Piece], translated: dict[CodedText, TranslatedSegment], separator: str) -> TextTranslation:
    """Return the text of the pieces. A single space, or none, between sentences becomes what the target language writes."""
    output: list[str] = []
    is_after_sentence = False
    for piece in pieces:
        if isinstance(piece, CodedText):
            output += [separator, translated[piece].text] if is_after_sentence else [translated[piece].text]
        elif isinstance(piece, Separator):
            output.append(separator if piece.text == " " else piece.text)
        else:
            output.append(piece)
        is_after_sentence = isinstance(piece, CodedText)
    return TextTranslation("".join(output), tuple(translated[piece] for piece in pieces if isinstance(piece, CodedText)))


def _translate_segments(segments: Sequence[CodedText], translate: TranslateLines) -> list[TranslatedSegment]:
    readings: Sequence[CodedText] = [_read_placeholders(segment) for segment in segments]
    results: list[TranslatedSegment | None] = [
        None if _has_word(segment.clean.text) else TranslatedSegment(segment.write(), segment.write()) for segment in segments
    ]
    for is_last in (False, True):
        waiting = [index for index, result in enumerate(results) if result is None]
        for has_codes in (False, True):
            chosen = [index for index in waiting if readings[index].has_codes == has_codes]
            lines = [readings[index].clean.text for index in chosen]
            for index, translation in zip(chosen, translate(lines, has_codes) if lines else (), strict=True):
                if is_last or _keeps_placeholders(segments[index], readings[index], translation.text):
                    text = _place_codes(readings[index], translation)
                    results[index] = TranslatedSegment(segments[index].write(), text, translation)
        readings = segments if not is_last else readings
    return [result for result in results if result is not None]


def _has_word(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _read_placeholders(segment: CodedText) -> CodedText:
    """Return the segment with its placeholders as text, so that the model reads them."""
    return replace(segment, parts=tuple(_merge_placeholders(segment.parts)))


def _merge_placeholders(parts: Sequence[Part]) -> Iterator[Part]:
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        elif isinstance(part, Point) and not part.markup.startswith("<"):
            text += part.markup
        else:
            if text:
                yield text
            text = ""
            yield replace(part, parts=tuple(_merge_placeholders(part.parts))) if isinstance(part, Element) else part
    if text:
        yield text


def _list_placeholders(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Element):
            yield from _list_placeholders(part.parts)
        elif isinstance(part, Point) and not part.markup.startswith("<"):
            yield part.markup


def _keeps_placeholders(segment: CodedText, reading: CodedText, translation: str) -> bool:
    """Return whether the translation has each placeholder of the segment as often as the segment, and no other."""
    if segment == reading:
        return True
    return Counter(_list_placeholders(segment.parts)) == Counter(_list_placeholders(parse_placeholders(translation).parts))


def _place_codes(reading: CodedText, translation: Translation) -> str:
    if not reading.has_codes:
        return escape(translation.text) if reading.is_escaped else translation.text
    return project(reading, translation.text, compute_unit_weights(translation, reading.clean.text))


def compute_unit_weights(translation: Translation, source: str) -> npt.NDArray[np.float64]:
    """Return the attention of each unit of a translation to each unit of its source. (T, S)

    translation: translation with attention
    """
    to_source = _match_pieces(translation.source_tokens, source)
    to_target = _match_pieces(translation.tokens, translation.text)
    if not translation.attention or not to_source.size or not to_target.size:
        return np.zeros((to_target.shape[1], to_source.shape[1]))
    rows = np.asarray(translation.attention, dtype=np.float64)[: len(translation.tokens), : len(translation.source_tokens)]
    return np.asarray(to_target.T @ rows @ to_source, dtype=np.float64)


def _match_pieces(pieces: Sequence[str], text: str) -> npt.NDArray[np.float64]:
    """Return which share of each piece lies in each unit of a text. (P, U)

    A piece that the text does not contain, because the tokenizer normalized it, lies where the piece before it ends.
    """
    units = split_units(text)
    owners = np.full(len(text) + 1, -1)
    for number, (start, end) in enumerate(units):
        owners[start:end] = number
    shares = np.zeros((len(pieces), len(units)))
    position = 0
    for row, piece in zip(shares, pieces, strict=True):
        surface = piece.replace(METASPACE, " ").strip()
        start = text.find(surface, position, position + len(surface) + 16) if surface else -1
        if start >= 0:
            position = start + len(surface)
        numbers = [number for number in owners[max(start, 0) : position] if number >= 0] if start >= 0 else []
        if not numbers and surface:
            numbers = [number for number in owners[position : position + 1] if number >= 0]
        for number in numbers:
            row[number] += 1 / len(numbers)
    return shares


def divide(text: str, options: TextOptions) -> Iterator[Piece]:
    """Yield the segments of a text and what stands between them; written one after the other, they are the text."""
    if options.markup == "none":
        parts = _LINE_BREAK.split(text) if options.keep_line_breaks else [text]
        for index, line in enumerate(parts):
            if index % 2:
                yield line
            else:
                yield from _divide_run(parse_placeholders(line).parts, options, is_escaped=False)
    else:
        coded = parse_markup(text, is_html=options.markup == "html", opaque=options.opaque_tags)
        yield from _divide_blocks(coded.parts, options)


def _divide_blocks(parts: Sequence[Part], options: TextOptions) -> Iterator[Piece]:
    """Yield the pieces of markup: tags of blocks are kept, and the text between two of them is divided."""
    run: list[Part] = []
    for part in parts:
        if isinstance(part, str) or not _has_block(part, options):
            run.append(part)
            continue
        yield from _divide_run(run, options, is_escaped=True)
        run = []
        if isinstance(part, Point):
            yield part.markup
        else:
            yield part.start_tag
            yield from _divide_blocks(part.parts, options)
            yield part.end_tag
    yield from _divide_run(run, options, is_escaped=True)


def _has_block(part: Part, options: TextOptions) -> bool:
    """Return whether a code is the tag of a block, or contains one."""
    if options.markup != "html" or isinstance(part, str):
        return False
    tag = _TAG_NAME.match(part.markup if isinstance(part, Point) else part.start_tag)
    if tag and tag[1].lower() in BLOCK_TAGS:
        return True
    return isinstance(part, Element) and any(_has_block(child, options) for child in part.parts)


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
                left, inner, right = _peel(sentence, is_escaped=is_escaped)
                yield from (piece for piece in (left, CodedText(inner, is_escaped), right) if piece)
            else:
                between = "".join(write_parts(sentence, is_escaped=is_escaped))
                yield between if between.strip() else Separator(between)
    if after:
        yield after


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
    before = "".join(write_parts([*parts[:start], left], is_escaped=is_escaped))
    return before, tuple(core), "".join(write_parts([right, *parts[end:]], is_escaped=is_escaped))


def _is_edge(part: Part) -> bool:
    """Return whether a part at the edge of a text is no text: white space, or a tag without content."""
    return not part.strip() if isinstance(part, str) else isinstance(part, Point) and part.markup.startswith("<")


def _cut_sentences(parts: Sequence[Part], options: TextOptions) -> Iterator[tuple[bool, tuple[Part, ...]]]:
    """Yield the sentences of parts (true) and what is between them (false). No sentence ends inside a code."""
    surfaces = [_get_surface(part) for part in parts]
    ends = list(accumulate(map(len, surfaces)))
    protected = [
        (end - len(surface), end) for part, surface, end in zip(parts, surfaces, ends, strict=True) if part is not surface
    ]
    text = "".join(surfaces)
    spans = split_sentences(text, options.source_language, protected) if options.split_sentences else [(0, len(text))]
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


def _get_surface(part: Part) -> str:
    """Return the text of a part, in which sentences are looked for."""
    if isinstance(part, str):
        return part
    if isinstance(part, Point):
        return "" if part.markup.startswith("<") else part.markup
    return "".join(map(_get_surface, part.parts))
