"""Fixed work: the base model with random weights, 27 tokens in, exactly 30 out, whatever they are."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from common.allowance import UNBOUNDED, Allowance
from common.results import Ratio, Section, Table

from dragoman.bundle import read_config
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS

from .ceiling import Limit, limits
from .contest import Entry, Outcome, compete, remarks_of
from .models import VOCABULARY, Forms
from .serve import SOURCE_TOKENS, TARGET_TOKENS
from .systems import COMPUTE_TYPES, CT2, HF, OURS, PRECISIONS, Systems, folder_for

LEAST = 1.2
"""Times the best peer that is asked in every cell."""


@dataclass(frozen=True)
class Cell:
    """So many sentences at once. In `throughput` two batches are under way with a thread each, of the size that suits best;
    or, of dragoman, one after the other with two."""

    name: str
    batch: int
    beam: int
    throughput: bool = False


CELLS = [
    *(Cell(f"{batch}x{beam}", batch, beam) for batch in (1, 8, 32) for beam in (1, 4)),
    Cell("throughput_greedy", 256, 1, throughput=True),
    Cell("throughput_beam4", 256, 4, throughput=True),
]


def made_up_sources(count: int) -> list[list[int]]:
    """Ids without the end token, which every system adds itself."""
    chance = random.Random(1)
    return [[chance.randrange(len(SPECIAL_IDS), VOCABULARY) for _ in range(SOURCE_TOKENS - 1)] for _ in range(count)]


def rate_of(forms: Forms, cell: Cell, said: dict[str, list[list[int]]], **clock: str) -> Callable[[Entry, float], float]:
    """Target tokens a second of the best hypotheses; what was said goes into `said` by system and setting.

    clock: that of `serve.CLOCKS` which is read, the wall's if none is named
    """
    sources = made_up_sources(cell.batch)

    def rate(entry: Entry, seconds: float) -> float:
        folder = folder_for(entry, forms)
        asked = {"folder": folder, "sources": sources, "beam": cell.beam, "setting": entry.setting, **clock}
        answer = entry.worker.ask(do="fixed", seconds=seconds, **asked)
        said[f"{entry.system}, {entry.label}"] = answer["said"]
        turns: list[float] = answer["seconds"]
        return cell.batch * TARGET_TOKENS / statistics.median(turns)

    return rate


def entries_of(systems: Systems, forms: Forms, cell: Cell, *, quick: bool) -> list[Entry]:
    # What is never near the best, a quick run leaves out: float32 of ours, and transformers' beams over many sentences.
    ours = [{"precision": precision} for precision in PRECISIONS if not (quick and precision == "float32" and cell.batch > 8)]
    # Float32 comes near only where there are few rows; a quick run does not try it elsewhere.
    types = COMPUTE_TYPES[:1] if quick and cell.batch * cell.beam >= 32 else COMPUTE_TYPES
    if cell.throughput:
        sizes = [{"batch": 32}] if quick else [{"batch": 32}, {"batch": 64}, {"batch": 128}]
        batched = [{**setting, **size} for setting in ours for size in sizes]
        # Two batches, or one twice as fast: who waits for all of them does not care.
        mine = systems.ours("2 x 1 thread", batched) + systems.ours("1 x 2 threads", batched)
        return mine + systems.ctranslate2("2 x 1 thread", sizes, quick=quick, types=types)
    both = ("1 x 2 threads", "1 x 1 thread")
    mine = [one for setting in ours for threads in both for one in systems.ours(threads, [setting])]
    peers = [one for threads in both for one in systems.ctranslate2(threads, [{}], quick=quick, types=types)]
    theirs = [] if quick and cell.batch * cell.beam >= 32 else systems.transformers([{}], forms)
    return mine + peers + theirs


def measure_fixed(
    systems: Systems,
    forms: Forms,
    cells: list[Cell],
    *,
    say: Callable[[str], None],
    quick: bool,
    rounds: int,
    seconds: float,
    allowance: Allowance = UNBOUNDED,
) -> Section:
    section = Section()
    recipe, _, _ = read_config(forms.bundle)
    if quick:
        cells = [replace(cell, batch=cell.batch // 4) if cell.throughput else cell for cell in cells]
    bounds = limits(recipe.model, VOCABULARY, [(cell.batch, cell.beam) for cell in cells], threads=2)
    table = Table(
        f"Base, random weights, {SOURCE_TOKENS} tokens in, {TARGET_TOKENS} out: target tokens a second",
        ["batch x beam", OURS, "numbers", CT2, "best setting", HF, f"over {CT2}", "limit", "share of it"],
    )
    remarks: list[str] = []
    for number, cell in enumerate(cells):
        said: dict[str, list[list[int]]] = {}
        entries = entries_of(systems, forms, cell, quick=quick)
        outcomes = compete(
            entries,
            rate_of(forms, cell, said),
            scout=0.0,
            seconds=seconds,
            rounds=rounds,
            keep={OURS: 2, CT2: 2, HF: 1} if quick else {OURS: 3, CT2: 3, HF: 2},
            whole=[CT2],
            allowance=allowance.share(1 / (len(cells) - number)),
        )
        _tell(section, table, cell, outcomes, bounds[cell.batch, cell.beam])
        remarks += [f"{cell.name}: {reason}" for reason in remarks_of(outcomes)]
        section.figures[cell.name]["same"] = same = _agreement(said)
        remarks += [
            f"{cell.name}: of the tokens in float32, {share:.1%} are dragoman's in {who}" for who, share in same.items()
        ]
        say(f"fixed {cell.name}: " + ", ".join(f"{name} {one.best}" for name, one in outcomes.items() if one.best))
    section.tables.append(table)
    section.remarks += remarks
    section.remarks.append("numbers: what dragoman computes in")
    section.remarks.append(
        "limit: to read the weights (batch 1) or to multiply by them (beyond), in the numbers that allow most"
    )
    return section


def _tell(section: Section, table: Table, cell: Cell, outcomes: dict[str, Outcome], limit: Limit) -> None:
    best = {name: outcome.best for name, outcome in outcomes.items()}
    ours, peer, slow = (best.get(name) for name in (OURS, CT2, HF))
    binding, bound = limit.best
    ratio = ours[1] / peer[1] if ours and peer else None
    table.rows.append(
        [
            cell.name,
            *([f"{ours[1]:,.0f}", ours[0].replace(",", " ").split()[0]] if ours else ["-", "-"]),
            *([f"{peer[1]:,.0f}", peer[0]] if peer else ["-", "-"]),
            f"{slow[1]:,.0f}" if slow else "-",
            f"{ratio:.2f}" if ratio else "-",
            f"{bound:,.0f} ({limit.binds}, {binding})",
            f"{ours[1] / bound:.0%}" if ours else "-",
        ]
    )
    if ratio is not None:
        section.ratios.append(Ratio(f"fixed_{cell.name}", ratio, LEAST))
    if ours and slow:
        section.ratios.append(Ratio(f"fixed_{cell.name}_over_transformers", ours[1] / slow[1]))
    section.figures[cell.name] = {
        "rates": {name: outcome.rates for name, outcome in outcomes.items()},
        "limit": limit.rates,
        "binds": limit.binds,
    }


def _agreement(said: dict[str, list[list[int]]]) -> dict[str, float]:
    """The share of tokens that a peer in float32 says as we do in float32: whether all run the same weights."""
    exact = {name: tokens for name, tokens in said.items() if "float32" in name and "int8_float32" not in name}
    ours = next((tokens for name, tokens in exact.items() if name.startswith(OURS)), None)
    found: dict[str, float] = {}
    for name, tokens in exact.items():
        system = name.split(",")[0]
        if ours is None or system == OURS or system in found:
            continue
        pairs = [pair for one, other in zip(ours, tokens, strict=True) for pair in zip(one, other, strict=True)]
        found[system] = sum(one == other for one, other in pairs) / len(pairs)
    return found
