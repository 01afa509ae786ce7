"""What cleaning dropped, to look through: rows for the terminal, and a page with examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice, zip_longest

from dragoman.cleaning.rules import ORDER
from dragoman.cleaning.statistics import EXAMPLES, Dropped, Tally
from dragoman.formats.pair import Pair
from dragoman.viz import Table, report_page

HEADER = ("", "pairs", "per cent")


def rows_of(tally: Tally) -> list[tuple[str, str, str]]:
    """Cells under `HEADER`: the pairs read, those that each rule dropped in the order of the rules, and those kept."""
    counts = [
        ("read", tally.read),
        *((rule, tally.dropped[rule].count) for rule in _ordered(tally.dropped)),
        ("kept", tally.kept),
    ]
    return [(name, f"{count:,}", f"{100 * count / tally.read:.2f}" if tally.read else "–") for name, count in counts]


def table_of(tallies: Mapping[str, Tally]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of one table for all corpora: the pairs read, those that each rule dropped, and those kept."""
    whole = Tally.merged_all(tallies.values())
    columns = [{name: count for name, count, _ in rows_of(tally)} for tally in tallies.values()]
    rows = [[name, *(column.get(name, "–") for column in columns), share] for name, _, share in rows_of(whole)]
    return [HEADER[0], *tallies, HEADER[2]], rows


def cleaning_page(tallies: Mapping[str, Tally], *, title: str = "What cleaning dropped") -> str:
    """One self-contained HTML page of the corpora's tallies, by name.

    A table of all corpora, then one for each rule with its sentence and examples.
    """
    whole = Tally.merged_all(tallies.values())
    share = f" ({100 * whole.kept / whole.read:.2f} %)" if whole.read else ""
    rules = _ordered(whole.dropped)
    idle = [_caption(rule, whole.dropped[rule]) for rule in rules if not whole.dropped[rule].count]
    notes = [
        f"A pair counts under the first rule that drops it. Of those dropped, up to {EXAMPLES} a rule are shown, "
        "drawn by lot, in turn from each corpus."
    ]
    return report_page(
        title,
        facts=[("pairs read", f"{whole.read:,}"), ("pairs kept", f"{whole.kept:,}{share}")],
        tables=[
            Table("Pairs read, dropped by each rule, and kept", *table_of(tallies)),
            *(_examples(rule, whole.dropped[rule], tallies) for rule in rules if whole.dropped[rule].count),
        ],
        notes=[*notes, "\n".join(["Nothing was dropped by these rules.", *idle])] if idle else notes,
    )


def _ordered(rules: Iterable[str]) -> list[str]:
    return sorted(rules, key=lambda rule: (ORDER.index(rule) if rule in ORDER else len(ORDER), rule))


def _caption(rule: str, dropped: Dropped) -> str:
    return f"{rule}: {dropped.sentence}" if dropped.sentence else rule


def _examples(rule: str, dropped: Dropped, tallies: Mapping[str, Tally]) -> Table:
    of_each = [
        [(pair, corpus) for pair in tally.dropped[rule].examples] for corpus, tally in tallies.items() if rule in tally.dropped
    ]
    in_turn: Iterable[tuple[Pair, str] | None] = chain.from_iterable(zip_longest(*of_each))
    shown = islice((example for example in in_turn if example is not None), EXAMPLES)
    rows = [(pair.source, pair.target, corpus, pair.origin) for pair, corpus in shown]
    return Table(_caption(rule, dropped), ("source", "target", "corpus", "origin"), rows)
