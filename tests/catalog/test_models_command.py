"""`dragoman models`, and models that `translate` and `translate-file` fetch by name, from a local copy of each index."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import socket
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import safetensors
from click.testing import CliRunner

import dragoman
from dragoman.bundle import WEIGHTS_FILE, compute_bundle_digest, load_bundle, read_config, replace_config
from dragoman.catalog import download, indexes
from dragoman.catalog.download import FetchError, read_document
from dragoman.catalog.entries import RemoteFile
from dragoman.catalog.fetch import fetch_model
from dragoman.catalog.listing import MIRROR_VARIABLE, find_model, refresh
from dragoman.cli.main import cli
from dragoman.config import recipe_from_dict
from dragoman.conversion.hub import download_model
from dragoman.errors import DataError, DragomanError
from dragoman.io.storage import MANIFEST_FILE
from dragoman.model_packages import get_fetched_folder
from expected_errors import raises_code
from folder_server import serve_folder

FIREFOX_ENTRY: dict[str, Any] = {
    "architecture": "tiny",
    "releaseStatus": "Release",
    "sourceLanguage": "en",
    "targetLanguage": "pt",
    "files": {
        "model": {"path": "models/a/model.enpt.bin.gz", "uncompressedSize": 17, "uncompressedHash": "0" * 64},
        "vocab": {"path": "models/a/vocab.enpt.spm.gz"},
        "lexicalShortlist": {"path": "models/a/lex.enpt.bin.gz"},
    },
    "metrics": {"flores200-plus": {"bleu": 49.44}},
}


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """Folder of a local server and its address, which takes the place of the indexes; the cache is empty."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serve_folder(folder) as address:
        monkeypatch.setenv(MIRROR_VARIABLE, address)
        write_index(folder, "firefox", {"generated": "", "baseUrl": address, "models": {"en-pt": [FIREFOX_ENTRY]}})
        write_index(folder, "opus-mt", [{"id": "Helsinki-NLP/opus-mt-en-fr", "tags": ["translation", "license:apache-2.0"]}])
        entry = {"from_code": "en", "to_code": "de", "links": ["ipfs://Qm", f"{address}/translate-en_de-1_0.argosmodel"]}
        write_index(folder, "argos", [entry])
        yield folder, address


def write_index(folder: Path, name: str, document: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")


def run(*arguments: str, status: int = 0, **options: Any) -> Any:
    """Run a command. The status of an error of dragoman's is that of `main`, and its message is in `exception`."""
    result = CliRunner().invoke(cli, arguments, **options)
    reached = result.exception.exit_code if isinstance(result.exception, DragomanError) else result.exit_code
    assert reached == status, result.output
    return result


def test_list_that_comes_with_dragoman_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    listed = json.loads(run("models", "--from", "en", "--to", "pt", "--json").stdout)["models"]
    assert [entry["name"] for entry in listed] == [
        "firefox-en-pt",
        "firefox-en-pt-tiny",
        "opus-mt-tc-big-en-pt",
        "argos-en-pt",
    ]
    # metadata.json of mozilla/firefox-translations-models, and the size in its tiny file.
    assert [entry["weight_bytes"] for entry in listed] == [31_561_787, 17_140_836, None, None]
    assert {entry["bundle"] for entry in listed} == {None}
    assert len(json.loads(run("models", "--json").stdout)["models"]) > 900
    lines = run("models", "--to", "pt").stdout.splitlines()
    assert max(map(len, lines)) <= 80


def test_refreshed_indexes_take_the_place_of_the_list(mirror: tuple[Path, str]) -> None:
    run("models", "--refresh")
    model = find_model("en-pt")
    assert model is not None
    assert (model.name, model.license, model.weight_bytes, model.score) == (
        "firefox-en-pt",
        "MPL-2.0",
        17,
        "BLEU 49.4 (FLORES)",
    )
    assert [file.name for file in model.files] == ["model.enpt.bin", "lex.enpt.bin", "vocab.enpt.spm"]
    assert [file.sha256 for file in model.files] == ["0" * 64, None, None]
    assert find_model("firefox-en-es") is None
    french = find_model("opus-mt-en-fr")
    assert french is not None
    assert (french.license, french.hub_name) == ("apache-2.0", "Helsinki-NLP/opus-mt-en-fr")


def test_refresh_without_a_network_says_what_to_do(mirror: tuple[Path, str]) -> None:
    (mirror[0] / "argos.json").unlink()
    with raises_code("model-unavailable", "save this file, fetched elsewhere, as "):
        refresh("argos")


def test_refreshed_index_names_models_as_the_shipped_list() -> None:
    """The first architecture has the plain name, released or not. Of its versions, a released one is listed."""
    changes: list[dict[str, Any]] = [
        {"architecture": "cnn"},
        {},
        {"architecture": "base-memory", "releaseStatus": "Nightly", "metrics": None},
        {"architecture": "base", "releaseStatus": "Nightly", "metrics": None},
        {"architecture": "base"},
    ]
    document = {"baseUrl": "https://x.org/", "models": {"en-pt": [FIREFOX_ENTRY | change for change in changes]}}
    models = indexes.parse_index(indexes.INDEXES["firefox"], json.dumps(document).encode())
    assert [(model.name, model.score) for model in models] == [
        ("firefox-en-pt", None),
        ("firefox-en-pt-base", "BLEU 49.4 (FLORES)"),
        ("firefox-en-pt-tiny", "BLEU 49.4 (FLORES)"),
    ]


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("firefox", []),
        ("firefox", {"baseUrl": "https://x.org", "models": {"a": [{"architecture": "tiny"}]}}),
        ("firefox", {"baseUrl": "file:///etc", "models": {"a": [FIREFOX_ENTRY]}}),
        ("firefox", {"baseUrl": "https://x.org", "models": {"a": [FIREFOX_ENTRY | {"sourceLanguage": "../.."}]}}),
        (
            "firefox",
            {"baseUrl": "https://x.org", "models": {"a": [FIREFOX_ENTRY | {"files": {"model": {"path": "a/.."}}}]}},
        ),
        ("argos", [{"from_code": "en", "to_code": "de", "links": ["https://x.org/..%2f"]}]),
        ("argos", [{"from_code": "en", "links": ["https://x.org/a"]}]),
        ("opus-mt", [{"name": "Helsinki-NLP/opus-mt-en-de"}]),
        ("opus-mt", "nothing"),
    ],
)
def test_index_of_another_form_is_refused(name: str, document: Any) -> None:
    with raises_code("invalid-data", "update dragoman"):
        indexes.parse_index(indexes.INDEXES[name], json.dumps(document).encode())
    for content in (b"", b"\xff", b"[" * 100_000):
        with raises_code("invalid-data"):
            indexes.parse_index(indexes.INDEXES[name], content)


