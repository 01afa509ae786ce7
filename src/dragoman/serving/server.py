"""The process of the server: it loads the models, listens, reloads on SIGHUP, and stops after the requests in progress."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import uvicorn

from dragoman.errors import DragomanError, RecipeError
from dragoman.platform_features import SIGHUP
from dragoman.serving.app import build_app
from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.model_set import ModelSet
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerSettings

logger = logging.getLogger("dragoman.serving")

KEEP_ALIVE_SECONDS = 15
MAX_HEADER_BYTES = 16_384


def serve(
    load_models: Callable[[], ModelSet],
    settings: ServerSettings,
    *,
    on_ready: Callable[[str, ModelSet], None] = lambda url, models: None,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests in progress.

    load_models: function that loads the models; SIGHUP calls it again, and new requests get the new models
    on_ready: called with the address and the models when the server accepts requests

    The addresses are taken before the models are loaded, so that one in use is reported at once.

    Raises RecipeError for an address that cannot be used, and BundleError if a model cannot be loaded at the start. A reload
    that fails keeps the present models.
    """
    with ExitStack() as stack:
        server_socket = stack.enter_context(_bind(settings.host, settings.port, "--host and --port"))
        admin_socket = None
        if settings.admin_port is not None:
            admin_socket = stack.enter_context(_bind("127.0.0.1", settings.admin_port, "--admin-port"))
        service = TranslationService(load_models(), settings.limits, retry=settings.retry)
        stack.callback(service.queue.close)
        server = _Server(
            _build_config(service, settings),
            on_ready=lambda port: on_ready(f"http://{settings.host}:{port}/", service.models),
        )
        server.reload = lambda: _reload(service, load_models)
        if admin_socket is not None:
            stack.callback(_serve_metrics(service.metrics, admin_socket).shutdown)
        for number, handler in _ignore_signals().items():
            stack.callback(signal.signal, number, handler)
        server.run(sockets=[server_socket])


def _bind(host: str, port: int, options: str) -> socket.socket:
    """Return a socket that has taken an address. Raises RecipeError, which names the options, if the system refuses it."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        problem = (error.strerror or str(error)).partition(" (")[0]  # Python adds the address in brackets
        raise RecipeError(
            f"{host}:{port}: the server cannot listen there ({problem.lower()}); give another address by {options}",
            code="invalid-option",
        ) from error


def _ignore_signals() -> dict[int, Any]:
    """Ignore the signals that stop the server, and return their handlers. The server handles them itself while it runs.

    It raises them again after it has stopped, which would end the process with an error.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}


def _build_config(service: TranslationService, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(service, settings),
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(settings.limits.drain_seconds),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        http="h11",
    )


class _Server(uvicorn.Server):
    """Server that reports its port, and reloads on SIGHUP where the system has it."""

    def __init__(self, config: uvicorn.Config, *, on_ready: Callable[[int], None]) -> None:
        super().__init__(config)
        self.on_ready = on_ready
        self.reload: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Listen, and report the port."""
        await super().startup(sockets)  # type: ignore[arg-type]
        if SIGHUP is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(SIGHUP, self._start_reload)
        if self.servers:
            self.on_ready(self.servers[0].sockets[0].getsockname()[1])

    def _start_reload(self) -> None:
        threading.Thread(target=self.reload, name="reload", daemon=True).start()


def _reload(service: TranslationService, load_models: Callable[[], ModelSet]) -> None:
    try:
        models = load_models()
    except DragomanError as error:
        logger.error("reload failed, the present models stay: %s", error)
        return
    service.models = models
    logger.info("reloaded %d models", len(models.models))


def _serve_metrics(metrics: ServerMetrics, server_socket: socket.socket) -> ThreadingHTTPServer:
    """Serve the metrics in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with the metrics."""
            body = metrics.render()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(server_socket.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = server_socket
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
