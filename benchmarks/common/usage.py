"""What a command costs: seconds, processor seconds, memory.

Processor seconds come from the kernel's accounts of ended processes, orphans included: this process adopts the orphans of what
it starts. Memory is sampled over the whole tree of processes. All of it is Linux's.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SAMPLES_PER_SECOND = 20
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl


class CommandError(Exception):
    """A command that failed, with the last line it said."""


@dataclass(frozen=True)
class Usage:
    """Memory in bytes; 0 where it was not asked for."""

    seconds: float
    cpu_seconds: float
    output: str
    resident: int = 0
    """Most at once over all processes, pages that several of them hold counted in each."""
    anonymous: int = 0
    """The part of it that no file stands behind, shared memory included: what the kernel could not take back."""
    largest: int = 0
    """Most that any one process ever held, by the kernel's own mark, which peaks between two samples do not escape."""


def adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def keep_to_cores(count: int) -> int:
    """Keep this process and all that it starts to so many processors; return how many there are."""
    own = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, own)
    return len(own)


def run(
    *commands: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    limit_seconds: float = 3600.0,
    memory: bool = False,
) -> Usage:
    """Run commands side by side to their end. Raises CommandError where one fails or takes too long."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
        before = _children_cpu()
        started = time.perf_counter()
        begun = [
            subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=complaints,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,
            )
            for command in commands
        ]
        alarm = threading.Timer(limit_seconds, kill, [begun])
        alarm.start()
        sampler = _Sampler() if memory else None
        try:
            for process in begun:
                process.wait()
            seconds = time.perf_counter() - started
        finally:
            alarm.cancel()
            peaks = sampler.stop() if sampler is not None else (0, 0, 0)
            kill([process for process in begun if process.returncode is None])
        _reap_orphans()
        cpu_seconds = _children_cpu() - before
        for process, command in zip(begun, commands, strict=True):
            if process.returncode:
                late = "; it was stopped for taking too long" if seconds >= limit_seconds else ""
                what = " ".join(Path(str(word)).name for word in command[:3])
                raise CommandError(f"{what}: exit code {process.returncode}{late}: {last_line(complaints, output)}")
        output.seek(0)
        return Usage(seconds, cpu_seconds, output.read().decode(errors="replace"), *peaks)


def kill(begun: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes and all that they started, also what has a session of its own, as the ranks of torchrun do."""
    for process in begun:
        below = descendants(process.pid)
        for end, pid in [(os.killpg, process.pid), *((os.kill, one) for one in below)]:
            try:
                end(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _reap_orphans() -> None:
    """Wait for processes that outlived their parents by a moment, so that they are in the accounts."""
    give_up = time.perf_counter() + 2.0
    while time.perf_counter() < give_up:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.01)


def last_line(*streams: IO[bytes]) -> str:
    """What a failed command said last; of pip, what it calls an error."""
    for stream in streams:
        stream.seek(0)
        lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")]
        if lines:
            return (errors or lines)[0 if errors else -1]
    return "it said nothing"


class _Sampler(threading.Thread):
    """Looks at all processes below this one, so many times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._done = threading.Event()
        self._peaks = (0, 0, 0)
        self.start()

    def run(self) -> None:
        while not self._done.is_set():
            held = [_held(pid) for pid in descendants(os.getpid())]
            resident, anonymous = sum(one[0] for one in held), sum(one[1] for one in held)
            largest = max((one[2] for one in held), default=0)
            self._peaks = max(self._peaks[0], resident), max(self._peaks[1], anonymous), max(self._peaks[2], largest)
            self._done.wait(1.0 / SAMPLES_PER_SECOND)

    def stop(self) -> tuple[int, int, int]:
        self._done.set()
        self.join()
        return self._peaks


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _held(pid: int) -> tuple[int, int, int]:
    """Resident bytes of a process, how many of them are anonymous or shared memory, and the most it ever had."""
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return 0, 0, 0
    sizes = {
        name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if rest.endswith("kB")
    }
    return sizes.get("VmRSS", 0), sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0), sizes.get("VmHWM", 0)
