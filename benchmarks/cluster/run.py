"""Benchmark of translation on a Ray cluster: `make bench-cluster`, with QUICK=1 in under four minutes.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from common.report import open_console, print_end, print_machine, print_section
from common.results import Ratio, Section, Table
from common.usage import CommandError, limit_cores, run_commands
from inference.fixed import make_sources
from inference.models import BASE, build_random_model

from cluster.schedule import list_scenarios, simulate
from dragoman.bundle import load_bundle

TARGET_EFFICIENCY = 0.85
WINDOW = 64
NUM_LINES = {"quick": 640, "full": 1536}
ROUNDS = {"quick": 2, "full": 5}
NUM_WORKERS, NUM_SHARDS = 1000, 488_282
"""Workers and shards of the simulation: a billion lines in windows of 2,048."""
LINES_PER_SHARD = 2048
SYSTEMS = [("one process", "single", 1), ("1 worker", "tasks", 1), ("2 workers", "tasks", 2), ("Ray Data, 2 actors", "data", 2)]


def measure(bundle: Path, text: Path, mode: str, workers: int, output: Path) -> dict[str, Any]:
    """Return the times of one measurement, which runs in a process of its own."""
    command = [sys.executable, "-m", "cluster.measure", bundle, text, mode]
    python_path = os.pathsep.join(
        [str(Path(__file__).resolve().parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    )
    environment = {"PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
    options = ["-o", output, "--window", str(WINDOW), "--workers", str(workers)]
    usage = run_commands([str(word) for word in [*command, *options]], environment=environment, limit_seconds=600)
    result: dict[str, Any] = json.loads(usage.output.strip().splitlines()[-1])
    return result


def build_section(measurements: dict[str, list[dict[str, Any]]], empty_seconds: float, num_lines: int) -> Section:
    """Return the table and the ratios of the real workers."""
    num_shards = -(-num_lines // WINDOW)
    medians = {name: statistics.median(item["seconds"] for item in items) for name, items in measurements.items()}
    shard_seconds = {
        name: statistics.mean(seconds for item in items for seconds in item["shard_seconds"])
        for name, items in measurements.items()
    }
    table = Table(
        f"{num_lines:,} lines in {num_shards} shards; medians of {len(measurements['one process'])} rounds",
        ["system", "seconds", "lines/s", "seconds of a shard", "efficiency"],
    )
    section = Section([table])
    for name, mode, workers in SYSTEMS:
        if name not in measurements:
            continue
        efficiency = medians["one process"] / (workers * medians[name])
        table.rows.append(
            [
                name,
                f"{medians[name]:.2f}",
                f"{num_lines / medians[name]:.0f}",
                f"{shard_seconds[name]:.3f}",
                f"{efficiency:.3f}",
            ]
        )
        if mode != "single":
            label = "efficiency_ray_data_2" if mode == "data" else f"efficiency_{workers}"
            section.ratios.append(Ratio(label, efficiency, TARGET_EFFICIENCY if mode == "tasks" else None))
    overhead = (medians["1 worker"] - medians["one process"]) / num_shards
    section.notes = [
        f"overhead of a shard: {1000 * overhead:.1f} ms beside one process",
        f"{1000 * empty_seconds:.1f} ms for a shard of 2,048 lines that is only copied",
        "the outputs of all systems are equal, byte for byte",
    ]
    section.figures = {"measurements": measurements, "empty_shard_seconds": empty_seconds, "overhead_seconds": overhead}
    return section


def build_simulation(shard_seconds: list[float], dispatch_seconds: float) -> Section:
    """Return the simulated schedules of a billion lines."""
    scale = LINES_PER_SHARD / WINDOW
    scaled_seconds = [seconds * scale for seconds in shard_seconds]
    table = Table(
        f"simulated: {NUM_WORKERS:,} workers, {NUM_SHARDS:,} shards of {LINES_PER_SHARD:,} lines, seed 1",
        ["workers", "hours", "efficiency", "copies", "lost"],
    )
    section = Section([table], [f"the driver needs {1000 * dispatch_seconds:.1f} ms for a shard"])
    for name, cluster in list_scenarios(NUM_WORKERS, dispatch_seconds).items():
        schedule = simulate(scaled_seconds, NUM_SHARDS, cluster, seed=1)
        table.rows.append(
            [
                name,
                f"{schedule.makespan / 3600:.2f}",
                f"{schedule.efficiency:.3f}",
                str(schedule.num_copies),
                str(schedule.num_lost),
            ]
        )
        section.figures[name] = vars(schedule)
    return section


@click.command()
@click.option("--quick", is_flag=True, help="Two short rounds, in under four minutes.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
def main(quick: bool, report: Path | None) -> None:
    """Measure the efficiency of one and two workers, and simulate a thousand."""
    started = time.monotonic()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    console = open_console()
    cores = limit_cores(2)
    if cores < 2:
        raise click.ClickException("two cores are needed")
    machine = print_machine(console, cores=cores, quick=quick, libraries=("dragoman", "torch", "ray"))
    work = Path(__file__).resolve().parents[1] / "inference" / ".work"
    bundle = build_random_model(BASE, work / BASE.name).bundle
    size = "quick" if quick else "full"
    has_ray_data = find_spec("pandas") is not None
    systems = [system for system in SYSTEMS if system[1] != "data" or has_ray_data]
    measurements: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in systems}
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as name:
        folder = Path(name)
        text = folder / "text.en"
        tokenizer = load_bundle(bundle).tokenizer
        sources = make_sources(NUM_LINES[size])
        text.write_text("".join(tokenizer.source.decode(source) + "\n" for source in sources), encoding="utf-8")
        try:
            empty = measure(bundle, text, "empty", 2, folder / "empty")
            for number in range(ROUNDS[size]):
                for system, mode, workers in systems if number % 2 == 0 else reversed(systems):
                    print(f"  round {number + 1} of {ROUNDS[size]}: {system}", file=sys.stderr, flush=True)
                    output = folder / f"{system}-{number}"
                    measurements[system].append(measure(bundle, text, mode, workers, output))
        except CommandError as error:
            raise click.ClickException(str(error)) from error
        outputs = {path.read_bytes() for path in folder.glob("*-[0-9]")}
        if len(outputs) != 1:
            raise click.ClickException("the outputs of the systems differ")
    shard_seconds = [seconds for item in measurements["1 worker"] for seconds in item["shard_seconds"]]
    sections = {
        "efficiency": build_section(measurements, empty["seconds_per_shard"], NUM_LINES[size]),
        "simulation": build_simulation(shard_seconds, empty["seconds_per_shard"]),
    }
    if not has_ray_data:
        sections["efficiency"].notes.append("Ray Data is left out: it needs pandas, which is not installed")
    for section in sections.values():
        print_section(console, section)
    print_end(console, sections, machine, seconds=time.monotonic() - started, json_path=report)


if __name__ == "__main__":
    main()
