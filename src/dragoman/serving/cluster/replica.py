"""Replica of a deployment: it holds bundles, and each of them has the queue and the batches of a server."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dragoman.inference.whole_texts import OutputLimits
from dragoman.serving.cluster.token_policy import UNFINISHED_TOKENS
from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.model_set import LineKey, ModelSet, Pair
from dragoman.serving.request_queue import estimate_tokens
from dragoman.serving.server import COLLECTION_THRESHOLD, spare_objects
from dragoman.serving.service import ARRIVAL, ParseRequest, RequestTimes, TranslationService
from dragoman.serving.settings import ServerLimits

if TYPE_CHECKING:
    from dragoman.inference.parse_result import Parse
    from dragoman.inference.translation_result import Translation

LoadModels = Callable[[str], ModelSet]
"""Function that loads one bundle. Workers import it."""


@dataclass(frozen=True)
class StepDescription:
    """Fields of `Step` besides its model."""

    pair: Pair
    decoding: tuple[tuple[str, str], ...]
    limits: OutputLimits
    mask_codes: bool
    annotate_terms: bool


@dataclass(frozen=True)
class BundleDescription:
    """Description of a bundle that replicas hold, for the application.

    steps: one for each pair of languages; none for a parser
    """

    name: str
    steps: tuple[StepDescription, ...]


@dataclass(frozen=True)
class SearchCall:
    """Lines for one search.

    options: fields of `LineKey` besides its step
    start_seconds: time until the search starts at the latest
    answer_seconds: time until the request is answered at the latest
    """

    bundle: str
    lines: Sequence[str]
    pair: Pair
    options: dict[str, Any]
    start_seconds: float
    answer_seconds: float


class LoadedBundle:
    """Bundle with its service. When the last request has let go of it, its queue ends."""

    def __init__(self, service: TranslationService) -> None:
        self.service = service
        weakref.finalize(self, service.queue.close)


class Replica:
    """Replica of a deployment of bundles.

    load_models: function that loads one bundle
    retry: translate a segment that fails a check once more

    A subclass of `build_replica_class` keeps the results of `load_bundle`.
    """

    def __init__(self, load_models: LoadModels, limits: ServerLimits, retry: bool) -> None:
        self._load_models = load_models
        self._limits = limits
        self._retry = retry
        self._metrics = ServerMetrics()
        self._services: weakref.WeakSet[TranslationService] = weakref.WeakSet()
        self._unfinished_tokens = 0
        gc.set_threshold(COLLECTION_THRESHOLD)

    async def load_bundle(self, bundle: str) -> LoadedBundle:
        """Return a bundle with its service."""
        models = await asyncio.to_thread(self._load_models, bundle)
        service = TranslationService(models, self._limits, self._metrics, retry=self._retry)
        self._services.add(service)
        self._metrics.watch_queue(
            lambda: sum(service.queue.num_tokens for service in self._services),
            lambda: sum(service.queue.num_jobs for service in self._services),
        )
        gc.unfreeze()  # bundles that are not needed any more
        spare_objects()
        return LoadedBundle(service)

    async def ping(self) -> None:
        """Do nothing: an answer shows that a replica of the deployment is ready."""

    async def describe(self, bundle: str) -> BundleDescription:
        """Return the description of a bundle."""
        models = (await self.load_bundle(bundle)).service.models
        steps = tuple(
            StepDescription(step.pair, step.decoding, step.limits, step.mask_codes, step.annotate_terms)
            for step in models.steps.values()
        )
        return BundleDescription(bundle, steps)

    async def search(self, call: SearchCall) -> list[Translation]:
        """Return the translations of the lines, in order."""
        with self._count_tokens(call.lines):
            loaded = await self.load_bundle(call.bundle)
            return await loaded.service.translate_lines(*_read_call(loaded.service, call))

    async def stream(self, call: SearchCall) -> AsyncIterator[tuple[str, Translation] | list[Translation]]:
        """Yield each line with its translation as it is finished, and at the end the translations in order."""
        with self._count_tokens(call.lines):
            loaded = await self.load_bundle(call.bundle)
            finished: asyncio.Queue[tuple[str, Translation] | None] = asyncio.Queue()
            search = asyncio.ensure_future(
                loaded.service.translate_lines(
                    *_read_call(loaded.service, call), lambda line, item: finished.put_nowait((line, item))
                )
            )
            search.add_done_callback(lambda _: finished.put_nowait(None))
            try:
                while (item := await finished.get()) is not None:
                    yield item
                yield await search
            finally:
                search.cancel()

    async def parse(self, bundle: str, request: ParseRequest, seconds_since_arrival: float) -> list[Parse]:
        """Return the parses of the sentences, in order."""
        ARRIVAL.set(time.monotonic() - seconds_since_arrival)
        with self._count_tokens([" ".join(sentence) for sentence in request.sentences]):
            return await (await self.load_bundle(bundle)).service.parse(request)

    async def explain(self, bundle: str, pair: Pair, text: str) -> str:
        """Return the attention page of a sentence."""
        with self._count_tokens([text]):
            return await (await self.load_bundle(bundle)).service.explain(text, *pair)

    def render_metrics(self) -> tuple[str, str]:
        """Return the id of the replica, and its metrics in the text format of Prometheus."""
        from ray import serve

        return serve.get_replica_context().replica_id.unique_id, self._metrics.render().decode()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the estimated tokens of the requests that wait here or are translated. Ray Serve calls it."""
        return {UNFINISHED_TOKENS: float(self._unfinished_tokens)}

    @contextmanager
    def _count_tokens(self, lines: Sequence[str]) -> Iterator[None]:
        num_tokens = sum(map(estimate_tokens, lines))
        self._unfinished_tokens += num_tokens
        try:
            yield
        finally:
            self._unfinished_tokens -= num_tokens


def _read_call(service: TranslationService, call: SearchCall) -> tuple[LineKey, Sequence[str], RequestTimes]:
    """Return the arguments of `TranslationService.translate_lines`."""
    (step,) = service.models.find_route(*call.pair)
    now = time.monotonic()
    return LineKey(step, **call.options), call.lines, RequestTimes(now + call.start_seconds, now + call.answer_seconds)


def build_replica_class(bundles: Sequence[str], models_per_replica: int) -> type[Replica]:
    """Return the class of a deployment whose replicas hold some of these bundles at the same time, the latest used ones.

    A replica is ready when it has loaded the first of them.
    """
    from ray import serve

    class BundleReplica(Replica):
        load_bundle = serve.multiplexed(max_num_models_per_replica=models_per_replica)(Replica.load_bundle)

        async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
            self, load_models: LoadModels, limits: ServerLimits, retry: bool
        ) -> None:
            Replica.__init__(self, load_models, limits, retry)
            for bundle in bundles[:models_per_replica]:
                await self.load_bundle(bundle)

    return BundleReplica
