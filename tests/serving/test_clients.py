"""Clients have their own files, glossaries and usage, and a share of places and of the queue."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from capital_letters import make_client, make_service
from dragoman.serving import glossary_store
from dragoman.serving.app import build_app
from dragoman.serving.clients import Requester, identify_client
from dragoman.serving.file_jobs import FileJobs, FileRequest
from dragoman.serving.http_errors import HttpError
from dragoman.serving.request_queue import Job, RequestQueue
from dragoman.serving.settings import ApiKeys, ServerSettings, hash_key, reload_keys
from dragoman.serving.usage import SharedCounts, Usage

ANNA, BERT = {"Authorization": "Bearer anna"}, {"Authorization": "DeepL-Auth-Key bert"}
GLOSSARY = {"name": "x", "source_lang": "en", "target_lang": "de", "entries": "a\tb"}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{hash_key('anna')}\n{hash_key('bert')}\n")
    return path


def upload(client: TestClient, headers: dict[str, str] | None = None) -> Any:
    """Return the answer to a small file."""
    files = {"file": ("a.txt", b"one", "text/plain")}
    return client.post("/v1/files", data={"source": "en", "target": "de"}, files=files, headers=headers)


def at_address(app: Any, address: str) -> TestClient:
    """Return a client of an application with this address."""
    return TestClient(app, client=(address, 1), raise_server_exceptions=False)


def test_keys_see_their_own_things_only(keys: Path) -> None:
    with make_client(make_service(), ServerSettings(api_keys=ApiKeys.read(keys))) as client:
        file = "/v1/" + upload(client, ANNA).headers["location"]
        glossary = "/v2/glossaries/" + client.post("/v2/glossaries", json=GLOSSARY, headers=ANNA).json()["glossary_id"]
        for path in (file, file + "/content", glossary, glossary + "/entries"):
            assert client.get(path, headers=BERT).status_code == 404
        for path in (file, glossary):
            assert client.delete(path, headers=BERT).status_code == 404
        fields = {"texts": ["a"], "source": "en", "target": "de", "glossary": glossary.rpartition("/")[2]}
        assert client.post("/v1/translate", json=fields, headers=BERT).status_code == 404
        assert client.post("/v1/translate", json=fields, headers=ANNA).status_code == 200
        assert client.get("/v2/glossaries", headers=BERT).json() == {"glossaries": []}
        group = glossary.replace("v2", "v3")
        assert client.get("/v3/glossaries", headers=BERT).json() == {"glossaries": []}
        assert client.patch(group, json={"name": "mine"}, headers=BERT).status_code == 404
        assert client.patch(group, json={"name": "mine"}, headers=ANNA).json()["name"] == "mine"
        assert len(client.get("/v2/glossaries", headers=ANNA).json()["glossaries"]) == 1
        client.post("/v2/translate", json={"text": ["four"], "source_lang": "EN", "target_lang": "DE"}, headers=ANNA)
        usage = [client.get("/v2/usage", headers=key).json()["character_count"] for key in (ANNA, BERT)]
        assert usage == [4, 0]
        for path in (file, glossary):
            assert client.delete(path, headers=ANNA).status_code == 204


def test_documents_of_another_key_are_unknown(keys: Path) -> None:
    with make_client(make_service(), ServerSettings(api_keys=ApiKeys.read(keys))) as client:
        files = {"file": ("a.txt", b"one", "text/plain")}
        names = client.post("/v2/document", data={"target_lang": "DE", "source_lang": "EN"}, files=files, headers=ANNA).json()
        for path in ("", "/result"):
            url = f"/v2/document/{names['document_id']}{path}"
            assert client.post(url, json={"document_key": names["document_key"]}, headers=BERT).status_code == 404


def test_key_in_the_body_owns_the_file(keys: Path) -> None:
    with make_client(make_service(), ServerSettings(api_keys=ApiKeys.read(keys))) as client:
        files = {"file": ("a.txt", b"one", "text/plain")}
        data = {"source": "en", "target": "de", "api_key": "anna"}
        url = client.post("/translate_file", data=data, files=files).json()["translatedFileUrl"]
        job = url.rpartition("/")[2]
        assert client.get(f"/v1/files/{job}", headers=ANNA).status_code == 200
        assert client.get(f"/v1/files/{job}", headers=BERT).status_code == 404
        assert client.get(f"/download_file/{job}").status_code == 200  # the address is a secret


def test_removed_keys_are_refused_after_a_reload(keys: Path) -> None:
    settings = ServerSettings(api_keys=ApiKeys.read(keys))
    client = make_client(make_service(), settings)
    assert client.get("/v2/usage", headers=ANNA).status_code == 200
    keys.write_text(hash_key("bert"))
    reload_keys(settings)
    assert [client.get("/v2/usage", headers=key).status_code for key in (ANNA, BERT)] == [403, 200]
    keys.write_text("")
    reload_keys(settings)
    assert [client.get("/v2/usage", headers=key).status_code for key in (ANNA, BERT)] == [403, 200]


def test_one_client_leaves_places_for_files_to_others(tmp_path: Path) -> None:
    """The first client has half of the places, and the next one half of what is left."""

    async def run() -> list[int]:
        jobs = FileJobs(make_service(max_files=8), tmp_path)
        statuses = []
        for name in "aaaaabbbacd":
            try:
                await jobs.create(FileRequest("a.txt", "en", "de", client=Requester(name)), b"one")
                statuses.append(202)
            except HttpError as error:
                statuses.append(error.status)
        await jobs.close()
        return statuses

    assert asyncio.run(run()) == [202] * 4 + [429] + [202] * 2 + [429, 429, 202, 202]


def test_one_client_leaves_room_for_glossaries_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossary_store, "MAX_GLOSSARIES", 4)
    app = build_app(make_service(), ServerSettings())
    statuses = [at_address(app, address).post("/v2/glossaries", json=GLOSSARY).status_code for address in "aaabb"]
    assert statuses == [201, 201, 456, 201, 456]


def test_one_client_leaves_room_in_the_queue_and_in_batches() -> None:
    """A client with many jobs, each of a kind of its own, waits for half of the queue, and others have their turn."""
    gate, order = threading.Event(), []

    def translate(key: str, lines: Any) -> list[str]:
        gate.wait(60)
        order.append(key)
        return list(lines)

    queue = RequestQueue(translate, max_tokens=1000)

    def put(key: str, client: str) -> bool:
        return queue.try_put(Job(key, ["x" * 184], float("inf"), on_done=lambda results, error: None, client=client))

    accepted = sum(put(f"a{number}", "a") for number in range(24))
    assert 10 <= accepted <= 12  # the first one may have left the queue
    assert put("b", "b")
    gate.set()
    queue.close()
    assert queue.join(60)
    assert order.index("b") <= 2


def test_addresses_are_clients() -> None:
    def name(address: str) -> str:
        return identify_client({"client": (address, 1)}).name

    assert name("192.0.2.1") == name("::ffff:192.0.2.1") != name("192.0.2.2")
    assert name("2001:db8::1") == name("2001:db8::ffff%eth0") != name("2001:db8:0:1::1")
    assert name("testclient") != name("")


def test_usage_is_counted_by_key_over_processes() -> None:
    shared = SharedCounts(multiprocessing.get_context("spawn"), 2)
    first, second = Usage(shared, 0), Usage(shared, 1)
    for usage, number, owner in ((first, 1, "a" * 16), (second, 10, "b" * 16), (second, 100, "a" * 16), (first, 1000, "")):
        usage.add(number, owner)
    assert [Usage(shared, 0).count(owner) for owner in ("a" * 16, "b" * 16, "c" * 16, "")] == [101, 10, 0, 1000]
    alone = Usage()
    alone.add(5, "a")
    assert (alone.count("a"), alone.count()) == (5, 0)
