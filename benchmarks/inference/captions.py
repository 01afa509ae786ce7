"""Translation of Multi30k's test set by a trained model: raw text in and out, all lines at once and line by line."""

from __future__ import annotations

import gzip
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.benchmark import print_progress
from common.results import Ratio, Section, Table
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import run_commands

from dragoman import load
from dragoman.bundle import read_config
from dragoman.evaluation.metrics import bleu

from .harness import Candidate, CellResult, compare_systems, format_spread, list_notes
from .models import TARGET_RATIO, ModelFormats, convert_bundle
from .systems import CT2, DRAGOMAN, HF, Systems, model_path

TEST = "test_2016_flickr"
# Steps of the model that is trained once, and target tokens of a batch. A number of minutes would give another model on each
# machine, and on a slow one a model that never ends a sentence.
TRAINING_STEPS = {"quick": 400, "full": 1500}
BATCH_TOKENS = {"quick": 1024, "full": 4096}
TRAINING_LIMIT_SECONDS = 7200.0
BEAM = 5
QUICK_LINES, QUICK_TIMED_LINES = 128, 25
"""Lines of a quick run: all at once, and line by line."""
TRIAL_FRACTION = 0.2
"""Share of the lines that line-by-line settings are tried on."""


class MissingCaptionsError(Exception):
    """Error for a missing test set; the message gives the reason."""


@dataclass(frozen=True)
class Captions:
    """Trained model in all formats, and the lines to translate.

    num_endless: lines that are left out, because the model does not end their translation. The systems limit such outputs
        differently, so their times do not compare
    """

    forms: ModelFormats
    lines: list[str]
    references: list[str]
    description: str
    num_endless: int


def find_captions(shared: Path, work: Path, bundle: Path | None, *, quick: bool) -> Captions:
    """Return the captions with the bundle, or with a model that is trained once. Raises MissingCaptionsError, CommandError."""
    text = shared / "multi30k" / "raw"
    if not text.is_dir():
        raise MissingCaptionsError(f"{shared}: holds no Multi30k; give its folder by --shared")
    name = "given"
    if bundle is None:
        full_bundle = work / f"trained-full-{TRAINING_STEPS['full']}" / "bundle"
        kind = "quick" if quick and not full_bundle.exists() else "full"
        name = f"trained-{kind}-{TRAINING_STEPS[kind]}"
        bundle = work / name / "bundle"
        if not bundle.exists():
            print_progress(f"training for {TRAINING_STEPS[kind]:,} steps, once")
            _train_model(text, bundle.parent, TRAINING_STEPS[kind], BATCH_TOKENS[kind])
    forms = convert_bundle(bundle, work / f"forms-{name}")
    _, _, metadata = read_config(forms.bundle)
    description = f"{metadata.parameters or 0:,} parameters, {metadata.steps or 0:,} steps"
    pairs = list(zip(read_gzip_lines(text / f"{TEST}.en.gz"), read_gzip_lines(text / f"{TEST}.de.gz"), strict=True))
    pairs = pairs[: 2 * QUICK_LINES] if quick else pairs
    has_end = _find_ended(forms.bundle, [source for source, _ in pairs])
    ended = [pair for pair, is_ended in zip(pairs, has_end, strict=True) if is_ended]
    if not ended:
        raise MissingCaptionsError(f"{bundle}: ends no sentence; train it longer")
    lines, references = zip(*ended, strict=True)
    return Captions(forms, list(lines), list(references), description, len(pairs) - len(ended))


def _find_ended(bundle: Path, lines: list[str]) -> list[bool]:
    """Return whether greedy and beam search end the translation of each line by themselves."""
    translator = load(bundle, task="translation", device="cpu")
    statuses = [
        [
            translation.status in ("ok", "short", "copied")
            for translation in translator.translate(lines, **search, **search_options(beam)[DRAGOMAN])
        ]
        for beam, search in ((1, {"method": "greedy"}), (BEAM, {"method": "beam", "beam_size": BEAM}))
    ]
    return [all(line_statuses) for line_statuses in zip(*statuses, strict=True)]


def _train_model(text: Path, folder: Path, steps: int, batch_tokens: int) -> None:
    settings = [
        f"data.root={text}",
        "task.tokenized=false",
        "model.position_encoding=halves",  # as in MarianMT
        f"run={folder}",
        f"training.max_steps={steps}",
        f"training.batch_tokens={batch_tokens}",
        f"training.warmup_steps={steps // 5}",
        "training.peak_lr=3e-3",
        "training.lr_decay_ratio=0.3",
        f"training.validate_every_steps={steps}",
        "training.num_validation_translations=0",
        "training.checkpoint_averaging=none",  # a mean with early checkpoints repeats itself
    ]
    command: list[str | Path] = [Path(sys.executable).parent / "dragoman", "train", "multi30k-ende", *settings]
    run_commands(command, limit_seconds=TRAINING_LIMIT_SECONDS, environment={"OMP_NUM_THREADS": str(os.cpu_count() or 1)})


