"""Several server processes: one address, summed metrics, reloads, stops, and children that die."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from test_server_process import run_server

from dragoman.errors import WorkerLostError
from dragoman.serving import server_processes
from dragoman.serving.bundle_copies import BundleCopies
from dragoman.serving.metrics import ProcessMetrics, ServerMetrics, sum_metrics
from dragoman.serving.server_processes import MAX_RESTARTS, _Supervisor
from dragoman.serving.settings import ServerSettings

FIELDS = {"q": "one red two", "source": "en", "target": "de"}
HAS_PROC = Path("/proc/self/task").exists()


def read_sample(text: str, name: str) -> float:
    """Return a sample of metrics in the text format of Prometheus."""
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(value)


def test_metrics_are_summed_and_counters_outlive_a_process() -> None:
    processes = [ServerMetrics() for _ in range(3)]
    for number, metrics in enumerate(processes, start=1):
        metrics.requests.labels("/translate", "200").inc(number)
        metrics.count_batch(2, 10, 0.3)
        metrics.watch_queue(lambda: 5, lambda: 1)
    first, second, past = (metrics.render().decode() for metrics in processes)
    text = sum_metrics([first, second, ProcessMetrics().render()], [past]).decode()
    assert read_sample(text, 'dragoman_requests_total{route="/translate",status="200"}') == 1 + 2 + 3
    assert read_sample(text, 'dragoman_batch_lines_bucket{le="2.0"}') == 3
    assert read_sample(text, "dragoman_batch_seconds_sum") == pytest.approx(0.9)
    assert read_sample(text, "dragoman_queue_tokens") == 5 + 5
    assert read_sample(text, "dragoman_process_restarts_total") == 0
    assert "_created" not in text
    assert sum_metrics([text]) == text.encode()


class EndedChild:
    """Child process that ends as soon as it has started."""

    def __init__(self, *arguments: Any) -> None:
        self.usage = arguments[-1]
        self.control, sender = Pipe()
        sender.close()
        self.metrics = ""
        self.is_ready = False
        self.process = SimpleNamespace(exitcode=-9)

    def receive(self) -> None:
        return None

    def close(self) -> None:
        self.control.close()


def test_children_that_end_again_and_again_are_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(server_processes, "_Child", EndedChild)
    with socket.socket() as server_socket:
        supervisor = _Supervisor(
            lambda: pytest.fail("loads"), ServerSettings(processes=2), server_socket, BundleCopies([], tmp_path)
        )
        supervisor._children = [supervisor._start_child() for _ in range(2)]
        wake, _sender = Pipe(duplex=False)
        with pytest.raises(WorkerLostError, match=f"{MAX_RESTARTS} server processes ended within 60 seconds"):
            supervisor.run(wake)
    assert read_sample(supervisor._metrics.render(), "dragoman_process_restarts_total") == MAX_RESTARTS
    assert "until then 1 serve" in caplog.text


def list_servers(process_id: int) -> list[int]:
    """Return the server processes of a parent, without the other processes of multiprocessing."""
    for child in list_children(process_id):
        if "forkserver" in Path(f"/proc/{child}/cmdline").read_text():
            return list_children(child)
    return []


def list_children(process_id: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]


def wait_until(is_true: Any) -> None:
    deadline = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PROC or not hasattr(signal, "SIGHUP"), reason="the system has no /proc or no SIGHUP")
def test_processes_share_an_address_and_lose_no_request(bundle: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        admin = f"http://127.0.0.1:{other.getsockname()[1]}"
    statuses: list[int] = []
    stopped = threading.Event()

    def send(url: str) -> None:
        while not stopped.is_set():
            # Each request has a connection of its own, so both processes get some.
            try:
                statuses.append(httpx.post(url + "translate", json=FIELDS, timeout=120).status_code)
            except httpx.TransportError:
                assert stopped.is_set()

    with run_server(bundle, "--processes", "2", "--admin-port", admin.rpartition(":")[2]) as (process, url):
        servers = list_servers(process.pid)
        assert len(servers) == 2
        assert httpx.get(admin + "/readyz", timeout=120).json() == {"status": "ok", "processes": ["ok", "ok"]}
        with ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(send, url) for _ in range(4)]
            for number in (5, 10):
                wait_until(lambda number=number: len(statuses) >= number)
                process.send_signal(signal.SIGHUP)
            wait_until(lambda: len(statuses) >= 40)
            stopped.set()
            for client in clients:
                client.result(120)
        assert list_servers(process.pid) == servers
        text = httpx.get(admin + "/metrics", timeout=120).text
        assert read_sample(text, 'dragoman_requests_total{route="/translate",status="200"}') == len(statuses) >= 40
        assert set(statuses) == {200}

        os.kill(servers[0], signal.SIGKILL)
        wait_until(lambda: len(set(list_servers(process.pid)) - set(servers)) == 1)
        wait_until(lambda: httpx.get(admin + "/readyz", timeout=120).json().get("processes") == ["ok", "ok"])
        assert httpx.post(url + "translate", json=FIELDS, timeout=120).status_code == 200
        text = httpx.get(admin + "/metrics", timeout=120).text
        assert read_sample(text, 'dragoman_requests_total{route="/translate",status="200"}') == len(statuses) + 1
        assert read_sample(text, "dragoman_process_restarts_total") == 1
        for _ in range(4):  # any of the processes may answer
            httpx.post(url + "v2/translate", json={"text": ["one"], "source_lang": "EN", "target_lang": "DE"}, timeout=120)
        assert httpx.get(url + "v2/usage", timeout=120).json()["character_count"] == 4 * len("one")

        servers = list_servers(process.pid)
        with ThreadPoolExecutor() as pool:
            fields = {**FIELDS, "q": [f"one red two {number}" for number in range(1000)]}
            answer = pool.submit(httpx.post, url + "translate", json=fields, timeout=120)
            wait_until(
                lambda: read_sample(httpx.get(admin + "/metrics", timeout=120).text, "dragoman_queue_jobs") or answer.done()
            )
            process.send_signal(signal.SIGTERM)
            assert len(answer.result(120).json()["translatedText"]) == 1000
        assert process.wait(120) == 0
        assert not any(Path(f"/proc/{server}").exists() for server in servers)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PROC, reason="the system has no /proc")
def test_children_end_with_a_parent_that_was_killed(bundle: Path) -> None:
    with run_server(bundle, "--processes", "2") as (process, _):
        servers = list_servers(process.pid)
        process.kill()
        wait_until(lambda: not any(Path(f"/proc/{server}").exists() for server in servers))
