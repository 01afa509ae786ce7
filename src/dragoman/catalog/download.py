"""Files and documents over HTTP, with bounds on what a server may send."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from time import monotonic
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dragoman.catalog.entries import RemoteFile
from dragoman.errors import DataError
from dragoman.io.proxy import TIMEOUT_SECONDS, suggest_proxy
from dragoman.version import __version__

MAX_INDEX_BYTES = 64 * 2**20
MAX_FILE_BYTES = 8 * 2**30
MAX_INDEX_SECONDS = 300
"""Seconds that an index may take; a model's file may take as long as bytes arrive."""
_CHUNK_BYTES = 2**20


class FetchError(DataError):
    """Error of a connection: on another machine, or later, the same file may arrive."""


def read_document(url: str) -> bytes:
    """Return the document at an address.

    Raises FetchError if the server cannot be reached or refuses, and DataError for more than `MAX_INDEX_BYTES`.
    """
    with _naming_failures(url), _open(url) as response:
        content, end = b"", monotonic() + MAX_INDEX_SECONDS
        while len(content) <= MAX_INDEX_BYTES and (chunk := response.read1(_CHUNK_BYTES)):
            content += chunk
            if monotonic() > end:
                raise TimeoutError(f"it takes more than {MAX_INDEX_SECONDS} seconds")
    if len(content) > MAX_INDEX_BYTES:
        raise _refuse(url, f"sends more than {MAX_INDEX_BYTES:,} bytes")
    return content


def download_file(file: RemoteFile, folder: Path, on_bytes: Callable[[int], None]) -> None:
    """Write a file into a folder, unpacked if its address ends in .gz.

    If the index states the size, the bytes that the folder already has are kept, and only the others are fetched.

    on_bytes: takes the number of bytes that have arrived since its last call

    Raises:
        FetchError: the server cannot be reached, refuses, or ends the answer early.
        DataError: it is too large or damaged, or has another SHA-256 than its index states.
        OSError: the folder cannot be written.
    """
    path = folder / file.name
    num_bytes = path.stat().st_size if file.num_bytes is not None and path.exists() else 0
    if file.num_bytes is None or num_bytes < file.num_bytes:
        with _naming_failures(file.url):
            response = _open(file.url, num_bytes)
        with response, path.open("ab" if response.status == HTTPStatus.PARTIAL_CONTENT else "wb") as output:
            num_bytes = output.tell()
            on_bytes(num_bytes)
            for chunk in _iter_chunks(file.url, response, on_bytes):
                num_bytes += len(chunk)
                if num_bytes > MAX_FILE_BYTES:
                    raise _refuse(file.url, f"sends more than {MAX_FILE_BYTES:,} bytes")
                output.write(chunk)
    if file.sha256 is not None:
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                raise _refuse(file.url, "sends another file than its index states, by its SHA-256")


def _open(url: str, start: int = 0) -> HTTPResponse:
    """Open an address, if the server can do it from byte `start` on."""
    headers = {"User-Agent": f"dragoman/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    return response


@contextmanager
def _naming_failures(url: str) -> Iterator[None]:
    """Raise a FetchError for each error of the connection."""
    try:
        yield
    except HTTPError as error:
        error.close()
        hint = f"; {suggest_proxy(url)}" if error.code == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED else ""
        raise _refuse(url, f"the server answers {error.code} {error.reason}{hint}", FetchError) from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        problem = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        if isinstance(reason, TimeoutError) and "seconds" not in problem:
            problem = f"no answer within {TIMEOUT_SECONDS} seconds"
        raise _refuse(url, f"{problem[:200]}; {suggest_proxy(url)}", FetchError) from None


def _iter_chunks(url: str, response: HTTPResponse, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    expected = response.length
    arrived = 0
    unpack = zlib.decompressobj(wbits=31) if url.endswith(".gz") else None
    while chunk := _read_chunk(url, response):
        arrived += len(chunk)
        on_bytes(len(chunk))
        if unpack is None:
            yield chunk
            continue
        try:
            while chunk:
                yield unpack.decompress(chunk, _CHUNK_BYTES)
                chunk = unpack.unconsumed_tail
        except zlib.error:
            raise _refuse(url, "sends a damaged .gz file") from None
    if (expected is not None and arrived != expected) or (unpack is not None and not unpack.eof):
        raise _refuse(url, "ended before the whole file had arrived", FetchError)


def _read_chunk(url: str, response: HTTPResponse) -> bytes:
    with _naming_failures(url):
        return response.read(_CHUNK_BYTES)


def _refuse(url: str, problem: str, error_type: type[DataError] = DataError) -> DataError:
    return error_type(f"{url}: cannot be fetched: {problem[:400]}", code="model-unavailable")
