"""Printed report of a benchmark: the machine, tables, notes, ratios and one last line for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from .results import Section


def open_console() -> Console:
    return Console(width=None if os.isatty(1) else 132)


def print_machine(console: Console, *, cores: int, quick: bool, libraries: tuple[str, ...]) -> dict[str, Any]:
    """Print the processor, the versions and the load; return the same facts as a dictionary."""
    machine: dict[str, Any] = {
        "cores": cores,
        "processor": _processor_name(),
        "python": platform.python_version(),
        "quick": quick,
        "versions": {name: version(name) for name in libraries},
        "load": os.getloadavg()[0],
    }
    console.print(
        f"{cores} cores of {machine['processor']}, Python {machine['python']}, load {machine['load']:.1f} at the start"
    )
    console.print(", ".join(f"{name} {number}" for name, number in machine["versions"].items()))
    return machine


def print_section(console: Console, section: Section) -> None:
    for table in section.tables:
        printed = RichTable(title=table.title, title_justify="left")
        for number, name in enumerate(table.header):
            printed.add_column(name, justify="right" if number else "left")
        for row in table.rows:
            printed.add_row(*row)
        console.print(printed)
    for note in section.notes:
        console.print(f"  {note}", markup=False, highlight=False, soft_wrap=True)
    for ratio in section.ratios:
        target = f"target {ratio.target:g}: {ratio.target_status}" if ratio.target is not None else ""
        console.print(f"  {ratio.name} = {ratio.value:.2f}  {target}", markup=False, highlight=False)


def print_end(
    console: Console, sections: Mapping[str, Section], machine: Mapping[str, Any], *, seconds: float, json_path: Path | None
) -> None:
    """Write the JSON report if a path is given, then print the last line of `name=ratio` pairs."""
    console.print(f"{seconds:.0f} s in all")
    if json_path is not None:
        document = {**machine, "seconds": seconds, **{name: section.to_dict() for name, section in sections.items()}}
        json_path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(" ".join(f"{ratio.name}={ratio.value:.2f}" for section in sections.values() for ratio in section.ratios))


def _processor_name() -> str:
    """Return the processor's name as Linux reports it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