def test_damaged_copy_of_an_index_gives_the_list_that_comes_with_dragoman(mirror: tuple[Path, str]) -> None:
    refresh("argos")
    assert find_model("argos-en-pt") is None
    (get_fetched_folder().parent / "indexes" / "argos.json").write_text("{", encoding="utf-8")
    assert find_model("argos-en-pt") is not None


@pytest.fixture
def package(bundle: Path, mirror: tuple[Path, str]) -> Path:
    """Package of Argos Translate on the server."""
    pytest.importorskip("ctranslate2", reason="a package holds a model of CTranslate2, which is not installed")
    from dragoman.export.argos import export_argos

    path = mirror[0] / "translate-en_de-1_0.argosmodel"
    export_argos(load_bundle(bundle), path)
    refresh("argos")
    return path


def test_model_is_fetched_once_by_name(package: Path, corpus: Path, tmp_path: Path) -> None:
    """The outputs are those of the package that `convert` converts."""
    source = tmp_path / "source.en"
    source.write_text("".join((corpus / "test.en").read_text().splitlines(keepends=True)[:5]), encoding="utf-8")
    result = run("translate", "argos-en-de", str(source))
    assert "argos-en-de: is fetched this once (size not known, license stated by its page)" in result.stderr
    dragoman.convert(package, tmp_path / "converted")
    assert result.stdout == run("translate", str(tmp_path / "converted"), str(source)).stdout
    package.unlink()
    again = run("translate", "argos-en-de", str(source))
    assert again.stdout == result.stdout
    assert "fetched" not in again.stderr
    listed = json.loads(run("models", "--json").stdout)["models"]
    fetched = next(entry for entry in listed if entry["name"] == "argos-en-de")
    assert (fetched["place"], fetched["bundle"]) == ("machine", str(get_fetched_folder() / "argos-en-de"))
    assert dragoman.load("argos-en-de", task="translation").translate(["one"])[0].text
    assert [folder.name for folder in get_fetched_folder().iterdir()] == ["argos-en-de"]
    (tmp_path / "note.txt").write_text("one two\n", encoding="utf-8")
    run("translate-file", "argos-en-de", str(tmp_path / "note.txt"), "-o", str(tmp_path / "out"))
    assert (tmp_path / "out" / "note.txt").is_file()


