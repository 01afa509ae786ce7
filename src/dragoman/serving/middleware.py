"""Checks of every request before its route: its size, its key, room for it, and a client that may go away.

The body is read here and counted as it arrives, because a header may be wrong or absent, and because bytes that a client only
announces take no memory. When the client disconnects, the task
of the request is canceled.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dragoman.serving.body_room import ArrivingBody, BodyRoom
from dragoman.serving.byte_budget import ByteBudget
from dragoman.serving.clients import QUEUE_CLIENT, admit_client, identify_client
from dragoman.serving.connections import RESERVED
from dragoman.serving.freed_memory import FreedMemory
from dragoman.serving.http_errors import HttpError, to_http_error
from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.page_policy import PagePolicy
from dragoman.serving.request_queue import QueueClosedError, QueueFullError
from dragoman.serving.service import ARRIVAL
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
FILE_PATHS = frozenset(("/translate_file", "/v2/document", "/v1/files", "/v1/audio/transcriptions", "/v1/audio/translations"))
"""Routes that take a file, whose bodies may be larger."""
DOWNLOAD_PREFIX = "/download_file/"
"""Beginning of LibreTranslate's addresses of translated files. They are secret, and its clients send no key to them."""
LINKED_PATHS = ("/", DOWNLOAD_PREFIX)
"""Paths that links on other sites may lead to."""
MAX_CONTENT_LENGTH_DIGITS = 12
REQUEST_BYTES = 32 << 10
"""Memory of a request besides its body: the connection, its buffers and its task."""
SMALL_BODY_BYTES = 64 << 10
"""Size up to which bodies have a budget of their own, so that large ones do not hold them up."""
MIN_BODY_BYTES = 8 << 10
"""Part of that budget that the smallest body takes. The texts of a request take up to 80 times the memory of its body."""
UNREAD_BODIES = 16
"""Largest bodies that there is room for while they arrive or wait. The others wait unread, in buffers of the system."""
FILES_IN_PROGRESS = 4
"""Largest files that are read, or are stored, at the same time."""
REPLAYED_BYTES = 64 << 10
"""Part of a body that its route gets at once. A reader of forms takes 0.3 s for a MiB of separators."""

_SLASHES = re.compile("//+")
_PREFIX = re.compile(r"(?:/[\w.~-]+)+", re.ASCII)

logger = logging.getLogger("dragoman.serving")


@dataclass
class ReceivedParts:
    """Parts of a body. has_more: the body has not ended"""

    content: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    has_more: bool = True

    def add(self, message: Message) -> int:
        """Add the part of a message, and return its bytes."""
        self.content.append(part := message.get("body", b""))
        self.num_bytes += len(part)
        self.has_more = message.get("more_body", False)
        return len(part)


