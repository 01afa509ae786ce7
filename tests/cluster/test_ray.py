import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dragoman.cli.main import cli
from dragoman.cluster import ray_executor
from dragoman.console.options import INCOMPLETE_LINES
from dragoman.errors import ClusterError, MissingDependencyError

NUM_LINES = 4000


@pytest.mark.parametrize("address", ["localhost", "http://localhost:1", "localhost:99999", "ray://localhost"])
def test_text_that_is_no_address_is_one_line(address: str) -> None:
    with pytest.raises(ClusterError, match="is not an address"), ray_executor.connect(address):
        pass


def test_address_that_does_not_answer_is_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"  # bound, but nothing listens
        with pytest.raises(ClusterError, match="does not answer") as failure, ray_executor.connect(address):
            pass
    assert failure.value.code == "cluster-unavailable"


def test_missing_ray_is_answered_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'dragoman\[ray\]'"), ray_executor.connect("local"):
        pass


def test_other_version_of_ray_is_one_line() -> None:
    # Ray 2.60 begins the message of `ray._private.utils.check_version_info` with these two words.
    error = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.11.7\n")
    message = ray_executor._to_cluster_error("head:6379", error)
    assert message.code == "cluster-mismatch"
    assert "\n" not in str(message)


def list_processes(root: int) -> dict[int, str]:
    """Return name and number of the descendants of a process."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                names[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: names[pid] for pid in family - {root}}


def run_and_kill_workers(arguments: list[str], unfinished: Path | None, *, kills: int, status: int = 0) -> set[int]:
    """Run a command on a local Ray, kill a working worker several times, and return the processes that were started.

    unfinished: parts of the output, which must grow before the next kill; None for a kill each half second
    """
    command = [sys.executable, "-m", "dragoman", *arguments, "--cluster", "local"]
    started: set[int] = set()
    num_kills = num_finished = 0
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=errors)
        while process.poll() is None:
            descendants = list_processes(process.pid)
            started |= descendants.keys()
            finished = int(2 * time.monotonic()) if unfinished is None else count_lines(unfinished)
            workers = [pid for pid, name in descendants.items() if name.startswith("ray::call_function")]
            if workers and finished > num_finished and num_kills < kills:
                os.kill(workers[0], signal.SIGKILL)
                num_kills, num_finished = num_kills + 1, finished
            time.sleep(0.02)
        errors.seek(0)
        assert process.returncode == status, errors.read()
    assert num_kills == kills
    return started


def count_lines(unfinished: Path) -> int:
    try:
        return int(json.loads((unfinished / "progress.json").read_bytes())["num_read"])
    except FileNotFoundError:
        return 0


def assert_all_ended(pids: set[int]) -> None:
    deadline = time.monotonic() + 120
    while (alive := {pid for pid in pids if Path(f"/proc/{pid}").exists()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_translation_with_three_killed_workers_is_that_of_one_machine(bundle: Path, corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    lines = (corpus / "train.en").read_text(encoding="utf-8").splitlines()
    text = "".join(lines[number % len(lines)] + "\n" for number in range(NUM_LINES))
    (tmp_path / "text.en").write_text(text, encoding="utf-8")
    arguments = ["translate", str(bundle), str(tmp_path / "text.en"), "--precision", "float32", "--window", "200"]
    one_machine = [*arguments, "-o", str(tmp_path / "one.de"), "--intra-threads", "1", "--inter-threads", "1"]
    with pytest.raises(SystemExit) as end:  # some lines of the small model are empty
        cli.main(one_machine, standalone_mode=False)
    assert end.value.code == INCOMPLETE_LINES
    started = run_and_kill_workers(
        [*arguments, "-o", str(tmp_path / "many.de")], tmp_path / "many.de.part", kills=3, status=INCOMPLETE_LINES
    )
    assert (tmp_path / "many.de").read_bytes() == (tmp_path / "one.de").read_bytes()
    assert not (tmp_path / "many.de.part").exists()
    assert_all_ended(started)
