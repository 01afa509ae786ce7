"""Reliability of the server: `PYTHONPATH=benchmarks python -m serving.reliability [--quick] [NAME ...]`.

Each section checks one promise, and prints its figures. Without names all sections run, except those that need --bundle,
--lines or --schemathesis. The exit status is 1 if a promise is not kept. Linux only.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

MIB = 1 << 20
JSON_HEADERS = "Content-Type: application/json\r\n"
MAX_UNREAD = 0.002
"""Share of requests that may come too late, while the server closes its socket."""
RELEASE_SECONDS = 5.0
"""Time after a load in which its memory returns to the system."""
CLIENT_SECONDS = 20.0
"""Time after which Weblate gives up."""
NUM_OVERLOADS = 3
"""Overloads one after the other, of which none may need more memory than the one before."""


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    quick: bool
    bundle: Path | None
    lines: Path | None
    schemathesis: Path | None
    precision: str
    seed: int


@dataclass(frozen=True)
class PromiseCheck:
    """Figure of a promise, and whether it is kept."""

    text: str
    is_kept: bool


class Server:
    """Process of the stand-in server. log: file with one line for each request, if the server writes them"""

    def __init__(self, process: subprocess.Popen[str], admin_port: int, log: Path) -> None:
        self._process = process
        self._admin_port = admin_port
        self.log = log
        self.wait_for_start()

    def wait_for_start(self) -> None:
        """Wait until a server is ready; with several of them, until the next one is."""
        fields = self._read()
        if "url" not in fields:
            raise click.ClickException(f"the server did not start: {self.log.read_text(encoding='utf-8').splitlines()[-1]}")
        self.port = int(re.findall(r":(\d+)/", fields["url"])[0])
        self.process_id = int(fields["process"])

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        os.kill(self.process_id, signal.SIGTERM)
        return int(self._read()["exit_status"])

    def count_tasks(self) -> tuple[int, int]:
        """Return the open tasks of the event loop, and the lines that were translated."""
        os.kill(self.process_id, signal.SIGUSR1)
        fields = self._read()
        return fields["tasks"], fields["lines"]

    def read_memory(self, name: str = "VmRSS") -> float:
        """Return the memory in MiB. name: VmRSS, or VmHWM for its peak"""
        status = Path(f"/proc/{self.process_id}/status").read_text(encoding="utf-8")
        return int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024

    def count_open_files(self) -> int:
        """Return the number of open files."""
        return len(os.listdir(f"/proc/{self.process_id}/fd"))

    def read_metrics(self) -> dict[str, float]:
        """Return the metrics by name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._admin_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        fields: dict[str, Any] = json.loads(self._process.stdout.readline())
        return fields


@contextmanager
def run_stand_in(*arguments: str, limits: dict[str, Any] | None = None) -> Iterator[Server]:
    """Run the stand-in server."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [sys.executable, "-m", "serving.stand_in_server", "--admin-port", str(port), *arguments]
        log = Path(folder) / "log"
        with (
            log.open("w") as output,
            subprocess.Popen(
                [*command, "--limits", json.dumps(limits or {})], stdout=subprocess.PIPE, stderr=output, text=True
            ) as process,
        ):
            try:
                yield Server(process, port, log)
            finally:
                process.terminate()


def write_request(body: bytes, *, path: str = "/translate", headers: str = JSON_HEADERS) -> bytes:
    """Return a request after whose answer the connection is closed."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def write_fields(q: object = "One red house.", **fields: object) -> bytes:
    """Return the body of a request to /translate."""
    return json.dumps({"q": q, "source": "en", "target": "de", **fields}, ensure_ascii=False).encode()


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def send(port: int, request: bytes, seconds: float = 60.0) -> int:
    """Send a request, and return the status of its answer; 0 if the connection ends before the answer does."""
    async with asyncio.timeout(seconds):
        async with connect(port) as (reader, writer):
            with suppress(ConnectionError):
                writer.write(request)
                await writer.drain()
            return await read_status(reader)


