"""Fixed work: the base model with random weights, 27 source tokens, exactly 30 target tokens."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from common.results import Ratio, Section, Table
from common.time_budget import UNBOUNDED, TimeBudget

from dragoman.bundle import read_config
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS

from .ceiling import SpeedLimit, compute_limits
from .harness import Candidate, CellResult, compare_systems, list_notes
from .models import VOCABULARY, ModelFormats
from .serve import SOURCE_TOKENS, TARGET_TOKENS
from .systems import COMPUTE_TYPES, CT2, DRAGOMAN, HF, PRECISIONS, Systems, model_path

TARGET_RATIO = 1.2
"""Times the best peer that is asked in every cell."""


@dataclass(frozen=True)
class FixedCell:
    """Batch and beam size of one measurement.

    In `throughput`, two batches run at once with one thread each; dragoman may also run one after the other with two.
    """

    name: str
    batch: int
    beam: int
    throughput: bool = False


CELLS = [
    *(FixedCell(f"{batch}x{beam}", batch, beam) for batch in (1, 8, 32) for beam in (1, 4)),
    FixedCell("throughput_greedy", 256, 1, throughput=True),
    FixedCell("throughput_beam4", 256, 4, throughput=True),
]


def make_sources(count: int) -> list[list[int]]:
    """Return source ids without the end token, which every system adds."""
    chance = random.Random(1)
    return [[chance.randrange(len(SPECIAL_IDS), VOCABULARY) for _ in range(SOURCE_TOKENS - 1)] for _ in range(count)]


def make_rate(
    forms: ModelFormats, cell: FixedCell, outputs: dict[str, list[list[int]]], **clock: str
) -> Callable[[Candidate, float], float]:
    """Return a function that measures target tokens per second of the best hypotheses.

    outputs: filled with the output ids by system and setting
    clock: a clock of `serve.CLOCKS`; wall time by default
    """
    sources = make_sources(cell.batch)

    def rate(entry: Candidate, seconds: float) -> float:
        folder = model_path(entry, forms)
        asked = {"folder": folder, "sources": sources, "beam": cell.beam, "setting": entry.setting, **clock}
        answer = entry.process.request(do="fixed", seconds=seconds, **asked)
        outputs[f"{entry.system}, {entry.label}"] = answer["outputs"]
        turns: list[float] = answer["seconds"]
        return cell.batch * TARGET_TOKENS / statistics.median(turns)

    return rate


def list_candidates(systems: Systems, forms: ModelFormats, cell: FixedCell, *, quick: bool) -> list[Candidate]:
    # What is never near the best, a quick run leaves out: float32 of ours, and transformers' beams over many sentences.
    ours = [{"precision": precision} for precision in PRECISIONS if not (quick and precision == "float32" and cell.batch > 8)]
    # Float32 comes near only where there are few rows; a quick run does not try it elsewhere.
    types = COMPUTE_TYPES[:1] if quick and cell.batch * cell.beam >= 32 else COMPUTE_TYPES
    if cell.throughput:
        sizes = [{"batch": 32}] if quick else [{"batch": 32}, {"batch": 64}, {"batch": 128}]
        batched = [{**setting, **size} for setting in ours for size in sizes]
        # Two batches, or one twice as fast: who waits for all of them does not care.
        own_candidates = systems.dragoman("2 x 1 thread", batched) + systems.dragoman("1 x 2 threads", batched)
        return own_candidates + systems.ctranslate2("2 x 1 thread", sizes, quick=quick, types=types)
    both = ("1 x 2 threads", "1 x 1 thread")
    own_candidates = [candidate for setting in ours for threads in both for candidate in systems.dragoman(threads, [setting])]
    peers = [candidate for threads in both for candidate in systems.ctranslate2(threads, [{}], quick=quick, types=types)]
    theirs = [] if quick and cell.batch * cell.beam >= 32 else systems.transformers([{}], forms)
    return own_candidates + peers + theirs


def measure_fixed(
    systems: Systems,
    forms: ModelFormats,
    cells: list[FixedCell],
    *,
    on_progress: Callable[[str], None],
    quick: bool,
    rounds: int,
    seconds: float,
    budget: TimeBudget = UNBOUNDED,
) -> Section:
    section = Section()
    recipe, _, _ = read_config(forms.bundle)
    if quick:
        cells = [replace(cell, batch=cell.batch // 4) if cell.throughput else cell for cell in cells]
    bounds = compute_limits(recipe.model, VOCABULARY, [(cell.batch, cell.beam) for cell in cells], threads=2)
    table = Table(
        f"Base, random weights, {SOURCE_TOKENS} tokens in, {TARGET_TOKENS} out: target tokens a second",
        ["batch x beam", DRAGOMAN, "numbers", CT2, "best setting", HF, f"over {CT2}", "limit", "share of it"],
    )
    remarks: list[str] = []
    for number, cell in enumerate(cells):
        outputs: dict[str, list[list[int]]] = {}
        entries = list_candidates(systems, forms, cell, quick=quick)
        outcomes = compare_systems(
            entries,
            make_rate(forms, cell, outputs),
            trial_seconds=0.0,
            seconds=seconds,
            rounds=rounds,
            keep={DRAGOMAN: 2, CT2: 2, HF: 1} if quick else {DRAGOMAN: 3, CT2: 3, HF: 2},
            always_tried=[CT2],
            budget=budget.take_share(1 / (len(cells) - number)),
        )
        _report_cell(section, table, cell, outcomes, bounds[cell.batch, cell.beam])
        remarks += [f"{cell.name}: {reason}" for reason in list_notes(outcomes)]
        section.figures[cell.name]["same"] = same = _token_agreement(outputs)
        remarks += [
            f"{cell.name}: of the tokens in float32, {share:.1%} are dragoman's in {who}" for who, share in same.items()
        ]
        on_progress(
            f"fixed {cell.name}: "
            + ", ".join(f"{name} {candidate.best}" for name, candidate in outcomes.items() if candidate.best)
        )
    section.tables.append(table)
    section.notes += remarks
    section.notes.append("numbers: what dragoman computes in")
    section.notes.append("limit: to read the weights (batch 1) or to multiply by them (beyond), in the numbers that allow most")
    return section


def _report_cell(section: Section, table: Table, cell: FixedCell, outcomes: dict[str, CellResult], limit: SpeedLimit) -> None:
    best = {name: outcome.best for name, outcome in outcomes.items()}
    ours, peer, slow = (best.get(name) for name in (DRAGOMAN, CT2, HF))
    binding, bound = limit.best
    ratio = ours[1] / peer[1] if ours and peer else None
    table.rows.append(
        [
            cell.name,
            *([f"{ours[1]:,.0f}", ours[0].replace(",", " ").split()[0]] if ours else ["-", "-"]),
            *([f"{peer[1]:,.0f}", peer[0]] if peer else ["-", "-"]),
            f"{slow[1]:,.0f}" if slow else "-",
            f"{ratio:.2f}" if ratio else "-",
            f"{bound:,.0f} ({limit.bound_by}, {binding})",
            f"{ours[1] / bound:.0%}" if ours else "-",
        ]
    )
    if ratio is not None:
        section.ratios.append(Ratio(f"fixed_{cell.name}", ratio, TARGET_RATIO))
    if ours and slow:
        section.ratios.append(Ratio(f"fixed_{cell.name}_over_transformers", ours[1] / slow[1]))
    section.figures[cell.name] = {
        "rates": {name: outcome.rates for name, outcome in outcomes.items()},
        "limit": limit.rates,
        "binds": limit.bound_by,
    }


def _token_agreement(outputs: dict[str, list[list[int]]]) -> dict[str, float]:
    """Return the fraction of tokens in float32 that each peer shares with dragoman in float32."""
    exact = {name: tokens for name, tokens in outputs.items() if "float32" in name and "int8_float32" not in name}
    ours = next((tokens for name, tokens in exact.items() if name.startswith(DRAGOMAN)), None)
    agreement: dict[str, float] = {}
    for name, tokens in exact.items():
        system = name.split(",")[0]
        if ours is None or system == DRAGOMAN or system in agreement:
            continue
        pairs = [
            pair for candidate, peer_token in zip(ours, tokens, strict=True) for pair in zip(candidate, peer_token, strict=True)
        ]
        agreement[system] = sum(candidate == peer_token for candidate, peer_token in pairs) / len(pairs)
    return agreement
