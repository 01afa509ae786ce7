"""How soon a fresh process gives its first sentence, what memory that takes, and whether it grows over many sentences."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.results import Ratio, Section, Table
from common.usage import CommandError

from .captions import Captions
from .models import Forms

SECONDS, MEBIBYTES, GROWTH = 2.0, 400.0, 1.1
"""What is asked: to the first sentence, at most after loading, and of the last memory over the first after warm-up."""

EXTRA = 10
"""Tokens that a sentence of random weights may have beyond its source, which has some 20: as long as in the other tables."""


def measure_memory(base: Forms, captions: Captions | None, *, say: Callable[[str], None], quick: bool, rounds: int) -> Section:
    section = Section()
    table = Table(
        "A fresh process, the base model: seconds to the first sentence, MiB then",
        ["numbers", "seconds", "resident", "no file behind", "at most", "asked"],
    )
    sentence = " ".join(["word"] * 10)
    with suppress(CommandError):  # what is compiled once for a machine is no part of a start
        _remember(base.bundle, "int8", [sentence], 0, extra=EXTRA)
    for precision in ("int8", "auto", "bfloat16", "float32"):
        try:
            found = [_remember(base.bundle, precision, [sentence], 0, extra=EXTRA)[0] for _ in range(rounds)]
        except CommandError as error:
            section.remarks.append(f"{precision}: {error}")
            continue
        seconds = statistics.median(one["wall"] for one in found)
        most = max(one["most"] for one in found)
        first = found[0]
        cells = [f"{seconds:.2f}", f"{first['resident']:.0f}", f"{first['anonymous']:.0f}", f"{most:.0f}"]
        table.rows.append([precision, *cells, f"{SECONDS:g} s, {MEBIBYTES:g} MiB" if precision == "int8" else ""])
        section.figures[precision] = found
        if precision == "int8":
            section.ratios.append(Ratio("first_sentence", SECONDS / seconds, 1.0))
            section.ratios.append(Ratio("memory_after_load", MEBIBYTES / max(one["loaded"]["most"] for one in found), 1.0))
        say(f"memory {precision}: {seconds:.2f} s, {most:.0f} MiB")
    section.tables.append(table)
    if captions is not None:
        try:
            _measure_many(section, captions, 3_000 if quick else 100_000, say)
        except CommandError as error:
            section.remarks.append(f"many sentences: {error}")
    return section


def _measure_many(section: Section, captions: Captions, count: int, say: Callable[[str], None]) -> None:
    found = _remember(captions.forms.bundle, "auto", captions.lines, count)
    table = Table(f"{count:,} sentences through one process, the trained model", ["sentences", "resident, MiB", "at most, MiB"])
    table.rows += [[f"{one['done']:,}", f"{one['resident']:.0f}", f"{one['most']:.0f}"] for one in found]
    section.tables.append(table)
    warm = found[len(found) // 4]["resident"]
    section.ratios.append(Ratio("memory_flat", warm / found[-1]["resident"], 1 / GROWTH))
    section.figures["many"] = found
    say(f"memory over {count:,}: {warm:.0f} to {found[-1]['resident']:.0f} MiB")


def _remember(bundle: Path, precision: str, lines: list[str], count: int, *, extra: int | None = None) -> list[dict[str, Any]]:
    """What `remember.py` tells; the first with the seconds since its command was given."""
    program = str(Path(__file__).with_name("remember.py"))
    command = [sys.executable, program, str(bundle), precision, str(count), *([] if extra is None else [str(extra)])]
    # As where it is installed, Python need not compile modules anew.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    began = time.perf_counter()
    with subprocess.Popen(command, **pipes, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("\n".join(lines) + "\n")
        process.stdin.close()
        first = process.stdout.readline()
        wall = time.perf_counter() - began
        rest = process.stdout.readlines()
        complaint = process.stderr.read().strip().splitlines()
    if process.returncode or not first:
        raise CommandError(complaint[-1] if complaint else f"exit code {process.returncode}")
    return [{**json.loads(first), "wall": wall}, *map(json.loads, rest)]