def test_model_of_the_hub_is_converted_to_int8(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot is an installed package of Argos Translate: `convert` detects the format."""
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path)
    (folder,) = tmp_path.glob("translate-*")
    monkeypatch.setattr(hub.HfApi, "model_info", lambda *_, **__: None)
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: str(folder))
    run("models", "--fetch", "opus-mt-en-fr")
    with safetensors.safe_open(get_fetched_folder() / "opus-mt-en-fr" / WEIGHTS_FILE, "numpy") as weights:
        kinds = [weights.get_slice(name).get_dtype() for name in weights.keys()]  # noqa: SIM118
    assert "I8" in kinds


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Proxy that refuses all connections with 407, for addresses of https. Yield its address."""

    class Refusal(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_error(407)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusal) as server:
        address = f"127.0.0.1:{server.server_port}"
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@{address}")
        monkeypatch.setattr(urllib.request, "_opener", None)  # urlopen reads the environment once
        Thread(target=server.serve_forever, daemon=True).start()
        yield address
        server.shutdown()


def test_refusing_proxy_is_named_without_its_password(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hint = f"407 Proxy Authentication Required; check the proxy {proxy} of HTTPS_PROXY"
    with pytest.raises(FetchError, match=hint) as caught:
        read_document("https://example.invalid/index.json")
    assert "secret" not in str(caught.value)
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    with pytest.raises(DataError, match=hint):
        download_model("owner/model-that-no-cache-has", None)


def test_silent_server_ends_after_a_stated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.1)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(FetchError, match=r"within 0.1 seconds; if the network"),
    ):
        read_document(f"http://127.0.0.1:{server.getsockname()[1]}/index.json")


def test_pair_names_the_fetched_model(package: Path) -> None:
    """Once argos-ga-en is here, ga-en is this model, without a look at the list."""
    run("models", "--fetch", "argos-en-de")
    (get_fetched_folder() / "argos-en-de").rename(get_fetched_folder() / "argos-ga-en")
    assert json.loads(run("info", "ga-en", "--json").stdout)["bundle"].endswith("argos-ga-en")


def test_without_the_server_the_message_says_what_to_do(mirror: tuple[Path, str]) -> None:
    refresh("argos")
    result = run("translate", "argos-en-de", status=1, input="one\n")
    message = str(result.exception)
    assert message.startswith("http://127.0.0.1")
    assert "404" in message
    assert message.endswith(f"then: dragoman convert the file -o {get_fetched_folder() / 'argos-en-de'}")
    assert not list(get_fetched_folder().iterdir())


def test_unknown_name_is_refused(mirror: tuple[Path, str]) -> None:
    assert "see dragoman models --all" in run("models", "--fetch", "en-xx", status=2).stderr
    assert "one that dragoman models lists" in str(run("translate", "nothing", status=1).exception)


