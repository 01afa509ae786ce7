"""Real work: a trained model, Multi30k's test set as raw text in and raw text out, all lines at once and one at a time."""

from __future__ import annotations

import gzip
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.allowance import UNBOUNDED, Allowance
from common.results import Ratio, Section, Table
from common.usage import run

from dragoman.bundle import read_config
from dragoman.evaluation.metrics import bleu

from .contest import Entry, Outcome, compete, remarks_of
from .fixed import LEAST
from .models import Forms, forms_of
from .systems import CT2, HF, OURS, PRECISIONS, Systems, folder_for

TEST = "test_2016_flickr"
TRAINING_MINUTES = {"quick": 1.0, "full": 15.0}
BEAM = 5
SCOUTED = 0.2
"""The share of the lines by which settings are tried that take one at a time, since no line knows of the others."""


class NoText(Exception):
    """There is nothing to translate here; the message says why."""


@dataclass(frozen=True)
class Captions:
    """A trained model in all its forms, and what it is to translate."""

    forms: Forms
    lines: list[str]
    references: list[str]
    described: str


def find_captions(shared: Path, work: Path, bundle: Path | None, *, quick: bool, say: Callable[[str], None]) -> Captions:
    """The bundle that is given, or one that is trained here, once. Raises NoText, CommandError."""
    text = shared / "multi30k" / "raw"
    if not text.is_dir():
        raise NoText(f"no Multi30k in {shared}")
    name = "given"
    if bundle is None:
        kind = "quick" if quick and not (work / "trained-full" / "bundle").exists() else "full"
        name = f"trained-{kind}"
        bundle = work / name / "bundle"
        if not bundle.exists():
            say(f"training for {TRAINING_MINUTES[kind]:g} minutes, once")
            _train(text, bundle.parent, TRAINING_MINUTES[kind])
    forms = forms_of(bundle, work / f"forms-{name}")
    _, _, story = read_config(forms.bundle)
    described = f"{story.get('parameters', 0):,} parameters, {story.get('steps', 0):,} steps"
    return Captions(forms, _lines(text / f"{TEST}.en.gz"), _lines(text / f"{TEST}.de.gz"), described)


def _train(text: Path, folder: Path, minutes: float) -> None:
    settings = [
        f"data.root={text}",
        "task.tokenized=false",
        f"run={folder}",
        f"training.max_minutes={minutes}",
        "training.max_steps=4000",
        "training.warmup_steps=1200",
        "training.lr_decay_ratio=0.3",
    ]
    command: list[str | Path] = [Path(sys.executable).parent / "dragoman", "train", "multi30k-ende", *settings]
    run(command, limit_seconds=60 * minutes + 600, environment={"OMP_NUM_THREADS": str(os.cpu_count() or 1)})


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


def searches(beam: int) -> dict[str, dict[str, Any]]:
    """The same search for all: greedy, or scores divided by the length, as Multi30k's recipe has it, until a beam has ended."""
    if beam == 1:
        return {OURS: {}, CT2: {}, HF: {}}
    ours = {"length_penalty": "power", "alpha": 1.0, "early_stopping": "beam_full"}
    return {OURS: ours, CT2: {"length_penalty": 1.0}, HF: {"length_penalty": 1.0}}


def entries_of(systems: Systems, forms: Forms, *, quick: bool, one_by_one: bool) -> list[Entry]:
    styles = [{"batch": 32, "batch_type": "examples"}, {"batch": 1024, "batch_type": "tokens"}]
    if not quick:
        styles += [{"batch": 128, "batch_type": "examples"}, {"batch": 64, "batch_type": "examples"}]
        styles += [{"batch": 2048, "batch_type": "tokens"}, {"batch": 4096, "batch_type": "tokens"}]
    budgets: list[int | None] = [None] if quick or one_by_one else [None, 1024, 2048, 8192]
    ours = [{"precision": precision, "batch_tokens": budget} for precision in ("auto", *PRECISIONS) for budget in budgets]
    ways = ["1 x 2 threads", "1 x 1 thread"] if one_by_one else ["2 x 1 thread", "1 x 2 threads"]
    found = [one for way in ways for one in systems.ours(way, ours)]
    for way in ways:
        found += systems.ctranslate2(way, [{}] if one_by_one else styles, quick=quick)
    batches = [{"batch": 32}] if quick or one_by_one else [{"batch": 32}, {"batch": 64}, {"batch": 128}]
    return found + systems.transformers([{}] if one_by_one else batches, forms)


