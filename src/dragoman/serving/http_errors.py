"""Errors of the server in the shape of each API.

LibreTranslate answers `{"error": text}`, DeepL `{"message": text}`, and our own API `{"error": {"code": ..., "message": ...}}`.
"""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass
from typing import Any

from dragoman.errors import DragomanError, WriteError
from dragoman.serving.request_queue import DeadlineError, QueueClosedError, QueueFullError

RETRY_AFTER_SECONDS = 5


@dataclass(eq=False)
class HttpError(Exception):
    """Answer other than success.

    status: HTTP status
    message: the problem and what to do about it, in one line
    code: stable name of the problem
    """

    status: int
    message: str
    code: str = "invalid-request"

    def write_body(self, path: str) -> bytes:
        """Return the body in the shape of the API that the path belongs to."""
        content: dict[str, Any] = {"error": self.message}
        if path.startswith(("/v2/", "/v3/")):
            content = {"message": self.message}
        elif path.startswith("/v1/"):
            content = {"error": {"code": self.code, "message": self.message}}
        return json.dumps(content, ensure_ascii=False).encode(errors="backslashreplace")  # half of a surrogate pair

    def list_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of the answer."""
        headers = [(b"content-type", b"application/json")]
        if self.status in (429, 503):
            headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
        if self.status == 401:
            headers.append((b"www-authenticate", b'Basic realm="dragoman"'))
        return headers


def to_http_error(error: Exception) -> HttpError:
    """Return the answer to an error. The message of an unexpected error is not shown, because it may contain user text."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, QueueFullError):
        return HttpError(503, "the server is busy; send the request again later", "server-busy")
    if isinstance(error, QueueClosedError):
        return HttpError(503, "the server is about to stop; send the request again later", "server-stops")
    if isinstance(error, DeadlineError):
        return HttpError(504, "the request took too long; send fewer or shorter texts", "request-too-slow")
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    if is_full or isinstance(error, WriteError):
        return HttpError(507, "the server has no room on its disk; ask its operator to free some", "disk-full")
    if isinstance(error, DragomanError):
        return HttpError(400, str(error), error.code)
    return HttpError(500, "internal error; the log of the server has the cause", "internal-error")
