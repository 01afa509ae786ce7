"""Folders and files on a local path or in an object store, through fsspec. Credentials come from the environment alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from dragoman.errors import DataError, DragomanError, MissingDependencyError, OutputError, WriteError
from dragoman.formats.text import format_reason
from dragoman.io.cache_folder import get_cache_folder
from dragoman.io.storage import commit_file, sync_dir, to_write_error

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL)
_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gs"), "gcs": ("gcsfs", "gs")}
# Bytes of one read or write of a whole file.
_COPY_BYTES = 2**22


def normalize_url(name: str | Path) -> str:
    """Return a URL with its two slashes, which pathlib merges into one, or the absolute path of a local file."""
    match = _URL.fullmatch(str(name))
    if match is None:
        return str(Path(name).absolute())
    scheme, rest = match.groups()
    return f"/{rest}" if scheme in ("file", "local") else f"{scheme}://{rest}"


def is_url(name: str | Path) -> bool:
    """Return whether a name is the URL of an object store."""
    return "://" in normalize_url(name)


def format_location(name: str | Path) -> str:
    """Return a path as it is given, or a URL with its two slashes."""
    return normalize_url(name) if is_url(name) else str(name)


@dataclass(frozen=True)
class StoreFolder:
    """Folder in an object store."""

    url: str

    @cached_property
    def _filesystem(self) -> Any:
        return _open_filesystem(self.url)

    def get_url(self, name: str) -> str:
        """Return the URL of a file in the folder."""
        return f"{self.url.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes:
        """Return the bytes of a file. Raises DataError."""
        with store_errors(self.get_url(name)):
            return bytes(self._filesystem.cat_file(self.get_url(name)))

    def read_if_exists(self, name: str) -> bytes | None:
        """Return the bytes of a file, or None if there is none. Raises DataError."""
        try:
            return self.read(name)
        except DataError as error:
            if error.code == "file-not-found":
                return None
            raise

    def list_files(self) -> set[str]:
        """Return the names of all files in the folder and below it; none if there is no such folder. Raises DataError."""
        with store_errors(self.url):
            prefix = self._filesystem._strip_protocol(self.url).rstrip("/") + "/"
            return {name.removeprefix(prefix) for name in self._filesystem.find(self.url)}

    def delete_files(self, names: Iterable[str]) -> None:
        """Delete files of the folder. Raises WriteError."""
        for name in names:
            with store_errors(self.url, is_output=True):
                self._filesystem.rm_file(self.get_url(name))

    def delete(self) -> None:
        """Delete the folder with all its files. Files of the folder that another process deletes meanwhile are no error."""
        with store_errors(self.url, is_output=True), suppress(FileNotFoundError):
            self._filesystem.rm(self.url, recursive=True)


def get_work_path(url: str, kind: str) -> Path:
    """Return the path in the cache folder of this machine for what is not yet complete in a store. Raises WriteError.

    kind: name of a folder, such as "runs"
    """
    try:
        return get_cache_folder() / kind / sha256(url.encode()).hexdigest()
    except RuntimeError:
        raise WriteError(f"{url}: there is no home folder for unfinished files; set XDG_CACHE_HOME to a folder") from None


def exists(url: str) -> bool:
    """Return whether a file exists. Raises DataError if the store does not answer."""
    with store_errors(url):
        return bool(_open_filesystem(url).exists(url))


def describe_object(url: str) -> str:
    """Return a text that changes whenever an object is written again. Raises DataError."""
    with store_errors(url):
        return str(_open_filesystem(url).ukey(url))


def fetch_file(url: str, path: Path) -> None:
    """Copy a file of an object store to a local path. Raises DataError."""
    with store_errors(url), _open_filesystem(url).open(url, "rb") as source, path.open("wb") as sink:
        while block := source.read(_COPY_BYTES):
            sink.write(block)


def glob_files(url: str) -> list[str]:
    """Return the URLs of the files that a URL with `*` in its last part matches, sorted. Raises DataError if there are none."""
    with store_errors(url):
        scheme = url.partition("://")[0]
        names = [name if "://" in name else f"{scheme}://{name.lstrip('/')}" for name in _open_filesystem(url).glob(url)]
    if not names:
        raise DataError(f"{url}: there is no such file; * matches file names, not folders", code="file-not-found")
    return sorted(names)


def fetch_folder(url: str, folder: Path) -> None:
    """Copy all files below a folder in an object store into a new local folder. Raises DataError."""
    names = sorted(StoreFolder(url).list_files())
    if not names:
        raise DataError(f"{url}: there is no such folder; check its name", code="file-not-found")
    for name in names:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{url}: holds {name!r}, a path outside of it; remove that object", code="invalid-format")
        path.parent.mkdir(parents=True, exist_ok=True)
        fetch_file(f"{url.rstrip('/')}/{name}", path)


def upload_folder(folder: Path, url: str, *, last: str) -> None:
    """Copy the files of a local folder to an object store. The file `last` comes last, so that it marks a complete copy.

    Raises WriteError.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    paths.sort(key=lambda path: path.relative_to(folder).as_posix() == last)
    for path in paths:
        write_pieces(f"{url.rstrip('/')}/{path.relative_to(folder).as_posix()}", read_blocks(path))


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a local file in blocks of 4 MiB."""
    with path.open("rb") as stream:
        while block := stream.read(_COPY_BYTES):
            yield block


def write_pieces(url: str, pieces: Iterable[bytes]) -> None:
    """Write a file that appears completely or not at all. Raises WriteError."""
    if "://" in url:
        with store_errors(url, is_output=True):
            stream = _open_filesystem(url).open(url, "wb", autocommit=False)
            try:
                for piece in pieces:
                    stream.write(piece)
                stream.close()
            except BaseException:
                stream.discard()
                raise
            stream.commit()
        return
    path = Path(url)
    partial = path.with_name(f".{path.name}.{os.urandom(16).hex()}.partial")
    try:
        with partial.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)
        commit_file(partial, path)
        sync_dir(path.parent)
    except OSError as error:
        raise to_write_error(path, error) from None
    finally:
        with suppress(OSError):
            partial.unlink()


def _open_filesystem(url: str) -> Any:
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)[0]
    except ImportError as error:
        library, extra = _EXTRAS.get(url.partition("://")[0], ("", ""))
        if library:
            raise MissingDependencyError(library, extra, url) from None
        raise OutputError(f"{url}: {format_reason(str(error))}", code="invalid-output") from None
    except ValueError as error:
        raise OutputError(f"{url}: {format_reason(str(error))}; give a local path or s3://", code="invalid-output") from None


@contextmanager
def store_errors(url: str, *, is_output: bool = False) -> Iterator[None]:
    """Turn the errors of a file system or an object store into DataError, or into WriteError for an output.

    Each library of an object store has exceptions of its own, so that all are caught.
    """
    try:
        yield
    except DragomanError:
        raise
    except FileNotFoundError as error:
        if is_output:
            raise WriteError(f"{url}: cannot be written: there is no such bucket or folder") from error
        raise DataError(f"{url}: there is no such file; check its name", code="file-not-found") from None
    except OSError as error:
        if is_output:
            raise to_write_error(Path(url), error) from None
        raise DataError(f"{url}: cannot be read: {error.strerror or error}", code="file-unreadable") from None
    except Exception as error:
        reason = format_reason(str(error)) or type(error).__name__
        if is_output:
            raise WriteError(f"{url}: cannot be written: {reason}; check the credentials in the environment") from None
        raise DataError(
            f"{url}: cannot be read: {reason}; check the credentials in the environment", code="file-unreadable"
        ) from None


def check_is_writable(url: str) -> None:
    """Write an object beside another one and delete it, so that a wrong bucket is an error before hours of work.

    Raises WriteError.
    """
    check_url = f"{url}.{os.urandom(16).hex()}"
    with store_errors(url, is_output=True):
        _open_filesystem(url).pipe_file(check_url, b"")
        _open_filesystem(url).rm_file(check_url)


def check_output_is_free(url: str, *, overwrite: bool) -> None:
    """Raise OutputError if a file or a folder exists and may not be replaced."""
    if not overwrite and (os.path.lexists(url) if "://" not in url else exists(url)):
        raise OutputError(f"{url}: exists already; give another name, or --overwrite to replace it", code="output-exists")
