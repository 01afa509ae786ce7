"""Table 2: training cost of a run, estimated as in the paper and counted exactly, with the printed rows.

The estimate of the paper is time × devices × sustained FLOP/s of a device. The exact count adds up the matrix products of
every step without padding (`dragoman.training.monitoring.flops`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.errors import RecipeError, RunError
from dragoman.evaluation.bleu_tokenizer import bleu_with_tokenizer, get_task_bleu_tokenizer
from dragoman.evaluation.metrics import paper_bleu
from dragoman.inference.load import load
from dragoman.languages import is_spaced_language
from dragoman.training.checkpoints.checkpoint import Checkpoint, list_checkpoints
from dragoman.training.monitoring.run_status import RunStatus, read_report, read_run_status
from dragoman.training.validation import get_references, read_eval_pairs

# Sustained single-precision FLOP/s of a GPU by the paper's footnote 5.
PAPER_SUSTAINED_FLOPS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


@dataclass(frozen=True)
class PaperCost:
    """Printed row: BLEU on newstest2014 and training FLOPs, to German and to French."""

    model: str
    en_de_bleu: float | None = None
    en_fr_bleu: float | None = None
    en_de_flops: float | None = None
    en_fr_flops: float | None = None


PAPER_COSTS = (
    PaperCost("ByteNet", 23.75),
    PaperCost("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    PaperCost("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    PaperCost("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    PaperCost("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    PaperCost("Deep-Att + PosUnk ensemble", None, 40.4, None, 8.0e20),
    PaperCost("GNMT + RL ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    PaperCost("ConvS2S ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    PaperCost("Transformer (base)", 27.3, 38.1, 3.3e18),
    PaperCost("Transformer (big)", 28.4, 41.8, 2.3e19),
)
"""The paper prints the FLOPs of the Transformers once for both languages: 12 hours and 3.5 days on eight P100."""


@dataclass(frozen=True)
class RunCost:
    """Cost of a run so far."""

    run: str
    name: str
    state: str
    languages: str
    machine: str
    steps: int
    seconds: float
    """Training time without validation and checkpoints."""
    devices: float
    """Mean number of devices over that time, because a run can resume on other devices."""
    sustained_flops: float | None
    """Mean FLOP/s of one device; None if it is neither measured nor given."""
    sustained_source: str
    counted_flops: float
    bleu: float | None
    """BLEU by sacreBLEU. For tokenized text, its tokens count as they are. `bleu_signature` has the details."""
    bleu_signature: str | None
    paper_bleu: float | None = None
    """BLEU as in the paper: Moses tokens, for German with split compounds. None if it is not computed."""
    paper_bleu_signature: str | None = None
    paper_flops: float | None = None
    """Time × devices × sustained FLOP/s, or None if the FLOP/s are unknown."""


def estimate_paper_flops(seconds: float, devices: float, sustained_flops: float) -> float:
    """Return the FLOPs by the estimate of section 6.1: seconds × devices × sustained FLOP/s of one device."""
    return seconds * devices * sustained_flops


def compute_run_cost(folder: Path, *, sustained_flops: float | None = None) -> RunCost:
    """Return the cost of a run, from its report if it is finished, else from its newest checkpoint or its metrics log.

    sustained_flops: FLOP/s of one device; default: the paper's value for the GPUs that it names, else the peak FLOP/s that the
        run measured in matrix products

    Raises RunError if the folder holds no run, or a run without a step.
    """
    run_status = read_run_status(folder)
    report = read_report(folder) if run_status.is_finished else {}
    checkpoints = list_checkpoints(folder / "checkpoints")
    steps, seconds, flops = _read_totals(run_status, report, checkpoints)
    intervals = _split_into_intervals(run_status, seconds, checkpoints)
    device_seconds = sum(interval.seconds * interval.devices for interval in intervals)
    rates = [_find_sustained_flops(interval, sustained_flops) for interval in intervals]
    rate = None
    if all(interval_rate is not None for interval_rate, _ in rates):
        total_flops = sum(
            interval.seconds * interval.devices * (interval_rate or 0.0)
            for interval, (interval_rate, _) in zip(intervals, rates, strict=True)
        )
        rate = total_flops / device_seconds if device_seconds else rates[-1][0]
    devices = device_seconds / seconds if seconds else intervals[-1].devices
    task = run_status.recipe.task
    signatures = report.get("signatures", {})
    return RunCost(
        run=str(folder),
        name=run_status.recipe.name,
        state=run_status.state,
        languages=f"{task.source_language or '?'}-{task.target_language or '?'}",
        machine="; ".join(dict.fromkeys(interval.machine for interval in intervals)),
        steps=steps,
        seconds=seconds,
        devices=devices,
        sustained_flops=rate,
        sustained_source="; ".join(dict.fromkeys(source for _, source in rates)),
        counted_flops=flops,
        bleu=report.get("bleu"),
        bleu_signature=signatures.get("bleu"),
        paper_bleu=report.get("paper_bleu"),
        paper_bleu_signature=signatures.get("paper_bleu"),
        paper_flops=None if rate is None else estimate_paper_flops(seconds, devices, rate),
    )


def add_bleu_scores(cost: RunCost) -> RunCost:
    """Translate the test set of the run with its bundle, and add sacreBLEU and the paper's BLEU.

    Raises RunError if the run has no bundle or no test set, and RecipeError if plain text has no language for Moses' tokenizer.
    """
    folder = Path(cost.run)
    if not (folder / "bundle").is_dir():
        raise RunError(f"{folder}: has no bundle to translate with; finish the run first", code="run-unfinished")
    translator = load(folder / "bundle", task="translation")
    recipe = translator.recipe
    if recipe.data.test is None:
        raise RunError(f"{folder}: its recipe has no data.test; score another run")
    pairs = read_eval_pairs(recipe.data.test, recipe.data, recipe.task)
    texts = [translation.text for translation in translator.translate([pair.source for pair in pairs])]
    references = [get_references(pairs, recipe.tokenizer)]
    tokenized, language = recipe.task.tokenized, recipe.task.target_language
    if not (tokenized or language):
        raise RecipeError(f"{folder}: its recipe has no task.target_language for Moses' tokenizer; score another run")
    sacrebleu_score = bleu_with_tokenizer(texts, references, get_task_bleu_tokenizer(recipe.task))
    is_scored = tokenized or is_spaced_language(language)  # Moses' tokenizer splits at spaces
    paper_score = paper_bleu(texts, references, language, tokenized=tokenized) if is_scored else None
    return replace(
        cost,
        bleu=sacrebleu_score.value,
        bleu_signature=sacrebleu_score.signature,
        paper_bleu=None if paper_score is None else paper_score.value,
        paper_bleu_signature=None if paper_score is None else paper_score.signature,
    )


def _read_totals(run_status: RunStatus, report: dict[str, Any], checkpoints: Sequence[Checkpoint]) -> tuple[int, float, float]:
    """Return the steps, the seconds and the counted operations."""
    if {"steps", "seconds", "flops"} <= report.keys():
        return int(report["steps"]), float(report["seconds"]), float(report["flops"])
    step_lines = [
        line for line in run_status.train if line["progress"] < 1.0 and isinstance(line.get("flops_per_second"), int | float)
    ]
    newest_checkpoint = next(reversed(checkpoints), None)
    if newest_checkpoint is not None and newest_checkpoint.step >= (step_lines[-1]["step"] if step_lines else 0):
        return newest_checkpoint.step, 60.0 * newest_checkpoint.trainer_state.minutes, newest_checkpoint.trainer_state.flops
    if not step_lines:
        raise RunError(
            f"{run_status.folder}: its metrics log has no line of a step, so there is nothing to count; try again later"
        )
    seconds = flops = 0.0
    for line in step_lines:  # a line covers the time since the previous one
        end_seconds = 60.0 * line["minutes"]
        flops += line["flops_per_second"] * max(end_seconds - seconds, 0.0)
        seconds = end_seconds
    return int(step_lines[-1]["step"]), seconds, flops


@dataclass(frozen=True)
class _RunInterval:
    """Part of a run without an interruption."""

    machine: str
    devices: int
    peak_flops: float | None
    """Peak FLOP/s of all devices together, measured in matrix products."""
    seconds: float


def _split_into_intervals(run_status: RunStatus, seconds: float, checkpoints: Sequence[Checkpoint]) -> list[_RunInterval]:
    """Return the uninterrupted parts of a run of this duration.

    Lines and checkpoints give the time up to a step. The time between two of them belongs to the later part.
    """
    run_entries = [{}, *run_status.entries_of_type("run")]
    minutes_by_step = {entry["step"]: entry["minutes"] for entry in run_status.train if entry["progress"] < 1.0}
    minutes_by_step |= {checkpoint.step: checkpoint.trainer_state.minutes for checkpoint in checkpoints}
    interval_seconds = [0.0] * len(run_entries)
    index, end_seconds = 0, 0.0
    for entry in (entry for entry in run_status.entries if isinstance(entry.get("step"), int)):
        entry_seconds = min(60.0 * minutes_by_step.get(entry["step"], 0.0), seconds)
        interval_seconds[index] += max(entry_seconds - end_seconds, 0.0)
        end_seconds = max(entry_seconds, end_seconds)
        index += entry["type"] == "run"
    interval_seconds[-1] += seconds - end_seconds
    intervals = []
    for run_entry, duration in zip(run_entries, interval_seconds, strict=True):
        devices, reported_peak = run_entry.get("devices"), run_entry.get("peak_flops_per_second")
        peak_flops = reported_peak if isinstance(reported_peak, int | float) and reported_peak > 0 else None
        intervals.append(
            _RunInterval(str(run_entry.get("machine", "")), devices if isinstance(devices, int) else 1, peak_flops, duration)
        )
    return [interval for interval in intervals if interval.seconds > 0] or intervals[-1:]


def _find_sustained_flops(interval: _RunInterval, override_flops: float | None) -> tuple[float | None, str]:
    if override_flops is not None:
        return override_flops, "as given"
    for gpu, rate in PAPER_SUSTAINED_FLOPS.items():
        if re.search(rf"\b{gpu}\b", interval.machine):
            return rate, f"the paper's value for a {gpu}"
    if interval.peak_flops is not None:
        return interval.peak_flops / interval.devices, "measured in matrix products"
    return None, "unknown"
