"""The port for operators: metrics, and the state of the server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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

    server = ThreadingHTTPServer(admin_socket.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = admin_socket
    threading.Thread(target=server.serve_forever, name="admin", daemon=True).start()
    return server
