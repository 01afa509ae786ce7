"""Fixed work: models with random weights, 27 source tokens, exactly 30 target tokens."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from common.benchmark import print_progress
from common.results import Ratio, Section, Table
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import CommandError

from dragoman.bundle import read_config
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS

from .ceiling import SpeedLimit, compute_limits
from .harness import Candidate, CellResult, compare_systems, format_spread, list_notes
from .models import BASE, BIG, ONE_SENTENCE_TARGET_RATIO, OPUS, TARGET_RATIO, ModelFormats, RandomModel
from .serve import SOURCE_TOKENS, TARGET_TOKENS
from .systems import COMPUTE_TYPES, CORES, CT2, DRAGOMAN, HF, PRECISIONS, Systems, model_path

LOAD_SHARE = 0.3
"""Largest share of a quick run's time for the start of all systems."""


@dataclass(frozen=True)
class FixedCell:
    """Batch and beam size of one measurement.

    In `throughput`, two batches run at once with one thread each; dragoman may also run one after the other with two.
    """

    name: str
    batch: int
    beam: int
    throughput: bool = False
    model: RandomModel = BASE

    @property
    def target_ratio(self) -> float:
        """Return the least ratio over the best setting of CTranslate2 that the project aims at."""
        return ONE_SENTENCE_TARGET_RATIO if self.batch == 1 else TARGET_RATIO


CELLS = [
    *(FixedCell(f"{batch}x{beam}", batch, beam) for batch in (1, 8, 32) for beam in (1, 4)),
    FixedCell("throughput_greedy", 256, 1, throughput=True),
    FixedCell("throughput_beam4", 256, 4, throughput=True),
    *(FixedCell(f"opus_{batch}x{beam}", batch, beam, model=OPUS) for batch in (1, 32) for beam in (1, 4)),
    FixedCell("opus_throughput_beam4", 256, 4, throughput=True, model=OPUS),
    *(FixedCell(f"big_{batch}x{beam}", batch, beam, model=BIG) for batch in (1, 32) for beam in (1, 4)),
]
QUICK_CELLS = ("1x1", "32x1", "throughput_beam4")


def make_sources(count: int, vocabulary: int = BASE.vocabulary) -> list[list[int]]:
    """Return source ids without the end token, which every system adds."""
    rng = random.Random(1)
    return [[rng.randrange(len(SPECIAL_IDS), vocabulary) for _ in range(SOURCE_TOKENS - 1)] for _ in range(count)]


def make_rate(
    forms: ModelFormats, cell: FixedCell, outputs: dict[str, list[list[int]]], **clock: str
) -> Callable[[Candidate, float], float]:
    """Return a function that measures target tokens per second of the best hypotheses.

    outputs: filled with the output ids by system and setting
    clock: a clock of `serve.CLOCKS`; wall time by default
    """
    sources = make_sources(cell.batch, cell.model.vocabulary)

    def rate(entry: Candidate, seconds: float) -> float:
        folder = model_path(entry, forms)
        arguments = {"folder": folder, "sources": sources, "beam": cell.beam, "setting": entry.setting, **clock}
        answer = entry.process.request(do="fixed", seconds=seconds, **arguments)
        outputs[f"{entry.system}, {entry.label}"] = answer["outputs"]
        turn_seconds: list[float] = answer["seconds"]
        return cell.batch * TARGET_TOKENS / statistics.median(turn_seconds)

    return rate


