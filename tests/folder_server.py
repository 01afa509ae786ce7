"""Local server of the files in a folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class QuietHandler(SimpleHTTPRequestHandler):
    """Handler that writes no log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@contextmanager
def serve_folder(folder: Path, handler: type[QuietHandler] = QuietHandler) -> Iterator[str]:
    """Serve the files of a folder; give the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()  # its end is soon seen
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
