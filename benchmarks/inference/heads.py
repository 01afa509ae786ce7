"""Greedy search with and without prediction heads or a draft decoder: raw text in and out, single lines and all at once."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.results import Ratio, Section, Table
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import run_commands

from dragoman.bundle import compute_bundle_digest, read_config

from .captions import TEST, read_gzip_lines
from .systems import DRAGOMAN, Systems

NUM_LINES = {"quick": 60, "full": 400}
MODES = ("off", "auto", "on")
"""Values of decoding.speculative: without proposals, with proposals where they are faster, and always with them."""
TARGET_LINE_BY_LINE, TARGET_BATCH = 1.8, 0.95
"""Least ratios of `auto` over `off`. Proposals must not slow a batch, and times of two runs differ by some percent."""


@dataclass(frozen=True)
class AcceleratedBundle:
    """Bundle with heads or a draft. name: `captions` or `base`, which the names of its ratios hold"""

    name: str
    path: Path


def accelerate_captions(
    bundle: Path, shared: Path, folder: Path, method: str, *, on_progress: Callable[[str], None]
) -> AcceleratedBundle:
    """Return the bundle of captions with a proposer that the training lines of Multi30k train once.

    method: `heads` or `draft`
    """
    output = folder / f"{method}-{compute_bundle_digest(bundle)[:12]}"
    if not output.exists():
        on_progress(f"training, once: {method}")
        corpus = folder / "train.en"
        corpus.write_text("\n".join(read_gzip_lines(shared / "multi30k" / "raw" / "train.en.gz")) + "\n", encoding="utf-8")
        options = ["--method", method, "--device", "cpu"]
        run_commands([Path(sys.executable).parent / "dragoman", "accelerate", bundle, corpus, "-o", output, *options])
    return AcceleratedBundle("captions", output)


def measure_heads(
    systems: Systems,
    bundles: list[AcceleratedBundle],
    shared: Path,
    *,
    on_progress: Callable[[str], None],
    quick: bool,
    rounds: int,
    budget: TimeBudget = UNBOUNDED,
) -> Section:
    """Measure each bundle on lines of Multi30k's test set, in int8 and one thread."""
    section = Section()
    table = Table(
        "Several tokens a step: greedy lines per second, one thread, text to text",
        ["model", "proposer", "lines", *(f"speculative={mode}" for mode in MODES), "tokens per step, on", "auto / off"],
    )
    lines = read_gzip_lines(shared / "multi30k" / "raw" / f"{TEST}.en.gz")[: NUM_LINES["quick" if quick else "full"]]
    candidates = systems.dragoman("1 x 1 thread", [{"precision": "int8", "batch_tokens": None}])
    if not candidates:
        return Section(notes=[f"heads: {DRAGOMAN} is not among the systems"])
    (candidate,) = candidates
    for bundle in bundles:
        _, _, metadata = read_config(bundle.path)
        training, proposer = metadata.proposal_training, "heads" if metadata.draft is None else "draft"
        if training is not None:
            section.notes.append(
                f"{bundle.name}: {proposer} of {training.target_tokens:,} tokens, {training.seconds:.0f} s of training for "
                f"{metadata.seconds or 0:.0f} s of the model"
            )
        for label, line_by_line, target in (
            ("one at a time", True, TARGET_LINE_BY_LINE),
            ("all at once", False, TARGET_BATCH),
        ):
            rates: dict[str, list[float]] = {mode: [] for mode in MODES}
            tokens_per_step = 0.0
            for round_number in range(rounds):
                if round_number and budget.is_spent:
                    break
                for mode in MODES if round_number % 2 == 0 else reversed(MODES):
                    candidate.process.budget = budget
                    answer = candidate.process.request(
                        do="text",
                        folder=str(bundle.path),
                        lines=lines,
                        beam=1,
                        search={"repetition_window": 0, "speculative": mode},
                        setting=candidate.setting,
                        line_by_line=line_by_line,
                    )
                    middle = statistics.median(answer["seconds"])
                    rates[mode].append(1 / middle if line_by_line else len(lines) / middle)
                    if mode == "on":
                        tokens_per_step = answer["tokens_per_step"]
            best = {mode: statistics.median(values) for mode, values in rates.items()}
            ratio = best["auto"] / best["off"]
            cells = [f"{best[mode]:,.0f}" for mode in MODES]
            table.rows.append([bundle.name, proposer, label, *cells, f"{tokens_per_step:.2f}", f"{ratio:.2f}"])
            name = f"heads_{bundle.name}_{'line_by_line' if line_by_line else 'batch'}"
            section.figures[name] = {"rates": rates, "tokens_per_step": tokens_per_step}
            section.ratios.append(Ratio(name, ratio, target))
            on_progress(f"heads {bundle.name}, {label}: {ratio:.2f}")
    section.tables.append(table)
    return section