def list_candidates(systems: Systems, forms: ModelFormats, cell: FixedCell, *, quick: bool) -> list[Candidate]:
    """Return the settings to try, the likely best of each system first.

    A quick run leaves out settings that were never the best in a full run. With many rows these are one thread, float32 of
    CTranslate2, transformers, and other precisions than int8 of dragoman. An imported model has many with more than one row.
    """
    rows = cell.batch * cell.beam
    has_int8_only = quick and rows > (1 if cell.model.is_imported else 4)
    precisions = PRECISIONS[:1] if has_int8_only else PRECISIONS
    dragoman_settings = [{"precision": precision} for precision in precisions]
    types = COMPUTE_TYPES[:1] if has_int8_only else COMPUTE_TYPES
    if cell.throughput:
        sizes = [{"batch": 32}] if quick else [{"batch": 32}, {"batch": 64}, {"batch": 128}]
        batched = [{**setting, **size} for setting in dragoman_settings for size in sizes]
        # With many rows, two threads that divide a batch keep more of it in their caches than two with a batch each.
        layouts = ("2 x 1 thread", "1 x 2 threads") if cell.beam == 1 else ("1 x 2 threads", "2 x 1 thread")
        own_candidates = [candidate for threads in layouts for candidate in systems.dragoman(threads, batched)]
        return own_candidates + systems.ctranslate2("2 x 1 thread", sizes, quick=quick, types=types)
    thread_layouts = ("1 x 2 threads",) if quick and rows > 8 else ("1 x 2 threads", "1 x 1 thread")
    own_candidates = [
        candidate
        for setting in dragoman_settings
        for threads in thread_layouts
        for candidate in systems.dragoman(threads, [setting])
    ]
    peers = [
        candidate for threads in thread_layouts for candidate in systems.ctranslate2(threads, [{}], quick=quick, types=types)
    ]
    transformers_candidates = [] if quick and rows > 8 else systems.transformers([{}], forms)
    return own_candidates + peers + transformers_candidates


