"""OpenTelemetry traces: a span for each request, for its waits in the queue and for its batches.

No span has text of users, an address or a key. The environment variables of OpenTelemetry, `OTEL_*`, say where the spans go,
which of them, and the name of the service. A `traceparent` header joins the trace of the client.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from dragoman.errors import MissingDependencyError
from dragoman.serving.request_queue import BatchRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SERVER_ERROR = 500


class Telemetry:
    """Spans of one server process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("dragoman")

    @classmethod
    def from_environment(cls) -> Telemetry:
        """Return telemetry that sends spans by OTLP over HTTP, as `OTEL_*` says.

        Raises MissingDependencyError without the extra `telemetry`.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MissingDependencyError("opentelemetry-sdk", "telemetry", "dragoman serve --traces") from error
        has_name = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        provider = TracerProvider(resource=Resource.create({} if has_name else {"service.name": "dragoman"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def watch_job(self) -> Callable[[BatchRecord], None]:
        """Return a function that adds the spans of a job that waits from now on, below the span of the present request."""
        from opentelemetry import context

        request, offset = context.get_current(), time.time_ns() - time.monotonic_ns()
        waits_since: int | None = time.monotonic_ns()

        def record(batch: BatchRecord) -> None:
            """Add the spans of a batch, and before the first batch that of the wait."""
            nonlocal waits_since
            if waits_since is not None:
                wait = self._tracer.start_span("queue wait", request, start_time=waits_since + offset)
                wait.end(batch.start_ns + offset)
                waits_since = None
            sizes = {"dragoman.batch.lines": batch.num_lines, "dragoman.batch.tokens": batch.num_tokens}
            span = self._tracer.start_span("batch", request, start_time=batch.start_ns + offset, attributes=sizes)
            span.end(batch.end_ns + offset)

        return record

    def close(self) -> None:
        """Send the spans that wait."""
        self._provider.shutdown()


class TraceRequests:
    """ASGI middleware with a span for each request but those for health."""

    def __init__(self, app: Any, *, telemetry: Telemetry) -> None:
        self.app = app
        self._tracer = telemetry._tracer

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        """Answer a request."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method = scope["method"]
        with self._tracer.start_as_current_span(
            method, extract(headers), kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:

            async def send_and_watch(message: Any) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= SERVER_ERROR:
                        span.set_status(Status(StatusCode.ERROR))
                await send(message)

            try:
                await self.app(scope, receive, send_and_watch)
            finally:
                # The template of the route, since a path may hold what a client chose.
                route = getattr(scope.get("route"), "path", "other")
                span.update_name(f"{method} {route}")
                span.set_attributes({"http.request.method": method, "http.route": route})