def test_download_is_unpacked_and_checked(mirror: tuple[Path, str], tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000
    (mirror[0] / "a.bin.gz").write_bytes(gzip.compress(content))
    arrived: list[int] = []
    file = RemoteFile(f"{mirror[1]}/a.bin.gz", "a.bin", hashlib.sha256(content).hexdigest())
    download.download_file(file, tmp_path, arrived.append)
    assert (tmp_path / "a.bin").read_bytes() == content
    assert sum(arrived) == (mirror[0] / "a.bin.gz").stat().st_size
    with raises_code("model-unavailable", "SHA-256"):
        download.download_file(RemoteFile(file.url, "b.bin", "0" * 64), tmp_path, arrived.append)


def test_hostile_downloads_are_refused(mirror: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that unpacks to more than the bound, one that is cut short, one that is no .gz, and an index without end."""
    packed = gzip.compress(bytes(10_000_000))
    for name, content in (("bomb.gz", packed), ("cut.gz", packed[:-20]), ("text.gz", b"no gzip")):
        (mirror[0] / name).write_bytes(content)
    monkeypatch.setattr(download, "MAX_FILE_BYTES", 1_000_000)
    for name, problem in (("bomb.gz", "more than 1,000,000 bytes"), ("text.gz", "damaged .gz")):
        with raises_code("model-unavailable", problem):
            download.download_file(RemoteFile(f"{mirror[1]}/{name}", "x"), tmp_path, lambda _: None)
    monkeypatch.undo()
    with raises_code("model-unavailable", "before the whole file"):
        download.download_file(RemoteFile(f"{mirror[1]}/cut.gz", "x"), tmp_path, lambda _: None)
    monkeypatch.setattr(download, "MAX_INDEX_BYTES", 1000)
    with raises_code("model-unavailable", "more than 1,000 bytes"):
        download.read_document(f"{mirror[1]}/bomb.gz")
    with raises_code("model-unavailable"):
        download.read_document("http://127.0.0.1:1/firefox.json")


def test_folder_named_as_a_model_takes_precedence(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(bundle, tmp_path / "firefox-en-pt")
    monkeypatch.chdir(tmp_path)
    assert (tmp_path / "firefox-en-pt" / MANIFEST_FILE).is_file()
    result = run("translate", "firefox-en-pt", input="one\n")
    assert result.stdout.strip()
    assert "fetched" not in result.stderr


def test_advice_for_no_network_is_only_for_errors_of_the_connection(mirror: tuple[Path, str]) -> None:
    refresh("argos")
    model = find_model("argos-en-de")
    assert model is not None
    (mirror[0] / "translate-en_de-1_0.argosmodel").write_bytes(b"other")
    changed = replace(model, files=(replace(model.files[0], sha256="0" * 64),))
    with raises_code("model-unavailable") as raised:
        fetch_model(changed)
    assert str(raised.value).endswith("by its SHA-256")
    (mirror[0] / "translate-en_de-1_0.argosmodel").unlink()
    with raises_code("model-unavailable", "without a network, fetch "):
        fetch_model(changed)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_is_no_error_of_the_connection(mirror: tuple[Path, str], tmp_path: Path) -> None:
    (mirror[0] / "a.bin").write_bytes(bytes(1000))
    (tmp_path / "a.bin").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        download.download_file(RemoteFile(f"{mirror[1]}/a.bin", "a.bin", None), tmp_path, lambda _: None)


def test_damaged_model_is_left_out_of_the_list(bundle: Path, mirror: tuple[Path, str]) -> None:
    for name in ("argos-xx-aa", "argos-xx-bb"):
        shutil.copytree(bundle, get_fetched_folder() / name)
    (get_fetched_folder() / "argos-xx-aa" / "config.json").write_text("{", encoding="utf-8")
    result = run("models", "--json")
    names = [entry["name"] for entry in json.loads(result.stdout)["models"] if entry["place"] == "machine"]
    assert "argos-xx-bb" in names
    assert "argos-xx-aa" not in names
    assert result.stderr.startswith("argos-xx-aa is left out: ")
    assert result.stderr.count("\n") == 1


def test_card_of_a_bundle_is_shown_and_changed(bundle_copy: Path, mirror: tuple[Path, str]) -> None:
    digest = compute_bundle_digest(bundle_copy)
    settings = ["purpose=One to ten", "license=CC0-1.0", "score=BLEU 12.5 on counting", 'examples=["one"]']
    changed = json.loads(run("model", "card", str(bundle_copy), *settings, "--json").stdout)
    expected = {"purpose": "One to ten", "license": "CC0-1.0", "score": "BLEU 12.5 on counting", "examples": ["one"]}
    assert changed == expected
    assert compute_bundle_digest(bundle_copy) == digest
    translation = dragoman.load(bundle_copy, task="translation").translate(["one"])[0].text
    facts = dict(line.split(maxsplit=1) for line in run("info", str(bundle_copy)).stdout.splitlines()[1:])
    assert [facts[name] for name in ("purpose", "license", "score", "translation")] == [
        "One to ten", "CC0-1.0", "BLEU 12.5 on counting", translation,
    ]  # fmt: skip
    shutil.copytree(bundle_copy, get_fetched_folder() / "argos-xx-cc")
    entries = json.loads(run("models", "--json").stdout)["models"]
    entry = next(entry for entry in entries if entry["name"] == "argos-xx-cc")
    assert (entry["license"], entry["score"]) == ("CC0-1.0", "BLEU 12.5 on counting")
    for text in ("a\nb", "\x1b[31mred", "a\u2028b"):
        refused = CliRunner().invoke(cli, ["model", "card", str(bundle_copy), f"purpose={text}"])
        expected_error = f"card: purpose: {text!r}: give one line of at most 200 characters, without control characters"
        assert str(refused.exception) == expected_error


def test_info_shows_a_stranger_s_bundle(bundle_copy: Path) -> None:
    """An example that no translation is possible of is no error, and a name does not control the terminal."""
    recipe, _, _ = read_config(bundle_copy)
    document = recipe.model_dump() | {"name": "\x1b[31mred", "card": {"examples": ["one"]}}
    document["decoding"]["target_language"] = "xx"
    replace_config(bundle_copy, recipe=recipe_from_dict(document, where="recipe"))
    output = run("info", str(bundle_copy)).stdout
    assert "none: decoding.target_language = 'xx': the model translates from" in output
    assert "\ufffd[31mred" in output