def measure_fixed(
    systems: Systems,
    build_forms: Callable[[RandomModel], ModelFormats],
    cells: list[FixedCell],
    *,
    quick: bool,
    rounds: int,
    seconds: float,
    budget: TimeBudget = UNBOUNDED,
) -> Section:
    section = Section()
    if quick:
        cells = [replace(cell, batch=cell.batch // 4) if cell.throughput else cell for cell in cells]
    limits, limit_notes = _compute_limits(build_forms, cells)
    table = Table(
        f"Random weights, {SOURCE_TOKENS} tokens in, {TARGET_TOKENS} out: target tokens per second",
        [
            "batch x beam",
            DRAGOMAN,
            "numbers",
            CT2,
            "best setting",
            HF,
            f"ratio over {CT2}",
            "least to most",
            "limit",
            "share of limit",
        ],
    )
    notes = [*limit_notes]
    if quick:
        notes += _start_systems(systems, build_forms(cells[0].model), budget.take_share(LOAD_SHARE))
    for number, cell in enumerate(cells):
        outputs: dict[str, list[list[int]]] = {}
        forms = build_forms(cell.model)
        entries = list_candidates(systems, forms, cell, quick=quick)
        outcomes = compare_systems(
            entries,
            make_rate(forms, cell, outputs),
            trial_seconds=0.0,
            seconds=seconds,
            rounds=rounds,
            keep={DRAGOMAN: 1, CT2: 2, HF: 1} if quick else {DRAGOMAN: 3, CT2: 3, HF: 2},
            first=[CT2],
            budget=budget.take_share(1 / (len(cells) - number)),
        )
        _report_cell(section, table, cell, outcomes, limits.get((cell.model.name, cell.batch, cell.beam)))
        notes += [f"{cell.name}: {reason}" for reason in list_notes(outcomes)]
        section.figures[cell.name]["agreement"] = agreement = _token_agreement(outputs)
        notes += [
            f"{cell.name}: {share:.1%} of the float32 tokens of {system} equal dragoman's"
            for system, share in agreement.items()
        ]
        print_progress(
            f"fixed {cell.name}: "
            + ", ".join(f"{name} {candidate.best}" for name, candidate in outcomes.items() if candidate.best)
        )
    section.tables.append(table)
    section.notes += notes
    section.notes.append("numbers: precision of dragoman")
    section.notes.append("limit: time to read the weights or to multiply by them in int8, whichever is longer in each step")
    return section


def _start_systems(systems: Systems, forms: ModelFormats, budget: TimeBudget) -> list[str]:
    """Start the process of each system, so that imports do not count as time of the first cell. Return the errors."""
    cell, errors = CELLS[0], []
    entries = list_candidates(systems, forms, cell, quick=True)
    for process in dict.fromkeys(entry.process for entry in entries):
        entry = next(entry for entry in entries if entry.process is process)
        process.budget = budget
        try:
            make_rate(forms, cell, {})(entry, 0.0)
        except CommandError as error:
            errors.append(f"start of {entry.system}, {entry.label}: {error}")
    return errors


def _compute_limits(
    build_forms: Callable[[RandomModel], ModelFormats], cells: list[FixedCell]
) -> tuple[dict[tuple[str, int, int], SpeedLimit], list[str]]:
    """Return the limits by model, batch and beam size, and the reasons for missing ones."""
    limits: dict[tuple[str, int, int], SpeedLimit] = {}
    notes = []
    for model in dict.fromkeys(cell.model for cell in cells):
        shapes = [(cell.batch, cell.beam) for cell in cells if cell.model == model]
        recipe, _, _ = read_config(build_forms(model).bundle)
        try:
            model_limits = compute_limits(recipe.model, model.vocabulary, shapes, threads=CORES)
        except CommandError as error:
            notes.append(f"{model.name}: no limit: {error}")
            continue
        limits |= {(model.name, *shape): limit for shape, limit in model_limits.items()}
    return limits, notes


def _report_cell(
    section: Section, table: Table, cell: FixedCell, outcomes: dict[str, CellResult], limit: SpeedLimit | None
) -> None:
    best = {name: outcome.best for name, outcome in outcomes.items()}
    dragoman_best, ctranslate2_best, transformers_best = (best.get(name) for name in (DRAGOMAN, CT2, HF))
    limit_text, share_text = "-", "-"
    if limit is not None:
        limit_text = f"{limit.rate:,.0f} ({limit.bound_by})"
        share_text = f"{dragoman_best[1] / limit.rate:.0%}" if dragoman_best else "-"
    ratio, spread = None, "-"
    if dragoman_best and ctranslate2_best:
        ratio = dragoman_best[1] / ctranslate2_best[1]
        spread = format_spread(outcomes[DRAGOMAN], outcomes[CT2])
    table.rows.append(
        [
            cell.name,
            *([f"{dragoman_best[1]:,.0f}", dragoman_best[0].replace(",", " ").split()[0]] if dragoman_best else ["-", "-"]),
            *([f"{ctranslate2_best[1]:,.0f}", ctranslate2_best[0]] if ctranslate2_best else ["-", "-"]),
            f"{transformers_best[1]:,.0f}" if transformers_best else "-",
            f"{ratio:.2f}" if ratio else "-",
            spread,
            limit_text,
            share_text,
        ]
    )
    if ratio is not None:
        section.ratios.append(Ratio(f"fixed_{cell.name}", ratio, cell.target_ratio))
    if dragoman_best and transformers_best:
        section.ratios.append(Ratio(f"fixed_{cell.name}_over_transformers", dragoman_best[1] / transformers_best[1]))
    section.figures[cell.name] = {
        "rates": {name: outcome.rates for name, outcome in outcomes.items()},
        "limit": None if limit is None else limit.rate,
        "binds": None if limit is None else limit.bound_by,
    }


def _token_agreement(outputs: dict[str, list[list[int]]]) -> dict[str, float]:
    """Return the fraction of tokens in float32 that each peer shares with dragoman in float32."""
    exact = {name: tokens for name, tokens in outputs.items() if "float32" in name and "int8_float32" not in name}
    dragoman_tokens = next((tokens for name, tokens in exact.items() if name.startswith(DRAGOMAN)), None)
    agreement: dict[str, float] = {}
    for name, tokens in exact.items():
        system = name.split(",")[0]
        if dragoman_tokens is None or system == DRAGOMAN or system in agreement:
            continue
        pairs = [
            pair
            for candidate, peer_token in zip(dragoman_tokens, tokens, strict=True)
            for pair in zip(candidate, peer_token, strict=True)
        ]
        agreement[system] = sum(candidate == peer_token for candidate, peer_token in pairs) / len(pairs)
    return agreement
