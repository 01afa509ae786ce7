"""Bundles that replicas hold, as the application sees them, and the service that sends its searches to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dragoman.errors import BundleError, RecipeError
from dragoman.languages import get_language
from dragoman.serving.cluster.replica import BundleDescription, SearchCall
from dragoman.serving.model_set import LineKey, ModelSet, Pair, ServedModel, ServedParser, Step
from dragoman.serving.request_queue import DeadlineError, QueueFullError, estimate_tokens
from dragoman.serving.service import (
    ARRIVAL,
    POLL_SECONDS,
    WAITING_PER_POLL,
    OnLine,
    ParseRequest,
    RequestTimes,
    TranslationService,
)

if TYPE_CHECKING:
    from dragoman.inference.parse_result import Parse
    from dragoman.inference.parser import Parser
    from dragoman.inference.translation_result import Translation
    from dragoman.inference.translator import Translator

ResultT = TypeVar("ResultT")

RETRY_SECONDS = 0.2
"""Time before a search goes to another replica, after its replica has died."""
PING_SECONDS = 2.0
"""Longest wait for the answer of a deployment to a question about its state."""


@dataclass(frozen=True)
class Deployment:
    """Deployment of one bundle, or of several ones.

    app: name of its application in Ray Serve
    bundles: folders of its bundles
    is_shared: its replicas hold some of the bundles, so a call names the one that it needs
    """

    app: str
    bundles: tuple[str, ...]
    is_shared: bool

    def get_handle(self, bundle: str) -> Any:
        """Return the handle for calls about a bundle."""
        from ray import serve

        handle = serve.get_app_handle(self.app)
        return handle.options(multiplexed_model_id=bundle) if self.is_shared else handle


class RemoteBundle:
    """Bundle that the replicas of a deployment hold."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self.handle = handle

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of a replica. Raises the error of the replica; a call that is canceled ends there too."""
        import ray

        response = getattr(self.handle, method).remote(*arguments)
        try:
            return await response
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except asyncio.CancelledError:
            response.cancel()
            raise

    async def stream(self, call: SearchCall, on_line: OnLine) -> list[Translation]:
        """Return the translations in order, and call a function with each line as it is finished. Raises as `call`."""
        import ray

        responses = self.handle.options(stream=True).stream.remote(call)
        try:
            async for item in responses:
                if isinstance(item, tuple):
                    on_line(*item)
                else:
                    return cast("list[Translation]", item)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except asyncio.CancelledError:
            responses.cancel()
            raise
        raise DeadlineError  # the stream has ended without a result


class ClusterService(TranslationService):
    """Service whose models are `RemoteBundle`s. It divides texts into lines, and replicas translate the lines in batches.

    A search whose replica dies goes to another one. Lines that were reported already are then reported again. The limit of
    the queue holds for the unfinished tokens on all replicas together.
    """

    _unfinished_tokens = 0

    async def translate_lines(
        self, key: LineKey, lines: Sequence[str], times: RequestTimes, on_line: OnLine | None = None
    ) -> list[Translation]:
        """Translate lines of one kind on a replica; see `TranslationService.translate` for the errors."""
        options = {
            "attention": key.attention,
            "is_retry": key.is_retry,
            "decoding": key.decoding,
            "constraints": key.constraints,
        }
        bundle = _get_remote(key.step.model)

        async def search() -> list[Translation]:
            now = time.monotonic()
            call = SearchCall(bundle.name, lines, key.step.pair, options, times.start_by - now, times.answer_by - now)
            if on_line is not None:
                return await bundle.stream(call, on_line)
            return cast("list[Translation]", await bundle.call("search", call))

        async with self._reserve(lines, min(times.start_by, times.answer_by)):
            results = await _call_until(search, times.answer_by)
        times.start_by = times.answer_by  # a request that has begun is not refused any more
        return results

    @asynccontextmanager
    async def _reserve(self, lines: Iterable[str], start_by: float) -> AsyncIterator[None]:
        """Wait for room in the queues of the replicas, and hold it for a call.

        A call that is larger than the limit has room if there is no other one. Raises QueueFullError if there is no room at
        `start_by`.
        """
        num_tokens = sum(map(estimate_tokens, lines))
        self._num_waiting += 1
        try:
            while self._unfinished_tokens and self._unfinished_tokens + num_tokens > self.limits.max_queue_tokens:
                if time.monotonic() >= start_by:
                    raise QueueFullError
                await asyncio.sleep(POLL_SECONDS * (1 + self._num_waiting // WAITING_PER_POLL))
        finally:
            self._num_waiting -= 1
        self._unfinished_tokens += num_tokens
        try:
            yield
        finally:
            self._unfinished_tokens -= num_tokens

    def describe_state(self) -> str:
        """Return "ok" if a new request has room on the replicas, and otherwise the reason why it waits."""
        if self._unfinished_tokens >= self.limits.max_queue_tokens:
            return "busy"
        return super().describe_state()

    async def check_state(self) -> str:
        """Return "ok" if a new request has room and each deployment has a replica that answers."""
        if (state := self.describe_state()) != "ok":
            return state
        bundles = [_get_remote(model) for model in self.models.models]
        bundles += [] if self.models.parser is None else [cast(RemoteBundle, self.models.parser.parser)]
        pings = (asyncio.wait_for(bundle.call("ping"), PING_SECONDS) for bundle in bundles)
        answers = await asyncio.gather(*pings, return_exceptions=True)
        return "starting" if any(isinstance(answer, BaseException) for answer in answers) else "ok"

    async def parse(self, request: ParseRequest) -> list[Parse]:
        """Parse the sentences of a request on a replica; see `TranslationService.parse`."""
        if (model := self.models.parser) is None:
            return await super().parse(request)
        bundle, start = cast(RemoteBundle, model.parser), time.monotonic()
        arrival = ARRIVAL.get(start)
        lines = [" ".join(sentence) for sentence in request.sentences]
        async with self._reserve(lines, arrival + self.limits.queue_seconds):

            async def parse() -> list[Parse]:
                answer = await bundle.call("parse", bundle.name, request, time.monotonic() - arrival)
                return cast("list[Parse]", answer)

            return await _call_until(parse, start + self.limits.request_seconds)

    async def explain_step(self, step: Step, text: str) -> str:
        """Return the attention page of a sentence, which a replica makes."""
        bundle = _get_remote(step.model)
        page: str = await bundle.call("explain", bundle.name, step.pair, text)
        return page


def _get_remote(model: ServedModel) -> RemoteBundle:
    return cast(RemoteBundle, model.translator)


async def _call_until(call: Callable[[], Awaitable[ResultT]], deadline: float) -> ResultT:
    """Return the result of a call. Until the deadline, it is made again if its replica dies, or if its deployment has none."""
    import ray
    from ray.serve.exceptions import DeploymentUnavailableError

    while True:
        try:
            return await call()
        except (ray.exceptions.RayActorError, DeploymentUnavailableError):
            if time.monotonic() + RETRY_SECONDS >= deadline:
                raise DeadlineError from None
            await asyncio.sleep(RETRY_SECONDS)


def build_models(descriptions: Sequence[BundleDescription], get_handle: Callable[[str], Any], *, pivot: str | None) -> ModelSet:
    """Return the models of the application.

    Raises RecipeError for a bundle whose pairs are all served by earlier ones, because its replicas would never work, and for
    a pivot that is no language of the bundles. Raises BundleError for a second parser.
    """
    models: list[ServedModel] = []
    parser: ServedParser | None = None
    steps: dict[tuple[str, Pair], Any] = {}
    served: dict[Pair, str] = {}
    for description in descriptions:
        bundle = RemoteBundle(description.name, get_handle(description.name))
        if not description.steps:
            if parser is not None:
                raise BundleError(
                    f"{bundle.name}: is a second parser, after {parser.name}; give one parser to a server", code="wrong-task"
                )
            parser = ServedParser(bundle.name, cast("Parser", bundle))
            continue
        pairs = [step.pair for step in description.steps]
        owners = {served.setdefault((get_language(source), get_language(target)), bundle.name) for source, target in pairs}
        if bundle.name not in owners:
            source, target = pairs[0]
            raise RecipeError(
                f"{bundle.name}: translates {source} to {target}, as {min(owners)} does; give one bundle for each pair",
                code="invalid-option",
            )
        steps |= {(bundle.name, step.pair): step for step in description.steps}
        models.append(ServedModel(bundle.name, cast("Translator", bundle), tuple(pairs)))

    def build_step(model: ServedModel, pair: Pair) -> Step:
        step = steps[model.name, pair]
        return Step(model, pair, step.decoding, step.limits, step.mask_codes, step.annotate_terms)

    model_set = ModelSet(models, pivot=pivot, parser=parser, build_step=build_step)
    model_set.check_pivot()
    return model_set
