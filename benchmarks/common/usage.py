"""Cost of a command: seconds, CPU seconds and memory.

CPU seconds come from the kernel's accounts of ended processes. Orphans count too, because this process adopts them.
Memory is sampled over the whole process tree. All of this needs Linux.
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
    """Error of a command that failed, with the last line of its output."""


@dataclass(frozen=True)
class ResourceUsage:
    """Cost of a command. Memory is in bytes and 0 if it was not sampled."""

    seconds: float
    cpu_seconds: float
    output: str
    peak_resident: int = 0
    """Peak of the summed resident memory of all processes; shared pages count in each process."""
    peak_anonymous: int = 0
    """Peak of the summed anonymous and shared memory, which the kernel cannot reclaim."""
    peak_process: int = 0
    """Peak resident memory of the largest process, by the kernel's counter VmHWM."""


def adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def limit_cores(count: int) -> int:
    """Restrict this process and its children to this many processors; return how many there are."""
    own = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, own)
    return len(own)


def run_commands(
    *commands: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    limit_seconds: float = 3600.0,
    memory: bool = False,
) -> ResourceUsage:
    """Run commands side by side until all end. Raises CommandError if one fails or takes too long."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        before = _children_cpu_seconds()
        started = time.perf_counter()
        processes = [
            subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,
            )
            for command in commands
        ]
        alarm = threading.Timer(limit_seconds, kill, [processes])
        alarm.start()
        sampler = _Sampler() if memory else None
        try:
            for process in processes:
                process.wait()
            seconds = time.perf_counter() - started
        finally:
            alarm.cancel()
            peaks = sampler.stop() if sampler is not None else (0, 0, 0)
            kill([process for process in processes if process.returncode is None])
        _reap_orphans()
        cpu_seconds = _children_cpu_seconds() - before
        for process, command in zip(processes, commands, strict=True):
            if process.returncode:
                late = "; it was stopped for taking too long" if seconds >= limit_seconds else ""
                what = " ".join(Path(str(word)).name for word in command[:3])
                raise CommandError(f"{what}: exit code {process.returncode}{late}: {last_line(errors, output)}")
        output.seek(0)
        return ResourceUsage(seconds, cpu_seconds, output.read().decode(errors="replace"), *peaks)


def kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill processes and all their descendants, also those with a session of their own."""
    for process in processes:
        descendants = list_descendants(process.pid)
        for send_signal, pid in [(os.killpg, process.pid), *((os.kill, descendant) for descendant in descendants)]:
            try:
                send_signal(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _reap_orphans() -> None:
    """Wait for processes that outlived their parents briefly, so that their CPU time is counted."""
    give_up = time.perf_counter() + 2.0
    while time.perf_counter() < give_up:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.01)


def last_line(*streams: IO[bytes]) -> str:
    """Return the last line that a failed command printed, or pip's first line with ERROR."""
    for stream in streams:
        stream.seek(0)
        lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")]
        if lines:
            return (errors or lines)[0 if errors else -1]
    return "no output"


class _Sampler(threading.Thread):
    """Thread that samples the memory of all descendants of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._done = threading.Event()
        self._peaks = (0, 0, 0)
        self.start()

    def run(self) -> None:
        while not self._done.is_set():
            samples = [_process_memory(pid) for pid in list_descendants(os.getpid())]
            resident, anonymous = sum(sample[0] for sample in samples), sum(sample[1] for sample in samples)
            largest = max((sample[2] for sample in samples), default=0)
            self._peaks = max(self._peaks[0], resident), max(self._peaks[1], anonymous), max(self._peaks[2], largest)
            self._done.wait(1.0 / SAMPLES_PER_SECOND)

    def stop(self) -> tuple[int, int, int]:
        self._done.set()
        self.join()
        return self._peaks


def list_descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(name))
    descendants, pending = [], [root]
    while pending:
        child_pids = children.get(pending.pop(), [])
        descendants += child_pids
        pending += child_pids
    return descendants


def _process_memory(pid: int) -> tuple[int, int, int]:
    """Return the resident bytes of a process, its anonymous and shared bytes, and its peak resident bytes."""
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return 0, 0, 0
    sizes = {
        name: int(size.split()[0]) * 1024 for name, _, size in (line.partition(":") for line in lines) if size.endswith("kB")
    }
    return sizes.get("VmRSS", 0), sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0), sizes.get("VmHWM", 0)
