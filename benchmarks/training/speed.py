"""Target tokens a second in training: `dragoman train` beside its peers, in turn."""

from __future__ import annotations

import os
from collections.abc import Sequence

from common.results import Ratio, Section, Table
from common.usage import CommandError

from .bench import PRECISIONS, Bench, Measured
from .peers import find_peers
from .sizes import Size
from .timed import Contestant, measure

# Over the best peer, of those that train in float32.
ASKED = {"float32": 2.0, "bfloat16": 3.0}


def measure_speed(
    bench: Bench, measured: Measured, sizes: Sequence[tuple[Size, float]], *, rounds: int, quick: bool, install: bool
) -> Section:
    """So many rounds for each size, in which each has its turn of so many seconds; medians go into `measured`."""
    section = Section()
    found = find_peers(bench.corpus, bench.work, install=install, all_of_them=not quick)
    section.remarks += [f"{name}: {reason}" for name, reason in found.absent.items()]
    for size, seconds in sizes:
        contestants = [bench.ours(size, precision) for precision in PRECISIONS]
        contestants += [peer.contest(size, bench.out / peer.key) for peer in found.peers]
        loads = _take_turns(bench, section, measured, size, contestants, rounds=rounds, seconds=seconds)
        _tell(section, measured, size, contestants, loads)
    return section


def _take_turns(
    bench: Bench,
    section: Section,
    measured: Measured,
    size: Size,
    contestants: list[Contestant],
    *,
    rounds: int,
    seconds: float,
) -> list[float]:
    """Who fails is left out from then on, and the report says why. Returns the machine's load before each turn."""
    loads = []
    for _ in range(rounds):
        for contestant in list(contestants):
            loads.append(os.getloadavg()[0])
            try:
                rate = measure(contestant, seconds=seconds)
            except CommandError as error:
                section.remarks.append(f"{size.name}: {error}")
                contestants.remove(contestant)
                continue
            measured.rates.setdefault((size.name, contestant.key), []).append(rate)
            bench.say(f"{size.name}: {contestant.name}: {rate:,.0f} tokens/s")
    return loads


def _tell(section: Section, measured: Measured, size: Size, contestants: list[Contestant], loads: list[float]) -> None:
    medians = {one.key: median for one in contestants if (median := measured.median(size, one.key)) is not None}
    own = {precision: medians[f"ours_{precision}"] for precision in PRECISIONS if f"ours_{precision}" in medians}
    table = Table(
        f"{size.name}, batches of {size.batch_tokens:,}, target tokens a second (load {min(loads):.1f}–{max(loads):.1f})",
        ["system", "tokens/s", "spread", "rounds", *(f"ours in {precision} over it" for precision in own)],
    )
    for one in contestants:
        if one.key not in medians:
            continue
        rates = measured.rates[size.name, one.key]
        over = ["" if one.key.startswith("ours") else f"{rate / medians[one.key]:.2f}" for rate in own.values()]
        spread = f"{min(rates):,.0f}–{max(rates):,.0f}"
        table.rows.append([one.name, f"{medians[one.key]:,.0f}", spread, f"{len(rates)}", *over])
    section.tables.append(table)
    section.figures[size.name] = {
        "tokens_per_second": {one.name: measured.rates.get((size.name, one.key), []) for one in contestants},
        "load": loads,
    }
    theirs = {key: rate for key, rate in medians.items() if not key.startswith("ours")}
    plain = [rate for key, rate in theirs.items() if not key.endswith("bfloat16")]
    for precision, rate in own.items():
        if plain:
            section.ratios.append(Ratio(f"{size.name}_{precision}_over_best_peer", rate / max(plain), ASKED[precision]))
        section.ratios += [Ratio(f"{size.name}_{precision}_over_{key}", rate / other) for key, other in theirs.items()]
