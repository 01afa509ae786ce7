"""Files and documents over HTTP, with bounds on what a server may send."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dragoman.catalog.entries import RemoteFile
from dragoman.errors import DataError
from dragoman.version import __version__

MAX_INDEX_BYTES = 64 * 2**20
MAX_FILE_BYTES = 8 * 2**30
TIMEOUT_SECONDS = 60
_CHUNK_BYTES = 2**20


def read_document(url: str) -> bytes:
    """Return the document at an address.

    Raises DataError if it cannot be fetched or has more than `MAX_INDEX_BYTES`.
    """
    with _open(url) as response:
        content = response.read(MAX_INDEX_BYTES + 1)
    if len(content) > MAX_INDEX_BYTES:
        raise _refuse(url, f"sends more than {MAX_INDEX_BYTES:,} bytes")
    return content


def download_file(file: RemoteFile, folder: Path, on_bytes: Callable[[int], None]) -> None:
    """Write a file into a folder, unpacked if its address ends in .gz.

    on_bytes: takes the number of bytes that have arrived since its last call

    Raises:
        DataError: it cannot be fetched, is too large, does not end, or has another SHA-256 than its index states.
        OSError: the folder cannot be written.
    """
    digest = hashlib.sha256()
    num_bytes = 0
    with _open(file.url) as response, (folder / file.name).open("wb") as output:
        for chunk in _iter_chunks(file.url, response, on_bytes):
            num_bytes += len(chunk)
            if num_bytes > MAX_FILE_BYTES:
                raise _refuse(file.url, f"sends more than {MAX_FILE_BYTES:,} bytes")
            digest.update(chunk)
            output.write(chunk)
    if file.sha256 is not None and digest.hexdigest() != file.sha256:
        raise _refuse(file.url, "sends another file than its index states, by its SHA-256")


@contextmanager
def _open(url: str) -> Iterator[HTTPResponse]:
    """Open an address. Errors of the network become a DataError."""
    try:
        with urlopen(Request(url, headers={"User-Agent": f"dragoman/{__version__}"}), timeout=TIMEOUT_SECONDS) as response:
            yield response
    except HTTPError as error:
        error.close()
        raise _refuse(url, f"the server answers {error.code} {error.reason}") from None
    except (OSError, HTTPException, ValueError) as error:
        if getattr(error, "filename", None):  # of the disk, not of the network
            raise
        reason = getattr(error, "reason", None) or error
        raise _refuse(url, getattr(reason, "strerror", None) or str(reason) or type(reason).__name__) from None


def _iter_chunks(url: str, response: HTTPResponse, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    expected = response.headers.get("Content-Length")
    arrived = 0
    unpack = zlib.decompressobj(wbits=31) if url.endswith(".gz") else None
    while chunk := response.read(_CHUNK_BYTES):
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
    if (expected is not None and arrived != int(expected)) or (unpack is not None and not unpack.eof):
        raise _refuse(url, "ended before the whole file had arrived")


def _refuse(url: str, problem: str) -> DataError:
    return DataError(f"{url}: cannot be fetched: {problem[:200]}", code="model-unavailable")
