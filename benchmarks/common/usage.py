"""Cost of a command: seconds and CPU seconds.

CPU seconds come from the kernel's accounts of ended processes. Orphans count too, because this process adopts them. This needs
Linux.
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

_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl


class CommandError(Exception):
    """Error of a command that failed, with the last line of its output."""


@dataclass(frozen=True)
class ResourceUsage:
    """Cost of a command."""

    seconds: float
    cpu_seconds: float
    output: str


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
        try:
            for process in processes:
                process.wait()
            seconds = time.perf_counter() - started
        finally:
            alarm.cancel()
            kill([process for process in processes if process.returncode is None])
        _reap_orphans()
        cpu_seconds = _children_cpu_seconds() - before
        for process, command in zip(processes, commands, strict=True):
            if process.returncode:
                late = "; it was stopped for taking too long" if seconds >= limit_seconds else ""
                what = " ".join(Path(str(word)).name for word in command[:3])
                raise CommandError(f"{what}: exit code {process.returncode}{late}: {last_line(errors, output)}")
        output.seek(0)
        return ResourceUsage(seconds, cpu_seconds, output.read().decode(errors="replace"))


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