def measure_captions(
    systems: Systems,
    captions: Captions,
    *,
    say: Callable[[str], None],
    quick: bool,
    rounds: int,
    allowance: Allowance = UNBOUNDED,
) -> Section:
    section = Section()
    together = Table(
        "All lines at once: lines a second, text to text", ["search", "system", "best setting", "lines/s", "BLEU", "over it"]
    )
    alone = Table(
        "One line at a time: milliseconds a line", ["search", "system", "best setting", "mean", "p50", "p99", "over it"]
    )
    lines, references = (side[:250] if quick else side for side in (captions.lines, captions.references))
    section.remarks.append(f"the model: {captions.described}; {len(lines):,} lines of Multi30k {TEST}, en-de, raw text")
    few = lines[:50] if quick else lines
    for part, beam in ((1 / 2, 1), (1.0, BEAM)):
        time_left = allowance.share(part)
        name = "greedy" if beam == 1 else f"beam {beam}"
        said: dict[str, list[str]] = {}
        spent: dict[str, list[float]] = {}
        whole = compete(
            entries_of(systems, captions.forms, quick=quick, one_by_one=False),
            _rate(captions.forms, lines, beam, said, {}, one_by_one=False),
            scout=0.0, seconds=0.0, rounds=rounds, keep={OURS: 2, CT2: 2, HF: 1},
            whole=[CT2], allowance=time_left.share(2 / 3),
        )  # fmt: skip
        _tell_together(section, together, name, whole, said, references)
        one = compete(
            entries_of(systems, captions.forms, quick=quick, one_by_one=True),
            _rate(captions.forms, few, beam, {}, spent, one_by_one=True),
            scout=SCOUTED, seconds=0.0, rounds=rounds, keep={OURS: 1, CT2: 1, HF: 1},
            whole=[CT2], allowance=time_left,
        )  # fmt: skip
        _tell_alone(section, alone, name, one, spent)
        section.remarks += [f"{name}: {reason}" for reason in remarks_of(whole)]
        section.remarks += [f"{name}, one line at a time: {reason}" for reason in remarks_of(one)]
        say(f"captions {name}: " + ", ".join(f"{system} {found.best}" for system, found in whole.items() if found.best))
    section.tables += [together, alone]
    return section


def _rate(
    forms: Forms, lines: list[str], beam: int, said: dict[str, list[str]], spent: dict[str, list[float]], *, one_by_one: bool
) -> Callable[[Entry, float], float]:
    """Lines a second; texts and seconds go into `said` and `spent` by system and setting."""

    tried = set[str]()

    def rate(entry: Entry, share: float) -> float:
        some = lines[: max(1, int(share * len(lines)))] if share else lines
        answer = entry.worker.ask(
            do="text",
            folder=folder_for(entry, forms),
            lines=some,
            beam=beam,
            search=searches(beam)[entry.system],
            setting=entry.setting,
            one_by_one=one_by_one,
        )
        key = f"{entry.system}, {entry.label}"
        said[key] = answer["said"]
        turns: list[float] = answer["seconds"]
        if one_by_one:
            if share or key in tried:  # a round takes the place of the lines that settings were tried by
                spent[key] = []
            (tried.add if share else tried.discard)(key)
            spent.setdefault(key, []).extend(turns)
            return len(some) / sum(turns)
        return len(some) / statistics.median(turns)

    return rate


def _tell_together(
    section: Section, table: Table, name: str, outcomes: dict[str, Outcome], said: dict[str, list[str]], references: list[str]
) -> None:
    ours = outcomes[OURS].best if OURS in outcomes else None
    for system, outcome in outcomes.items():
        if outcome.best is None:
            continue
        label, rate = outcome.best
        score = bleu(said[f"{system}, {label}"], [references])
        ratio = ours[1] / rate if ours and system != OURS else None
        table.rows.append([name, system, label, f"{rate:,.0f}", f"{score.value:.2f}", f"{ratio:.2f}" if ratio else ""])
        section.figures[f"{name}, {system}, together"] = {"rates": outcome.rates, "bleu": score.value}
        if ratio is not None:
            key = f"captions_{name.replace(' ', '')}" + ("" if system == CT2 else f"_over_{system}")
            section.ratios.append(Ratio(key, ratio, LEAST if system == CT2 else None))


def _tell_alone(section: Section, table: Table, name: str, outcomes: dict[str, Outcome], spent: dict[str, list[float]]) -> None:
    ours = outcomes[OURS].best if OURS in outcomes else None
    for system, outcome in outcomes.items():
        if outcome.best is None:
            continue
        label, rate = outcome.best
        found = sorted(spent[f"{system}, {label}"])
        half, late = (1e3 * found[min(len(found) - 1, int(len(found) * share))] for share in (0.5, 0.99))
        ratio = ours[1] / rate if ours and system != OURS else None
        mean = f"{1e3 / rate:.1f}"
        table.rows.append([name, system, label, mean, f"{half:.1f}", f"{late:.1f}", f"{ratio:.2f}" if ratio else ""])
        section.figures[f"{name}, {system}, alone"] = {"rates": outcome.rates, "p50": half, "p99": late}
        if ratio is not None:
            key = f"captions_{name.replace(' ', '')}_alone" + ("" if system == CT2 else f"_over_{system}")
            section.ratios.append(Ratio(key, ratio, LEAST if system == CT2 else None))
