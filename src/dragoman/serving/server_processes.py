"""Several server processes behind one address, for more requests than the interpreter lock of one process lets through.

The parent takes the addresses, loads no model, and answers the admin port. Its children serve. All of them accept connections
from one socket, so a child that is busy takes fewer. Each child has its models and its queue. All of them map the same packed
weights, and share the memory of imported modules.

The parent sends commands over a pipe: `keys`, `reload` and `stop`. A child answers with its events: `ready`, `reloaded` or
`failed`. A second pipe asks for metrics. The end of a pipe stops the child, so no child is left behind by a parent that was
killed.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dragoman.errors import DragomanError, WorkerLostError
from dragoman.platform_features import SIGHUP, get_signals
from dragoman.runtime.owned_folder import hold_folder, own_folder, remove_abandoned
from dragoman.runtime.shared_weights import remove_unused, share_weights
from dragoman.serving.addresses import OnReady, bind_addresses, format_url
from dragoman.serving.admin import serve_admin
from dragoman.serving.bundle_copies import BundleCopies
from dragoman.serving.hangup import Hangup
from dragoman.serving.metrics import ProcessMetrics, sum_metrics
from dragoman.serving.settings import FILE_DIR_PREFIX, WEIGHTS_DIR_PREFIX, ServerSettings, reload_keys
from dragoman.serving.usage import SharedCounts, Usage

if TYPE_CHECKING:
    from dragoman.serving.model_set import ModelSet

logger = logging.getLogger("dragoman.serving")

MAX_RESTARTS = 5
RESTART_SECONDS = 60.0
"""Children that end are started again, at most MAX_RESTARTS of them in RESTART_SECONDS."""
PROBE_SECONDS = 5.0
"""Longest wait for the metrics of a child; a child that does not answer has those that it had before."""
STOP_MARGIN_SECONDS = 10.0
"""Time for a child to end after the time for its requests in progress."""


def serve_in_processes(
    load_models: Callable[[], ModelSet],
    settings: ServerSettings,
    *,
    bundles: Sequence[Path] = (),
    on_ready: OnReady = lambda url, targets: None,
) -> None:
    """Serve by `settings.processes` processes until SIGTERM or SIGINT; see `serve` for the arguments.

    load_models: function that can be pickled, because the children import it
    bundles: bundles that it loads, which are copied once for all children

    Raises WorkerLostError if all children have ended and were started again too often, and the errors of `serve`.
    """
    with ExitStack() as stack:
        server_socket, admin_socket = bind_addresses(settings, stack)
        wake = stack.enter_context(catch_signals())
        remove_abandoned(FILE_DIR_PREFIX, WEIGHTS_DIR_PREFIX)
        file_dir, weights_dir = (stack.enter_context(own_folder(prefix)) for prefix in (FILE_DIR_PREFIX, WEIGHTS_DIR_PREFIX))
        settings = replace(settings, file_dir=file_dir, weights_dir=weights_dir)
        copies = BundleCopies(bundles, weights_dir)
        copies.update()
        supervisor = _Supervisor(load_models, settings, server_socket, copies)
        stack.callback(supervisor.stop)
        targets = supervisor.start(wake)
        if targets is None:
            return
        if admin_socket is not None:
            stack.callback(serve_admin(admin_socket, supervisor.render_metrics, supervisor.describe_state).shutdown)
        on_ready(format_url(settings, server_socket), targets)
        supervisor.run(wake)


@contextmanager
def catch_signals() -> Iterator[Connection]:
    """Give a connection that receives `stop` or `reload` for the signals that this process gets."""
    wake, sender = multiprocessing.Pipe(duplex=False)
    hangup = Hangup()

    def send(number: int, frame: FrameType | None) -> None:
        sender.send_bytes(b"reload" if number == SIGHUP and not hangup.means_stop() else b"stop")

    numbers = (signal.SIGINT, signal.SIGTERM, *get_signals("SIGHUP"))
    previous = {number: signal.signal(number, send) for number in numbers}
    try:
        yield wake
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        wake.close()
        sender.close()


def _get_context() -> Any:
    """Return the way to start processes: by forks of a process with the modules, or anew where the system has no forks."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dragoman.serving.preloaded"])
    return context


