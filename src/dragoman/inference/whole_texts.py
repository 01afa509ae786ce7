"""Translation of whole texts: line breaks, spaces, markup and placeholders stay, and sentences are translated one by one.

`divide` cuts a text into segments and what stands between them. `translate_texts` translates the segments of many texts
together and puts them back. Placeholders are part of what the model reads. If the translation changes one, the segment is
translated again without placeholders, and attention places them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
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
from dragoman.text.guards import Check, check_translation
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

RETRY_DECODING = {
    "method": "beam",
    "beam_size": 8,
    "nbest": 4,
    "num_beam_groups": 1,
    "no_repeat_ngram_size": 4,
    "mbr": "none",
    "mbr_candidates": None,
}
"""Decoding options for the second search of a segment that fails a check."""

_LINE_BREAK = re.compile(r"(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
_TAG_NAME = re.compile(r"</?([A-Za-z][^\s<>/]*)")


@dataclass(frozen=True)
class TextOptions:
    """Options for reading texts.

    markup: "none" for plain text; "html" and "xml" keep tags, and character references are characters
    source_language, target_language: codes that select the rules for sentences and for the spaces between them
    split_sentences: translate each sentence by itself; if false, each line or block
    keep_line_breaks: a line break ends a sentence; without markup only
    opaque_tags: elements that are kept with their content
    retry: translate a segment that fails a check once more, with other settings
    attention: request attention for every segment, also for those without codes
    """

    markup: Markup = "none"
    source_language: str = ""
    target_language: str = ""
    split_sentences: bool = True
    keep_line_breaks: bool = True
    opaque_tags: frozenset[str] = frozenset()
    retry: bool = True
    attention: bool = False


@dataclass(frozen=True)
class TranslatedSegment:
    """Segment of a text, usually a sentence.

    source, text: the segment and its translation, with their markup
    translation: translation of the text without markup, or None for a segment without a letter or digit
    checks: checks that the translation fails, see `check_translation`
    alternatives: other translations, best first, if the search returns several
    """

    source: str
    text: str
    translation: Translation | None = None
    checks: tuple[Check, ...] = ()
    alternatives: tuple[str, ...] = ()

    @property
    def status(self) -> TranslationStatus:
        """Status of the translation; "ok" for a segment that needs none."""
        return "ok" if self.translation is None else self.translation.status


@dataclass(frozen=True)
class TextTranslation:
    """Translation of a text.

    text: the translation, with everything that stands between the segments
    segments: translated segments in order
    alternatives: other translations; each has another translation of the segments that have one
    """

    text: str
    segments: tuple[TranslatedSegment, ...]
    alternatives: tuple[str, ...] = ()

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


@dataclass(frozen=True)
class LineRequest:
    """Lines to translate next.

    attention: the translations need attention
    is_retry: the lines were translated before, with a result that fails a check; the translations need alternatives
    """

    lines: tuple[str, ...]
    attention: bool
    is_retry: bool = False


TranslateLines = Callable[[LineRequest], Sequence[Translation]]
"""Function that translates the lines of a request, in order."""
TextPlan = Generator[LineRequest, Sequence[Translation], list[TextTranslation]]
"""Translation of texts that yields requests for lines and receives their translations, so that any caller can drive it."""


def translate_texts(texts: Sequence[str], options: TextOptions, translate: TranslateLines) -> list[TextTranslation]:
    """Translate texts and return one result for each, in order. Equal segments are translated once.

    translate: function that translates the lines of a request in order
    """
    plan = plan_texts(texts, options)
    try:
        request = next(plan)
        while True:
            request = plan.send(translate(request))
    except StopIteration as end:
        results: list[TextTranslation] = end.value
        return results


def plan_texts(texts: Sequence[str], options: TextOptions) -> TextPlan:
    """Yield the lines to translate, and return the translated texts; see `translate_texts`."""
    pieces_of_texts = [list(divide(text, options)) for text in texts]
    segments = list(dict.fromkeys(piece for piece in chain.from_iterable(pieces_of_texts) if isinstance(piece, CodedText)))
    translated_segments = yield from _translate_segments(segments, options)
    translated = dict(zip(segments, translated_segments, strict=True))
    separator = " " if is_spaced_language(options.target_language) else ""
    return [_join(pieces, translated, separator) for pieces in pieces_of_texts]


def _join(pieces: Sequence[Piece], translated: dict[CodedText, TranslatedSegment], separator: str) -> TextTranslation:
    """Return the text of the pieces and its alternatives."""
    segments = tuple(translated[piece] for piece in pieces if isinstance(piece, CodedText))

    def join(number: int) -> str:
        """Return the text with this alternative of each segment; a single space, or none, becomes what the language writes."""
        output: list[str] = []
        is_after_sentence = False
        for piece in pieces:
            if isinstance(piece, CodedText):
                segment = translated[piece]
                text = segment.alternatives[number] if 0 <= number < len(segment.alternatives) else segment.text
                output += [separator, text] if is_after_sentence else [text]
            elif isinstance(piece, Separator):
                output.append(separator if piece.text == " " else piece.text)
            else:
                output.append(piece)
            is_after_sentence = isinstance(piece, CodedText)
        return "".join(output)

    num_alternatives = max((len(segment.alternatives) for segment in segments), default=0)
    return TextTranslation(join(-1), segments, tuple(join(number) for number in range(num_alternatives)))


SegmentPlan = Generator[LineRequest, Sequence[Translation], list[TranslatedSegment]]


def _translate_segments(segments: Sequence[CodedText], options: TextOptions) -> SegmentPlan:
    """Translate segments with their placeholders, those that lose one without placeholders, and those with faults again."""
    results = [TranslatedSegment(segment.write(), segment.write()) for segment in segments]
    readings = [_read_placeholders(segment) for segment in segments]
    waiting = [index for index, segment in enumerate(segments) if _has_word(segment.clean.text)]
    yield from _translate_readings(segments, readings, results, waiting, options)
    lost = [index for index in waiting if not _keeps_placeholders(segments[index], readings[index], results[index])]
    for index in lost:
        readings[index] = segments[index]
    yield from _translate_readings(segments, readings, results, lost, options)
    if options.retry:
        faulty = [index for index in waiting if results[index].checks or results[index].status == "repetition"]
        yield from _translate_readings(segments, readings, results, faulty, options, is_retry=True)
    return results


def _translate_readings(
    segments: Sequence[CodedText],
    readings: Sequence[CodedText],
    results: list[TranslatedSegment],
    indices: Sequence[int],
    options: TextOptions,
    *,
    is_retry: bool = False,
) -> Generator[LineRequest, Sequence[Translation], None]:
    """Translate the readings with these indices and store the results. A retry keeps the first result without a fault."""
    for has_codes in (False, True):
        chosen = [index for index in indices if readings[index].has_codes == has_codes]
        if not chosen:
            continue
        lines = tuple(readings[index].clean.text for index in chosen)
        translations = yield LineRequest(lines, has_codes or options.attention, is_retry)
        for index, translation in zip(chosen, translations, strict=True):
            source, reading = segments[index].write(), readings[index]
            if not is_retry:
                results[index] = _build_segment(source, reading, translation, options)
                continue
            for candidate in (translation, *translation.alternatives):
                result = _build_segment(source, reading, replace(candidate, alternatives=()), options)
                is_whole = _keeps_placeholders(segments[index], reading, result)
                if is_whole and not result.checks and result.status in ("ok", "short"):
                    results[index] = result
                    break


def _build_segment(source: str, reading: CodedText, translation: Translation, options: TextOptions) -> TranslatedSegment:
    """Return the translation of a reading, with its codes in place and its checks."""
    return TranslatedSegment(
        source,
        _place_codes(reading, translation),
        translation,
        tuple(check_translation(reading.clean.text, translation.text, options.target_language)),
        tuple(_place_codes(reading, alternative) for alternative in translation.alternatives),
    )


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


def _keeps_placeholders(segment: CodedText, reading: CodedText, result: TranslatedSegment) -> bool:
    """Return whether the translation has each placeholder that the model read as often as the segment, and no other."""
    if segment == reading or result.translation is None:
        return True
    translated = Counter(_list_placeholders(parse_placeholders(result.translation.text).parts))
    return Counter(_list_placeholders(segment.parts)) == translated


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
