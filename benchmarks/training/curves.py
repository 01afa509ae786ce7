"""Whether bfloat16 learns as float32 does: losses over the same steps, beside what another seed changes."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.results import Ratio, Section, Table
from common.usage import run

from dragoman.viz import Panel, Series, render_learning_curve

from . import ours
from .bench import Bench
from .sizes import Size

SHOWN = 6
LEAST = 1e-6  # nats: less is told as this much
POINTS, VALIDATIONS = 40, 6
RUNS = {
    "float32": ("training.precision=float32",),
    "bfloat16": ("training.precision=bfloat16",),
    "float32, another seed": ("training.precision=float32", "training.seed=2"),
}

Curve = dict[int, float]


def measure_curves(bench: Bench, sizes: Sequence[tuple[Size, int]]) -> Section:
    """So many steps of each size. Two runs go side by side on a thread each: nothing here depends on time."""
    section = Section()
    for size, steps in sizes:
        every = max(1, steps // POINTS)
        curves: dict[str, Curve] = {}
        valid: dict[str, Curve] = {}
        for pair in _by_twos(list(RUNS)):
            folders = {name: bench.out / f"curve-{number}" for number, name in enumerate(pair)}
            commands = [_command(bench, size, folders[name], RUNS[name], steps=steps, every=every) for name in pair]
            run(*commands, environment={"OMP_NUM_THREADS": "1"}, limit_seconds=3600.0)
            for name in pair:
                entries = ours.entries((folders[name] / "metrics.jsonl").read_text(encoding="utf-8"))
                curves[name] = {entry["step"]: entry["loss"] for entry in entries if entry["type"] == "train"}
                valid[name] = {entry["step"]: entry["nll"] for entry in entries if entry["type"] == "valid"}
                shutil.rmtree(folders[name])
        _tell(section, bench, size, curves, valid)
    return section


def _by_twos(names: list[str]) -> list[list[str]]:
    return [names[place : place + 2] for place in range(0, len(names), 2)]


def _command(bench: Bench, size: Size, folder: Path, settings: tuple[str, ...], *, steps: int, every: int) -> list[str | Path]:
    ours.begin(bench.prepared, folder)
    every_steps = [f"training.log_every_steps={every}", f"training.validate_every_steps={max(1, steps // VALIDATIONS)}"]
    more = [f"training.max_steps={steps}", *every_steps, *settings]
    return ours.train(bench.recipe, ours.changes(bench.corpus, size, folder, *more))


def _tell(section: Section, bench: Bench, size: Size, curves: dict[str, Curve], valid: dict[str, Curve]) -> None:
    """The ratio is of validation losses: there another seed changes the weights, and not also what they are judged on."""
    for what, told in (("Training", curves), ("Validation", valid)):
        steps = sorted(told["float32"])
        table = Table(f"{what} loss of {size.name}, nats a token", ["step", *told])
        shown = dict.fromkeys(steps[round(place * (len(steps) - 1) / (SHOWN - 1))] for place in range(SHOWN))
        table.rows = [[f"{step}", *(f"{curve[step]:.4f}" for curve in told.values())] for step in shown]
        section.tables.append(table)
    apart = {name: _apart(valid["float32"], valid[name]) for name in RUNS if name != "float32"}
    for name, distance in apart.items():
        section.remarks.append(f"{size.name}: {name}: {distance:.5f} nats from float32 on validation, over the later half")
    noise = apart["float32, another seed"] / max(apart["bfloat16"], LEAST)
    section.ratios.append(Ratio(f"noise_over_bfloat16_{size.name}", noise, 1.0))
    picture = bench.work / f"curves-{size.name}.svg"
    panels = [
        Panel(what, [Series(name, sorted(curve.items())) for name, curve in told.items()])
        for what, told in (("training, nats a token", curves), ("validation", valid))
    ]
    picture.write_text(render_learning_curve(panels, title=f"{size.name}: loss", x_label="step"), encoding="utf-8")
    section.remarks.append(f"{size.name}: drawn in {picture}")
    figures: dict[str, Any] = {"train": curves, "valid": valid, "apart_on_validation": apart}
    section.figures[size.name] = figures


def _apart(one: Curve, other: Curve) -> float:
    """The root of the mean square of their differences over the later half."""
    steps = sorted(one)[len(one) // 2 :]
    return math.sqrt(sum((one[step] - other[step]) ** 2 for step in steps) / len(steps))
