"""The server as a process and under load: stops, reloads, clients that go away, and answers that do not depend on the load."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from capital_letters import CapitalTranslator, listen, make_models, make_service
from dragoman.catalog import by_name
from dragoman.errors import RecipeError
from dragoman.serving import command
from dragoman.serving.addresses import format_url
from dragoman.serving.model_set import ModelSet
from dragoman.serving.server import build_server, serve
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerSettings
from expected_errors import raises_code

FIELDS = {"source": "en", "target": "de"}
# The first terminal that the leader of a session opens controls it. The tests may run under nohup, which ignores SIGHUP.
_WITH_TERMINAL = """
import os, signal, sys
os.open(sys.argv[1], os.O_RDWR)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def run_server(*arguments: str | Path, terminal: str | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `dragoman serve` on a free port; give the process and its address.

    terminal: device of the terminal that controls the process; None leaves that of the tests
    """
    words = [sys.executable, "-m", "dragoman", "serve", *map(str, arguments), "--port", "0", "--intra-threads", "1"]
    if terminal:
        words = [sys.executable, "-c", _WITH_TERMINAL, terminal, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=terminal is not None
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if match := re.search(r"at (http://\S+)", line):
                    threading.Thread(target=process.stderr.read, daemon=True).start()
                    yield process, match[1]
                    break
            else:
                raise AssertionError("the server did not start")
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no SIGHUP")
def test_requests_are_answered_through_reloads_and_stop(bundle: Path) -> None:
    """Every request that the server has accepted is answered. Later ones are refused by the system, not dropped."""
    statuses: list[int] = []
    stopped = threading.Event()

    def send(url: str) -> None:
        with httpx.Client(timeout=120) as client:
            while True:
                try:
                    statuses.append(client.post(url + "translate", json={"q": "one red two", **FIELDS}).status_code)
                except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    # An idle connection may be closed as the server stops; an answer in progress may not.
                    assert stopped.is_set()
                    return

    with run_server(bundle) as (process, url), ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(send, url) for _ in range(4)]
        for number in (10, 20, 30, 40):
            while len(statuses) < number and not any(client.done() for client in clients):
                time.sleep(0.05)
            if number == 40:
                stopped.set()
            process.send_signal(signal.SIGTERM if number == 40 else signal.SIGHUP)
        for client in clients:
            client.result(120)
        assert process.wait(120) == 0
    assert len(statuses) > 20
    assert set(statuses) == {200}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no SIGHUP")
@pytest.mark.parametrize("options", [("--precision", "float32"), ("--precision", "int8"), ("--processes", "2")])
def test_bundle_that_is_cut_changes_no_answer(bundle_copy: Path, options: tuple[str, ...]) -> None:
    """Neither the cut files nor a reload of them end the server or change an answer."""
    texts = ["one red two", "big blue three four", "ten small nine"]

    def translate(url: str) -> list[str]:
        answer = httpx.post(url + "translate", json={"q": texts, **FIELDS}, timeout=180)  # compiles kernels
        assert answer.status_code == 200
        translations: list[str] = answer.json()["translatedText"]
        return translations

    with run_server(bundle_copy, *options) as (process, url):
        expected = translate(url)
        for path in bundle_copy.iterdir():
            path.write_bytes(b"")
        assert translate(url) == expected
        explanation = httpx.get(url + "v1/explain", params={"text": "one", **FIELDS}, timeout=120)
        assert explanation.status_code == 200
        process.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert translate(url) == expected
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems give a terminal to a session in other ways")
@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_closed_terminal_stops_the_server(bundle: Path, options: tuple[str, ...]) -> None:
    """SIGHUP reloads as long as the terminal of the server is open. Its end sends the signal, too."""
    terminal, device = os.openpty()
    with run_server(bundle, *options, terminal=os.ttyname(device)) as (process, url):
        process.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert httpx.post(url + "translate", json={"q": "one", **FIELDS}, timeout=120).status_code == 200
        os.close(device)
        os.close(terminal)
        assert process.wait(60) == 0


def test_reloads_follow_one_another() -> None:
    """Ten signals are two reloads: the one in progress, and one that begins after the last signal."""
    started, gate = threading.Semaphore(0), threading.Semaphore(0)

    def reload() -> None:
        started.release()
        assert gate.acquire(timeout=60)

    server: Any = build_server(make_service(), ServerSettings(), on_ready=lambda: None, reload=reload)
    for _ in range(10):
        server._reload_or_stop()
    assert started.acquire(timeout=60)
    assert not started.acquire(timeout=0.1)
    gate.release()
    assert started.acquire(timeout=60)
    gate.release()
    for thread in [thread for thread in threading.enumerate() if thread.name == "reload"]:
        thread.join(60)
    assert not started.acquire(blocking=False)


def test_second_interrupt_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("uvicorn.error")
    monkeypatch.setattr(log, "disabled", False)
    server = build_server(make_service(), ServerSettings(), on_ready=lambda: None)
    for is_at_once in (False, True):
        server.handle_exit(signal.SIGINT, None)
        assert (server.should_exit, server.force_exit, log.disabled) == (True, is_at_once, is_at_once)


def read_cpu_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_until_idle(process_id: int) -> float:
    """Wait for a second in which a process computes little. Returns the seconds of processor time before it."""
    start = last = read_cpu_seconds(process_id)
    while True:
        time.sleep(1)
        now = read_cpu_seconds(process_id)
        if now - last < 0.3:
            return last - start
        last = now


def measure_end(process: subprocess.Popen[str], sent: signal.Signals) -> float:
    """Send a signal and wait for the end of the process. Returns the seconds of processor time that it took."""
    start = seconds = read_cpu_seconds(process.pid)
    process.send_signal(sent)
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError, IndexError):
            seconds = read_cpu_seconds(process.pid)
        time.sleep(0.01)
    assert process.returncode is not None
    return seconds - start


# Each of these files takes more than five seconds to read.
SLOW_FILES: dict[str, bytes] = {
    "a.yaml": b"".join(b"k%d: one\n" % number for number in range(50_000)),
    "a.xlf": b"<xliff version='1.2'><file><body>%b</body></file></xliff>"
    % (b"<trans-unit><source>one <x id='1'/> two</source></trans-unit>" * 99_000),
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the processor time from /proc")
@pytest.mark.parametrize("name", SLOW_FILES)
def test_reading_ends_with_its_client_and_its_server(bundle: Path, name: str) -> None:
    files = {"file": (name, SLOW_FILES[name])}
    with run_server(bundle) as (process, url):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + "translate_file", data=FIELDS, files=files, timeout=httpx.Timeout(120, read=2))
        assert measure_until_idle(process.pid) < 1.5  # the reading has ended with its client
        job = httpx.post(url + "v1/files", data=FIELDS, files=files, timeout=120).json()["id"]
        time.sleep(1)
        assert httpx.get(f"{url}v1/files/{job}").json()["status"] == "queued"  # it is being read
        assert measure_end(process, signal.SIGTERM) < 1.5
        assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the processor time from /proc")
@pytest.mark.parametrize("name", SLOW_FILES)
def test_interrupt_ends_the_reading_of_a_file(bundle: Path, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)  # what opens it has loaded the bundle
    words = [sys.executable, "-m", "dragoman", "translate-file", str(bundle), str(tmp_path / name)]
    with subprocess.Popen(
        words,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the caller may ignore the signal, as under nohup
    ) as process:
        (tmp_path / name).write_bytes(SLOW_FILES[name])
        time.sleep(1)
        assert measure_end(process, signal.SIGINT) < 1.5
        assert process.stderr is not None
        assert process.stderr.read().strip().startswith("dragoman: interrupted; ")
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def count_abandoned(service: TranslationService) -> float:
    """Return the requests whose clients went away before an answer began."""
    counts = [sample for metric in service.metrics.requests.collect() for sample in metric.samples]
    return sum(sample.value for sample in counts if sample.name.endswith("_total") and sample.labels["status"] == "499")


@pytest.mark.slow
def test_clients_that_go_away_leave_no_work() -> None:
    translator = CapitalTranslator()
    translator.gate.clear()
    service = make_service(translator, max_queue_tokens=1_000_000)
    body = b'{"q": "one two three", "source": "en", "target": "de"}'
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with listen(service) as url:
        port = int(url.rpartition(":")[2])
        for _ in range(20):
            connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
            for connection in connections:
                connection.sendall(head + body)
            time.sleep(0.05)
            for connection in connections:
                connection.close()
        deadline = time.monotonic() + 120
        while count_abandoned(service) < 1000 and time.monotonic() < deadline:
            time.sleep(0.05)
        translator.gate.set()
        answer = httpx.post(url + "/translate", json={"q": "last", **FIELDS}, timeout=120)
        assert answer.json() == {"translatedText": "LAST"}
        assert (service.queue.num_jobs, service.queue.num_tokens) == (0, 0)
    # A batch may be in progress when its clients leave. All others are left out.
    assert sum(len(lines) for lines, _ in translator.calls) < 100


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "a BUNDLE is missing"),
        pytest.param(["no-such-bundle"], 1, "no-such-bundle", marks=pytest.mark.slow),
        pytest.param(["no-such-bundle", "--processes", "2"], 1, "no-such-bundle", marks=pytest.mark.slow),
        (["no-such-bundle", "--keys", "no-such-file"], 2, "no-such-file"),
        (["no-such-bundle", "--port", "70000"], 2, "70000"),
        (["no-such-bundle", "--glossaries", __file__], 1, "cannot be written"),
        (["no-such-bundle", "--allow-origin", "example.org"], 2, "--allow-origin example.org: is no site"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], status: int, message: str) -> None:
    words = [sys.executable, "-m", "dragoman", "serve", *arguments]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
def test_address_in_use_is_one_line(option: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        settings = ServerSettings(
            port=int(port) if option == "--port" else 0, admin_port=int(port) if option != "--port" else None
        )
        with raises_code("invalid-option", port, option):
            serve(lambda: pytest.fail("the models are loaded"), settings)


def test_address_of_ipv6_is_in_brackets() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        assert format_url(ServerSettings(host="::1"), other) == f"http://[::1]:{port}/"
        with raises_code("invalid-option", f"[::1]:{port}: the server cannot listen there"):
            serve(lambda: pytest.fail("the models are loaded"), ServerSettings(host="::1", port=port))


def test_address_in_use_is_refused_before_models_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_name, "fetch_if_listed", lambda _: pytest.fail("a model was fetched"))
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        result = CliRunner().invoke(command.serve, ["en-de", "--port", str(other.getsockname()[1])])
    assert isinstance(result.exception, RecipeError)
    assert "cannot listen there (address already in use)" in str(result.exception)


def test_pivot_that_is_no_language_is_refused(bundle: Path) -> None:
    with raises_code("invalid-option", "zz", "de, en"):
        ModelSet.load([bundle], pivot="zz", device="cpu", precision="float32")


def test_first_bundle_of_a_pair_serves_it(caplog: pytest.LogCaptureFixture) -> None:
    models = make_models((CapitalTranslator(), ("en", "de")), (CapitalTranslator(), ("en-GB", "de")))
    assert models.find_route("en", "de")[0].model is models.models[0]
    assert "model-en-de translates the pair, not model-en-GB-de" in caplog.text


def test_digest_of_a_key_is_printed() -> None:
    words = [sys.executable, "-m", "dragoman", "serve", "--hash-key"]
    result = subprocess.run(words, input="secret\n", capture_output=True, text=True, check=True, timeout=120)
    # printf secret | sha256sum
    assert result.stdout == "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n"