class _Child:
    """Server process, from the parent's side.

    usage: place of the process in the shared counts of characters
    metrics: the latest that it has sent, in the text format of Prometheus
    """

    def __init__(
        self,
        context: Any,
        load_models: Callable[[], ModelSet],
        settings: ServerSettings,
        server_socket: socket.socket,
        usage: Usage,
    ) -> None:
        self.usage = usage
        self.control, control = context.Pipe()
        self._probe, probe = context.Pipe()
        self._probe_lock = threading.Lock()
        self.is_ready = False
        self.metrics = ""
        self.process: BaseProcess = context.Process(
            target=_run_child, args=(load_models, settings, server_socket, control, probe, usage), name="dragoman-server"
        )
        self.process.start()
        control.close()
        probe.close()

    def receive(self) -> dict[str, Any] | None:
        """Return the next event of the child, or None if it has closed the connection."""
        try:
            event: dict[str, Any] = json.loads(self.control.recv_bytes())
        except (EOFError, OSError):
            return None
        self.is_ready = self.is_ready or event["event"] == "ready"
        return event

    def send(self, command: str) -> None:
        """Send a command; a child that has ended gets none."""
        with suppress(OSError):
            self.control.send_bytes(command.encode())

    def probe(self) -> str:
        """Update the metrics; return the state of the child, "starting" or "silent"."""
        if not self.is_ready:
            return "starting"
        with self._probe_lock, suppress(EOFError, OSError):
            while self._probe.poll():  # an answer that came too late
                self._probe.recv_bytes()
            self._probe.send_bytes(b"probe")
            if self._probe.poll(PROBE_SECONDS):
                answer = json.loads(self._probe.recv_bytes())
                self.metrics = answer["metrics"]
                return str(answer["state"])
        return "silent"

    def close(self) -> None:
        """Close the connections of a child that has ended."""
        self.control.close()
        self._probe.close()
        self.process.join()


class _Supervisor:
    """Parent of the server processes."""

    def __init__(
        self,
        load_models: Callable[[], ModelSet],
        settings: ServerSettings,
        server_socket: socket.socket,
        copies: BundleCopies,
    ) -> None:
        self._context = _get_context()
        self._copies = copies
        counts = SharedCounts(self._context, settings.processes)
        self._free_usages = [Usage(counts, index) for index in range(settings.processes)]
        self._load_models = load_models
        self._settings = settings
        self._server_socket = server_socket
        self._children: list[_Child] = []
        self._to_reload: deque[_Child] = deque()
        self._reloading: _Child | None = None
        self._restarts: deque[float] = deque()
        self._reload_time = 0.0
        self._metrics = ProcessMetrics()
        self._past_metrics = ""
        self._lock = threading.Lock()

    def _start_child(self) -> _Child:
        return _Child(self._context, self._load_models, self._settings, self._server_socket, self._free_usages.pop())

    def start(self, wake: Connection) -> dict[str, list[str]] | None:
        """Start all children; return the languages that they translate, or None if a signal stops the server meanwhile.

        The first child is ready before the others start, because it compiles and measures what they read from the cache.

        Raises the error of a child that cannot load its models.
        """
        targets: dict[str, list[str]] = {}
        for number in (1, self._settings.processes - 1):
            started = [self._start_child() for _ in range(number)]
            self._children += started
            for child in started:
                while not child.is_ready:
                    if wake in wait([child.control, wake]) and wake.recv_bytes() == b"stop":
                        return None
                    if child.control.poll():
                        targets = self._read_start(child)
        return targets

    def _read_start(self, child: _Child) -> dict[str, list[str]]:
        """Return the languages of a child that is ready. Raises its error if it is not."""
        event = child.receive()
        if event is None:
            child.process.join()
            raise WorkerLostError(f"a server process ended before it was ready, with status {child.process.exitcode}")
        if event["event"] == "failed":
            error = DragomanError(self._copies.name_bundles(event["message"]), code=event["code"])
            error.exit_code = event["exit_code"]
            raise error
        targets: dict[str, list[str]] = event["targets"]
        return targets

    def run(self, wake: Connection) -> None:
        """Follow signals and children until a signal to stop. Raises WorkerLostError if all children are lost."""
        while True:
            children: dict[object, _Child] = {child.control: child for child in self._children}
            for ready in wait([wake, *(child.control for child in self._children)]):
                if ready is wake:
                    if wake.recv_bytes() == b"stop":
                        return
                    self._reload()
                elif (event := children[ready].receive()) is None:
                    self._replace(children[ready])
                else:
                    self._note(children[ready], event)

    def _reload(self) -> None:
        """Reload all children one after the other, and start those that were lost. A damaged bundle leaves all as they are.

        The keys are read again in any case, and by all children at once.
        """
        self._restarts.clear()
        reload_keys(self._settings)
        for child in self._children:
            child.send("keys")
        reload_time = time.time()
        try:
            self._copies.update()
        except DragomanError as error:
            logger.error("reload failed, the present models stay: %s", error)
            return
        self._reload_time = reload_time
        self._to_reload.extend(self._children)
        missing = self._settings.processes - len(self._children)
        self._children += [self._start_child() for _ in range(missing)]
        self._reload_next()

    def _reload_next(self) -> None:
        if self._reloading is None and self._to_reload:
            self._reloading = self._to_reload.popleft()
            self._reloading.send("reload")

    def _note(self, child: _Child, event: dict[str, Any]) -> None:
        """Follow an event of a child."""
        if event["event"] == "failed":
            logger.error("a server process did not start: %s", self._copies.name_bundles(event["message"]))
        elif event["event"] == "reloaded" and child is self._reloading:
            self._reloading = None
            self._reload_next()
            if self._reloading is None and self._settings.weights_dir is not None:
                remove_unused(self._settings.weights_dir, self._reload_time)
                self._copies.remove_former()

    def _replace(self, child: _Child) -> None:
        """Start a child again that has ended, unless this happens too often."""
        child.close()
        self._free_usages.append(child.usage)
        with self._lock:
            self._children.remove(child)
            self._past_metrics = sum_metrics([], [self._past_metrics, child.metrics]).decode()
        self._to_reload = deque(other for other in self._to_reload if other is not child)
        if self._reloading is child:
            self._reloading = None
            self._reload_next()
        now = time.monotonic()
        while self._restarts and self._restarts[0] < now - RESTART_SECONDS:
            self._restarts.popleft()
        logger.error("a server process ended with status %s", child.process.exitcode)
        if len(self._restarts) < MAX_RESTARTS:
            self._restarts.append(now)
            self._metrics.restarts.inc()
            self._children.append(self._start_child())
            return
        problem = f"{MAX_RESTARTS} server processes ended within {RESTART_SECONDS:g} seconds, and were started again"
        if not self._children:
            raise WorkerLostError(f"{problem}; the log has the cause")
        logger.error("%s; SIGHUP starts the others, and until then %d serve", problem, len(self._children))

    def describe_state(self) -> dict[str, Any]:
        """Return the states of the children: "ok" if one of them has room, and otherwise that of the first."""
        states = [child.probe() for child in list(self._children)]
        return {"status": "ok" if "ok" in states else next(iter(states), "stopping"), "processes": states}

    def render_metrics(self) -> bytes:
        """Return the sums of the metrics of all children, those that have ended included."""
        for child in list(self._children):
            child.probe()
        with self._lock:  # no child may count twice, as present and as past
            present, past = [child.metrics for child in self._children], self._past_metrics
            self._metrics.processes.set(sum(child.is_ready for child in self._children))
        return sum_metrics([*present, self._metrics.render()], [past])

    def stop(self) -> None:
        """Let the children finish their requests, and kill those that do not end in time."""
        self._server_socket.close()
        for child in self._children:
            if child.is_ready:
                child.send("stop")
            else:
                child.process.kill()
        end = time.monotonic() + self._settings.limits.drain_seconds + STOP_MARGIN_SECONDS
        for child in self._children:
            child.process.join(max(0.0, end - time.monotonic()))
            if child.process.is_alive():
                logger.error("a server process did not end in time; its requests are lost")
                child.process.kill()
            child.close()