class RequestGuard:
    """ASGI middleware with the limits of the server."""

    def __init__(self, app: App, *, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self.app = app
        self.limits = settings.limits
        self.keys: ApiKeys | None = settings.api_keys
        self.has_proxy = bool(settings.proxies)
        self.pages = PagePolicy(settings.host, settings.allowed_origins, settings.allowed_hosts)
        self.metrics = metrics
        self.pending_bytes = 0
        self._memory = FreedMemory()
        limits = settings.limits
        self._small_bodies = ByteBudget(limits.max_connections * MIN_BODY_BYTES)
        self._large_bodies = ByteBudget(limits.max_body_bytes)
        self._body_room = BodyRoom(limits.max_body_bytes * UNREAD_BODIES)
        self._file_room = BodyRoom(limits.max_file_bytes * FILES_IN_PROGRESS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the connection leaves the body out
        # A slash more or less is a matter of the address that a client was given. Few clients send a text again to another one.
        path = _SLASHES.sub("/", scope["path"])
        scope["path"] = path if scope["method"] == "GET" else path.rstrip("/") or "/"
        prefix = dict(scope["headers"]).get(b"x-forwarded-prefix", b"").decode("latin-1").rstrip("/")
        # The prefix of a path would take part in the choice of a route, after the checks of the path.
        if self.has_proxy and _PREFIX.fullmatch(prefix) and not scope["path"].startswith(prefix):
            scope = {**scope, "root_path": prefix}  # which addresses in answers begin with
        start = time.monotonic()
        ARRIVAL.set(start)
        status = 499  # the client went away before the answer began

        async def send_and_watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, send_and_watch)
        except (HttpError, QueueFullError) as error:
            if status == 499:
                await send_error(send_and_watch, to_http_error(error), scope["path"])
        except asyncio.CancelledError:  # the time that the server gives requests to end is over
            if status != 499:
                raise
            await send_error(send_and_watch, to_http_error(QueueClosedError()), scope["path"])
        except Exception as error:
            logger.exception("request failed")
            if status == 499:
                await send_error(send_and_watch, to_http_error(error), scope["path"])
        finally:
            self._count(scope, status, time.monotonic() - start)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in HEALTH_PATHS:
            await self.app(scope, receive, send)
            return
        if scope.get("state", {}).get(RESERVED):
            raise QueueFullError
        self.pages.check(dict(scope["headers"]), scope["method"], scope["path"], LINKED_PATHS)
        self._check_key(scope)
        self._check_headers(scope)
        parts = ReceivedParts()
        try:
            self._count_pending(REQUEST_BYTES)
            async with AsyncExitStack() as stack:
                if (body := await self._read_body(scope, receive, parts, stack)) is not None:
                    await self._run_until_disconnect(scope, body, receive, send)
        finally:
            self.pending_bytes -= REQUEST_BYTES + parts.num_bytes
            self._memory.follow(self.pending_bytes)

    def _count_pending(self, num_bytes: int) -> None:
        """Count memory of a request, and raise QueueFullError if that is more than the server may have."""
        self.pending_bytes += num_bytes
        self._memory.follow(self.pending_bytes)
        if self.pending_bytes > self.limits.max_pending_bytes:
            raise QueueFullError

    async def _read_body(self, scope: Scope, receive: Receive, parts: ReceivedParts, stack: AsyncExitStack) -> bytes | None:
        """Return the body, or None if the client went away. The stack holds its room and its parts of the budgets.

        Raises HttpError for a body that is too large or too slow, and QueueFullError if there is no room for it.
        """
        room = self._file_room if scope["path"] in FILE_PATHS else self._body_room
        arriving = room.open(identify_client(scope).name)
        stack.callback(room.close, arriving)
        if not await self._receive(receive, parts, self._get_max_bytes(scope), room, arriving):
            return None
        ARRIVAL.set(time.monotonic())  # the time before was the client's
        body = b"".join(parts.content)
        parts.content.clear()
        if len(body) <= SMALL_BODY_BYTES:
            await self._take(stack, self._small_bodies, max(MIN_BODY_BYTES, len(body)), arriving.client)
        elif scope["path"] not in FILE_PATHS:
            await self._take(stack, self._large_bodies, len(body), arriving.client)
        return body

    async def _take(self, stack: AsyncExitStack, budget: ByteBudget, num_bytes: int, client: Hashable) -> None:
        """Wait for a part of a budget, until the translation would start too late."""
        seconds = ARRIVAL.get() + self.limits.queue_seconds - time.monotonic()
        await stack.enter_async_context(budget.take(num_bytes, seconds, client))

    def _check_key(self, scope: Scope) -> None:
        """Raise HttpError without a valid key, if the server has keys."""
        QUEUE_CLIENT.set(identify_client(scope).name)
        if self.keys is None:
            return
        if (key := read_header_key(scope)) is not None and (name := self.keys.identify(key)) is not None:
            admit_client(scope, name)
        elif scope["path"].startswith(DOWNLOAD_PREFIX):
            return
        elif scope["path"] not in BODY_KEY_PATHS or key is not None:
            status = 403 if key is not None else 401
            raise HttpError(status, "a valid API key is needed; give it in the header Authorization", "invalid-key")

    def _check_headers(self, scope: Scope) -> None:
        """Raise HttpError if the body is compressed, or is too large by its header."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip()
        if encoding.lower() not in ("", "identity"):
            message = f"Content-Encoding: {encoding[:40]!r} is not read; send the body without compression"
            raise HttpError(415, message, "unsupported-encoding")
        length, limit = headers.get(b"content-length", b""), self._get_max_bytes(scope)
        if length.isdigit() and (len(length) > MAX_CONTENT_LENGTH_DIGITS or int(length) > limit):
            raise self._refuse_size(limit)

    def _get_max_bytes(self, scope: Scope) -> int:
        """Return the largest size of the body of a request."""
        return self.limits.max_file_bytes if scope["path"] in FILE_PATHS else self.limits.max_body_bytes

    def _refuse_size(self, limit: int) -> HttpError:
        return HttpError(413, f"the body has more than {limit} bytes; send fewer or shorter texts", "request-too-large")

    async def _receive(
        self, receive: Receive, parts: ReceivedParts, limit: int, room: BodyRoom, arriving: ArrivingBody
    ) -> bool:
        """Receive the parts of a body; return whether it is complete, and not whether the client went away.

        The beginning of a body needs no room. Time in which the body waits for room is not the client's.
        """
        loop = asyncio.get_running_loop()
        seconds = self.limits.read_seconds
        read_by = loop.time() + seconds
        while parts.has_more:
            try:
                async with asyncio.timeout_at(read_by):
                    message = await receive()
            except TimeoutError:
                raise HttpError(408, f"the body did not arrive within {seconds:g} seconds", "request-too-slow") from None
            if message["type"] == "http.disconnect":
                return False
            num_bytes = parts.add(message)
            self._count_pending(num_bytes)
            if parts.num_bytes > limit:
                raise self._refuse_size(limit)
            if parts.num_bytes > SMALL_BODY_BYTES:
                start = loop.time()
                await room.grow(arriving, num_bytes, self.limits.queue_seconds)
                read_by += loop.time() - start
        return True

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
                await asyncio.wait((answer,))
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
        if not logger.isEnabledFor(logging.INFO):
            return
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
    """Return a function that gives the parts of a body, between which others have their turn, and then what arrives."""
    starts = iter(range(0, max(1, len(body)), REPLAYED_BYTES))

    async def replay() -> Message:
        if (start := next(starts, None)) is None:
            return await receive()
        if start:
            await asyncio.sleep(0)
        end = start + REPLAYED_BYTES
        return {"type": "http.request", "body": body[start:end], "more_body": end < len(body)}

    return replay


async def send_error(send: Send, error: HttpError, path: str) -> None:
    """Send an error in the shape of its API."""
    body = error.write_body(path)
    headers = [*error.list_headers(), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
