"""The port for operators: metrics, and the state of the server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_OPEN = 32
"""Connections at the same time, each of which has a thread. The oldest one is closed for another one."""
MAX_SECONDS = 15.0
"""Time of a connection, which has one request."""


def serve_admin(
    admin_socket: socket.socket, render_metrics: Callable[[], bytes], describe_state: Callable[[], Mapping[str, Any]]
) -> ThreadingHTTPServer:
    """Serve /metrics, /livez and /readyz in a thread, until `shutdown`.

    render_metrics: returns the metrics in the text format of Prometheus
    describe_state: returns the fields of /readyz; the field `status` is "ok" if the server accepts requests
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer a request."""
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, METRICS_TYPE, render_metrics())
            elif path == "/livez":
                self._answer(200, "application/json", b'{"status": "ok"}')
            elif path == "/readyz":
                state = describe_state()
                self._answer(200 if state["status"] == "ok" else 503, "application/json", json.dumps(state).encode())
            else:
                self._answer(404, "application/json", b'{"error": "the routes are /metrics, /livez and /readyz"}')

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    server = _AdminServer(admin_socket.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = admin_socket
    threading.Thread(target=server.serve_forever, name="admin", daemon=True).start()
    return server


class _AdminServer(ThreadingHTTPServer):
    """Server with few connections, each for a short time."""

    def __init__(self, *arguments: Any, **named_arguments: Any) -> None:
        self._lock = threading.Lock()
        self._opened: dict[socket.socket, float] = {}
        super().__init__(*arguments, **named_arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, after the oldest one was closed if there are too many."""
        with self._lock:
            if len(self._opened) >= MAX_OPEN:
                self._end_oldest()
            self._opened[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End the connections whose time is over. The server calls it twice a second, and after each connection."""
        with self._lock:
            while self._opened and next(iter(self._opened.values())) < time.monotonic() - MAX_SECONDS:
                self._end_oldest()

    def _end_oldest(self) -> None:
        """End the reads and writes of the oldest connection, whose thread then closes it."""
        oldest = next(iter(self._opened))
        del self._opened[oldest]
        with suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, in its thread."""
        with self._lock:
            self._opened.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: a connection that was closed cannot be answered."""
