"""Translation and parsing of requests: texts become lines in the queue, and translated lines become texts.

A request waits for room in the queue for as long as its client gives. When the client goes away, its task is canceled, and its
lines leave the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dragoman.errors import DataError
from dragoman.inference.text_division import count_segments
from dragoman.inference.text_options import TextOptions
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.inference.whole_texts import LineRequest, PhraseGroups, TextPlan, TextTranslation, plan_texts
from dragoman.serving.http_errors import HttpError
from dragoman.serving.language_detection import DetectedLanguage, LanguageDetector
from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.model_set import LineKey, ModelSet, ParseKey, Step, search_lines
from dragoman.serving.queued_search import QueuedSearch, RequestTimes
from dragoman.serving.recordings import RecordingRequest, Recordings
from dragoman.serving.request_queue import QueueFullError
from dragoman.serving.settings import ServerLimits
from dragoman.serving.telemetry import Telemetry
from dragoman.serving.usage import Usage
from dragoman.text.inline_rules import infer_rules
from dragoman.text.target_language import find_target_language

if TYPE_CHECKING:
    from dragoman.inference.translation_result import Translation
    from dragoman.parsing.parse_result import Parse, PosTags, Sentence
    from dragoman.parsing.trees.ptb_tokenizer import TokenizationStyle
    from dragoman.text.glossary import Glossary
    from dragoman.transcription.transcriber import Transcriber
    from dragoman.transcription.transcript import Transcript

ARRIVAL: ContextVar[float] = ContextVar("arrival")
"""Time of `time.monotonic` at which the request of this task arrived."""
MAX_CHARACTERS_IN_LOOP, MAX_TEXTS_IN_LOOP = 4000, 8
"""Length of a request, and its texts, up to which it is read in the event loop; a longer one is read in a thread, so that other
requests are answered meanwhile."""

ResultT = TypeVar("ResultT")
OnLine = Callable[[str, "Translation"], None]
"""Function that is called with a line and its translation."""


@dataclass(frozen=True)
class TextRequest:
    """Texts to translate and how.

    source: language of the texts, or None to detect that of each text
    decoding: options of the search, in addition to the bundle's
    constraints: constraints on the translation of each text, or empty. A text with constraints is one sentence.
    """

    texts: Sequence[str]
    source: str | None
    target: str
    options: TextOptions = field(default_factory=TextOptions)
    decoding: tuple[tuple[str, Any], ...] = ()
    constraints: Sequence[TranslationConstraints | None] = ()


@dataclass(frozen=True)
class ParseRequest:
    """Sentences to parse and how; see `Parser.parse`. tags: tags of each sentence, or empty"""

    sentences: Sequence[Sentence]
    tags: Sequence[PosTags | None] = ()
    tokenize: TokenizationStyle | None = None
    is_constrained: bool = True
    decoding: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class ServedTranslation:
    """Translation of one text. detected: language that was detected, if the request named none"""

    translation: TextTranslation
    source: str
    detected: DetectedLanguage | None = None


class TranslationService:
    """Models, their queue, and the translation of requests.

    models: the present models; an assignment serves new requests with other models
    telemetry: spans of the requests, if the server sends any
    usage: counter of the characters of DeepL's API
    """

    def __init__(
        self,
        models: ModelSet,
        limits: ServerLimits,
        *,
        retry: bool = True,
        language_check: bool = True,
        telemetry: Telemetry | None = None,
        usage: Usage | None = None,
    ) -> None:
        self.limits = limits
        self.usage = usage or Usage()
        self.retry = retry
        self.language_check = language_check
        self._identified_pairs: set[tuple[str, str]] = set()
        self.telemetry = telemetry
        self.metrics = ServerMetrics()
        self.searches: QueuedSearch[LineKey | ParseKey, Translation | Parse] = QueuedSearch(
            search_lines, max_tokens=limits.max_queue_tokens, on_batch=self.metrics.count_batch, telemetry=telemetry
        )
        self.queue = self.searches.queue
        self.metrics.watch_queue(lambda: self.queue.num_tokens, lambda: self.queue.num_jobs)
        self.recordings = Recordings()
        self.models = models
        self._explain_lock = asyncio.Lock()
        self._planning_lock = asyncio.Lock()

    @property
    def models(self) -> ModelSet:
        """Models for new requests."""
        return self._models

    @models.setter
    def models(self, models: ModelSet) -> None:
        self._models, self.detector = models, LanguageDetector(models.codes)

    async def detect(self, texts: Sequence[str]) -> list[list[DetectedLanguage]]:
        """Return the languages of each text, likeliest first. A thread does it, because the first use loads a model."""
        return await asyncio.to_thread(lambda: list(map(self.detector.detect, texts)))

    async def translate(self, request: TextRequest, on_line: OnLine | None = None) -> list[ServedTranslation]:
        """Translate the texts of a request; return one result for each, in order.

        on_line: called with each line that the last model has translated, as it is finished

        Raises DataError for a language that is not served, QueueFullError if the queue stays full, DeadlineError if the time of
        the request is over, and QueueClosedError if the server stops.
        """
        times = self.plan_times()
        self.models.check_translates()
        sources: list[DetectedLanguage | None] = [None] * len(request.texts)
        if request.source is None:
            sources = [ranked[0] for ranked in await self.detect(request.texts)]
        results: list[ServedTranslation | None] = [None] * len(request.texts)
        groups: dict[tuple[str, TranslationConstraints | None], list[int]] = {}
        for index, detected in enumerate(sources):
            source = request.source or (detected.language if detected else "")
            groups.setdefault((source, request.constraints[index] if request.constraints else None), []).append(index)
        for (source, constraints), indices in groups.items():
            texts = [request.texts[index] for index in indices]
            for index, translation in zip(
                indices, await self._translate_texts(texts, source, constraints, request, times, on_line), strict=True
            ):
                results[index] = ServedTranslation(translation, source, sources[index])
        return [result for result in results if result is not None]

    def plan_times(self) -> RequestTimes:
        """Return the times of the request of this task."""
        now = time.monotonic()
        return RequestTimes(ARRIVAL.get(now) + self.limits.queue_seconds, now + self.limits.request_seconds)

    async def _translate_texts(
        self,
        texts: Sequence[str],
        source: str,
        constraints: TranslationConstraints | None,
        request: TextRequest,
        times: RequestTimes,
        on_line: OnLine | None,
    ) -> list[TextTranslation]:
        """Translate texts of one language and with equal constraints, by one model or by two; the last one has constraints."""
        route = self.models.find_route(source, request.target)
        if (glossary := request.options.glossary) is not None:
            _check_glossary(glossary, source, request.target, len(route))
        if not route:
            return [TextTranslation(text, ()) for text in texts]
        translations: list[TextTranslation] = []
        rules = request.options.rules
        if request.options.markup == "none" and len(texts) > 1:
            pairs = [(text, "") for text in texts]
            rules = rules.enable(*await _call(texts, lambda: infer_rules(pairs, has_names=True)))
        for number, step in enumerate(route):
            is_last = number == len(route) - 1
            source_language, target_language = step.pair
            options = replace(
                request.options,
                source_language=source_language,
                target_language=target_language,
                retry=self.retry,
                limits=step.limits,
                annotate_terms=step.annotate_terms,
                rules=rules,
                mask_codes=step.mask_codes and on_line is None,  # `on_line` receives lines with their placeholders
                language_check=self.language_check and constraints is None,
            )
            if options.language_check:
                await self._load_identifier(source_language, target_language)
            kind = LineKey(step)
            if is_last:
                kind = LineKey(step, decoding=request.decoding, constraints=constraints)
            if constraints is not None:
                options = replace(options, split_sentences=False)
                await _call(texts, partial(_check_one_segment, texts, options))
            plan = plan_texts(texts, options)
            translations = await self._drive(plan, kind, texts, times, on_line if is_last else None)
            texts = [translation.text for translation in translations]
        return translations

    async def _load_identifier(self, source: str, target: str) -> None:
        """Load the language identifier for a pair in a thread, because the first one takes a second."""
        if (source, target) not in self._identified_pairs:
            await asyncio.to_thread(find_target_language, ["a b"], source, target)
            self._identified_pairs.add((source, target))

    async def _drive(
        self,
        plan: TextPlan,
        kind: LineKey,
        texts: Sequence[str],
        times: RequestTimes,
        on_line: OnLine | None,
    ) -> list[TextTranslation]:
        """Give the plan what it asks for until it returns."""
        in_thread = is_long(texts)
        translations: Sequence[Translation] | None = None
        while True:
            request = await self._advance_in_thread(plan, translations, times) if in_thread else _advance(plan, translations)
            if not isinstance(request, LineRequest):
                return request
            key = replace(kind, attention=request.attention, is_retry=request.is_retry)
            if request.keep_marks:
                key = replace(key, constraints=replace(key.constraints or TranslationConstraints(), keep_marks=True))
            translations = await self._translate_with_terms(key, request, times, on_line)

    async def _translate_with_terms(
        self, key: LineKey, request: LineRequest, times: RequestTimes, on_line: OnLine | None
    ) -> list[Translation]:
        """Translate lines, those with equal required terms together."""
        groups: dict[PhraseGroups, list[int]] = {}
        for index, terms in enumerate(request.terms or [()] * len(request.lines)):
            groups.setdefault(terms, []).append(index)

        async def translate_group(terms: PhraseGroups, indices: list[int]) -> list[Translation]:
            """Translate the lines with these terms."""
            constraints = key.constraints
            if terms:
                own = constraints or TranslationConstraints(skip_infeasible=True)
                constraints = replace(own, terms=own.terms + terms)
            lines = [request.lines[index] for index in indices]
            return await self.translate_lines(replace(key, constraints=constraints), lines, times, on_line)

        if len(groups) == 1:
            return await translate_group(*groups.popitem())
        results: dict[int, Translation] = {}
        searches = await asyncio.gather(*starmap(translate_group, groups.items()))
        for indices, translations in zip(groups.values(), searches, strict=True):
            results.update(zip(indices, translations, strict=True))
        return [results[index] for index in range(len(request.lines))]

    async def _advance_in_thread(
        self, plan: TextPlan, translations: Sequence[Translation] | None, times: RequestTimes
    ) -> LineRequest | list[TextTranslation]:
        """Advance the plan of a long request; one at a time, because many threads would hold up the short requests."""
        async with self._planning_lock:
            if time.monotonic() >= times.start_by:
                raise QueueFullError
            return await asyncio.to_thread(_advance, plan, translations)

    async def translate_lines(
        self, key: LineKey, lines: Sequence[str], times: RequestTimes, on_line: OnLine | None = None
    ) -> list[Translation]:
        """Translate lines of one kind through the queue; see `translate` for the errors."""
        return cast("list[Translation]", await self.searches.run(key, lines, times, on_line))

    async def parse(self, request: ParseRequest) -> list[Parse]:
        """Parse the sentences of a request; return one parse for each, in order. A sentence with tags has a batch of its own.

        Raises HttpError if the server has no parser, DataError for wrong words and tags, and the errors of `translate`.
        """
        if (parser := self.models.parser) is None:
            raise HttpError(404, "no bundle of this server is a parser; start dragoman serve with one", "no-parser")
        times = self.plan_times()
        tags = request.tags or [None] * len(request.sentences)
        split = partial(parser.split_words, request.sentences, tags=tags, tokenize=request.tokenize)
        words = await _call(request.sentences, split)
        groups: dict[tuple[str, ...] | None, list[int]] = {}
        for index, sentence_tags in enumerate(tags):
            groups.setdefault(None if sentence_tags is None else tuple(sentence_tags), []).append(index)

        async def parse_group(tags: tuple[str, ...] | None, indices: list[int]) -> list[Any]:
            """Parse the sentences with these tags."""
            key = ParseKey(parser, request.is_constrained, request.decoding, tags)
            return await self.searches.run(key, [" ".join(words[index]) for index in indices], times)

        results: dict[int, Parse] = {}
        for indices, parses in zip(groups.values(), await asyncio.gather(*starmap(parse_group, groups.items())), strict=True):
            results.update(zip(indices, parses, strict=True))
        return [results[index] for index in range(len(words))]

    async def transcribe(self, model: Transcriber, request: RecordingRequest) -> Transcript:
        """Transcribe a recording; see `Recordings.transcribe` for the errors."""
        return await self.recordings.transcribe(model, request, self.plan_times())

    async def explain(self, text: str, source: str, target: str) -> str:
        """Return the attention page of a sentence. One page is made at a time, beside the queue.

        Raises DataError for a pair without a model of its own, and for a text that the model cannot explain.
        """
        route = self.models.find_route(source, target)
        if len(route) != 1:
            raise DataError(
                f"{source[:40]} to {target[:40]}: no model translates this pair alone, so there is no attention page",
                code="unsupported-language",
            )
        async with self._explain_lock:
            return await asyncio.to_thread(_explain, route[0], text)

    def describe_state(self) -> str:
        """Return "ok" if a new request has room, and otherwise the reason why it waits."""
        if self.queue.is_closed:
            return "stopping"
        return "busy" if self.queue.num_tokens >= self.limits.max_queue_tokens else "ok"

    async def close(self) -> None:
        """Finish the requests in the queue, and refuse new ones."""
        await asyncio.gather(self.searches.close(self.limits.drain_seconds), self.recordings.close(self.limits.drain_seconds))
        if self.telemetry is not None:
            await asyncio.to_thread(self.telemetry.close)


def is_long(texts: Sequence[Sequence[object]]) -> bool:
    """Return whether texts take too long for the event loop."""
    return len(texts) > MAX_TEXTS_IN_LOOP or sum(map(len, texts)) > MAX_CHARACTERS_IN_LOOP


async def _call(texts: Sequence[Sequence[object]], function: Callable[[], ResultT]) -> ResultT:
    """Call a function that reads texts, in a thread if they are long."""
    return await asyncio.to_thread(function) if is_long(texts) else function()


def _check_glossary(glossary: Glossary, source: str, target: str, num_steps: int) -> None:
    """Raise DataError for a glossary of another pair of languages, and for a translation in two steps."""
    glossary.check_pair(source, target)
    if num_steps > 1:
        raise DataError(
            f"glossary: {source} to {target} is translated in two steps, which use no glossary; leave it out",
            code="unsupported-language",
        )


def _check_one_segment(texts: Sequence[str], options: TextOptions) -> None:
    """Raise DataError for a text with constraints that is divided."""
    for text in texts:
        if (count := count_segments(text, options)) > 1:
            raise DataError(
                f"constraints: a text with constraints is one sentence, but this one has {count} lines or blocks; "
                "send them as texts of their own",
                code="invalid-constraints",
            )


def _advance(plan: TextPlan, translations: Sequence[Translation] | None) -> LineRequest | list[TextTranslation]:
    """Return what the plan asks for next, or its result."""
    try:
        return next(plan) if translations is None else plan.send(translations)
    except StopIteration as end:
        results: list[TextTranslation] = end.value
        return results


def _explain(step: Step, text: str) -> str:
    (translation,) = step.model.translator.translate([text], **dict(step.decoding))  # type: ignore[arg-type]
    return translation.show().html
