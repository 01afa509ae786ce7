"""The application on Ray Serve: the contracts of the server, scaling, redeploys and lost replicas, on a local Ray."""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import test_apis
import test_libretranslate_contract

from capital_bundles import load_capital_bundle, write_capital_bundle
from dragoman.cluster.ray_executor import connect
from dragoman.errors import BundleError, RecipeError
from dragoman.serving.cluster.cluster_server import ClusterServer
from dragoman.serving.cluster.cluster_settings import ClusterSettings
from dragoman.serving.settings import ApiKeys, ServerLimits, ServerSettings, hash_key

pytest.importorskip("ray.serve", reason="needs the extra ray", exc_type=ImportError)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="Ray Serve is tried on Linux alone"),
]

FIELDS = {"q": "one two", "source": "en", "target": "de"}


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class LocalRay:
    """Ray of this machine, which has one server at a time. The one of the contract tests stays until another is deployed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clients: dict[str, httpx.Client] = {}
        self._stack = ExitStack()

    def get_client(self, *pairs: tuple[str, str, str]) -> httpx.Client:
        """Return a client of a server with bundles for these languages, each with its suffix."""
        if (name := str(pairs)) not in self._clients:
            bundles = [write_capital_bundle(self._folder / source, source, target, suffix=end) for source, target, end in pairs]
            stack = ExitStack()
            _, url = stack.enter_context(self.deploy(bundles))
            self._clients[name] = stack.enter_context(httpx.Client(base_url=url, timeout=30))
            self._stack = stack
        return self._clients[name]

    def close(self) -> None:
        """Stop the server of the contract tests."""
        self._stack.close()
        self._clients.clear()

    @contextmanager
    def deploy(
        self, bundles: Sequence[Path], settings: ServerSettings | None = None, *, pivot: str | None = None, **cluster: Any
    ) -> Iterator[tuple[ClusterServer, str]]:
        """Serve bundles of capital letters; give the server and its address. Replicas need no cores."""
        self.close()
        settings = replace(settings or ServerSettings(), port=find_free_port())
        cluster_settings = ClusterSettings("local", cores_per_replica=0, **cluster)
        server = ClusterServer([str(path) for path in bundles], load_capital_bundle, settings, cluster_settings, pivot)
        try:
            server.start()
            yield server, f"http://127.0.0.1:{settings.port}/"
        finally:
            server.stop()


@pytest.fixture(scope="module")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # replicas import the stand-ins
        with connect("local"):
            ray = LocalRay(tmp_path_factory.mktemp("bundles"))
            yield ray
            ray.close()


@pytest.fixture
def client(request: pytest.FixtureRequest, local_ray: LocalRay) -> httpx.Client:
    """Client that takes the place of the fixture with this name in the modules whose tests run here."""
    if request.function.__module__ == test_apis.__name__:
        return local_ray.get_client(("en", "de", ""))
    return local_ray.get_client(("en", "es", ""), ("es", "en", "!"))


def is_test_of_client(function: Any) -> bool:
    """Return whether a test takes a client, and nothing of the process of the server."""
    fixtures = inspect.signature(function).parameters
    return "client" in fixtures and not {"caplog", "translator"} & set(fixtures)


# The contract tests that take a client run here unchanged, with a client of the application on Ray Serve.
for module in (test_libretranslate_contract, test_apis):
    tests = {
        name: function for name, function in vars(module).items() if name.startswith("test_") and is_test_of_client(function)
    }
    globals().update(tests)


def send_until(url: str, is_over: threading.Event, answers: list[tuple[int, str]]) -> None:
    """Send requests one after the other, and note the status and the translation of each."""
    with httpx.Client(timeout=60) as http:
        while not is_over.is_set():
            answer = http.post(url + "translate", json=FIELDS)
            answers.append((answer.status_code, answer.json().get("translatedText", answer.text)))


@contextmanager
def load(url: str, *, num_clients: int) -> Iterator[list[tuple[int, str]]]:
    """Send requests all the time; give the list of their answers."""
    answers: list[tuple[int, str]] = []
    is_over = threading.Event()
    with ThreadPoolExecutor(num_clients) as pool:
        clients = [pool.submit(send_until, url, is_over, answers) for _ in range(num_clients)]
        try:
            yield answers
        finally:
            is_over.set()
        for running in clients:
            running.result(60)


def wait_until(is_met: Callable[[], bool], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_met():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_limits_and_keys_are_those_of_the_server(local_ray: LocalRay, tmp_path: Path) -> None:
    limits = ServerLimits(max_body_bytes=1000, max_queue_tokens=1, queue_seconds=0.2)
    settings = ServerSettings(limits=limits, api_keys=ApiKeys([bytes.fromhex(hash_key("secret"))]))
    bundle = write_capital_bundle(tmp_path / "bundle", "en", "de", seconds=2.0)
    key = {"Authorization": "Bearer secret"}
    with local_ray.deploy([bundle], settings) as (_, url), httpx.Client(base_url=url, timeout=30, headers=key) as http:
        assert httpx.get(url + "health").status_code == 200
        assert httpx.post(url + "v1/translate", json=FIELDS).status_code == 401
        assert httpx.post(url + "translate", json={**FIELDS, "api_key": "wrong"}).status_code == 403
        refused = http.post("/translate", content=b"x" * 2000)
        assert (refused.status_code, list(refused.json())) == (413, ["error"])
        failed = http.post("/translate", json={**FIELDS, "q": "fail secretly"})
        assert (failed.status_code, list(failed.json())) == (500, ["error"])
        assert "secretly" not in failed.text
        with ThreadPoolExecutor() as pool:
            answers = [pool.submit(http.post, "/translate", json=FIELDS) for _ in range(4)]
            statuses = sorted(answer.result().status_code for answer in answers)
            busy = [answer.result() for answer in answers if answer.result().status_code == 503]
        assert statuses == [200, 503, 503, 503]
        assert {answer.headers["retry-after"] for answer in busy} == {"5"}


def test_replicas_follow_the_tokens_and_no_request_fails(local_ray: LocalRay, tmp_path: Path) -> None:
    bundle = write_capital_bundle(tmp_path / "bundle", "en", "de", seconds=0.1)
    scaling: dict[str, Any] = {
        "tokens_per_replica": 10,
        "max_replicas": 2,
        "look_back_seconds": 3,
        "upscale_seconds": 1,
        "downscale_seconds": 2,
    }
    with local_ray.deploy([bundle], **scaling) as (server, url):

        def count_replicas() -> int:
            return int(server.describe_state()["replicas"]["dragoman-bundle-1"])

        assert count_replicas() == 1
        with load(url, num_clients=8) as answers:  # up to 40 tokens
            wait_until(lambda: count_replicas() == 2, seconds=60)
        with load(url, num_clients=1) as few:
            wait_until(lambda: count_replicas() == 1, seconds=60)
        assert set(answers + few) == {(200, "ONE TWO")}
        metrics = server.render_metrics().decode()
    total = sum(
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith('dragoman_requests_total{route="/translate"')
    )
    assert total == len(answers) + len(few)
    assert 'dragoman_replicas{application="dragoman-bundle-1"} 1.0' in metrics


def test_redeploy_under_load_loses_no_request(local_ray: LocalRay, tmp_path: Path) -> None:
    bundles = [write_capital_bundle(tmp_path / "de", "en", "de"), write_capital_bundle(tmp_path / "fr", "en", "fr")]
    with local_ray.deploy(bundles) as (server, url):
        with load(url, num_clients=4) as answers:
            wait_until(lambda: len(answers) > 50, seconds=20)
            write_capital_bundle(bundles[0], "en", "de", suffix=" (new)")
            server.redeploy()
            num_before = len(answers)
            wait_until(lambda: len(answers) > num_before + 50, seconds=20)
        assert {status for status, _ in answers} == {200}
        assert {text for _, text in answers} == {"ONE TWO", "ONE TWO (new)"}
        assert {text for _, text in answers[num_before + 8 :]} == {"ONE TWO (new)"}
        (bundles[0] / "capitals.json").write_text("damaged")
        server.redeploy()
        assert httpx.post(url + "translate", json=FIELDS).json() == {"translatedText": "ONE TWO (new)"}


def test_bundles_share_replicas_that_hold_one_of_them(local_ray: LocalRay, tmp_path: Path) -> None:
    pairs = [("de", "en", "!"), ("en", "fr", "?"), ("fr", "de", ".")]
    bundles = [
        write_capital_bundle(tmp_path / f"{source}{target}", source, target, suffix=end) for source, target, end in pairs
    ]
    with local_ray.deploy(bundles, pivot="en", models_per_replica=1) as (server, url):
        assert server.describe_state()["replicas"] == {"dragoman": 1, "dragoman-bundles": 1}
        for _ in range(2):
            texts = [
                httpx.post(url + "translate", json={"q": "x", "source": source, "target": target}, timeout=30).json()
                for source, target in (("de", "en"), ("en", "fr"), ("fr", "de"), ("de", "fr"))
            ]
            assert texts == [{"translatedText": text} for text in ("X!", "X?", "X.", "X!?")]
        for source, target, _ in pairs:
            assert httpx.post(url + "translate", json={"q": "x", "source": target, "target": source}).status_code in (200, 400)


def test_killed_replica_loses_no_request(local_ray: LocalRay, tmp_path: Path) -> None:
    bundle = write_capital_bundle(tmp_path / "bundle", "en", "de", seconds=0.02)
    with local_ray.deploy([bundle], min_replicas=2) as (_, url), load(url, num_clients=4) as answers:
        wait_until(lambda: len(answers) > 20, seconds=20)
        replicas = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and "ray::ServeReplica:dragoman-bundle-1:" in (entry / "cmdline").read_text()
        ]
        assert len(replicas) == 2
        os.kill(replicas[0], signal.SIGKILL)
        num_before = len(answers)
        wait_until(lambda: len(answers) > num_before + 50, seconds=20)
    assert set(answers) == {(200, "ONE TWO")}


def test_bundle_that_a_machine_lacks_is_one_line(local_ray: LocalRay, tmp_path: Path) -> None:
    with (
        pytest.raises(BundleError, match=r"^machine [0-9.]+: .*nothing: there is no such folder") as failure,
        local_ray.deploy([tmp_path / "nothing"]),
    ):
        pass
    assert "\n" not in str(failure.value)


def test_two_bundles_for_one_pair_are_one_line(local_ray: LocalRay, tmp_path: Path) -> None:
    bundles = [write_capital_bundle(tmp_path / name, "en", "de") for name in ("first", "second")]
    with (
        pytest.raises(RecipeError, match=r"second: translates en to de, as .*first does; give one bundle for each pair"),
        local_ray.deploy(bundles),
    ):
        pass


def test_command_reloads_at_sighup_and_finishes_a_request_at_sigterm(bundle_copy: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dragoman", "serve", str(bundle_copy), "--cluster", "local", "--port", "0", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DRAGOMAN_COMPILE": "wait"}
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
        ThreadPoolExecutor() as pool,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            url = httpx.URL(json.loads(line)["url"])

            def translate(num_texts: int) -> httpx.Response:
                fields = {**FIELDS, "q": [f"one red {'two ' * (number % 9)}" for number in range(num_texts)]}
                return httpx.post(url.join("translate"), json=fields, timeout=60)

            assert translate(1).status_code == 200
            assert httpx.get(url.join("readyz"), timeout=30).json() == {"status": "ok"}
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: "redeployed 0 of 1 deployments" in log.read_text(), seconds=30)
            answer = pool.submit(translate, 500)
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0
            assert answer.result().status_code == 200
            assert len(answer.result().json()["translatedText"]) == 500
        finally:
            process.kill()
