"""What a beam has come to: the hypotheses of each sentence, read back from its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.decoding.constraints import DEAD, Phrase, holds
from dragoman.decoding.history import Entry, History
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.penalty import LengthPenalty


@dataclass(frozen=True)
class Ending:
    """What one sentence had come to when it was done.

    length: tokens at which it was
    finished, codes: score over penalty of each finished place, and which it is: length · X + column, X being the number of
        candidates at each step; -inf marks an empty place
    score, living: log-probability of those alive, and their columns; -inf likewise
    looped: those that went round in circles, and their scores over penalty
    partial: the code of the best that ended without all of its phrases
    """

    length: int
    finished: Sequence[float]
    codes: Sequence[int]
    score: Sequence[float]
    living: Sequence[int]
    looped: Sequence[tuple[float, Entry]] = ()
    partial: int | None = None


@dataclass(frozen=True)
class _Ranked:
    """One hypothesis before it is read. score: none yet for one that lacks phrases"""

    score: float | None
    entry: Entry
    looped: bool = False


def outcome(
    endings: Sequence[Ending],
    history: History,
    *,
    end_id: int,
    penalty: LengthPenalty,
    phrases: Sequence[Sequence[Phrase]] = (),
) -> list[list[Hypothesis]]:
    """As many hypotheses of each sentence as it had places, best first; unfinished ones stand after the finished.

    phrases: those that each sentence was to hold, or none at all
    """
    columns = history.tokens[0].shape[1] if history.tokens else 0
    chosen = [one for number, ending in enumerate(endings) for one in _ranked(number, ending, columns, penalty)]
    found: list[list[Hypothesis]] = [[] for _ in endings]
    for one, (tokens, log_probs) in zip(chosen, history.read([one.entry for one in chosen]), strict=True):
        finished = tokens[-1] == end_id
        said = tuple(tokens[:-1] if finished else tokens)
        score = sum(log_probs) / penalty(float(one.entry.length)) if one.score is None else one.score
        wanted = phrases[one.entry.sentence] if phrases else ()
        missing = tuple(phrase for phrase in wanted if not holds(said, phrase))
        found[one.entry.sentence].append(Hypothesis(said, tuple(log_probs), score, finished, one.looped, missing))
    return found


def _ranked(number: int, ending: Ending, columns: int, penalty: LengthPenalty) -> list[_Ranked]:
    """The finished, and what looped among them; if none finished, the best that lacks phrases; then those that were cut."""
    places = zip(ending.finished, ending.codes, strict=True)
    finished = [(score, Entry(number, *divmod(code, columns)), False) for score, code in places if score > DEAD]
    looped = [(score, entry, True) for score, entry in ending.looped]
    ranked = [_Ranked(*one) for one in sorted(finished + looped, key=lambda one: -one[0])]
    if not finished and ending.partial is not None:
        ranked.append(_Ranked(None, Entry(number, *divmod(ending.partial, columns))))
    cut = [one for one in zip(ending.score, ending.living, strict=True) if one[0] > DEAD]
    over = penalty(float(ending.length))
    for score, column in sorted(cut, key=lambda one: -one[0]):
        ranked.append(_Ranked(score / over, Entry(number, ending.length, column)))
    return ranked[: len(ending.score)]
