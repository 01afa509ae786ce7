"""A corpus of millions: the memory of each command, the time to the first batch and to any, the loader beside training."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from common.results import Ratio, Section, Table, mebibytes
from common.usage import CommandError, Usage, run

from .corpora import Base, Text
from .ours import BATCH_TOKENS, CLEANING, command, loader, settings

ASKED_BYTES = 1.5 * 2**30
ASKED_FIRST_SECONDS, ASKED_SEEK_SECONDS = 3.0, 1.0
ASKED_LOADER = 20.0
OPENINGS = 3
BESIDE = "train, "  # the run on few pairs, which nothing is asked of


def measure_scale(
    base: Base, text: Text, small: Text, recipe: Path, work: Path, *, steps: int, loader_seconds: float
) -> Section:
    """`small` is a text beside which training on the large one shows what the corpus adds to its memory."""
    section = Section()
    folder = work / "out" / "large"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    changes = settings(base, text, folder / "run", f"training.max_steps={steps}")
    learning = settings(base, text, folder / "learning")
    learning = [change for change in learning if not change.startswith("tokenizer.model_file=")]
    cleaning = [f"data.cleaning.{rule}" for rule in CLEANING]
    commands = {
        "prepare": command("prepare", recipe, changes),
        "prepare, learning pieces": command("prepare", recipe, learning),
        "clean": command("clean", recipe, [*changes, *cleaning], "-o", folder / "cleaned"),
        "train": command("train", recipe, changes),
        f"{BESIDE}{small.pairs:,} pairs": command(
            "train", recipe, settings(base, small, folder / "small", f"training.max_steps={steps}")
        ),
        "info": command("info", folder / "run" / "bundle", []),
        "loader": loader("first", recipe, changes, time.monotonic()),
    }
    used: dict[str, Usage] = {}
    for name, words in commands.items():
        try:
            used[name] = run(words, memory=True)
        except CommandError as error:
            section.remarks.append(f"dragoman {name}: {error}")
        if name in ("prepare, learning pieces", "clean"):  # of no further use, and as large as the corpus
            shutil.rmtree(folder / "learning", ignore_errors=True)
            shutil.rmtree(folder / "cleaned", ignore_errors=True)
    _tell_memory(section, text, used)
    if "prepare" in used:
        _tell_opening(section, recipe, changes)
        _tell_loader(section, recipe, changes, folder / "run", loader_seconds)
    shutil.rmtree(folder, ignore_errors=True)
    return section


def _tell_memory(section: Section, text: Text, used: dict[str, Usage]) -> None:
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
                mebibytes(usage.resident),
                mebibytes(usage.anonymous),
                mebibytes(usage.largest),
            ]
        )
        section.figures[name] = {key: value for key, value in vars(usage).items() if key != "output"}
    section.tables.append(table)
    section.figures["pairs"] = text.pairs
    for name, usage in used.items():
        if not name.startswith(BESIDE):
            section.ratios.append(Ratio("memory_" + re.sub(r"\W+", "_", name), ASKED_BYTES / usage.resident, 1.0))


def _tell_opening(section: Section, recipe: Path, changes: list[str]) -> None:
    """The median of some fresh processes for the first batch; of the seeks, the slowest of all."""
    told = [_ask(loader("first", recipe, changes, time.monotonic())) for _ in range(OPENINGS)]
    whole = statistics.median(one["first_batch_seconds"] for one in told)
    imports = statistics.median(one["import_seconds"] for one in told)
    seeks = [seconds for one in told for seconds in one["seek_seconds"]]
    table = Table("From a prepared folder, seconds", ["what", "median", "slowest", "asked"])
    table.rows = [
        [
            "first batch, from the start of the process",
            f"{whole:.2f}",
            f"{max(one['first_batch_seconds'] for one in told):.2f}",
            f"{ASKED_FIRST_SECONDS:.0f}",
        ],
        ["  of which imports", f"{imports:.2f}", "", ""],
        [
            "batch at a random place of a late epoch",
            f"{statistics.median(seeks):.3f}",
            f"{max(seeks):.3f}",
            f"{ASKED_SEEK_SECONDS:.0f}",
        ],
    ]
    section.tables.append(table)
    section.figures["opening"] = told
    section.ratios.append(Ratio("first_batch", ASKED_FIRST_SECONDS / whole, 1.0))
    section.ratios.append(Ratio("seek", ASKED_SEEK_SECONDS / max(seeks), 1.0))


def _tell_loader(section: Section, recipe: Path, changes: list[str], trained: Path, seconds: float) -> None:
    """The loader's rate over that of the training steps in the journal of the run just made, batches of the same size."""
    served = _ask(loader("rate", recipe, changes, seconds))["target_tokens_per_second"]
    journal = trained / "metrics.jsonl"
    if not journal.exists():
        section.remarks.append("no journal of a training run: the loader cannot be held against it")
        return
    entries = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    rates = [entry["tokens_per_second"] for entry in entries if entry["type"] == "train"][1:]  # the first one warms up
    consumed = max(rates)  # of a machine that others slow down, too: the loader must keep up with training at its best
    table = Table(f"Target tokens a second, batches of {BATCH_TOKENS:,}", ["what", "tokens/s"])
    table.rows = [
        ["loader, in one process, median of windows", f"{served:,.0f}"],
        [f"training, tiny, fastest of {len(rates)} intervals", f"{consumed:,.0f}"],
    ]
    section.tables.append(table)
    section.figures["loader_tokens_per_second"] = served
    section.figures["training_tokens_per_second"] = rates
    section.ratios.append(Ratio("loader_over_training", served / consumed, ASKED_LOADER))


def _ask(words: list[str | Path]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run(words).output)
    return told
