"""What a comparison prints: the machine, tables, remarks, ratios and, in the end, one line for other programs to read."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Drawn

from .results import Section


def open_console() -> Console:
    return Console(width=None if os.isatty(1) else 132)


def tell_machine(console: Console, *, cores: int, quick: bool, libraries: tuple[str, ...]) -> dict[str, Any]:
    """Say what is measured on; returns the same for machines."""
    told: dict[str, Any] = {
        "cores": cores,
        "processor": _processor(),
        "python": platform.python_version(),
        "quick": quick,
        "versions": {name: version(name) for name in libraries},
        "load": os.getloadavg()[0],
    }
    console.print(f"{cores} cores of {told['processor']}, Python {told['python']}, load {told['load']:.1f} at the start")
    console.print(", ".join(f"{name} {number}" for name, number in told["versions"].items()))
    return told


def show(console: Console, section: Section) -> None:
    for table in section.tables:
        drawn = Drawn(title=table.title, title_justify="left")
        for number, name in enumerate(table.header):
            drawn.add_column(name, justify="right" if number else "left")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
    for remark in section.remarks:
        console.print(f"  {remark}", markup=False, highlight=False, soft_wrap=True)
    for ratio in section.ratios:
        asked = f"asked {ratio.asked:g}: {ratio.verdict}" if ratio.asked is not None else ""
        console.print(f"  {ratio.name} = {ratio.value:.2f}  {asked}", markup=False, highlight=False)


def tell_end(
    console: Console, done: Mapping[str, Section], told: Mapping[str, Any], *, seconds: float, report: Path | None
) -> None:
    """The file of everything that was measured, where one is asked for, and the last line."""
    console.print(f"{seconds:.0f} s in all")
    if report is not None:
        whole = {**told, "seconds": seconds, **{name: section.to_dict() for name, section in done.items()}}
        report.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(" ".join(f"{ratio.name}={ratio.value:.2f}" for section in done.values() for ratio in section.ratios))


def _processor() -> str:
    """The kernel's name for it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
