"""Client process of the serving benchmark: it loads a server for some seconds, and prints the latencies as JSON."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from urllib.parse import urlsplit


class Connection:
    """Connection that stays open over several requests."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def translate(self, sentence: str, source: str, target: str) -> str:
        """Send a request and return the translation. Raises ValueError for an answer other than success."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        body = json.dumps({"q": sentence, "source": source, "target": target}).encode()
        head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer_head = await reader.readuntil(b"\r\n\r\n")
        status = int(answer_head.split(b" ", 2)[1])
        lengths = [line for line in answer_head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        answer = await reader.readexactly(int(lengths[0].split(b":")[1]))
        if status != 200:
            raise ValueError(f"status {status}: {answer[:200]!r}")
        text: str = json.loads(answer)["translatedText"]
        return text


async def run_closed_loop(url: str, sentences: list[str], pair: tuple[str, str], clients: int, seconds: float) -> list[float]:
    """Return the latencies of clients that send one request after the other."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def run_client(number: int) -> None:
        connection = Connection(url)
        index = number
        while (started := time.perf_counter()) < end:
            await connection.translate(sentences[index % len(sentences)], *pair)
            latencies.append(time.perf_counter() - started)
            index += clients

    await asyncio.gather(*map(run_client, range(clients)))
    return latencies


async def run_open_loop(url: str, sentences: list[str], pair: tuple[str, str], rate: float, seconds: float) -> list[float]:
    """Return the latencies of requests that arrive at random times, from the time of their arrival."""
    latencies: list[float] = []
    idle: list[Connection] = []
    draws = random.Random(1)
    tasks: list[asyncio.Task[None]] = []

    async def send(sentence: str, arrival: float) -> None:
        connection = idle.pop() if idle else Connection(url)
        await connection.translate(sentence, *pair)
        latencies.append(time.perf_counter() - arrival)
        idle.append(connection)

    start = time.perf_counter()
    arrival = start
    while (arrival := arrival + draws.expovariate(rate)) < start + seconds:
        await asyncio.sleep(max(0.0, arrival - time.perf_counter()))
        tasks.append(asyncio.create_task(send(sentences[len(tasks) % len(sentences)], arrival)))
    await asyncio.gather(*tasks)
    return latencies


def main() -> None:
    request = json.load(sys.stdin)
    pair = (request["source"], request["target"])
    if "rate" in request:
        work = run_open_loop(request["url"], request["sentences"], pair, request["rate"], request["seconds"])
    else:
        work = run_closed_loop(request["url"], request["sentences"], pair, request["clients"], request["seconds"])
    started = time.perf_counter()
    latencies = asyncio.run(work)
    json.dump({"latencies": latencies, "seconds": time.perf_counter() - started}, sys.stdout)


if __name__ == "__main__":
    main()
