"""Frame of the benchmark programs: options that several have, work folder, limits, and the report from machine to last line."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from .instruction_set import limit_to
from .report import open_console, print_end, print_machine, print_section
from .results import Section
from .usage import adopt_orphans, limit_cores

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
OPTIONS = {
    "isa": click.option(
        "--isa", type=click.Choice(["avx2"]), expose_value=False, is_eager=True,
        callback=lambda context, option, value: limit_to(value), help="Limit all systems to this instruction set.",
    ),
    "cores": click.option(
        "--cores", "max_cores", type=click.IntRange(min=1), default=2, show_default=True, help="Most cores to use."
    ),
    "shared": click.option(
        "--shared", type=PATH, default=Path(__file__).resolve().parents[3] / "shared" / "data",
        help="Folder of the real corpora.  [default: ../shared/data]",
    ),
    "work": click.option("--work", type=PATH, help="Folder for environments, models, texts and outputs."),
    "json": click.option("--json", "report", type=PATH, help="Write all measurements to this file as JSON."),
}  # fmt: skip


def with_options(*names: str) -> Callable[[CommandT], CommandT]:
    """Return a decorator that adds options to a command, in this order."""

    def add(command: CommandT) -> CommandT:
        for name in reversed(names):
            command = OPTIONS[name](command)
        return command

    return add


def print_progress(line: str) -> None:
    """Print a line beside the report."""
    print(f"  {line}", file=sys.stderr, flush=True)


class Benchmark:
    """Run of a benchmark program, whose child processes end with it.

    work: folder of what it makes once, by default `.work` beside the program
    cores: processors that it and its child processes may use; None for all
    """

    def __init__(
        self,
        program: str,
        *,
        quick: bool,
        cores: int | None,
        libraries: tuple[str, ...],
        work: Path | None = None,
        report: Path | None = None,
    ) -> None:
        self.started, self.report = time.monotonic(), report
        self.work = (work or Path(program).resolve().parent / ".work").resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        (self.work / ".gitignore").write_text("*\n", encoding="utf-8")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the child processes, as Ctrl-C does
        adopt_orphans()
        self.console = open_console()
        self.cores = limit_cores(os.cpu_count() or 1 if cores is None else cores)
        self.machine = print_machine(self.console, cores=self.cores, quick=quick, libraries=libraries)
        self.sections: dict[str, Section] = {}

    def add(self, name: str, section: Section) -> None:
        """Print a section."""
        self.sections[name] = section
        print_section(self.console, section)

    def finish(self) -> None:
        """Write the JSON report if one is asked for, and print the last line."""
        seconds = time.monotonic() - self.started
        print_end(self.console, self.sections, self.machine, seconds=seconds, json_path=self.report)
