"""A day of requests in one process, without sockets: the application is called as uvicorn calls it, by a simulated clock."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dragoman.serving import middleware, request_queue, service
from dragoman.serving.app import build_app
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerLimits, ServerSettings
from serving.stand_in_server import StandInTranslator, load_stand_in

NUM_REQUESTS = 1_000_000
REQUEST_SECONDS = 86_400 / NUM_REQUESTS
"""Simulated time between two requests."""
RELOAD_REQUESTS = round(3600 / REQUEST_SECONDS)
NUM_CLIENTS = 32
WORDS = ("the", "a", "red", "house", "dog", "runs", "sees", "12", "http://x.org/a", "{name}", "over", "old.", "new.", "Then")


@dataclass(frozen=True)
class State:
    """State of the process after some requests. counts: open files, tasks, threads and metric series"""

    num_requests: int
    hours: float
    memory_mib: float
    num_objects: int
    counts: tuple[int, int, int, int]

    def describe(self) -> str:
        """Return the state in one line."""
        files, tasks, threads, series = self.counts
        return (
            f"{self.num_requests} requests, hour {self.hours:.1f}: {self.memory_mib:.1f} MiB, {self.num_objects} objects, "
            f"{files} open files, {tasks} tasks, {threads} threads, {series} series"
        )


@dataclass
class Soak:
    """States over the time, and the answers by status; 0 is a client that went away. num_requests: all that were sent"""

    num_requests: int = 0
    states: list[State] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)


def run_soak(num_requests: int, max_seconds: float, state_requests: int) -> Soak:
    """Send requests of many kinds, and reload the models every simulated hour.

    max_seconds: real time after which no other request is sent
    state_requests: requests between two states
    """
    return asyncio.run(_run(num_requests, max_seconds, state_requests))


@contextmanager
def simulate_clock() -> Iterator[SimpleNamespace]:
    """Replace the clock of the queue, of the deadlines and of the guard. Its field `now` is the time in seconds."""
    clock = SimpleNamespace(now=0.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now, monotonic_ns=lambda: round(clock.now * 1e9))
    modules: list[Any] = [middleware, request_queue, service]
    clocks = [module.time for module in modules]
    for module in modules:
        module.time = fake
    try:
        yield clock
    finally:
        for module, original in zip(modules, clocks, strict=True):
            module.time = original


async def _run(num_requests: int, max_seconds: float, state_requests: int) -> Soak:
    soak = Soak()
    draws = random.Random(31)
    translator = StandInTranslator()
    served = TranslationService(load_stand_in(translator), ServerLimits(), retry=False)
    app = build_app(served, ServerSettings())
    num_sent = 0
    end = time.monotonic() + max_seconds

    async def run_client() -> None:
        nonlocal num_sent
        while num_sent < num_requests and time.monotonic() < end:
            num_sent += 1
            clock.now = REQUEST_SECONDS * num_sent
            if num_sent % RELOAD_REQUESTS == 0:
                served.models = load_stand_in(translator)
            if num_sent % state_requests == 0:
                soak.states.append(_read_state(served, num_sent, clock.now))
            soak.statuses[await _send(app, *_draw_request(draws), leaves=draws.random() < 0.02)] += 1

    with simulate_clock() as clock:
        await asyncio.gather(*(run_client() for _ in range(NUM_CLIENTS)))
        soak.num_requests = num_sent
        await served.close()
    return soak


def _draw_request(draws: random.Random) -> tuple[str, str, bytes]:
    """Return the method, the path with its query, and the body of a request."""
    texts = [" ".join(draws.choices(WORDS, k=draws.randint(0, 6))) for _ in range(draws.choice((1, 1, 1, 3)))]
    match draws.randrange(16):
        case 0:
            return "GET", draws.choice(("/languages", "/v2/languages", "/v1/languages", "/health", "/v2/usage", "/")), b""
        case 1:
            return "GET", f"/translate?q=x{draws.random()}&source=en&target=de", b""
        case 2:
            return "GET", f"/{draws.random()}", b""
        case 3:
            return "POST", "/translate", draws.randbytes(draws.randint(0, 200))
        case 4:
            return "POST", "/translate", json.dumps({"q": texts, "source": str(draws.random()), "target": "de"}).encode()
        case 5:
            return "POST", "/translate", json.dumps({"q": texts, "source": "auto", "target": "de", "format": "html"}).encode()
        case 6 | 7 | 8:
            return "POST", "/v2/translate", json.dumps({"text": texts, "source_lang": "EN", "target_lang": "DE"}).encode()
        case 9 | 10:
            path = draws.choice(("/v1/translate", "/v1/translate/stream"))
            return "POST", path, json.dumps({"texts": texts, "source": "en", "target": "de"}).encode()
        case _:
            return "POST", "/translate", json.dumps({"q": texts, "source": "en", "target": "de"}).encode()


async def _send(app: Any, method: str, target: str, body: bytes, *, leaves: bool) -> int:
    """Send a request; return the status of its answer. leaves: the client goes away at once"""
    path, _, query = target.partition("?")
    status = 0
    is_read = False
    never = asyncio.get_running_loop().create_future()

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        if not leaves:
            await never
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    headers = [(b"host", b"x"), (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return status


def _read_state(served: TranslationService, num_requests: int, seconds: float) -> State:
    gc.collect()
    memory = int(re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))[0]) / 1024
    series = [line for line in served.metrics.render().decode().splitlines() if not line.startswith("#")]
    # Tasks of requests in progress come and go; there are a few for each client.
    num_tasks = sum(task.get_coro().__name__ == "run_client" for task in asyncio.all_tasks())  # type: ignore[union-attr]
    counts = len(os.listdir("/proc/self/fd")), num_tasks, threading.active_count(), len(series)
    return State(num_requests, seconds / 3600, memory, len(gc.get_objects()), counts)