def read_gzip_lines(path: Path) -> list[str]:
    """Return the lines of a compressed text file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


def search_options(beam: int) -> dict[str, dict[str, Any]]:
    """Return equal search options for every system: greedy, or a beam with scores divided by the length.

    dragoman would search a line again whose output repeats itself. No other system does, so this check is off.
    """
    if beam == 1:
        return {DRAGOMAN: {"repetition_window": 0}, CT2: {}, HF: {}}
    dragoman_options = {"repetition_window": 0, "length_penalty": "power", "alpha": 1.0, "early_stopping": "beam_full"}
    return {DRAGOMAN: dragoman_options, CT2: {"length_penalty": 1.0}, HF: {"length_penalty": 1.0}}


def list_candidates(systems: Systems, forms: ModelFormats, *, quick: bool, line_by_line: bool) -> list[Candidate]:
    """Return the settings to try. A quick run leaves out transformers, which takes the time of many rounds of the others."""
    styles = [{"batch": 32, "batch_type": "examples"}]
    if not quick:
        styles += [{"batch": 1024, "batch_type": "tokens"}]
        styles += [{"batch": 128, "batch_type": "examples"}, {"batch": 64, "batch_type": "examples"}]
        styles += [{"batch": 2048, "batch_type": "tokens"}, {"batch": 4096, "batch_type": "tokens"}]
    budgets: list[int | None] = [None] if quick or line_by_line else [None, 1024, 2048, 8192]
    precisions = ["auto"] if quick else ["auto", "float32"]
    dragoman_settings = [{"precision": precision, "batch_tokens": budget} for precision in precisions for budget in budgets]
    thread_layouts = ["1 x 1 thread", "1 x 2 threads"] if line_by_line else ["2 x 1 thread", "1 x 2 threads"]
    # A quick run has too few lines for two batches of equal size, so dragoman divides each batch between the threads.
    own_layouts = thread_layouts if line_by_line else reversed(thread_layouts)
    candidates = [candidate for threads in own_layouts for candidate in systems.dragoman(threads, dragoman_settings)]
    for threads in thread_layouts[:1] if quick and not line_by_line else thread_layouts:
        candidates += systems.ctranslate2(threads, [{}] if line_by_line else styles, quick=quick)
    if quick:
        return candidates
    batches = [{"batch": 32}, {"batch": 64}, {"batch": 128}]
    return candidates + systems.transformers([{}] if line_by_line else batches, forms)


def measure_captions(
    systems: Systems,
    captions: Captions,
    *,
    quick: bool,
    rounds: int,
    budget: TimeBudget = UNBOUNDED,
) -> Section:
    section = Section()
    batch_table, line_table = (
        Table(title, ["search", "system", "best setting", *figures, "ratio", "least to most"])
        for title, figures in (
            ("All lines at once: lines per second, text to text", ["lines/s", "BLEU"]),
            ("Line by line: milliseconds per line", ["mean", "p50", "p99"]),
        )
    )
    num_lines = QUICK_LINES if quick else len(captions.lines)
    lines, references = captions.lines[:num_lines], captions.references[:num_lines]
    section.notes.append(f"model: {captions.description}; {len(lines):,} lines of Multi30k {TEST}, en-de, raw text")
    section.notes.append(f"{captions.num_endless:,} other lines are left out, because the model does not end them")
    timed_lines = lines[:QUICK_TIMED_LINES] if quick else lines
    for part, beam in ((1 / 2, 1), (1.0, BEAM)):
        time_left = budget.take_share(part)
        name = "greedy" if beam == 1 else f"beam {beam}"
        outputs: dict[str, list[str]] = {}
        seconds_by_setting: dict[str, list[float]] = {}
        batch_results = compare_systems(
            list_candidates(systems, captions.forms, quick=quick, line_by_line=False),
            _make_rate(captions.forms, lines, beam, outputs, {}, line_by_line=False),
            trial_seconds=0.0, seconds=0.0, rounds=rounds, keep={DRAGOMAN: 2, CT2: 2, HF: 1},
            first=[CT2], budget=time_left.take_share(1 / 2),
        )  # fmt: skip
        _report_batch(section, batch_table, name, batch_results, outputs, references)
        line_results = compare_systems(
            list_candidates(systems, captions.forms, quick=quick, line_by_line=True),
            _make_rate(captions.forms, timed_lines, beam, {}, seconds_by_setting, line_by_line=True),
            trial_seconds=TRIAL_FRACTION, seconds=0.0, rounds=rounds, keep={DRAGOMAN: 1, CT2: 1, HF: 1},
            first=[CT2], budget=time_left,
        )  # fmt: skip
        _report_single(section, line_table, name, line_results, seconds_by_setting)
        section.notes += [f"{name}: {reason}" for reason in list_notes(batch_results)]
        section.notes += [f"{name}, line by line: {reason}" for reason in list_notes(line_results)]
        print_progress(
            f"captions {name}: "
            + ", ".join(f"{system} {result.best}" for system, result in batch_results.items() if result.best)
        )
    section.tables += [batch_table, line_table]
    return section


def _make_rate(
    forms: ModelFormats,
    lines: list[str],
    beam: int,
    outputs: dict[str, list[str]],
    seconds_by_setting: dict[str, list[float]],
    *,
    line_by_line: bool,
) -> Callable[[Candidate, float], float]:
    """Return a function that measures lines per second; texts and seconds are stored by system and setting."""

    tried_keys = set[str]()

    def rate(entry: Candidate, share: float) -> float:
        subset = lines[: max(1, int(share * len(lines)))] if share else lines
        answer = entry.process.request(
            do="text",
            folder=model_path(entry, forms),
            lines=subset,
            beam=beam,
            search=search_options(beam)[entry.system],
            setting=entry.setting,
            line_by_line=line_by_line,
        )
        key = f"{entry.system}, {entry.label}"
        outputs[key] = answer["outputs"]
        seconds: list[float] = answer["seconds"]
        if line_by_line:
            if share or key in tried_keys:  # the lines of a round replace those of a trial
                seconds_by_setting[key] = []
            (tried_keys.add if share else tried_keys.discard)(key)
            seconds_by_setting.setdefault(key, []).extend(seconds)
            return len(subset) / sum(seconds)
        return len(subset) / statistics.median(seconds)

    return rate


def _iter_best(
    section: Section, name: str, outcomes: dict[str, CellResult]
) -> Iterator[tuple[str, CellResult, str, list[str]]]:
    """Yield each system, its best setting, and the ratio of dragoman to it with its spread; add the ratio to the section."""
    dragoman_best = outcomes[DRAGOMAN].best if DRAGOMAN in outcomes else None
    for system, outcome in outcomes.items():
        if outcome.best is None:
            continue
        label, rate = outcome.best
        ratio = dragoman_best[1] / rate if dragoman_best and system != DRAGOMAN else None
        yield system, outcome, label, [f"{ratio:.2f}", format_spread(outcomes[DRAGOMAN], outcome)] if ratio else ["", ""]
        if ratio is not None:
            key = f"captions_{name}" + ("" if system == CT2 else f"_over_{system}")
            section.ratios.append(Ratio(key, ratio, TARGET_RATIO if system == CT2 else None))


def _report_batch(
    section: Section,
    table: Table,
    name: str,
    outcomes: dict[str, CellResult],
    outputs: dict[str, list[str]],
    references: list[str],
) -> None:
    for system, outcome, label, comparison in _iter_best(section, name.replace(" ", ""), outcomes):
        score = bleu(outputs[f"{system}, {label}"], [references])
        rate = statistics.median(outcome.rates[label])
        table.rows.append([name, system, label, f"{rate:,.0f}", f"{score.value:.2f}", *comparison])
        section.figures[f"{name}, {system}, batch"] = {"rates": outcome.rates, "bleu": score.value}


def _report_single(
    section: Section, table: Table, name: str, outcomes: dict[str, CellResult], seconds_by_setting: dict[str, list[float]]
) -> None:
    for system, outcome, label, comparison in _iter_best(section, f"{name.replace(' ', '')}_line_by_line", outcomes):
        seconds = sorted(seconds_by_setting[f"{system}, {label}"])
        p50, p99 = (1e3 * seconds[min(len(seconds) - 1, int(len(seconds) * share))] for share in (0.5, 0.99))
        mean = f"{1e3 / statistics.median(outcome.rates[label]):.1f}"
        table.rows.append([name, system, label, mean, f"{p50:.1f}", f"{p99:.1f}", *comparison])
        section.figures[f"{name}, {system}, line by line"] = {"rates": outcome.rates, "p50": p50, "p99": p99}
