"""Requests with long and odd texts do not hold up others: the server answers `/livez` meanwhile, and stops when told to."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from test_server_process import read_cpu_seconds, run_server

from dragoman.serving.own_api import MAX_WEIGHED_CHARACTERS
from random_parsers import parser_bundle

MIB = 2**20
# A request may hold the interpreter for 0.2 s. A slow machine, which must tell a freeze from that, gets five times as much.
MAX_GAP_SECONDS = 1.0
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
TEXTS = {
    "dots": ".",
    "letters": "a",
    "Han": "\u4e2d",
    "marks": "\u0315\u0300",
    "lines": "a.\n",
    "tags": "<a ",
    "nested tags": "<b>",
    "braces": "{",
    "blanks": " ",
    "percent signs": "%0",
    "addresses": "http://a",
    "references": "&amp;",
    "words": "one two ",
}


@dataclass(frozen=True)
class Sent:
    """Request to send. content_type: that of the body"""

    path: str
    body: bytes
    content_type: str = JSON


def send_json(path: str, fields: dict[str, object]) -> Sent:
    return Sent(path, json.dumps(fields, ensure_ascii=False).encode())


def send_file(path: str, name: str, content: str, **fields: str) -> Sent:
    """Return an upload of a file, in a form with other fields."""
    parts = [f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}' for key, value in fields.items()]
    parts.append(f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n{content}')
    body = "".join(f"--limit\r\n{part}\r\n" for part in parts) + "--limit--\r\n"
    return Sent(path, body.encode(), "multipart/form-data; boundary=limit")


def fill(piece: str) -> str:
    """Return a text of nearly the largest size of a body."""
    return f"a{piece * ((MIB - 4096) // len(piece.encode()))}a"


def make_requests() -> dict[str, Sent]:
    """Return requests with a text of each kind, to each interface, and with many or nested fields."""
    pair, deepl_pair = {"source": "en", "target": "de"}, {"source_lang": "EN", "target_lang": "DE"}
    requests: dict[str, Sent] = {}
    for name, piece in TEXTS.items():
        text = fill(piece)
        requests[f"LibreTranslate, {name}"] = send_json("/translate", {"q": text, "format": "html", **pair})
    for name in ("dots", "tags", "percent signs"):
        text = fill(TEXTS[name])
        requests[f"DeepL, {name}"] = send_json("/v2/translate", {"text": [text], "tag_handling": "xml", **deepl_pair})
        requests[f"own, {name}"] = send_json("/v1/translate", {"texts": [text], **pair})
        requests[f"streamed, {name}"] = send_json("/v1/translate/stream", {"texts": [text], "markup": "html", **pair})
        requests[f"detection, {name}"] = send_json("/detect", {"q": text})
        requests[f"glossary, {name}"] = send_json(
            "/v2/glossaries", {"name": "a", "entries": text, "entries_format": "csv", **deepl_pair}
        )
        requests[f"terms, {name}"] = send_json(
            "/v1/translate", {"texts": ["a"], "glossary": [{"source": text[:900], "target": "a"}] * 500, **pair}
        )
        requests[f"links, {name}"] = send_json("/v1/translate", {"texts": [text], "alignment": True, **pair})
        requests[f"weights, {name}"] = send_json("/v1/translate", {"texts": [text], "attention": True, **pair})
        requests[f"weights of a shorter text, {name}"] = send_json(
            "/v1/translate", {"texts": [text[:MAX_WEIGHED_CHARACTERS]], "attention": True, **pair}
        )
        requests[f"DeepL's file of HTML, {name}"] = send_file("/v2/document", "a.html", text, **deepl_pair)
        requests[f"LibreTranslate's file of Markdown, {name}"] = send_file("/translate_file", "a.md", text, **pair)
        requests[f"file of text, {name}"] = send_file("/v1/files", "a.txt", text, **pair)
        requests[f"file of subtitles, {name}"] = send_file(
            "/v1/files", "a.srt", f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n", **pair
        )
        requests[f"file of JSON, {name}"] = send_file(
            "/v1/files", "a.json", json.dumps({"a": text}, ensure_ascii=False), **pair
        )
        requests[f"words of a parser, {name}"] = send_json("/v1/parse", {"sentences": [text], "tokenize": "ptb"})
    deep = "[" * (MIB // 2 - 100) + "]" * (MIB // 2 - 100)
    requests |= {
        "nested lists": Sent("/translate", deep.encode()),
        "nested objects": Sent("/v1/translate", ('{"a":' * (MIB // 6)).encode()),
        "nested lists in a field": Sent("/v2/translate", f'{{"text": {"[" * 900}{"]" * 900}}}'.encode()),
        "many fields": send_json("/translate", {f"a{number}": "a" for number in range(MIB // 16)}),
        "many texts": send_json("/v1/translate", {"texts": ["a"] * (MIB // 6), **pair}),
        "many trees": send_json("/v1/parse", {"sentences": ["a b c"] * 1000, "alternatives": 5}),
        "texts of wrong types": send_json("/v2/translate", {"text": [1] * (MIB // 4), **deepl_pair}),
        "long number": Sent("/translate", f'{{"q": {"1" * (MIB - 100)}}}'.encode()),
        "long fraction": Sent("/translate", f'{{"q": 1.{"1" * (MIB - 100)}}}'.encode()),
        "escapes": Sent("/translate", f'{{"q": "{chr(92)}u00e9'.encode() + rb"\u00e9" * (MIB // 7) + b'"}'),
        "form of many fields": Sent("/translate", b"a=b&" * (MIB // 4 - 100), FORM),
        "form of one field": Sent("/v2/translate", b"text=" + b"%20" * (MIB // 3 - 100), FORM),
        "file of many fields": send_file("/v1/files", "a.txt", "a", **{f"a{number}": "a" for number in range(MIB // 64)}),
        "file of near limits": send_file("/v1/files", "a.txt", "\r\n--limitx" * (14 * MIB // 10), **pair),
        "file as a form of empty fields": Sent("/v1/files", b"&" * 14 * MIB, FORM),
        "file of nested JSON": send_file("/v1/files", "a.json", '{"a":' * 200_000, **pair),
        "file of nested XML": send_file("/v1/files", "a.xlf", "<xliff>" + "<a>" * 200_000, **pair),
    }
    return requests


def send(address: str, request: Sent, seconds: float = 3) -> None:
    """Send a request. The client goes away if the answer takes longer than some seconds."""
    with suppress(httpx.TransportError), httpx.Client(base_url=address, timeout=seconds) as client:
        client.post(request.path, content=request.body, headers={"content-type": request.content_type})


def measure_longest_wait(address: str, process_id: int, sender: threading.Thread) -> float:
    """Return the longest time that an answer of /livez takes, and in which the server computes, while a request is sent.

    The second time leaves out what other programs on the machine take.
    """
    longest = 0.0
    with httpx.Client(base_url=address, timeout=60) as client:
        while sender.is_alive():
            start, processor_start = time.monotonic(), read_cpu_seconds(process_id)
            assert client.get("/livez").status_code == 200
            computed = read_cpu_seconds(process_id) - processor_start
            longest = max(longest, min(time.monotonic() - start, computed))
            time.sleep(0.01)
    return longest


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the processor time from /proc")
def test_long_requests_do_not_hold_up_others(bundle: Path, tmp_path: Path) -> None:
    waits: dict[str, float] = {}
    with run_server(bundle, parser_bundle(tmp_path / "parser")) as (process, address):
        for name, request in make_requests().items():
            for _ in range(4):
                sender = threading.Thread(target=send, args=(address, request))
                sender.start()
                wait = measure_longest_wait(address, process.pid, sender)
                waits[name] = min(wait, waits.get(name, wait))
                if wait < MAX_GAP_SECONDS:
                    break
    assert {name: wait for name, wait in waits.items() if wait >= MAX_GAP_SECONDS} == {}
