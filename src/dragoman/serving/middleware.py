"""Checks of every request before its route: its size, its key, room for it, and a client that may go away.

The body is read here and counted as it arrives, because a header may be wrong or absent. When the client disconnects, the task
of the request is canceled.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

from dragoman.serving.http_errors import HttpError, to_http_error
from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.settings import ApiKeys, ServerSettings

Scope = Any
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEALTH_PATHS = frozenset(("/health", "/livez", "/readyz"))
"""Routes without a key."""
BODY_KEY_PATHS = frozenset(("/translate", "/languages", "/detect", "/suggest", "/translate_file"))
"""Routes of LibreTranslate, whose clients send the key in the body or the query, where the route checks it."""
MAX_CONTENT_LENGTH_DIGITS = 12

logger = logging.getLogger("dragoman.serving")


class RequestGuard:
    """ASGI middleware with the limits of the server."""

    def __init__(self, app: App, *, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self.app = app
        self.limits = settings.limits
        self.keys: ApiKeys | None = settings.api_keys
        self.metrics = metrics
        self.room = asyncio.Semaphore(settings.limits.max_connections)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        status = 499  # the client went away before the answer began

        async def send_and_watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, send_and_watch)
        except HttpError as error:
            if status == 499:
                await send_error(send_and_watch, error, scope["path"])
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("request failed")
            if status == 499:
                await send_error(send_and_watch, to_http_error(error), scope["path"])
        finally:
            self._count(scope, status, time.monotonic() - start)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in HEALTH_PATHS:
            self._check_key(scope)
        body = await self._read_body(scope, receive)
        if body is None:
            return
        if scope["path"] in HEALTH_PATHS:
            await self.app(scope, _replay(body, receive), send)
            return
        try:
            await asyncio.wait_for(self.room.acquire(), self.limits.queue_seconds)
        except TimeoutError:
            raise HttpError(503, "the server is busy; send the request again later", "server-busy") from None
        try:
            await self._run_until_disconnect(scope, body, receive, send)
        finally:
            self.room.release()

    def _check_key(self, scope: Scope) -> None:
        """Raise HttpError without a valid key, if the server has keys."""
        scope.setdefault("state", {})["has_key"] = self.keys is None
        if self.keys is None:
            return
        if (key := read_header_key(scope)) is not None and key in self.keys:
            scope["state"]["has_key"] = True
        elif scope["path"] not in BODY_KEY_PATHS or key is not None:
            status = 403 if key is not None else 401
            raise HttpError(status, "a valid API key is needed; give it in the header Authorization", "invalid-key")

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body, or None if the client went away. Raises HttpError for a body that is too large."""
        limit = self.limits.max_body_bytes
        too_large = HttpError(413, f"the body has more than {limit} bytes; send fewer or shorter texts", "request-too-large")
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and (len(length) > MAX_CONTENT_LENGTH_DIGITS or int(length) > limit):
            raise too_large
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise too_large
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def _run_until_disconnect(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        disconnected = asyncio.Event()

        async def wait_for_disconnect() -> Message:
            while (message := await receive())["type"] != "http.disconnect":
                pass
            disconnected.set()
            return message

        async def receive_after_body() -> Message:
            await disconnected.wait()
            return {"type": "http.disconnect"}

        answer = asyncio.ensure_future(self.app(scope, _replay(body, receive_after_body), send))
        watch = asyncio.create_task(wait_for_disconnect())
        try:
            await asyncio.wait((answer, watch), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)
            if not answer.cancelled() and (error := answer.exception()):
                raise error
        finally:
            watch.cancel()
            answer.cancel()

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count and log an answer, without text of the user."""
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.latency.labels(route).observe(seconds)
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "route": route,
            "method": scope["method"],
            "status": status,
            "milliseconds": round(seconds * 1000, 1),
        }
        logger.info("%s", json.dumps(entry))


def read_header_key(scope: Scope) -> str | None:
    """Return the key of the header Authorization or X-API-Key; the password of Basic is a key."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    if b"x-api-key" in headers:
        return headers[b"x-api-key"].decode("latin-1")
    scheme, _, value = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() in ("deepl-auth-key", "bearer"):
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode("utf-8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives the body that was read, and then what arrives."""
    is_first = True

    async def replay() -> Message:
        nonlocal is_first
        if is_first:
            is_first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


async def send_error(send: Send, error: HttpError, path: str) -> None:
    """Send an error in the shape of its API."""
    body = error.write_body(path)
    headers = [*error.list_headers(), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
