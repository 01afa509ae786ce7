"""`dragoman paper fetch`, from a local server with small archives that have the files of WMT14."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from dragoman.catalog import corpora
from dragoman.catalog.entries import RemoteFile
from dragoman.cli.main import cli
from dragoman.config import read_recipe
from dragoman.formats.readers import read_pairs
from expected_errors import raises_code
from folder_server import QuietHandler, serve_folder

RECIPES = ("wmt14-ende-base", "wmt14-ende-big", "wmt14-enfr-base", "wmt14-enfr-big")
GIGA_FREN = "training-giga-fren.tar"


class RangeHandler(QuietHandler):
    """Handler that sends a file from the first byte that is asked for, and notes it."""

    starts: ClassVar[list[int]] = []
    has_ranges = True

    def do_GET(self) -> None:  # noqa: N802 (a name of http.server)
        """Send a file, or its end."""
        content = Path(self.translate_path(self.path)).read_bytes()
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.starts.append(start)
        start = start if self.has_ranges else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of a local server. It has each archive of the table, with thirty lines in each file."""
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.setattr(RangeHandler, "starts", [])
    with serve_folder(folder, RangeHandler) as address:
        archives = [(f"{address}/{entry['url'].rpartition('/')[2]}", entry["members"]) for entry in read_table()]
        for url, members in archives:
            write_archive(folder / url.rpartition("/")[2], {name: make_content(name) for name in ["other", *members]})
        write_table(tmp_path / "corpora.toml", folder, archives)
        monkeypatch.setattr(corpora, "CORPORA_FILE", tmp_path / "corpora.toml")
        yield folder


def read_table() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = tomllib.loads(corpora.CORPORA_FILE.read_text(encoding="utf-8"))["archive"]
    return entries


def write_table(path: Path, folder: Path, archives: list[tuple[str, list[str]]]) -> None:
    """Write the table of the archives as they are in the folder of the server."""
    lines = []
    for url, members in archives:
        content = (folder / url.rpartition("/")[2]).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        lines += [
            "[[archive]]",
            f'url = "{url}"',
            f"num_bytes = {len(content)}",
            f'sha256 = "{digest}"',
            f"members = {members}",
        ]
    path.write_text("\n".join(lines), encoding="utf-8")


def make_content(name: str) -> bytes:
    """Return thirty lines that name their file, as segments if it is an SGM file."""
    lines = [f"{Path(name).name} & line {number}" for number in range(30)]
    if name.endswith(".sgm"):
        lines = [f'<seg id="{number}">{line.replace("&", "&amp;")}</seg>' for number, line in enumerate(lines)]
        lines = ['<refset setid="newstest2014">', '<doc docid="a">', *lines, "</doc>", "</refset>"]
    content = "".join(f"{line}\n" for line in lines).encode()
    return gzip.compress(content, mtime=0) if name.endswith(".gz") else content


def write_archive(path: Path, members: dict[str, bytes], *, links: dict[str, str] | None = None) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)


def fetch(recipe: str, folder: Path) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["paper", "fetch", recipe, f"data.root={folder}", "--json"])
    if result.exception is not None:
        raise result.exception
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize("recipe", RECIPES)
def test_table_has_the_files_of_the_recipe(recipe: str, tmp_path: Path) -> None:
    """These archives of WMT14 have the corpora of section 5.1."""
    archives = corpora.find_archives([tmp_path / name for name in list_names(recipe)])
    names = [archive.file.name for archive in archives]
    assert names == [
        "training-parallel-europarl-v7.tgz",
        "training-parallel-commoncrawl.tgz",
        "training-parallel-nc-v9.tgz",
        *(["training-parallel-un.tgz", GIGA_FREN] if "enfr" in recipe else []),
        "dev.tgz",
    ]
    assert sorted(path.name for archive in archives for path in archive.members.values()) == sorted(list_names(recipe))


def list_names(recipe: str) -> list[str]:
    data = read_recipe(Path(recipe)).data
    assert data.train is not None
    assert data.valid is not None
    assert data.test is not None
    return [
        str(name)
        for corpus in (data.train, data.valid, data.test)
        for side in (corpus.source, corpus.target)
        for name in (side if isinstance(side, list) else [side])
    ]


def test_base_recipes_differ_in_language_and_vocabulary_only() -> None:
    """Section 5.1: 32,000 word-pieces for French. Table 2 has one size, base, for both pairs."""
    german, french = (read_recipe(Path(f"wmt14-en{code}-base")) for code in ("de", "fr"))
    assert (german.tokenizer.vocab_size, french.tokenizer.vocab_size) == (37_000, 32_000)
    assert (german.model, german.training, german.decoding) == (french.model, french.training, french.decoding)
    assert (french.task.source_language, french.task.target_language) == ("en", "fr")