def _run_child(
    load_models: Callable[[], ModelSet],
    settings: ServerSettings,
    server_socket: socket.socket,
    control: Connection,
    probe: Connection,
    usage: Usage,
) -> None:
    """Serve in this process until the parent stops it."""
    from dragoman.serving.server import build_server, build_service, ignore_stop_signals, reload_models  # imports torch

    share_weights(settings.weights_dir)
    for folder in (settings.file_dir, settings.weights_dir):
        if folder is not None:
            hold_folder(folder)  # also after the parent was killed, until the last request is answered
    if SIGHUP is not None:
        signal.signal(SIGHUP, signal.SIG_IGN)  # a terminal sends it to the parent as well, which reloads one after the other
    ignore_stop_signals()  # until the server handles them, the parent decides
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("dragoman").setLevel(logging.INFO)
    send_lock = threading.Lock()

    def send(**event: Any) -> None:
        """Send an event to the parent, if there still is one."""
        with send_lock, suppress(OSError):
            control.send_bytes(json.dumps(event).encode())

    try:
        service = build_service(load_models, settings, usage)
    except DragomanError as error:
        send(event="failed", message=str(error), code=error.code, exit_code=error.exit_code)
        return
    server = build_server(service, settings, on_ready=lambda: send(event="ready", targets=service.models.targets))

    def follow_commands() -> None:
        """Reload and stop as the parent says; stop if it has ended."""
        with suppress(EOFError, OSError):
            while (command := control.recv_bytes()) != b"stop":
                if command == b"keys":
                    reload_keys(settings, report=False)
                    continue
                reload_models(service, load_models)
                send(event="reloaded")
        server.should_exit = True

    def answer_probes() -> None:
        """Send the state and the metrics whenever the parent asks."""
        with suppress(EOFError, OSError):
            while probe.recv_bytes():
                answer = {"state": service.describe_state(), "metrics": service.metrics.render().decode()}
                probe.send_bytes(json.dumps(answer).encode())

    for target in (follow_commands, answer_probes):
        threading.Thread(target=target, name=target.__name__, daemon=True).start()
    server.run(sockets=[server_socket])
    service.queue.close()
