"""Promises of the server under load, by the quick form of `benchmarks/serving/reliability.py`, and bad input to every API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from capital_letters import make_client, make_service
from dragoman.serving.app import build_app
from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.middleware import RequestGuard
from dragoman.serving.settings import ApiKeys, ServerLimits, ServerSettings, hash_key
from dragoman.text.sentences import cut_long_spans

KEY = {"Authorization": "Bearer secret"}
# Of each API: the path, the field of the texts, the fields of a request that works, and the shape of an error.
APIS: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "LibreTranslate": ("/translate", "q", {"q": ["one"], "source": "en", "target": "de"}, {"error": str}),
    "DeepL": ("/v2/translate", "text", {"text": ["one"], "source_lang": "EN", "target_lang": "DE"}, {"message": str}),
    "own": (
        "/v1/translate",
        "texts",
        {"texts": ["one"], "source": "en", "target": "de"},
        {"error": {"code": str, "message": str}},
    ),
}
TEXTS = "texts"
"""Stands for the name of the field of the texts in `BAD_FIELDS`."""
BAD_FIELDS: list[tuple[dict[str, Any], int]] = [
    ({TEXTS: ...}, 400),
    ({"target": ...}, 400),
    ({TEXTS: 123}, 400),
    ({TEXTS: None}, 400),
    ({TEXTS: [1]}, 400),
    ({TEXTS: [None]}, 400),
    ({TEXTS: {"a": "b"}}, 400),
    ({TEXTS: True}, 400),
    ({TEXTS: ["x"] * 100_000}, 400),
    ({"target": 7}, 400),
    ({"target": ["de"]}, 400),
    ({"target": "tlh"}, 400),
    ({"source": "tlh"}, 400),
    ({"source": {}}, 400),
    ({TEXTS: ["x" * 600_000]}, 413),
    ({TEXTS: ["\ud800"]}, 400),
]
BAD_BODIES: list[tuple[bytes, int]] = [
    (b'{"q": "\xff"}', 400),
    ('{"q": "one"}'.encode("utf-16"), 400),
    (b"null", 400),
    (b"[" * 100_000, 400),
    (b"x" * 600_000, 413),
]


def get_shape(value: Any) -> Any:
    return {name: get_shape(item) for name, item in value.items()} if isinstance(value, dict) else type(value)


@pytest.fixture(scope="module")
def client() -> TestClient:
    keys = ApiKeys([bytes.fromhex(hash_key("secret"))])
    return make_client(make_service(), ServerSettings(limits=ServerLimits(max_body_bytes=550_000), api_keys=keys))


@pytest.mark.parametrize("name", APIS)
def test_bad_input_is_one_line_in_the_shape_of_each_api(client: TestClient, name: str) -> None:
    path, texts_name, fields, shape = APIS[name]
    names = {TEXTS: texts_name} | {field.split("_")[0]: field for field in fields if field != texts_name}

    def post(body: bytes, headers: dict[str, str] = KEY) -> Any:
        return client.post(path, content=body, headers={"Content-Type": "application/json", **headers})

    def check(answer: Any, status: int, case: object) -> None:
        assert answer.status_code == status, (case, answer.text)
        assert get_shape(answer.json()) == shape, case
        assert "\n" not in answer.text, case

    for changes, status in BAD_FIELDS:
        changed = fields | {names[field]: value for field, value in changes.items()}
        body = json.dumps({field: value for field, value in changed.items() if value is not ...}).encode()
        check(post(body), status, str(changes)[:60])
    for body, status in BAD_BODIES:
        check(post(body), status, body[:20])
    good = json.dumps(fields).encode()
    check(post(good, {"Authorization": "Bearer wrong"}), 403, "wrong key")
    check(post(good, {}), 403 if name == "LibreTranslate" else 401, "no key")
    empty = post(json.dumps(fields | {texts_name: ["", " "]}).encode()).json()
    rows = empty.get("translations") or [{"text": text} for text in empty["translatedText"]]
    assert [row["text"] for row in rows] == ["", " "]


def test_client_that_sends_too_slowly_is_refused() -> None:
    app = build_app(make_service(), ServerSettings(limits=ServerLimits(read_seconds=0.01)))
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return await asyncio.Future()  # the rest of the body never arrives

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"x"), (b"content-length", b"10")]
    scope = {"type": "http", "method": "POST", "path": "/translate", "query_string": b"", "headers": headers, "state": {}}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408


def test_others_have_their_turn_while_a_body_is_read() -> None:
    body = bytes(range(256)) * 1000
    parts: list[bytes] = []
    turns: list[int] = []

    async def count_turns() -> None:
        while True:
            turns.append(len(parts))
            await asyncio.sleep(0)

    async def read_parts(scope: Any, receive: Any, send: Any) -> None:
        counting = asyncio.create_task(count_turns())
        has_more = True
        while has_more:
            message = await receive()
            parts.append(message["body"])
            has_more = message["more_body"]
        counting.cancel()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False} if not parts else await asyncio.Future()

    guard = RequestGuard(read_parts, settings=ServerSettings(), metrics=ServerMetrics())
    scope = {"type": "http", "method": "POST", "path": "/v1/files", "headers": [], "client": ("127.0.0.1", 1)}
    asyncio.run(guard(scope, receive, None))  # type: ignore[arg-type]
    assert b"".join(parts) == body
    assert max(map(len, parts)) <= 64 << 10
    assert set(turns) >= set(range(1, len(parts)))


@pytest.mark.parametrize("has_begun", [False, True])
def test_request_that_the_end_of_the_server_cancels_gets_an_answer(has_begun: bool) -> None:
    """The server cancels requests that do not end in time. An answer that has begun is cut."""
    sent: list[Any] = []
    messages: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def run() -> None:
        waits = asyncio.Event()

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            if has_begun:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            waits.set()
            await asyncio.Future()

        async def receive() -> dict[str, Any]:
            return messages.pop() if messages else await asyncio.Future()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        guard = RequestGuard(answer, settings=ServerSettings(), metrics=ServerMetrics())
        scope = {"type": "http", "method": "POST", "path": "/v1/translate", "headers": [], "client": ("127.0.0.1", 1)}
        task = asyncio.create_task(guard(scope, receive, send))  # type: ignore[arg-type]
        await waits.wait()
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled() == has_begun

    asyncio.run(run())
    assert [message.get("status") for message in sent] == ([200] if has_begun else [503, None])
    assert has_begun or json.loads(sent[1]["body"])["error"]["code"] == "server-stops"


def test_requests_beyond_the_memory_are_refused_at_once() -> None:
    client = make_client(make_service(), ServerSettings(limits=ServerLimits(max_pending_bytes=40_000)))
    assert client.post("/translate", json={"q": "x", "source": "en", "target": "de"}).status_code == 200
    answer = client.post("/translate", json={"q": "x" * 10_000, "source": "en", "target": "de"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert client.get("/health").status_code == 200


def test_long_sentence_is_cut_at_spaces_and_never_inside_a_protected_span() -> None:
    text = "one two three http://example.org/a four"
    spans = cut_long_spans(text, [(0, len(text))], [(14, 34)], 12)
    parts = [text[start:end] for start, end in spans]
    assert " ".join(parts) == text
    assert "http://example.org/a" in parts
    assert max(len(part) for part in parts if "http" not in part) <= 12