@pytest.mark.parametrize("recipe", ["wmt14-ende-base", "wmt14-enfr-base"])
def test_fetched_files_can_be_prepared_without_hand_work(server: Path, recipe: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "wmt14"
    document = fetch(recipe, folder)
    assert sorted(Path(path).name for path in document["files"]) == sorted(list_names(recipe))
    assert {path.name for path in folder.iterdir()} == {
        *list_names(recipe),
        *(url.rpartition("/")[2] for url in document["fetched"]),
    }
    data = read_recipe(Path(recipe)).data
    assert data.train is not None
    assert data.test is not None
    test_pairs = list(read_pairs(data.test, folder))
    code = recipe[8:10]
    assert [(pair.source, pair.target) for pair in test_pairs[:1]] == [
        (f"newstest2014-{code}en-ref.en.sgm & line 0", f"newstest2014-{code}en-src.{code}.sgm & line 0")
    ]
    assert len(test_pairs) == 30
    assert len(list(read_pairs(data.train, folder))) == 30 * len(data.train.source or [])
    settings = [f"data.root={folder}", f"run={tmp_path / 'run'}", "tokenizer.vocab_size=330"]
    assert CliRunner().invoke(cli, ["prepare", recipe, *settings], catch_exceptions=False).exit_code == 0


def test_second_fetch_does_nothing(server: Path, tmp_path: Path) -> None:
    fetch("wmt14-ende-base", tmp_path / "a")
    RangeHandler.starts.clear()
    assert fetch("wmt14-ende-big", tmp_path / "a")["fetched"] == []
    assert fetch("wmt14-enfr-base", tmp_path / "a")["fetched"] != []
    # Three archives and the development sets are there; what they hold for French is unpacked without the server.
    assert RangeHandler.starts == [0, 0]


@pytest.mark.parametrize("has_ranges", [True, False])
def test_interrupted_download_continues(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ranges: bool
) -> None:
    monkeypatch.setattr(RangeHandler, "has_ranges", has_ranges)
    folder = tmp_path / "a"
    folder.mkdir()
    whole = (server / GIGA_FREN).read_bytes()
    (folder / GIGA_FREN).write_bytes(whole[:1000])
    fetch("wmt14-enfr-base", folder)
    assert RangeHandler.starts == [0, 0, 0, 0, 1000, 0]
    assert (folder / GIGA_FREN).read_bytes() == whole
    name = "giga-fren.release2.fixed.en.gz"
    assert (folder / name).read_bytes() == make_content(name)


def test_error_without_a_network_names_archives_and_folder(server: Path, tmp_path: Path) -> None:
    """Archives that someone puts there are then unpacked."""
    table = corpora.CORPORA_FILE
    port = read_table()[0]["url"].split(":")[2].split("/")[0]
    (tmp_path / "corpora.toml").write_text(table.read_text(encoding="utf-8").replace(f":{port}/", ":1/"), encoding="utf-8")
    folder = tmp_path / "a"
    urls = " ".join(entry["url"] for entry in read_table() if entry["url"].rpartition("/")[2] in DE_ARCHIVES)
    with raises_code("model-unavailable", f"without a network, fetch {urls} elsewhere into {folder}, and repeat"):
        fetch("wmt14-ende-base", folder)
    for name in DE_ARCHIVES:
        (folder / name).write_bytes((server / name).read_bytes())
    assert len(fetch("wmt14-ende-base", folder)["files"]) == 10


DE_ARCHIVES = (
    "training-parallel-europarl-v7.tgz",
    "training-parallel-commoncrawl.tgz",
    "training-parallel-nc-v9.tgz",
    "dev.tgz",
)


def test_changed_archive_is_refused(server: Path, tmp_path: Path) -> None:
    """A server that has another archive, and a longer file in the folder."""
    content = bytearray((server / "dev.tgz").read_bytes())
    content[-1] ^= 1
    (server / "dev.tgz").write_bytes(content)
    folder = tmp_path / "a"
    with raises_code("model-unavailable", rf"SHA-256; delete {folder}/dev.tgz, and repeat"):
        fetch("wmt14-ende-base", folder)
    assert not (folder / "newstest2013.en").exists()
    (folder / "dev.tgz").write_bytes(bytes(100_000))
    with raises_code("model-unavailable", "SHA-256"):
        fetch("wmt14-ende-base", folder)


def test_hostile_archive_writes_nothing_else(server: Path, tmp_path: Path) -> None:
    """A path out of the folder and links are skipped, and an archive that is cut short is no archive."""
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    archive = server / "x.tgz"
    write_archive(archive, {"../evil": b"1", "/evil": b"2"}, links={"one": "../secret", "two": "one"})
    members = {"one": tmp_path / "a" / "one", "../evil": tmp_path / "a" / "evil"}
    (tmp_path / "a").mkdir()
    archive_entry = corpora.WantedArchive(
        RemoteFile("http://127.0.0.1:1/x.tgz", "x.tgz", None, archive.stat().st_size), members
    )
    with raises_code("invalid-format", "x.tgz: lacks one; delete "):
        corpora.fetch_archive(archive_entry, server, lambda _: None)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["evil"]
    assert not (tmp_path / "evil").exists()
    write_archive(archive, {"one": bytes(range(256)) * 4000})
    archive.write_bytes(archive.read_bytes()[:-1000])
    with raises_code("invalid-format", "is no intact archive"):
        corpora.fetch_archive(archive_entry, server, lambda _: None)
    assert not (tmp_path / "a" / "one").exists()


def test_recipe_of_another_corpus_is_refused(tmp_path: Path) -> None:
    with raises_code("file-not-found", "train.en.gz: is in no archive that dragoman fetches"):
        fetch("multi30k-ende", tmp_path)
    assert list(tmp_path.iterdir()) == []
