"""A corpus of millions of pairs: memory of each command, time to the first batch, and data loader speed."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from common.results import Ratio, Section, Table, format_mebibytes
from common.usage import CommandError, ResourceUsage, run_commands

from .corpora import BaseCorpus, TextCorpus
from .dragoman_runner import BATCH_TOKENS, CLEANING, build_command, build_dataloader_command, build_settings

TARGET_BYTES = 1.5 * 2**30
TARGET_FIRST_SECONDS, TARGET_SEEK_SECONDS = 3.0, 1.0
TARGET_LOADER_RATIO = 20.0
OPENINGS = 3
SMALL_RUN_PREFIX = "train, "  # the run on few pairs, which has no target


def measure_scale(
    base: BaseCorpus, text: TextCorpus, small: TextCorpus, recipe: Path, work: Path, *, steps: int, loader_seconds: float
) -> Section:
    """Measure memory and time on the large text; `small` shows how much memory the corpus itself adds."""
    section = Section()
    folder = work / "out" / "large"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    changes = build_settings(base, text, folder / "run", f"training.max_steps={steps}")
    tokenizer_changes = build_settings(base, text, folder / "tokenizer")
    tokenizer_changes = [change for change in tokenizer_changes if not change.startswith("tokenizer.model_file=")]
    cleaning = [f"data.cleaning.{rule}" for rule in CLEANING]
    commands = {
        "prepare": build_command("prepare", recipe, changes),
        "prepare, training the tokenizer": build_command("prepare", recipe, tokenizer_changes),
        "clean": build_command("clean", recipe, [*changes, *cleaning], "-o", folder / "cleaned"),
        "train": build_command("train", recipe, changes),
        f"{SMALL_RUN_PREFIX}{small.pairs:,} pairs": build_command(
            "train", recipe, build_settings(base, small, folder / "small", f"training.max_steps={steps}")
        ),
        "info": build_command("info", folder / "run" / "bundle", []),
        "loader": build_dataloader_command("first", recipe, changes, time.monotonic()),
    }
    used: dict[str, ResourceUsage] = {}
    for name, words in commands.items():
        try:
            used[name] = run_commands(words, memory=True)
        except CommandError as error:
            section.notes.append(f"dragoman {name}: {error}")
        if name in ("prepare, training the tokenizer", "clean"):  # as large as the corpus, and not needed again
            shutil.rmtree(folder / "tokenizer", ignore_errors=True)
            shutil.rmtree(folder / "cleaned", ignore_errors=True)
    _report_memory(section, text, used)
    if "prepare" in used:
        _report_opening(section, recipe, changes)
        _report_dataloader(section, recipe, changes, folder / "run", loader_seconds)
    shutil.rmtree(folder, ignore_errors=True)
    return section


def _report_memory(section: Section, text: TextCorpus, used: dict[str, ResourceUsage]) -> None:
    table = Table(
        f"Memory of whole process trees, {text.pairs:,} pairs, MiB at most",
        ["command", "seconds", "CPU seconds", "resident", "of it anonymous", "largest process"],
    )
    for name, usage in used.items():
        table.rows.append(
            [
                name,
                f"{usage.seconds:,.1f}",
                f"{usage.cpu_seconds:,.1f}",
                format_mebibytes(usage.peak_resident),
                format_mebibytes(usage.peak_anonymous),
                format_mebibytes(usage.peak_process),
            ]
        )
        section.figures[name] = {key: value for key, value in vars(usage).items() if key != "output"}
    section.tables.append(table)
    section.figures["pairs"] = text.pairs
    for name, usage in used.items():
        if not name.startswith(SMALL_RUN_PREFIX):
            section.ratios.append(Ratio("memory_" + re.sub(r"\W+", "_", name), TARGET_BYTES / usage.peak_resident, 1.0))


def _report_opening(section: Section, recipe: Path, changes: list[str]) -> None:
    """Report the median time to the first batch over fresh processes, and the slowest seek."""
    measurements = [_run_json(build_dataloader_command("first", recipe, changes, time.monotonic())) for _ in range(OPENINGS)]
    whole = statistics.median(measurement["first_batch_seconds"] for measurement in measurements)
    imports = statistics.median(measurement["import_seconds"] for measurement in measurements)
    seeks = [seconds for measurement in measurements for seconds in measurement["seek_seconds"]]
    table = Table("From a prepared folder, seconds", ["measurement", "median", "slowest", "target"])
    table.rows = [
        [
            "first batch, from the start of the process",
            f"{whole:.2f}",
            f"{max(measurement['first_batch_seconds'] for measurement in measurements):.2f}",
            f"{TARGET_FIRST_SECONDS:.0f}",
        ],
        ["  of which imports", f"{imports:.2f}", "", ""],
        [
            "batch at a random position of a late epoch",
            f"{statistics.median(seeks):.3f}",
            f"{max(seeks):.3f}",
            f"{TARGET_SEEK_SECONDS:.0f}",
        ],
    ]
    section.tables.append(table)
    section.figures["opening"] = measurements
    section.ratios.append(Ratio("first_batch", TARGET_FIRST_SECONDS / whole, 1.0))
    section.ratios.append(Ratio("seek", TARGET_SEEK_SECONDS / max(seeks), 1.0))


def _report_dataloader(section: Section, recipe: Path, changes: list[str], trained: Path, seconds: float) -> None:
    """Report the data loader's rate over the rate of training steps in the metrics log of the run."""
    served = _run_json(build_dataloader_command("rate", recipe, changes, seconds))["target_tokens_per_second"]
    log_path = trained / "metrics.jsonl"
    if not log_path.exists():
        section.notes.append("no metrics log of a training run: the loader cannot be compared with training")
        return
    entries = [json.loads(line) for line in log_path.read_text(encoding="utf-8").splitlines()]
    rates = [entry["tokens_per_second"] for entry in entries if entry["type"] == "train"][1:]  # the first one warms up
    consumed = max(rates)  # the fastest interval, because other programs may slow the machine down
    table = Table(f"Target tokens per second, batches of {BATCH_TOKENS:,}", ["measurement", "tokens/s"])
    table.rows = [
        ["loader, in one process, median of windows", f"{served:,.0f}"],
        [f"training, tiny, fastest of {len(rates)} intervals", f"{consumed:,.0f}"],
    ]
    section.tables.append(table)
    section.figures["loader_tokens_per_second"] = served
    section.figures["training_tokens_per_second"] = rates
    section.ratios.append(Ratio("loader_over_training", served / consumed, TARGET_LOADER_RATIO))


def _run_json(words: list[str | Path]) -> dict[str, Any]:
    measurements: dict[str, Any] = json.loads(run_commands(words).output)
    return measurements
