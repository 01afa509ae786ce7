"""Report of a cleaning: table for the terminal, warnings, and an HTML page with examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice, zip_longest

from dragoman.cleaning.enabled_filters import FILTER_KEYS, FILTER_ORDER
from dragoman.cleaning.statistics import MAX_EXAMPLES, CleaningStats, FilterStats
from dragoman.formats.pair import Pair
from dragoman.viz.html_report import ReportTable, render_report

TABLE_HEADER = ("", "pairs", "percent")
WARNING_FRACTION = 0.9
"""Fraction of a corpus's pairs that one filter may drop without a warning."""


def format_rows(stats: CleaningStats) -> list[tuple[str, str, str]]:
    """Return table rows under `TABLE_HEADER`: pairs read, pairs dropped by each filter, and pairs kept."""
    counts = [
        ("read", stats.num_read),
        *((name, stats.filter_stats[name].num_dropped) for name in _sort_filters(stats.filter_stats)),
        ("kept", stats.num_kept),
    ]
    return [(name, f"{count:,}", f"{100 * count / stats.num_read:.2f}" if stats.num_read else "–") for name, count in counts]


def format_table(stats_by_corpus: Mapping[str, CleaningStats]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of one table for all corpora: pairs read, pairs dropped by each filter, and pairs kept."""
    total = CleaningStats.merge_all(stats_by_corpus.values())
    columns = [{name: count for name, count, _ in format_rows(stats)} for stats in stats_by_corpus.values()]
    rows = [[name, *(column.get(name, "–") for column in columns), percentage] for name, _, percentage in format_rows(total)]
    return [TABLE_HEADER[0], *stats_by_corpus, TABLE_HEADER[2]], rows


def find_warnings(stats_by_corpus: Mapping[str, CleaningStats]) -> list[str]:
    """Return one warning for each corpus that lost all its pairs, or 90 % or more of them to one filter.

    A warning names the filter that dropped the largest number of pairs, and its recipe keys.
    """
    warnings = []
    for corpus, stats in stats_by_corpus.items():
        if not stats.num_read:
            warnings.append(f"{corpus}: no pair was read; check its files")
            continue
        name, filter_stats = max(stats.filter_stats.items(), key=lambda item: item[1].num_dropped, default=("", FilterStats()))
        if stats.num_kept and filter_stats.num_dropped < WARNING_FRACTION * stats.num_read:
            continue
        problem = (
            f"the filter {name} dropped {filter_stats.num_dropped:,} of {stats.num_read:,} pairs "
            f"({100 * filter_stats.num_dropped / stats.num_read:.1f} %)"
        )
        if not stats.num_kept:
            problem = f"no pair is left; {problem}"
        keys = " and ".join(f"data.cleaning.{key}" for key in FILTER_KEYS.get(name, ()))
        if name in ("language", "script"):
            keys = f"the order of the languages and {keys}"
        remedy = f"check {keys}, or set skip_filters = ['{name}'] for this corpus" if keys else "check its files and columns"
        warnings.append(f"{corpus}: {problem}; {remedy}")
    return warnings


def render_cleaning_report(stats_by_corpus: Mapping[str, CleaningStats]) -> str:
    """Return a self-contained HTML page with the statistics of all corpora.

    The page has one table of all corpora, and one table of examples for each filter.
    """
    total = CleaningStats.merge_all(stats_by_corpus.values())
    kept_percentage = f" ({100 * total.num_kept / total.num_read:.2f} %)" if total.num_read else ""
    names = _sort_filters(total.filter_stats)
    unused_filters = [
        _format_caption(name, total.filter_stats[name]) for name in names if not total.filter_stats[name].num_dropped
    ]
    notes = [
        f"A pair counts under the first filter that drops it. Each filter shows up to {MAX_EXAMPLES} random examples, "
        "in turn from each corpus."
    ]
    return render_report(
        "Pairs dropped by cleaning",
        facts=[("pairs read", f"{total.num_read:,}"), ("pairs kept", f"{total.num_kept:,}{kept_percentage}")],
        tables=[
            ReportTable("Pairs read, dropped by each filter, and kept", *format_table(stats_by_corpus)),
            *(
                _make_examples_table(name, total.filter_stats[name], stats_by_corpus)
                for name in names
                if total.filter_stats[name].num_dropped
            ),
        ],
        notes=[*notes, "\n".join(["These filters dropped nothing.", *unused_filters])] if unused_filters else notes,
    )


def _sort_filters(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (FILTER_ORDER.index(name) if name in FILTER_ORDER else len(FILTER_ORDER), name))


def _format_caption(filter_name: str, filter_stats: FilterStats) -> str:
    return f"{filter_name}: {filter_stats.description}" if filter_stats.description else filter_name


def _make_examples_table(
    filter_name: str, filter_stats: FilterStats, stats_by_corpus: Mapping[str, CleaningStats]
) -> ReportTable:
    examples_by_corpus = [
        [(pair, corpus) for pair in corpus_stats.filter_stats[filter_name].examples]
        for corpus, corpus_stats in stats_by_corpus.items()
        if filter_name in corpus_stats.filter_stats
    ]
    interleaved: Iterable[tuple[Pair, str] | None] = chain.from_iterable(zip_longest(*examples_by_corpus))
    selected = islice((example for example in interleaved if example is not None), MAX_EXAMPLES)
    rows = [(pair.source, pair.target, corpus, pair.origin) for pair, corpus in selected]
    return ReportTable(_format_caption(filter_name, filter_stats), ("source", "target", "corpus", "origin"), rows)
