"""Table 2: what training cost, in the paper's way and exactly counted, for any run from its folder, beside the printed rows.

The paper's way is an estimate: time × devices × what a device is thought to sustain. Counted is what the matrix products of
every step asked for, real tokens only (`dragoman.training.monitoring.flops`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.errors import RecipeError, RunError
from dragoman.evaluation.metrics import bleu, paper_bleu, tokenised_bleu
from dragoman.inference.translator import load
from dragoman.training.checkpoints.checkpoint import Checkpoint, list_checkpoints
from dragoman.training.monitoring.run_status import Record, minutes_spent, read_record
from dragoman.training.validation import read_text

# What the paper takes a GPU to sustain in single precision, in FLOP/s (its footnote 5).
SUSTAINED = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


@dataclass(frozen=True)
class Printed:
    """A row as printed: BLEU on newstest2014 and training FLOPs, to German and to French."""

    model: str
    german: float | None = None
    french: float | None = None
    german_flops: float | None = None
    french_flops: float | None = None


PRINTED = (
    Printed("ByteNet", 23.75),
    Printed("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    Printed("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    Printed("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    Printed("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    Printed("Deep-Att + PosUnk ensemble", None, 40.4, None, 8.0e20),
    Printed("GNMT + RL ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    Printed("ConvS2S ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    Printed("Transformer (base)", 27.3, 38.1, 3.3e18),
    Printed("Transformer (big)", 28.4, 41.8, 2.3e19),
)
"""The Transformers' FLOPs stand once for both languages: 12 hours and 3.5 days on eight P100."""


@dataclass(frozen=True)
class Cost:
    """What a run took so far."""

    run: str
    name: str
    state: str
    languages: str
    machine: str
    steps: int
    seconds: float
    """Of training alone: validation and checkpoints are not counted."""
    devices: float
    """In the mean over that time: a run may go on on others."""
    sustained: float | None
    """FLOP/s of one device, in the mean over them and the time; none where neither the run nor its reader says."""
    sustained_by: str
    counted_flops: float
    bleu: float | None
    """As sacreBLEU counts it; of tokenised text, over its tokens as they stand. `bleu_signature` says which."""
    bleu_signature: str | None
    paper_bleu: float | None = None
    """As the paper counted it: over Moses' tokens, of German with compounds split. None where neither run nor reader asked."""
    paper_bleu_signature: str | None = None

    @property
    def paper_flops(self) -> float | None:
        """Time × devices × sustained FLOP/s; none where that is not known."""
        return paper_flops(self.seconds, self.devices, self.sustained) if self.sustained is not None else None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "paper_flops": self.paper_flops}


def paper_flops(seconds: float, devices: float, sustained: float) -> float:
    """The estimate of section 6.1: training time, devices, and what one of them sustains in FLOP/s."""
    return seconds * devices * sustained


def cost_of(folder: Path, *, sustained: float | None = None) -> Cost:
    """What the run in a folder took, by its report where it is finished, else by its newest checkpoint or its journal.

    Raises RunError where the folder holds no run, or neither of them.

    sustained: FLOP/s of one device; if not given, the paper's own for the GPUs that it names, else what the run measured in
    matrix products when it began
    """
    record = read_record(folder)
    report = _report(folder) if record.finished else {}
    checkpoints = list_checkpoints(folder / "checkpoints")
    steps, seconds, flops = _spent(record, report, checkpoints)
    stretches = _stretches(record, seconds, checkpoints)
    device_seconds = sum(one.seconds * one.devices for one in stretches)
    rates = [_sustained(one, sustained) for one in stretches]
    rate = None
    if all(each is not None for each, _ in rates):
        work = sum(one.seconds * one.devices * (each or 0.0) for one, (each, _) in zip(stretches, rates, strict=True))
        rate = work / device_seconds if device_seconds else rates[-1][0]
    task = record.recipe.task
    signatures = report.get("signatures", {})
    return Cost(
        run=str(folder),
        name=record.recipe.name,
        state=record.state,
        languages=f"{task.source_language or '?'}-{task.target_language or '?'}",
        machine="; ".join(dict.fromkeys(one.machine for one in stretches)),
        steps=steps,
        seconds=seconds,
        devices=device_seconds / seconds if seconds else stretches[-1].devices,
        sustained=rate,
        sustained_by="; ".join(dict.fromkeys(told for _, told in rates)),
        counted_flops=flops,
        bleu=report.get("bleu"),
        bleu_signature=signatures.get("bleu"),
        paper_bleu=report.get("paper_bleu"),
        paper_bleu_signature=signatures.get("paper_bleu"),
    )


