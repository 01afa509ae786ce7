"""Requests with long and odd texts do not hold up others: the server answers `/livez` meanwhile."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from test_server_process import run_server

MIB = 2**20
MAX_GAP_SECONDS = 0.2
TEXTS = {
    "dots": "." * MIB,
    "letters": "a" * MIB,
    "Han": "\u4e2d" * (MIB // 3),
    "lines": "a.\n" * (MIB // 3),
    "tags": "<a " * (MIB // 3),
    "nested": "<b>" * (MIB // 3),
    "braces": "{" * MIB,
    "blanks": "a" + " " * MIB,
}


def send(address: str, text: str) -> None:
    body = json.dumps({"q": text[: MIB - 100], "source": "en", "target": "de", "format": "html"}, ensure_ascii=False)
    with suppress(httpx.TimeoutException), httpx.Client(base_url=address, timeout=4) as client:  # the client goes away
        client.post("/translate", content=body.encode(), headers={"content-type": "application/json"})


def measure_longest_answer(address: str, seconds: float, sender: threading.Thread | None = None) -> float:
    """Return the longest time that an answer of /livez takes, while a request is sent or for some seconds."""
    longest, until = 0.0, time.monotonic() + seconds
    with httpx.Client(base_url=address, timeout=60) as client:
        while time.monotonic() < until if sender is None else sender.is_alive():
            start = time.monotonic()
            assert client.get("/livez").status_code == 200
            longest = max(longest, time.monotonic() - start)
            time.sleep(0.01)
    return longest


@pytest.mark.slow
@pytest.mark.alone
def test_long_requests_do_not_hold_up_others(bundle: Path) -> None:
    with run_server(bundle) as (_, address):
        for name, text in TEXTS.items():
            gaps = []
            for _ in range(6):
                idle = measure_longest_answer(address, 0.5)
                sender = threading.Thread(target=send, args=(address, text))
                sender.start()
                gaps.append(measure_longest_answer(address, 0, sender) - idle)
                if gaps[-1] < MAX_GAP_SECONDS:
                    break
            assert min(gaps) < MAX_GAP_SECONDS, f"{name}: /livez waited {min(gaps):.2f} s longer than without the request"