async def read_status(reader: asyncio.StreamReader) -> int:
    """Return the status of an answer that is read to its end, or 0 for none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.findall(rb"content-length: *(\d+)", head.lower())
        await reader.readexactly(int(length[0]) if length else 0)
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0
    return int(head.split(b" ", 2)[1])


def check_overload(options: Options) -> Iterator[PromiseCheck]:
    """Ten times as many requests as the server can answer, three times one after the other."""
    queue_seconds, seconds = (3.0, 9.0) if options.quick else (15.0, 45.0)
    request = write_request(write_fields())
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    rates: list[float] = []
    after: list[float] = []

    async def measure_peak(port: int, seconds: float) -> float:
        """Return the answers per second to 64 clients."""
        num_answers = 0
        start = time.monotonic()

        async def run_client() -> None:
            nonlocal num_answers
            while time.monotonic() < start + seconds:
                is_answered = await send(port, request) == 200
                num_answers += is_answered

        await asyncio.gather(*(run_client() for _ in range(64)))
        return num_answers / (time.monotonic() - start)

    async def overload(server: Server, rate: float) -> tuple[float, list[float]]:
        """Send requests at a rate; return the answers per second and the memory after the queue has filled."""
        tasks: set[asyncio.Task[None]] = set()
        memory: list[float] = []
        start = time.monotonic()
        num_late_answers = 0

        async def run_client() -> None:
            nonlocal num_late_answers
            arrival = time.monotonic()
            try:
                status = await send(server.port, request, queue_seconds + CLIENT_SECONDS - 15.0)
            except TimeoutError:
                status = -1
            statuses[status] += 1
            if status == 200:
                latencies.append(time.monotonic() - arrival)
                num_late_answers += start + queue_seconds < time.monotonic() < start + seconds

        num_sent = 0
        while (now := time.monotonic()) < start + seconds:
            for _ in range(int((now - start) * rate) - num_sent):
                num_sent += 1
                tasks.add(task := asyncio.create_task(run_client()))
                task.add_done_callback(tasks.discard)
            if now > start + queue_seconds + len(memory):
                memory.append(server.read_memory())
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        return num_late_answers / (seconds - queue_seconds), memory

    with run_stand_in("--batch-seconds", "0.005", "--line-seconds", "0.02", limits={"queue_seconds": queue_seconds}) as server:
        idle = server.read_memory()
        peak = asyncio.run(measure_peak(server.port, seconds / 3))
        rows = []
        for _ in range(NUM_OVERLOADS):
            rate, memory = asyncio.run(overload(server, 10 * peak))
            rows.append(memory)
            rates.append(rate)
            time.sleep(RELEASE_SECONDS)
            after.append(server.read_memory())
    latencies.sort()
    yield PromiseCheck(
        f"peak {peak:.1f} answers a second, overloads {', '.join(f'{rate:.1f}' for rate in rates)}, "
        f"the lowest ratio {min(rates) / peak:.3f} (at least 0.95)",
        min(rates) >= 0.95 * peak,
    )
    yield PromiseCheck(f"{dict(statuses)} answers by status; -1 is a client that gave up", set(statuses) <= {200, 503})
    yield PromiseCheck(f"slowest answer {latencies[-1]:.1f} s", latencies[-1] < queue_seconds + CLIENT_SECONDS - 15.0)
    middle = len(rows[0]) // 2
    first, last = max(rows[0][:middle]), max(map(max, rows))
    yield PromiseCheck(
        f"memory: idle {idle:.0f} MiB; with a full queue at most {first:.0f} MiB in the first half, {last:.0f} in all; "
        f"{', '.join(f'{value:.0f}' for value in after)} after each overload",
        last < 1.05 * first and max(after) < last and after[-1] < 1.02 * after[0],
    )


def check_disconnections(options: Options) -> Iterator[PromiseCheck]:
    """Clients that go away leave no work."""
    number = 100 if options.quick else 1000
    body = write_fields(["One red house."] * 20)
    request = write_request(body)
    stream = write_request(
        json.dumps({"texts": ["One."] * 20, "source": "en", "target": "de"}).encode(), path="/v1/translate/stream"
    )
    starts = [request[:40], request[:-20], request, stream]

    async def leave(port: int, index: int) -> None:
        async with connect(port) as (_, writer):
            writer.write(starts[index % len(starts)])
            await writer.drain()
            await asyncio.sleep(random.random() * 0.2)

    async def leave_all(port: int) -> None:
        for first in range(0, number, 100):
            await asyncio.gather(*(leave(port, index) for index in range(first, first + 100)))

    with run_stand_in("--line-seconds", "0.002") as server:
        asyncio.run(send_twice(server.port, request))
        tasks, lines = server.count_tasks()
        files = server.count_open_files()
        asyncio.run(leave_all(server.port))
        end = time.monotonic() + 20
        while True:
            time.sleep(0.1)
            metrics = server.read_metrics()
            waiting = metrics["dragoman_queue_tokens"], metrics["dragoman_queue_jobs"]
            is_idle = not any(waiting) and server.count_tasks()[0] <= tasks and server.count_open_files() <= files
            if is_idle or time.monotonic() > end:
                break
        after = server.count_tasks()
        more_files = server.count_open_files() - files
        status = asyncio.run(send(server.port, request))
        num_wasted, num_sent = after[1] - lines, number // len(starts) * 2 * 20
        yield PromiseCheck(f"{number} clients left; tokens and requests in the queue: {waiting}", not any(waiting))
        yield PromiseCheck(f"tasks {tasks} before, {after[0]} after", after[0] <= tasks)
        yield PromiseCheck(f"open files: {more_files} more", more_files <= 0)
        yield PromiseCheck(f"translated {num_wasted} of their {num_sent} lines before they left", num_wasted < num_sent)
        yield PromiseCheck(f"the next request has status {status}", status == 200)


async def send_twice(port: int, request: bytes) -> None:
    """Send a request two times, so that everything that the first one loads is there."""
    for _ in range(2):
        await send(port, request)


def check_stops(options: Options) -> Iterator[PromiseCheck]:
    """SIGTERM under load loses no accepted request."""
    number = 10 if options.quick else 100
    request = write_request(write_fields())
    outcomes: Counter[str] = Counter()

    async def stop_under_load(server: Server) -> int:
        is_stopped = False

        async def run_client() -> None:
            while True:
                try:
                    status = await send(server.port, request)
                except OSError:
                    outcomes["no connection"] += 1
                    return
                outcomes[f"status {status}" if status else "no answer"] += 1
                if is_stopped and status != 200:
                    return

        clients = [asyncio.create_task(run_client()) for _ in range(16)]
        await asyncio.sleep(0.1 + 0.2 * random.random())
        is_stopped = True
        exit_status = await asyncio.to_thread(server.stop)
        await asyncio.gather(*clients)
        return exit_status

    exit_statuses: Counter[int] = Counter()
    with run_stand_in("--times", str(number), "--line-seconds", "0.003", "--log") as server:
        for index in range(number):
            if index:
                server.wait_for_start()
            exit_statuses[asyncio.run(stop_under_load(server))] += 1
        logged = Counter(re.findall(r'"status": (\d+)', server.log.read_text(encoding="utf-8")))
    answered = outcomes["status 200"]
    yield PromiseCheck(f"{number} stops, exit status {dict(exit_statuses)}", set(exit_statuses) == {0})
    yield PromiseCheck(f"requests that the server began: {dict(logged)} by status", set(logged) == {"200"})
    yield PromiseCheck(f"answers that arrived: {answered}; {logged['200'] - answered} lost", answered == logged["200"])
    # The system may take a connection for the server while it closes its socket; nobody reads that request.
    unread = outcomes["no answer"]
    yield PromiseCheck(f"what the clients saw: {dict(outcomes)}", unread <= MAX_UNREAD * outcomes.total())


def check_hostile(options: Options) -> Iterator[PromiseCheck]:
    """Requests that are made to hurt."""

    def repeat(text: str) -> str:
        """Return 300,000 characters."""
        return text * (300_000 // len(text))

    num_slow = 50 if options.quick else 200
    deep = b"[" * (MIB - 100)
    bomb = gzip.compress(b'{"q": "' + b"x" * (200 * MIB))
    form = "Content-Type: application/x-www-form-urlencoded\r\n"
    multipart = "Content-Type: multipart/form-data; boundary=b\r\n"
    parts = b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n" * 20_000 + b"--b--"
    requests: list[tuple[str, bytes, set[int]]] = [
        ("10 MiB of nested JSON", write_request(b"[" * (10 * MIB)), {413, 0}),
        ("1 MiB of nested JSON", write_request(deep), {400}),
        ("nested objects", write_request(b'{"q":' * 100_000), {400}),
        ("100,000 texts", write_request(write_fields(["x"] * 100_000)), {400}),
        ("invalid UTF-8", write_request(b'{"q": "\xff\xfe"}'), {400}),
        ("number of 900,000 digits", write_request(b'{"q": ' + b"9" * 900_000 + b"}"), {400}),
        ("gzip bomb of 200 MiB", write_request(bomb, headers=JSON_HEADERS + "Content-Encoding: gzip\r\n"), {400, 415}),
        ("100,000 form fields", write_request(b"a=b&" * 100_000, headers=form), {400}),
        ("20,000 parts", write_request(parts, headers=multipart), {400}),
        ("form without end", write_request(b"--b\r\n" + b"x" * 900_000, headers=multipart), {400}),
        ("10,000 headers", write_request(b"{}", headers="".join(f"h{i}: x\r\n" for i in range(10_000))), {400, 431, 0}),
        ("header of 1 MiB", write_request(b"{}", headers="h: " + "x" * MIB + "\r\n"), {400, 431, 0}),
        ("address of 1 MiB", b"GET /" + b"x" * MIB + b" HTTP/1.1\r\n\r\n", {400, 414, 0}),
        ("no HTTP", random.Random(1).randbytes(100_000), {400, 0}),
        ("wrong length", b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", {400}),
        ("length of 10^30", b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 1" + b"0" * 30 + b"\r\n\r\n", {400, 413}),
        *(
            (f"300,000 characters of {text!r} as {kind}", write_request(write_fields(repeat(text), format=kind)), {200, 400})
            for text in ("<b>", "<", "&", "{", "[X", "a.", "%", "http://", "\u0301", " ", "\n", "@", "1,")
            for kind in ("text", "html")
        ),
    ]  # fmt: skip

    async def send_slowly(port: int, beginning: bytes, part: bytes) -> float:
        """Send a byte from time to time; return the seconds until the server ends the connection."""
        start = time.monotonic()
        with suppress(ConnectionError):
            async with connect(port) as (reader, writer):
                writer.write(beginning)
                while not reader.at_eof():
                    writer.write(part)
                    await writer.drain()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.2 if len(part) < 100 else 0.001):
                            await reader.read(10_000)
        return time.monotonic() - start

    async def attack(server: Server) -> list[PromiseCheck]:
        findings = []
        chunked = b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        slow = [
            *(send_slowly(server.port, b"POST /translate HTTP/1.1\r\n", b"a: b\r\n") for _ in range(num_slow)),
            *(send_slowly(server.port, write_request(b"x" * 1000)[:-999], b"x") for _ in range(num_slow)),
            *(send_slowly(server.port, chunked, b"1\r\nx\r\n") for _ in range(num_slow)),
            send_slowly(server.port, chunked, b"10000\r\n" + b"x" * 65_536 + b"\r\n"),
        ]
        waiting = asyncio.ensure_future(asyncio.gather(*slow))
        slowest = ("", 0.0)
        for name, request, expected in requests:
            before, start = server.read_memory(), time.monotonic()
            status = await send(server.port, request, 120)
            seconds, growth = time.monotonic() - start, server.read_memory() - before
            slowest = max(slowest, (name, seconds), key=lambda item: item[1])
            if status not in expected or growth > 30:
                findings.append(PromiseCheck(f"{name}: status {status}, {seconds:.2f} s, {growth:.0f} MiB more", False))
        findings.append(
            PromiseCheck(f"{len(requests)} hostile requests; the slowest: {slowest[0]}, {slowest[1]:.2f} s", slowest[1] < 10)
        )
        statuses = Counter(
            await asyncio.gather(*(send(server.port, write_request(write_fields(["x" * 900_000])), 120) for _ in range(100)))
        )
        findings.append(PromiseCheck(f"100 times 0.9 MB at once: {dict(statuses)} by status", set(statuses) <= {200, 503}))
        ends = await waiting  # 5 seconds for the body, and 15 after the refusal
        findings.append(
            PromiseCheck(
                f"{len(slow)} slow or endless clients: connections end after at most {max(ends):.1f} s", max(ends) < 22
            )
        )
        findings.append(
            PromiseCheck("the next request is answered", await send(server.port, write_request(write_fields())) == 200)
        )
        return findings

    with run_stand_in(limits={"read_seconds": 5.0}) as server:
        asyncio.run(send_twice(server.port, write_request(write_fields())))
        before = server.read_memory()
        yield from asyncio.run(attack(server))
        time.sleep(RELEASE_SECONDS)
        peak, after = server.read_memory("VmHWM"), server.read_memory()
        yield PromiseCheck(
            f"memory {before:.0f} MiB before, {peak:.0f} at the peak, {after:.0f} after",
            peak - before < 128 and after - before < 48,
        )


def check_equality(options: Options) -> Iterator[PromiseCheck]:
    """Answers of a real bundle at 1, 8 and 64 clients are equal."""
    if options.bundle is None or options.lines is None:
        raise click.UsageError("equality: needs --bundle and --lines")
    lines = options.lines.read_text(encoding="utf-8").splitlines()[: 100 if options.quick else 1000]
    command = [sys.executable, "-m", "dragoman", "serve", str(options.bundle), "--port", "0", "--json"]
    command += ["--precision", options.precision]

    async def translate_all(url: str, num_clients: int) -> list[str]:
        from dragoman import AsyncClient

        room = asyncio.Semaphore(num_clients)
        async with AsyncClient(url) as client:

            async def translate(line: str) -> str:
                async with room:
                    (translation,) = await client.translate([line], source="en", target="de")
                    return translation.text

            return await asyncio.gather(*map(translate, lines))

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            single, *others = [asyncio.run(translate_all(url, number)) for number in (1, 8, 64)]
        finally:
            process.terminate()
    for number, answers in zip((8, 64), others, strict=True):
        num_equal = sum(left == right for left, right in zip(single, answers, strict=True))
        yield PromiseCheck(
            f"{num_equal} of {len(lines)} answers to {number} clients equal those to one client", num_equal == len(lines)
        )


def check_memory(options: Options) -> Iterator[PromiseCheck]:
    """Server processes of a real bundle share memory."""
    if options.bundle is None:
        raise click.UsageError("memory: needs --bundle")
    request = write_request(write_fields("Two dogs play in the snow."))
    command = [sys.executable, "-m", "dragoman", "serve", str(options.bundle), "--port", "0", "--json"]
    command += ["--precision", options.precision, "--intra-threads", "1"]

    async def send_many(port: int, number: int) -> None:
        for _ in range(number // 16):
            await asyncio.gather(*(send(port, request) for _ in range(16)))

    first = 0.0
    for number in (1, 2, 4):
        with subprocess.Popen(
            [*command, "--processes", str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                port = int(re.findall(r":(\d+)/", process.stdout.readline())[0])
                asyncio.run(send_many(port, 64 * number))
                time.sleep(RELEASE_SECONDS)
                processes = list_descendants(process.pid)
                memory = sum(map(read_shared_memory, processes))
            finally:
                process.terminate()
        first = first or memory
        yield PromiseCheck(
            f"{number} server processes, {len(processes)} in all: {memory:.0f} MiB of proportional set size",
            number == 1 or memory < number * first,
        )


def list_descendants(process_id: int) -> list[int]:
    """Return the numbers of a process and of all processes that it started, by way of others too."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    numbers = [process_id]
    for number in numbers:  # grows meanwhile
        numbers += children.get(number, [])
    return numbers


