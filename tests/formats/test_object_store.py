import builtins
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import DataError, MissingDependencyError, OutputError
from dragoman.formats.object_store import (
    StoreFolder,
    check_output_is_free,
    fetch_file,
    fetch_folder,
    is_url,
    normalize_url,
    write_pieces,
)


def test_names_become_urls_or_absolute_paths(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str | Path, str]] = [
        ("s3://bucket/a b/c.txt", "s3://bucket/a b/c.txt"),
        (Path("s3://bucket/c.txt"), "s3://bucket/c.txt"),  # pathlib merges the slashes
        ("file:///data/c.txt", "/data/c.txt"),
        (Path("file:///data/c.txt"), "/data/c.txt"),
        ("/data/c.txt", "/data/c.txt"),
    ]
    for name, expected in cases:
        with subtests.test(name=name, expected=expected):
            assert normalize_url(name) == expected
            assert is_url(name) == ("://" in expected)


def test_relative_path_is_local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalize_url("a.txt") == str(tmp_path / "a.txt")


def test_files_are_read_and_deleted() -> None:
    folder = StoreFolder("memory://test-files/store")
    write_pieces(folder.get_url("a.bin"), [b"old"])
    write_pieces(folder.get_url("a.bin"), [bytes(range(100))])
    assert folder.read("a.bin") == bytes(range(100))
    assert folder.read_if_exists("b.bin") is None
    with pytest.raises(DataError, match="there is no such file"):
        folder.read("b.bin")
    folder.delete()
    folder.delete()
    assert folder.read_if_exists("a.bin") is None


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_file_of_pieces_appears_completely_or_not_at_all(kind: str, tmp_path: Path) -> None:
    url = str(tmp_path / "out.txt") if kind == "local" else "memory://test-pieces/out.txt"

    def break_off() -> Any:
        yield b"first"
        raise OutputError("shard 2: was changed")

    with pytest.raises(OutputError, match="shard 2"):
        write_pieces(url, break_off())
    if kind == "local":  # a file in fsspec's memory is visible as soon as it is opened
        assert not list(tmp_path.iterdir())
    write_pieces(url, [b"first", b"second"])
    fetch_file(url, tmp_path / "copy.txt")
    assert (tmp_path / "copy.txt").read_bytes() == b"firstsecond"
    with pytest.raises(OutputError, match="exists already"):
        check_output_is_free(url, overwrite=False)
    check_output_is_free(url, overwrite=True)


def test_missing_library_of_a_store_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "s3fs":
            raise ImportError(name)
        return import_module(name, *arguments, **options)

    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingDependencyError, match=r"pip install 'dragoman\[s3\]'"):
        StoreFolder("s3://bucket/shards").read("a")


def test_unknown_scheme_is_one_line() -> None:
    with pytest.raises(OutputError, match="xyz://bucket"):
        StoreFolder("xyz://bucket").read("a")


def test_object_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    """S3 allows `..` in the name of an object. Such a name must not choose a place on this machine."""
    filesystem = pytest.importorskip("fsspec").filesystem("memory")
    filesystem.pipe_file("/test-outside/bundle/manifest.json", b"{}")
    filesystem.pipe_file("/test-outside/bundle/../../evil.txt", b"evil")
    folder = tmp_path / "a" / "b"
    with pytest.raises(DataError, match=r"evil\.txt', a path outside"):
        fetch_folder("memory://test-outside/bundle", folder)
    assert not list(tmp_path.rglob("evil.txt"))
