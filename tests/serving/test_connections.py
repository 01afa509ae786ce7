"""Limits on connections and on the bytes that arrive: clients that send little or nothing hold up nobody."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from capital_letters import make_service
from dragoman.platform_features import resource
from dragoman.serving.admin import MAX_OPEN, serve_admin
from dragoman.serving.body_room import BodyRoom
from dragoman.serving.connection_limit import (
    ACCEPT_PROBLEM,
    ConnectionLimit,
    RateLimitedLog,
    count_allowed_connections,
    limit_accept_errors,
)
from dragoman.serving.request_queue import QueueFullError
from dragoman.serving.server import build_server
from dragoman.serving.settings import ServerLimits, ServerSettings

HEAD = b"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
FILE_HEAD = b"POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WAIT_SECONDS = 60
"""Longest time to wait for an answer on a busy machine."""
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@contextmanager
def run_limited(max_open: int, limits: ServerLimits | None = None) -> Iterator[int]:
    """Run a server with few connections in a thread; give its port."""
    settings = ServerSettings(limits=limits or ServerLimits())
    service = make_service()
    server = build_server(service, settings, on_ready=lambda: None, limit=ConnectionLimit(max_open))
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [server_socket]})
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield server_socket.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(WAIT_SECONDS)


@contextmanager
def open_connections(port: int, *contents: bytes) -> Iterator[list[socket.socket]]:
    """Open a connection for each of these contents, and send it."""
    with ExitStack() as stack:
        connections = []
        for content in contents:
            connections.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)))
            connections[-1].sendall(content)
        yield connections


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed a connection; wait for it a while."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def translate(port: int) -> int:
    """Return the status of a translation that another client asks for."""
    fields = {"q": "one", "source": "en", "target": "de"}
    return httpx.post(f"http://127.0.0.1:{port}/translate", json=fields, timeout=WAIT_SECONDS).status_code


@pytest.mark.parametrize("content", [b"", b"POST /translate HTTP/1.1\r\nHost: x\r\nX", HEAD + b"Content-Length: 9000\r\n\r\n"])
def test_oldest_waiting_connections_are_closed(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with run_limited(16) as port, open_connections(port, *[content] * 30) as connections:
        assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=WAIT_SECONDS).status_code == 200
        assert translate(port) == 200
        assert is_closed(connections[0])
    lines = [record for record in caplog.records if "connections are open" in record.getMessage()]
    assert len(lines) == 1


def test_head_is_answered_as_get_without_its_body() -> None:
    with run_limited(16) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as client:
        for path in ("/", "/livez", "/languages", "/nothing"):
            whole, head = client.get(path), client.head(path)
            assert (head.status_code, head.content) == (whole.status_code, b"")
            assert head.headers["content-length"] == str(len(whole.content))
        assert client.head("/translate").status_code == 400


def test_health_is_answered_beside_requests_in_progress() -> None:
    """All connections wait for room for their bodies, so none of them can be closed."""
    limits = ServerLimits(max_body_bytes=100_000, queue_seconds=2.0)
    body = HEAD + b"Content-Length: 99000\r\n\r\n" + b" " * 98_000
    with run_limited(2, limits) as port, open_connections(port, *[body] * 2) as connections:
        for connection in connections:
            connection.sendall(b" " * 1000)
        assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=WAIT_SECONDS).status_code == 200


def test_heads_alone_take_no_room() -> None:
    """The heads announce more bytes than the memory of all requests."""
    heads = [FILE_HEAD + CHUNKED] * 20 + [HEAD + CHUNKED] * 16 + [FILE_HEAD + b"Content-Length: 16000000\r\n\r\n"] * 15
    with run_limited(512) as port, open_connections(port, *heads):
        assert [translate(port) for _ in range(4)] == [200] * 4


def test_bodies_on_slow_lines_take_what_has_arrived() -> None:
    """Fifteen people have sent a part of their files, and others are answered."""
    start = FILE_HEAD + b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 16000000\r\n\r\n" + b"x" * 200_000
    with run_limited(512) as port, open_connections(port, *[start] * 15):
        assert [translate(port) for _ in range(4)] == [200] * 4
        files = {"file": ("a.txt", b"one", "text/plain")}
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/files", data={"target": "de", "source": "en"}, files=files, timeout=WAIT_SECONDS
        )
        assert answer.status_code == 202


def test_slow_body_has_its_whole_time_in_the_queue() -> None:
    """The time in which the body arrives is the client's, and does not count as time in the queue."""
    with (
        run_limited(16, ServerLimits(queue_seconds=0.2)) as port,
        open_connections(port, HEAD + b"Content-Length: 42\r\nConnection: close\r\n\r\n") as connections,
    ):
        time.sleep(0.4)
        connections[0].sendall(b'{"q": "one", "source": "en", "target":"de"}'[:42])
        assert connections[0].recv(100).split()[1] == b"400"  # the body ends one character early, but it is read


def test_room_is_shared_and_the_oldest_body_never_waits() -> None:
    async def run() -> list[str]:
        room, order = BodyRoom(100), []
        first, second, third = room.open("a"), room.open("a"), room.open("b")

        async def grow(name: str, body: object, num_bytes: int, seconds: float = 60.0) -> None:
            try:
                await room.grow(body, num_bytes, seconds)  # type: ignore[arg-type]
            except QueueFullError:
                name += " refused"
            order.append(name)

        await grow("first", first, 50)
        await grow("second", second, 1, 0.05)  # the client has its half
        await grow("third", third, 50)
        await grow("first again", first, 70)
        waiting = asyncio.create_task(grow("third again", third, 10))
        await asyncio.sleep(0)
        room.close(second)
        room.close(first)
        await waiting  # it is the oldest now
        room.close(third)
        assert room.num_taken == 0
        return order

    assert asyncio.run(run()) == ["first", "second refused", "third", "first again", "third again"]


@pytest.mark.skipif(resource is None, reason="the system has no limit on open files")
def test_limit_is_below_the_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for files in (256, 1024):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
            assert files // 4 < count_allowed_connections() < files - 64
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_problems_of_accept_are_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    limit_accept_errors(loop)
    for _ in range(1000):
        loop.call_exception_handler({"message": ACCEPT_PROBLEM, "exception": OSError(24, "Too many open files")})
    loop.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    times = iter([0.0, 59.0, 61.0])
    log = RateLimitedLog(lambda: next(times))
    for number in range(3):
        log.warn("problem %d", number)
    assert [record.getMessage() for record in caplog.records[1:]] == ["problem 0", "problem 2"]


def test_admin_port_closes_its_oldest_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as admin_socket:
        before = threading.active_count()
        server = serve_admin(admin_socket, lambda: b"metrics", lambda: {"status": "ok"})
        port = admin_socket.getsockname()[1]
        with open_connections(port, *[b"GET /li"] * (MAX_OPEN + 20)) as connections:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=WAIT_SECONDS) as answer:
                assert answer.status == 200
            assert is_closed(connections[0])
            until = time.monotonic() + WAIT_SECONDS
            while (num_threads := threading.active_count() - before) > MAX_OPEN + 1 and time.monotonic() < until:
                time.sleep(0.005)
            assert num_threads <= MAX_OPEN + 1
        server.shutdown()
