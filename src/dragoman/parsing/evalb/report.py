"""Scores in the output format of the C program EVALB: the same text for the same trees, with failures dropped."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.parsing.evalb.scorer import EvalbTotals, SentenceScore, percent, sum_scores

_HEADER = (
    "  Sent.                        Matched  Bracket   Cross        Correct Tag\n"
    " ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy"
)
_RULE = "=" * 76


def format_report(scores: Sequence[SentenceScore], cutoff_length: int) -> str:
    """Return one line for each sentence, the sums, and the summaries over all sentences and those up to `cutoff_length`.

    Without matched brackets the F-measure is 0 here; the C program prints "nan".
    """
    totals = sum_scores(scores, "dropped")
    sums = (
        f"{'':16}{totals.recall:6.2f} {totals.precision:6.2f} {totals.matched:6d} "
        f"{totals.gold:5d} {totals.test:5d}  {totals.crossing:5d}"
    )
    tags = f"  {totals.words:5d} {totals.tags:5d}   {totals.tagging_accuracy:6.2f}"
    return "\n".join(
        [
            _HEADER,
            _RULE,
            *map(format_sentence, scores),
            _RULE,
            (sums if totals.gold and totals.test else "") + tags,
            "=== Summary ===",
            *_format_summary("All", totals),
            *_format_summary(f"len<={cutoff_length}", sum_scores(scores, "dropped", max_length=cutoff_length)),
            "",
        ]
    )


def format_sentence(score: SentenceScore) -> str:
    """Return the line of one sentence; a failed sentence has its length and status only."""
    gold, test, words = (score.gold, score.test, score.words) if score.status == 0 else (0, 0, 0)
    return (
        f"{score.line:4d}  {score.length:3d}    {score.status:d}  "
        f"{percent(score.matched, gold):6.2f} {percent(score.matched, test):6.2f}   "
        f"{score.matched:3d}    {gold:3d}  {test:3d}    {score.crossing:3d}   "
        f"{words:4d}  {score.tags:4d}   {percent(score.tags, words):6.2f}"
    )


def _format_summary(title: str, totals: EvalbTotals) -> list[str]:
    counts = {
        "Number of sentence": totals.sentences,
        "Number of Error sentence": totals.errors,
        "Number of Skip  sentence": totals.skipped,
        "Number of Valid sentence": totals.scored,
    }
    figures = {
        "Bracketing Recall": totals.recall,
        "Bracketing Precision": totals.precision,
        "Bracketing FMeasure": totals.f1,
        "Complete match": totals.complete_match,
        "Average crossing": totals.average_crossing,
        "No crossing": totals.no_crossing,
        "2 or less crossing": totals.two_or_less_crossing,
        "Tagging accuracy": totals.tagging_accuracy,
    }
    return [
        "",
        f"-- {title} --",
        *(f"{name:<25} = {count:6d}" for name, count in counts.items()),
        *(f"{name:<25} = {figure:6.2f}" for name, figure in figures.items()),
    ]