def read_shared_memory(process_id: int) -> float:
    """Return the proportional set size in MiB: a page that several processes map counts as a part for each."""
    rollup = Path(f"/proc/{process_id}/smaps_rollup").read_text(encoding="utf-8")
    return int(re.findall(r"Pss:\s+(\d+)", rollup)[0]) / 1024


def check_schemathesis(options: Options) -> Iterator[PromiseCheck]:
    """Requests made from the OpenAPI description."""
    if options.schemathesis is None:
        raise click.UsageError("schemathesis: needs --schemathesis PROGRAM")
    number = 1000 if options.quick else 10_000
    program = [str(options.schemathesis.absolute()), "run"]
    program += ["--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing"]
    load = ["--max-examples", str(number // 10), "--no-shrink", "--continue-on-failure", "--workers", "2"]
    load += ["--seed", str(options.seed)]
    with run_stand_in() as server, tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [*program, *load, f"http://127.0.0.1:{server.port}/openapi.json"], check=False, capture_output=True, cwd=folder
        )
        metrics = server.read_metrics()
    statuses: Counter[str] = Counter()
    for name, value in metrics.items():
        if name.startswith("dragoman_requests_total"):
            statuses[name.partition('status="')[2][:3]] += int(value)
    num_failures = sum(value for status, value in statuses.items() if status.startswith("5"))
    yield PromiseCheck(
        f"{statuses.total()} requests, {dict(statuses)} by status", num_failures == 0 and statuses.total() >= number
    )
    yield PromiseCheck(f"exit status {result.returncode}", result.returncode == 0)


SECTIONS: dict[str, Callable[[Options], Iterator[PromiseCheck]]] = {
    "schemathesis": check_schemathesis,
    "equality": check_equality,
    "overload": check_overload,
    "disconnections": check_disconnections,
    "stops": check_stops,
    "hostile": check_hostile,
    "memory": check_memory,
}
OPTION_OF_SECTION = {"equality": "lines", "memory": "bundle", "schemathesis": "schemathesis"}
"""Option that a section needs."""


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(list(SECTIONS)))
@click.option("--quick", is_flag=True, help="Smaller numbers, in about two minutes.")
@click.option("--bundle", type=click.Path(path_type=Path), help="Bundle from English to German, for equality and memory.")
@click.option("--lines", type=click.Path(path_type=Path), help="English sentences, one a line, for equality.")
@click.option("--schemathesis", type=click.Path(path_type=Path), help="Program schemathesis of version 4.")
@click.option("--precision", default="auto", show_default=True, help="Precision of the bundle, for equality and memory.")
@click.option("--seed", default=31, show_default=True, help="Seed of the requests of schemathesis.")
def main(
    names: tuple[str, ...],
    quick: bool,
    bundle: Path | None,
    lines: Path | None,
    schemathesis: Path | None,
    precision: str,
    seed: int,
) -> None:
    options = Options(quick, bundle, lines, schemathesis, precision, seed)
    if not names:
        names = tuple(name for name in SECTIONS if getattr(options, OPTION_OF_SECTION.get(name, ""), True) is not None)
    all_kept = True
    for name in names:
        start = time.monotonic()
        findings = list(SECTIONS[name](options))
        print(f"{name} ({SECTIONS[name].__doc__}) {time.monotonic() - start:.0f} s")
        for finding in findings:
            print(f"  {'kept  ' if finding.is_kept else 'BROKEN'}  {finding.text}", flush=True)
        all_kept = all_kept and all(finding.is_kept for finding in findings)
    sys.exit(0 if all_kept else 1)


if __name__ == "__main__":
    main()
