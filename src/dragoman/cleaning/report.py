"""What cleaning dropped, to look through: rows for the terminal, and a page with examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice, zip_longest

from dragoman.cleaning.rules import RULE_ORDER
from dragoman.cleaning.statistics import MAX_EXAMPLES, CleaningStats, RuleStats
from dragoman.formats.pair import Pair
from dragoman.viz import ReportTable, render_report

TABLE_HEADER = ("", "pairs", "per cent")


def format_rows(stats: CleaningStats) -> list[tuple[str, str, str]]:
    """Cells under `HEADER`: the pairs read, those that each rule dropped in the order of the rules, and those kept."""
    counts = [
        ("read", stats.num_read),
        *((rule, stats.rule_stats[rule].count) for rule in _sort_rules(stats.rule_stats)),
        ("kept", stats.num_kept),
    ]
    return [(name, f"{count:,}", f"{100 * count / stats.num_read:.2f}" if stats.num_read else "–") for name, count in counts]


def format_table(stats_by_corpus: Mapping[str, CleaningStats]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of one table for all corpora: the pairs read, those that each rule dropped, and those kept."""
    total = CleaningStats.merge_all(stats_by_corpus.values())
    columns = [{name: count for name, count, _ in format_rows(stats)} for stats in stats_by_corpus.values()]
    rows = [[name, *(column.get(name, "–") for column in columns), percentage] for name, _, percentage in format_rows(total)]
    return [TABLE_HEADER[0], *stats_by_corpus, TABLE_HEADER[2]], rows


def render_cleaning_report(stats_by_corpus: Mapping[str, CleaningStats], *, title: str = "What cleaning dropped") -> str:
    """One self-contained HTML page of the corpora's tallies, by name.

    A table of all corpora, then one for each rule with its sentence and examples.
    """
    total = CleaningStats.merge_all(stats_by_corpus.values())
    kept_percentage = f" ({100 * total.num_kept / total.num_read:.2f} %)" if total.num_read else ""
    rules = _sort_rules(total.rule_stats)
    unused_rules = [_format_caption(rule, total.rule_stats[rule]) for rule in rules if not total.rule_stats[rule].count]
    notes = [
        f"A pair counts under the first rule that drops it. Of those dropped, up to {MAX_EXAMPLES} a rule are shown, "
        "drawn by lot, in turn from each corpus."
    ]
    return render_report(
        title,
        facts=[("pairs read", f"{total.num_read:,}"), ("pairs kept", f"{total.num_kept:,}{kept_percentage}")],
        tables=[
            ReportTable("Pairs read, dropped by each rule, and kept", *format_table(stats_by_corpus)),
            *(
                _make_examples_table(rule, total.rule_stats[rule], stats_by_corpus)
                for rule in rules
                if total.rule_stats[rule].count
            ),
        ],
        notes=[*notes, "\n".join(["Nothing was dropped by these rules.", *unused_rules])] if unused_rules else notes,
    )


def _sort_rules(rules: Iterable[str]) -> list[str]:
    return sorted(rules, key=lambda rule: (RULE_ORDER.index(rule) if rule in RULE_ORDER else len(RULE_ORDER), rule))


def _format_caption(rule: str, rule_stats: RuleStats) -> str:
    return f"{rule}: {rule_stats.description}" if rule_stats.description else rule


def _make_examples_table(rule: str, rule_stats: RuleStats, stats_by_corpus: Mapping[str, CleaningStats]) -> ReportTable:
    examples_by_corpus = [
        [(pair, corpus) for pair in corpus_stats.rule_stats[rule].examples]
        for corpus, corpus_stats in stats_by_corpus.items()
        if rule in corpus_stats.rule_stats
    ]
    interleaved: Iterable[tuple[Pair, str] | None] = chain.from_iterable(zip_longest(*examples_by_corpus))
    selected = islice((example for example in interleaved if example is not None), MAX_EXAMPLES)
    rows = [(pair.source, pair.target, corpus, pair.origin) for pair, corpus in selected]
    return ReportTable(_format_caption(rule, rule_stats), ("source", "target", "corpus", "origin"), rows)
