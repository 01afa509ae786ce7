"""The process of the server: it loads the models, listens, reloads on SIGHUP, and stops after the requests in progress."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn

from dragoman.errors import DragomanError
from dragoman.platform_features import SIGHUP
from dragoman.runtime.owned_folder import remove_abandoned
from dragoman.serving.addresses import OnReady, bind_addresses, format_url
from dragoman.serving.admin import serve_admin
from dragoman.serving.app import build_app
from dragoman.serving.connection_limit import ACCEPTED_PER_TURN, ConnectionLimit, limit_accept_errors
from dragoman.serving.connections import STOP_SECONDS, TimedConnection
from dragoman.serving.hangup import Hangup
from dragoman.serving.model_set import ModelSet
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import FILE_DIR_PREFIX, WEIGHTS_DIR_PREFIX, ServerSettings, reload_keys
from dragoman.serving.telemetry import Telemetry
from dragoman.serving.usage import Usage

logger = logging.getLogger("dragoman.serving")

KEEP_ALIVE_SECONDS = 15
MAX_HEADER_BYTES = 16_384
WAITING_CONNECTIONS = 2048
"""Connections that wait in the system until the server takes them."""
COLLECTION_THRESHOLD = 25_000
"""New objects between two garbage collections."""
SWITCH_SECONDS = 0.0005
"""Time after which a thread that computes lets another one run, if one waits. An answer of the event loop waits some ten times.
Python's 0.005 s would hold it up for 0.1 s and more while two threads read texts."""


def serve(
    load_models: Callable[[], ModelSet],
    settings: ServerSettings,
    *,
    on_ready: OnReady = lambda url, targets: None,
) -> None:
    """Serve in this process until SIGTERM or SIGINT, then finish the requests in progress.

    load_models: function that loads the models; SIGHUP calls it again, and new requests get the new models
    on_ready: called when the server accepts requests

    The addresses are taken before the models are loaded, so that one in use is reported at once.

    Raises RecipeError for an address that cannot be used, and BundleError if a model cannot be loaded at the start. A reload
    that fails keeps the present models.
    """
    with ExitStack() as stack:
        server_socket, admin_socket = bind_addresses(settings, stack)
        remove_abandoned(FILE_DIR_PREFIX, WEIGHTS_DIR_PREFIX)
        service = build_service(load_models, settings)
        stack.callback(service.queue.close)
        server = build_server(
            service,
            settings,
            on_ready=lambda: on_ready(format_url(settings, server_socket), service.models.targets),
            reload=lambda: reload_server(service, load_models, settings),
        )
        if admin_socket is not None:
            admin = serve_admin(admin_socket, service.metrics.render, lambda: {"status": service.describe_state()})
            stack.callback(admin.shutdown)
        for number, handler in ignore_stop_signals().items():
            stack.callback(signal.signal, number, handler)
        server.run(sockets=[server_socket])


def build_service(
    load_models: Callable[[], ModelSet], settings: ServerSettings, usage: Usage | None = None
) -> TranslationService:
    """Return the service of a process, with its models.

    Raises MissingDependencyError if the settings ask for traces without their extra, and the errors of the models.
    """
    telemetry = Telemetry.from_environment() if settings.traces else None
    return TranslationService(
        load_models(),
        settings.limits,
        retry=settings.retry,
        language_check=settings.language_check,
        telemetry=telemetry,
        usage=usage,
    )


def spare_objects() -> None:
    """Leave the present objects out of garbage collections.

    With thousands of requests that wait, full collections over the objects of all imports took a quarter of the time.
    """
    gc.collect()
    gc.freeze()


