"""Translation of requests: texts become lines in the queue, and translated lines become texts.

A request waits for room in the queue for as long as its client gives. When the client goes away, its task is canceled, and its
lines leave the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dragoman.errors import DataError
from dragoman.inference.whole_texts import LineRequest, TextOptions, TextPlan, TextTranslation, plan_texts
from dragoman.serving.language_detection import DetectedLanguage, LanguageDetector
from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.model_set import LineKey, ModelSet, Step, translate_lines
from dragoman.serving.request_queue import Job, QueueFullError, RequestQueue
from dragoman.serving.settings import ServerLimits

if TYPE_CHECKING:
    from dragoman.inference.translation_result import Translation

POLL_SECONDS = 0.02
"""Time between two looks at a full queue."""
PLAN_IN_THREAD_CHARACTERS = 20_000
"""Length of a request from which its texts are divided in a thread, so that other requests are answered meanwhile."""

OnLine = Callable[[str, "Translation"], None]
"""Function that is called with a line and its translation."""


@dataclass(frozen=True)
class TextRequest:
    """Texts to translate and how.

    source: language of the texts, or None to detect that of each text
    decoding: options of the search, in addition to the bundle's
    """

    texts: Sequence[str]
    source: str | None
    target: str
    options: TextOptions = field(default_factory=TextOptions)
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
    """

    def __init__(
        self, models: ModelSet, limits: ServerLimits, metrics: ServerMetrics | None = None, *, retry: bool = True
    ) -> None:
        self.limits = limits
        self.retry = retry
        self.metrics = metrics or ServerMetrics()
        self.queue: RequestQueue[LineKey, Translation] = RequestQueue(
            translate_lines, max_tokens=limits.max_queue_tokens, on_batch=self.metrics.count_batch
        )
        self.metrics.watch_queue(lambda: self.queue.num_tokens, lambda: self.queue.num_jobs)
        self.models = models
        self._explain_lock = asyncio.Lock()

    @property
    def models(self) -> ModelSet:
        """Models for new requests."""
        return self._models

    @models.setter
    def models(self, models: ModelSet) -> None:
        self._models, self.detector = models, LanguageDetector(models.codes)

    async def translate(self, request: TextRequest, on_line: OnLine | None = None) -> list[ServedTranslation]:
        """Translate the texts of a request; return one result for each, in order.

        on_line: called with each line that the last model has translated, as it is finished

        Raises DataError for a language that is not served, QueueFullError if the queue stays full, DeadlineError if the time of
        the request is over, and QueueClosedError if the server stops.
        """
        deadline = time.monotonic() + self.limits.request_seconds
        sources = [self.detector.detect(text)[0] if request.source is None else None for text in request.texts]
        results: list[ServedTranslation | None] = [None] * len(request.texts)
        by_source: dict[str, list[int]] = {}
        for index, detected in enumerate(sources):
            by_source.setdefault(request.source or (detected.language if detected else ""), []).append(index)
        for source, indices in by_source.items():
            texts = [request.texts[index] for index in indices]
            for index, translation in zip(
                indices, await self._translate_texts(texts, source, request, deadline, on_line), strict=True
            ):
                results[index] = ServedTranslation(translation, source, sources[index])
        return [result for result in results if result is not None]

    async def _translate_texts(
        self, texts: Sequence[str], source: str, request: TextRequest, deadline: float, on_line: OnLine | None
    ) -> list[TextTranslation]:
        """Translate texts of one language, by one model or by two."""
        route = self.models.find_route(source, request.target)
        if not route:
            return [TextTranslation(text, ()) for text in texts]
        translations: list[TextTranslation] = []
        for number, step in enumerate(route):
            is_last = number == len(route) - 1
            options = replace(request.options, source_language=step.pair[0], target_language=step.pair[1], retry=self.retry)
            plan = plan_texts(texts, options)
            decoding = request.decoding if is_last else ()
            translations = await self._drive(plan, step, decoding, texts, deadline, on_line if is_last else None)
            texts = [translation.text for translation in translations]
        return translations

    async def _drive(
        self,
        plan: TextPlan,
        step: Step,
        decoding: tuple[tuple[str, Any], ...],
        texts: Sequence[str],
        deadline: float,
        on_line: OnLine | None,
    ) -> list[TextTranslation]:
        """Give the plan what it asks for until it returns."""
        in_thread = sum(map(len, texts)) > PLAN_IN_THREAD_CHARACTERS
        translations: Sequence[Translation] | None = None
        while True:
            request = await asyncio.to_thread(_advance, plan, translations) if in_thread else _advance(plan, translations)
            if not isinstance(request, LineRequest):
                return request
            key = LineKey(step, request.attention, request.is_retry, decoding)
            translations = await self.translate_lines(key, request.lines, deadline, on_line)

    async def translate_lines(
        self, key: LineKey, lines: Sequence[str], deadline: float, on_line: OnLine | None = None
    ) -> list[Translation]:
        """Translate lines of one kind through the queue; see `translate` for the errors."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Translation]] = loop.create_future()

        def finish(results: list[Translation] | None, error: Exception | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(results or [])

        job: Job[LineKey, Translation] = Job(
            key,
            lines,
            deadline,
            on_done=lambda results, error: _call(loop, finish, results, error),
            on_line=None if on_line is None else lambda index, result: _call(loop, on_line, lines[index], result),
        )
        await self._put(job)
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self.queue.cancel(job)

    async def _put(self, job: Job[LineKey, Translation]) -> None:
        """Add a job to the queue, after a wait for room."""
        give_up = min(job.deadline, time.monotonic() + self.limits.queue_seconds)
        while not self.queue.try_put(job):
            if time.monotonic() >= give_up:
                raise QueueFullError
            await asyncio.sleep(POLL_SECONDS)

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
        self.queue.close()
        await asyncio.to_thread(self.queue.join, self.limits.drain_seconds)


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


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in the thread of an event loop, unless the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *arguments)
