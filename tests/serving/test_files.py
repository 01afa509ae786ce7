"""Files by the requests of LibreTranslate's clients, of DeepL's package and of our page."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import pytest
from fastapi.testclient import TestClient

import dragoman.serving.file_jobs
from capital_letters import CapitalTranslator, listen, make_client, make_models, make_service
from dragoman.documents.formats import SUFFIXES
from dragoman.serving.file_jobs import FileJobs, FileRequest
from dragoman.serving.request_queue import QueueFullError
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ApiKeys, ServerLimits, ServerSettings, hash_key

PAGE = b"<p>one <b>good</b> day</p>"


@pytest.fixture
def client() -> Iterator[TestClient]:
    settings = ServerSettings(limits=ServerLimits(max_file_bytes=10_000))
    with make_client(make_service(max_files=3), settings) as client:
        yield client


def wait(client: TestClient, job_id: str) -> dict[str, Any]:
    """Return the state of a job when it is finished."""
    for _ in range(6000):
        state: dict[str, Any] = client.get(f"/v1/files/{job_id}").json()
        if state["status"] in ("done", "error"):
            return state
        time.sleep(0.01)
    raise AssertionError("the job does not end")


def test_libretranslate_answers_with_an_address(client: TestClient) -> None:
    fields = {"source": "en", "target": "de", "api_key": ""}
    answer = client.post("/translate_file", data=fields, files={"file": ("my page.html", PAGE)}).json()
    assert list(answer) == ["translatedFileUrl"]
    file = client.get(answer["translatedFileUrl"])
    assert file.content == b"<p>ONE <b>GOOD</b> DAY</p>"
    assert "my%20page.de.html" in file.headers["content-disposition"]
    assert "sandbox" in file.headers["content-security-policy"]
    settings = client.get("/frontend/settings").json()
    assert (settings["filesTranslation"], settings["supportedFilesFormat"]) == (True, list(SUFFIXES))


def test_prefix_of_a_proxy_is_in_the_address() -> None:
    """The header has no effect without --proxy, and for the path of a route, so it does not get around a key."""
    fields = {"source": "en", "target": "de", "api_key": "key"}
    for proxies, prefix, expected in [
        (("127.0.0.1",), "/mt/", "http://testserver/mt/download_file/"),
        (("127.0.0.1",), "/a b", "http://testserver/download_file/"),
        ((), "/mt", "http://testserver/download_file/"),
    ]:
        settings = ServerSettings(proxies=proxies, api_keys=ApiKeys([bytes.fromhex(hash_key("key"))]))
        with make_client(make_service(), settings) as client:
            headers = {"X-Forwarded-Prefix": prefix}
            answer = client.post("/translate_file", data=fields, files={"file": ("a.html", PAGE)}, headers=headers)
            assert answer.json()["translatedFileUrl"].startswith(expected)
            headers = {"X-Forwarded-Prefix": "/download_file"}
            assert client.get("/download_file/languages", headers=headers).status_code == 404


def test_own_routes_show_progress_and_flags(client: TestClient, tmp_path: Path) -> None:
    files = {"file": ("a.json", b'{"a": "one", "b": "two big and small red things"}')}
    answer = client.post("/v1/files", data={"source": "en", "target": "de"}, files=files)
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    state = wait(client, answer.json()["id"])
    assert (state["done"], state["total"], state["flagged"]) == (2, 2, 1)
    assert state["flagged_texts"][0]["flags"] == ["untranslated"]
    url = f"/v1/files/{state['id']}"
    assert client.get(f"{url}/content").json() == {"a": "ONE", "b": "TWO BIG AND SMALL RED THINGS"}
    assert client.delete(url).status_code == 204
    assert client.get(f"{url}/content").json()["error"]["code"] == "file-not-found"
    detected = client.post("/v1/files", data={"target": "de"}, files={"file": ("a.html", b'<html lang="en">' + PAGE)}).json()
    assert wait(client, detected["id"])["source"] == "en"


def test_package_of_deepl_translates_documents() -> None:
    settings = ServerSettings(api_keys=ApiKeys([bytes.fromhex(hash_key("key"))]))
    output = io.BytesIO()
    with listen(make_service(), settings) as url:
        package = deepl.DeepLClient("key", server_url=url)
        handle = package.translate_document_upload(b"One day.\n", filename="a.txt", source_lang="EN", target_lang="DE")
        while not (status := package.translate_document_get_status(handle)).done:
            time.sleep(0.01)
        assert status.billed_characters == len("One day.")
        assert package.get_usage().character.count == len("One day.")
        package.translate_document_download(handle, output)
        assert output.getvalue() == b"ONE DAY.\n"
        with pytest.raises(deepl.DeepLException, match="does not exist"):
            package.translate_document_get_status(deepl.DocumentHandle(handle.document_id, "0" * 16))


def test_wrong_files_are_refused_in_the_shape_of_each_api(client: TestClient) -> None:
    def post(path: str, name: str = "a.txt", content: bytes = b"x", **fields: Any) -> tuple[int, Any]:
        answer = client.post(path, data=fields, files={"file": (name, content)})
        return answer.status_code, answer.json()

    pair: dict[str, Any] = {"source": "en", "target": "de"}
    no_boundary = client.post("/translate_file", content=b"x", headers={"Content-Type": "multipart/form-data"})
    assert (no_boundary.status_code, list(no_boundary.json())) == (400, ["error"])
    assert (
        client.post("/v1/files", data=pair).json()["error"]["message"].startswith("the body is no form of the type multipart")
    )
    assert client.post("/translate_file", files={"x": b""}, data=pair).json() == {
        "error": "Invalid request: missing file parameter"
    }
    assert post("/translate_file", target="de") == (400, {"error": "Invalid request: missing source parameter"})
    assert post("/translate_file", "a.json", b"a: b", **pair)[1]["error"].startswith("a.json: line 1")
    assert post("/translate_file", "a.xyz", **pair)[1]["error"].startswith("a.xyz: files that end with")
    unknown = "zz is not supported; the languages are de, en"
    assert post("/v2/document", target_lang="ZZ", source_lang="EN") == (400, {"message": unknown})
    assert post("/v2/document", target_lang="ZZ") == (400, {"message": unknown})
    assert post("/v2/document", target_lang="DE", glossary_id="x")[1]["message"].startswith("glossary_id: ")
    assert post("/v2/document", target_lang="DE", formality="less")[1]["message"].startswith("formality: ")
    assert post("/v1/files", scop="all", **pair)[1]["error"]["message"] == "scop: there is no such field"
    assert post("/v2/document", target_lang="DE", output_format="pdf")[1]["message"].startswith("output_format")
    assert post("/v1/files", content=b"x" * 20_000, **pair)[1]["error"]["code"] == "request-too-large"
    assert post("/v1/files", name="a" * 300 + ".txt", **pair)[0] == 400
    assert post("/v1/files", scope="some", **pair)[0] == 400
    state = wait(client, post("/v1/files", "a.html", b"%PDF", **pair)[1]["id"])
    assert state["error"]["code"] == "invalid-format"
    assert client.get(f"/v1/files/{state['id']}/content").json()["error"]["code"] == "invalid-format"
    assert client.get("/v1/files/..%2f..%2fetc").status_code == 404
    statuses = [post("/v1/files", **pair)[0] for _ in range(4)]
    assert statuses[-1] == 429, "the number of files of a client is bounded"


@pytest.mark.parametrize("charset", ["punycode", "undefined", "rot13", "utf-16"])
def test_forms_are_read_in_utf8_only(client: TestClient, charset: str) -> None:
    """Python's codec of Punycode would hold the server for minutes with a field of 1 MiB."""
    form = b'--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nde\r\n--x--\r\n'
    for path in ("/v1/files", "/v1/translate"):
        answer = client.post(
            path, content=form, headers={"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
        )
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the body is no form in UTF-8")


def test_files_expire_and_a_removed_job_ends(tmp_path: Path) -> None:
    translator = CapitalTranslator()
    translator.gate.clear()
    service = TranslationService(make_models((translator, ("en", "de"))), ServerLimits())
    with make_client(service, ServerSettings(file_dir=tmp_path)) as client:
        waiting, other = (
            client.post("/v1/files", data={"source": "en", "target": "de"}, files={"file": ("a.txt", b"one\n")}).json()["id"]
            for _ in range(2)
        )
        assert client.get(f"/v1/files/{waiting}/content").status_code == 503
        assert client.delete(f"/v1/files/{waiting}").status_code == 204
        translator.gate.set()
        assert wait(client, other)["status"] == "done"
        os.utime(tmp_path / other, (0, 0))
        assert client.get(f"/v1/files/{other}").status_code == 404


def test_job_ends_with_an_error_if_its_process_or_a_file_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = CapitalTranslator()
    service = TranslationService(make_models((translator, ("en", "de"))), ServerLimits())
    fields: dict[str, Any] = {"data": {"source": "en", "target": "de"}, "files": {"file": ("a.txt", b"one\n")}}
    with make_client(service, ServerSettings(file_dir=tmp_path)) as client:
        (tmp_path / "process-killed").mkdir()  # no process has its lock any more
        translator.gate.clear()
        job_id = client.post("/v1/files", **fields).json()["id"]
        assert translator.reached.wait(60)  # so the job writes no state
        path = tmp_path / job_id / "state"
        original = path.read_text(encoding="utf-8")
        for name in ("process-killed", "process-stopped"):
            path.write_text(json.dumps({**json.loads(original), "process": name}), encoding="utf-8")
            state = client.get(f"/v1/files/{job_id}").json()
            assert (state["status"], state["error"]["code"]) == ("error", "process-ended")
        assert client.get(f"/v1/files/{job_id}/content").json()["error"]["code"] == "process-ended"
        path.write_text(original, encoding="utf-8")
        translator.gate.set()
        assert wait(client, job_id)["status"] == "done"

        def lack_a_file(*arguments: object) -> None:
            raise FileNotFoundError("part of the package")

        monkeypatch.setattr(dragoman.serving.file_jobs, "parse_document", lack_a_file)
        state = wait(client, client.post("/v1/files", **fields).json()["id"])
        assert (state["status"], state["error"]["code"]) == ("error", "internal-error")


def test_full_disk_is_one_line_and_frees_the_part(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A job whose state cannot be written either is removed."""
    write, parts = Path.write_bytes, list[Path]()
    fields: dict[str, Any] = {"data": {"source": "en", "target": "de"}, "files": {"file": ("a.txt", b"one")}}

    def write_a_part(names: str, path: Path, content: bytes) -> int:
        if path.name in names:
            write(path, content[:1])
            parts.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", lambda path, content: write_a_part("translation", path, content))
    state = wait(client, client.post("/v1/files", **fields).json()["id"])
    assert (state["status"], state["error"]["code"]) == ("error", "disk-full")
    assert not parts[0].exists()
    monkeypatch.setattr(Path, "write_bytes", lambda path, content: write_a_part("original", path, content))
    answer = client.post("/v1/files", **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk-full")
    assert "No space left on device" in caplog.text
    monkeypatch.undo()
    text = Path.write_text

    def fail(path: Path, content: str, **options: Any) -> int:
        if '"done": 0' in content:
            return text(path, content, **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    answer = client.post("/translate_file", **fields)
    assert (answer.status_code, answer.json()["error"].partition(",")[0]) == (404, "the file does not exist")


def test_uploads_at_the_same_time_do_not_pass_the_limit(tmp_path: Path) -> None:
    jobs = FileJobs(make_service(max_files=3), tmp_path)
    request = FileRequest("a.txt", "en", "de")

    async def upload() -> list[object]:
        results = await asyncio.gather(*(jobs.create(request, b"one\n") for _ in range(8)), return_exceptions=True)
        await jobs.close()
        return list(results)

    results = asyncio.run(upload())
    assert sum(isinstance(result, QueueFullError) for result in results) == 5
    assert len(list(tmp_path.iterdir())) == 3


def test_upload_whose_client_goes_away_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jobs = FileJobs(make_service(), tmp_path)
    begins, goes_on = threading.Event(), threading.Event()
    write_bytes = Path.write_bytes

    def write_slowly(path: Path, content: bytes) -> int:
        begins.set()
        goes_on.wait(60)
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", write_slowly)

    async def leave() -> None:
        upload = asyncio.create_task(jobs.create(FileRequest("a.txt", "en", "de"), b"one\n"))
        await asyncio.to_thread(begins.wait, 60)
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        goes_on.set()
        while list(tmp_path.glob("[0-9a-f]*")):
            await asyncio.sleep(0.01)
        await jobs.close()

    asyncio.run(asyncio.wait_for(leave(), 90))


def test_pivot_keeps_the_tags_of_a_file() -> None:
    models = make_models((CapitalTranslator(), ("de", "en")), (CapitalTranslator("!"), ("en", "fr")), pivot="en")
    with make_client(TranslationService(models, ServerLimits())) as client:
        fields = {"source": "de", "target": "fr"}
        url = client.post("/translate_file", data=fields, files={"file": ("a.html", PAGE)}).json()["translatedFileUrl"]
        assert client.get(url).content == b"<p>ONE <b>GOOD</b> DAY!</p>"


def let_compute(seconds: float) -> None:
    """Wait until the threads of this process have taken so many seconds of processor time."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        time.sleep(0.01)


def test_reading_ends_when_its_job_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="dragoman.serving")
    content = b"".join(b"k%d: one\n" % number for number in range(50_000))  # the reader of YAML needs many seconds for it
    with make_client(make_service()) as client:
        files = {"file": ("a.yaml", content)}
        job = client.post("/v1/files", data={"source": "en", "target": "de"}, files=files).json()["id"]
        let_compute(0.2)
        assert client.delete(f"/v1/files/{job}").status_code == 204
        files = {"file": ("b.yaml", content)}
        client.post("/v1/files", data={"source": "en", "target": "de"}, files=files)
        let_compute(0.2)
        until = time.process_time() + 2
    assert time.process_time() < until  # the server has stopped
    ended = [record.message for record in caplog.records if "has ended" in record.message]
    assert sorted(ended) == [
        "the work on a file (.yaml) has ended: it was removed, or its client has left",
        "the work on a file (.yaml) has ended: the server stops",
    ]