def ignore_stop_signals() -> dict[int, Any]:
    """Ignore the signals that stop the server, and return their handlers. The server handles them itself while it runs.

    It raises them again after it has stopped, which would end the process with an error.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}


def build_server(
    service: TranslationService,
    settings: ServerSettings,
    *,
    on_ready: Callable[[], None],
    reload: Callable[[], None] | None = None,
    limit: ConnectionLimit | None = None,
) -> uvicorn.Server:
    """Return the server of a service.

    on_ready: called when the server accepts requests
    reload: called in a thread of its own on SIGHUP; None leaves the signal alone
    limit: limit on open connections; by default, it follows the limit on open files
    """
    config = uvicorn.Config(
        build_app(service, settings),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=list(settings.proxies),
        date_header=True,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(settings.limits.drain_seconds),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        loop="asyncio",
        http=cast("type[TimedConnection]", partial(TimedConnection, limit=limit or ConnectionLimit())),
        backlog=ACCEPTED_PER_TURN,
        ws="none",
    )
    return _Server(config, on_ready=on_ready, reload=reload)


class _Server(uvicorn.Server):
    """Server that says when it is ready, and reloads on SIGHUP where the system has it."""

    def __init__(
        self, config: uvicorn.Config, *, on_ready: Callable[[], None], reload: Callable[[], None] | None = None
    ) -> None:
        super().__init__(config)
        self.on_ready = on_ready
        self.reload = reload
        self._reload_waits, self._reload_runs, self._hangup = threading.Lock(), threading.Lock(), Hangup()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        gc.set_threshold(COLLECTION_THRESHOLD)
        sys.setswitchinterval(SWITCH_SECONDS)
        spare_objects()
        limit_accept_errors(asyncio.get_running_loop())
        await super().startup(sockets)
        for server_socket in sockets or []:
            server_socket.listen(WAITING_CONNECTIONS)  # in the system, where they need no descriptor
        if self.reload is not None and SIGHUP is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(SIGHUP, self._reload_or_stop)
        if self.servers:
            self.on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop after the requests in progress, or at once on a second Ctrl-C, without uvicorn's traceback."""
        super().handle_exit(sig, frame)
        if self.force_exit:
            logging.getLogger("uvicorn.error").disabled = True
        elif sig == signal.SIGINT and self.server_state.tasks and sys.stderr.isatty():
            print("stopping after the requests in progress; Ctrl-C again stops at once", file=sys.stderr)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take the connections that the system has accepted already, and stop after the requests in progress."""
        loop = asyncio.get_running_loop()
        for server_socket in sockets or []:
            with suppress(NotImplementedError):  # Windows
                loop.remove_reader(server_socket)
            await asyncio.sleep(STOP_SECONDS)  # asyncio drops a connection that it has only just taken when its server closes
            with suppress(OSError):  # no other connection waits
                for _ in range(WAITING_CONNECTIONS):
                    connection, _ = server_socket.accept()
                    await loop.connect_accepted_socket(self._build_connection, connection)
        await super().shutdown(sockets)

    def _build_connection(self) -> asyncio.Protocol:
        build: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return build(self.config, self.server_state, self.lifespan.state)

    def _reload_or_stop(self) -> None:
        if self._hangup.means_stop():
            self.should_exit = True
            return
        threading.Thread(target=self._reload_in_turn, name="reload", daemon=True).start()

    def _reload_in_turn(self) -> None:
        """Reload after the reload in progress, unless another one waits for it already."""
        if self.reload is not None and self._reload_waits.acquire(blocking=False):
            with self._reload_runs:
                self._reload_waits.release()
                self.reload()


def reload_server(service: TranslationService, load_models: Callable[[], ModelSet], settings: ServerSettings) -> None:
    """Read the keys and the models again; each of them stays as it is if that fails."""
    reload_keys(settings)
    reload_models(service, load_models)


def reload_models(service: TranslationService, load_models: Callable[[], ModelSet]) -> None:
    """Load the models again. If that fails, the present ones stay, and the log says why."""
    try:
        models = load_models()
    except DragomanError as error:
        logger.error("reload failed, the present models stay: %s", error)
        return
    service.models = models
    gc.unfreeze()  # the former models
    spare_objects()
    logger.info("reloaded %d models", len(models.models))