def with_both_bleus(cost: Cost) -> Cost:
    """Translate the run's test set with its bundle, and score it in sacreBLEU's way and in the paper's.

    Raises RunError where the run has no bundle or no test set, RecipeError where plain text has no language to tokenise by.
    """
    folder = Path(cost.run)
    if not (folder / "bundle").is_dir():
        raise RunError(f"{folder}: has no bundle to translate with; the run has to come to its end first")
    translator = load(folder / "bundle")
    recipe = translator.recipe
    if recipe.data.test is None:
        raise RunError(f"{folder}: its recipe names no data.test to score")
    pairs = read_text(recipe.data.test, recipe)
    texts = [one.text for one in translator.translate([pair.source for pair in pairs])]
    references = [[pair.target for pair in pairs]]
    tokenised, language = recipe.task.tokenized, recipe.task.target_language
    if not (tokenised or language):
        raise RecipeError(f"{folder}: its recipe names no task.target_language, by which Moses' tokens are cut")
    first = tokenised_bleu(texts, references) if tokenised else bleu(texts, references)
    second = paper_bleu(texts, references, language, tokenised=tokenised)
    return replace(
        cost,
        bleu=first.value,
        bleu_signature=first.signature,
        paper_bleu=second.value,
        paper_bleu_signature=second.signature,
    )


def _report(folder: Path) -> dict[str, Any]:
    try:
        report = json.loads((folder / "report.json").read_bytes())
        if isinstance(report, dict):
            return report
    except (OSError, ValueError, RecursionError):
        pass
    raise RunError(f"{folder / 'report.json'}: cannot be read; `dragoman train` with the run's recipe writes it anew")


def _spent(record: Record, report: dict[str, Any], checkpoints: Sequence[Checkpoint]) -> tuple[int, float, float]:
    """Steps, seconds and counted operations."""
    if {"steps", "seconds", "flops"} <= report.keys():
        return int(report["steps"]), float(report["seconds"]), float(report["flops"])
    lines = [one for one in record.train if one["share_spent"] < 1.0 and isinstance(one.get("flops_per_second"), int | float)]
    newest = next(reversed(checkpoints), None)
    if newest is not None and newest.step >= (lines[-1]["step"] if lines else 0):
        return newest.step, 60.0 * newest.progress.minutes, newest.progress.flops
    if not lines:
        raise RunError(
            f"{record.folder}: its journal has no line of a step yet, so there is nothing to count; look again later"
        )
    seconds = flops = 0.0
    for line in lines:  # each tells of the time since the one before
        until = 60.0 * minutes_spent(line)
        flops += line["flops_per_second"] * max(until - seconds, 0.0)
        seconds = until
    return int(lines[-1]["step"]), seconds, flops


@dataclass(frozen=True)
class _Stretch:
    """A part of a run that went on without a break."""

    machine: str
    devices: int
    ceiling: float | None
    """FLOP/s of all its devices together, in matrix products."""
    seconds: float


def _stretches(record: Record, seconds: float, checkpoints: Sequence[Checkpoint]) -> list[_Stretch]:
    """The stretches of a run that took so long in all.

    Where a line or a checkpoint tells how long it had taken, that holds; what is between two of them counts for the later.
    """
    begun = [{}, *record.of_kind("run")]
    moments = {entry["step"]: minutes_spent(entry) for entry in record.train if entry["share_spent"] < 1.0}
    moments |= {one.step: one.progress.minutes for one in checkpoints}
    took = [0.0] * len(begun)
    number, until = 0, 0.0
    for entry in (one for one in record.entries if isinstance(one.get("step"), int)):
        now = min(60.0 * moments.get(entry["step"], 0.0), seconds)
        took[number] += max(now - until, 0.0)
        until = max(now, until)
        number += entry["type"] == "run"
    took[-1] += seconds - until
    found = []
    for about, share in zip(begun, took, strict=True):
        devices, ceiling = about.get("devices"), about.get("ceiling")
        known = ceiling if isinstance(ceiling, int | float) and ceiling > 0 else None
        found.append(_Stretch(str(about.get("machine", "")), devices if isinstance(devices, int) else 1, known, share))
    return [one for one in found if one.seconds > 0] or found[-1:]


def _sustained(stretch: _Stretch, given: float | None) -> tuple[float | None, str]:
    if given is not None:
        return given, "as given"
    for gpu, rate in SUSTAINED.items():
        if re.search(rf"\b{gpu}\b", stretch.machine):
            return rate, f"the paper's for a {gpu}"
    if stretch.ceiling is not None:
        return stretch.ceiling / stretch.devices, "measured in matrix products"
    return None, "not known"
