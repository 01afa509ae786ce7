"""What a token costs as outputs grow longer, and as the beam grows wider."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from common.results import Ratio, Section, Table
from common.usage import CommandError

from .contest import Entry
from .fixed import made_up_sources
from .models import Forms
from .systems import CT2, OURS, Systems, folder_for

LENGTHS = (50, 100, 200, 350, 500)
BEAMS = (1, 2, 4, 8, 16)
BATCH = 8
MOST = 1.25
"""Times the price of a token in an output of 50 that one in an output of 500 may cost."""


def measure_growth(systems: Systems, forms: Forms, *, say: Callable[[str], None], quick: bool, rounds: int) -> Section:
    section = Section()
    ours = systems.ours("1 x 2 threads", [{"precision": "auto"}])
    theirs = [
        one for one in systems.ctranslate2("1 x 2 threads", [{}], quick=True) if one.label.startswith("int8_float32, AVX512")
    ]
    sources = made_up_sources(BATCH)

    def cost(entry: Entry, beam: int, length: int) -> float:
        """Milliseconds a token of one output, with the batch's others beside it."""
        answer = entry.worker.ask(
            do="fixed",
            folder=folder_for(entry, forms),
            sources=sources,
            beam=beam,
            seconds=0.0,
            setting=entry.setting,
            length=length,
        )
        turns: list[float] = answer["seconds"]
        return 1e3 * statistics.median(turns) / length

    lengths = LENGTHS[::2] if quick else LENGTHS
    beams = BEAMS[::2] if quick else BEAMS
    length_table = Table(
        f"Milliseconds a step by the output's length, {BATCH} sentences, greedy", ["system", *map(str, lengths)]
    )
    beam_table = Table(f"Milliseconds a step by the beam, {BATCH} sentences, 50 tokens", ["system", *map(str, beams)])
    for entry in [*ours, *theirs]:
        try:
            by_length = {length: [cost(entry, 1, length) for _ in range(rounds)] for length in lengths}
            by_beam = {beam: [cost(entry, beam, lengths[0]) for _ in range(rounds)] for beam in beams}
        except CommandError as error:
            section.remarks.append(f"{entry.system}, {entry.label}: {error}")
            continue
        who = {OURS: "", CT2: "_ctranslate2"}[entry.system]
        middle = {length: statistics.median(found) for length, found in by_length.items()}
        wide = {beam: statistics.median(found) for beam, found in by_beam.items()}
        length_table.rows.append([f"{entry.system}, {entry.label}", *(f"{one:.2f}" for one in middle.values())])
        beam_table.rows.append([f"{entry.system}, {entry.label}", *(f"{one:.2f}" for one in wide.values())])
        section.ratios.append(
            Ratio(f"length_flat{who}", middle[lengths[0]] / middle[lengths[-1]], 1 / MOST if entry.system == OURS else None)
        )
        widest = beams[-1]
        section.ratios.append(
            Ratio(f"beam_linear{who}", wide[1] * widest / wide[widest], 1.0 if entry.system == OURS else None)
        )
        section.figures[f"{entry.system}, {entry.label}"] = {"by_length": by_length, "by_beam": by_beam}
        say(f"growth {entry.system}: {middle} {wide}")
    section.tables += [length_table, beam_table]
    section.remarks.append(
        "length_flat: a token's price at the shortest over that at the longest; beam_linear: above 1, less than linear"
    )
    return section
