"""Scores in the very words of the C program EVALB: the same text for the same trees, failures dropped."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.evaluation.evalb import SentenceScore, Totals, share, total

_HEAD = (
    "  Sent.                        Matched  Bracket   Cross        Correct Tag\n"
    " ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy"
)
_RULE = "=" * 76


def listing(scores: Sequence[SentenceScore], cutoff: int) -> str:
    """A line for each sentence, the sums, and the summary over all and over those up to the length `cutoff`.

    An F-measure of nothing is 0 here, and in the C program no number.
    """
    everything = total(scores, "dropped")
    sums = (
        f"{'':16}{everything.recall:6.2f} {everything.precision:6.2f} {everything.matched:6d} "
        f"{everything.gold:5d} {everything.test:5d}  {everything.crossing:5d}"
    )
    tags = f"  {everything.words:5d} {everything.tags:5d}   {everything.tagging:6.2f}"
    return "\n".join(
        [
            _HEAD,
            _RULE,
            *map(sentence_line, scores),
            _RULE,
            (sums if everything.gold and everything.test else "") + tags,
            "=== Summary ===",
            *_summary("All", everything),
            *_summary(f"len<={cutoff}", total(scores, "dropped", longest=cutoff)),
            "",
        ]
    )


def sentence_line(score: SentenceScore) -> str:
    """A sentence's line: of one that has no score, the length and the status alone."""
    gold, test, words = (score.gold, score.test, score.words) if score.status == 0 else (0, 0, 0)
    return (
        f"{score.line:4d}  {score.length:3d}    {score.status:d}  "
        f"{share(score.matched, gold):6.2f} {share(score.matched, test):6.2f}   "
        f"{score.matched:3d}    {gold:3d}  {test:3d}    {score.crossing:3d}   "
        f"{words:4d}  {score.tags:4d}   {share(score.tags, words):6.2f}"
    )


def _summary(title: str, totals: Totals) -> list[str]:
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
        "Complete match": totals.complete,
        "Average crossing": totals.average_crossing,
        "No crossing": totals.no_crossing,
        "2 or less crossing": totals.two_or_less_crossing,
        "Tagging accuracy": totals.tagging,
    }
    return [
        "",
        f"-- {title} --",
        *(f"{name:<25} = {count:6d}" for name, count in counts.items()),
        *(f"{name:<25} = {figure:6.2f}" for name, figure in figures.items()),
    ]
