"""Memory of a process over many sentences. The startup benchmark measures the first one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from common.benchmark import print_progress
from common.results import Ratio, Section, Table
from common.usage import CommandError

from .captions import Captions

TARGET_GROWTH = 1.1
"""Most final memory over memory after warm-up."""


def measure_memory(captions: Captions, *, quick: bool) -> Section:
    """Translate many sentences by `memory_probe.py`. Raises CommandError if it fails."""
    count = 3_000 if quick else 100_000
    command = [sys.executable, str(Path(__file__).with_name("memory_probe.py")), str(captions.forms.bundle), str(count)]
    lines = "\n".join(captions.lines) + "\n"
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    probes = [json.loads(line) for line in done.stdout.splitlines()]
    table = Table(f"{count:,} sentences through one process, the trained model", ["sentences", "resident, MiB", "peak, MiB"])
    table.rows += [[f"{probe['done']:,}", f"{probe['resident']:.0f}", f"{probe['peak']:.0f}"] for probe in probes]
    warm, last = probes[len(probes) // 4]["resident"], probes[-1]["resident"]
    print_progress(f"memory over {count:,}: {warm:.0f} to {last:.0f} MiB")
    return Section([table], ratios=[Ratio("memory_flat", warm / last, 1 / TARGET_GROWTH)], figures={"many": probes})
