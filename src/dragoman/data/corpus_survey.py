"""Survey of a corpus before anything is trained: counts, lengths, pairs that cleaning would drop, and a held-out part."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from statistics import median

from dragoman.cleaning.filters import count_words, has_control_characters, is_empty, is_identical, is_out_of_ratio, is_too_long
from dragoman.formats.pair import Pair

MAX_SURVEYED_PAIRS = 1_000_000
"""Pairs that are read; the counts of a larger corpus are those of its beginning."""
MAX_HELD_OUT = 1000
"""Pairs of the validation set, and of the test set."""
HELD_OUT_SHARE = 0.05
"""Largest share of the pairs in each of the two sets."""
MAX_RATIO = 4.0
"""Ratio of the characters of both sides above which a pair is probably not a translation."""
MAX_WORDS = 100
"""Words of a side above which it is probably a paragraph."""


@dataclass
class CorpusSurvey:
    """Counts and lengths of the pairs of a corpus."""

    pairs: int = 0
    """Pairs read, those with an empty side included."""
    empty: int = 0
    """Pairs with an empty side. Training never uses them."""
    equal: int = 0
    """Pairs whose sides are equal."""
    repeated: int = 0
    """Pairs that came before."""
    uneven: int = 0
    """Pairs in which one side has more than `MAX_RATIO` times the characters of the other."""
    damaged: int = 0
    """Pairs with control characters, or with marks of bytes that were not UTF-8 (U+FFFD)."""
    long: int = 0
    """Pairs with more than `MAX_WORDS` words on a side."""
    source_words: float = 0.0
    """Median of the words of the source."""
    target_words: float = 0.0
    """Median of the words of the target."""
    is_complete: bool = True
    """Whether all pairs were read."""

    def describe(self) -> dict[str, str]:
        """Return the facts in words, in the order in which they are shown."""
        read = "" if self.is_complete else " read; the corpus has more"
        return {
            "pairs": f"{self.pairs:,}{read}",
            "words of a source, median": f"{self.source_words:g}",
            "words of a target, median": f"{self.target_words:g}",
            "pairs with an empty side": self._format_share(self.empty),
            "pairs that came before": self._format_share(self.repeated),
            "pairs with damaged characters": self._format_share(self.damaged),
            "pairs with equal sides": self._format_share(self.equal),
            f"sides more than {MAX_RATIO:g} times as long": self._format_share(self.uneven),
            f"sides of more than {MAX_WORDS} words": self._format_share(self.long),
        }

    def _format_share(self, number: int) -> str:
        return f"{number:,} ({number / max(self.pairs, 1):.1%})" if number else "none"


def survey_pairs(pairs: Iterable[Pair]) -> tuple[CorpusSurvey, list[Pair]]:
    """Read at most `MAX_SURVEYED_PAIRS` pairs. The same pairs give the same result.

    Returns the survey, and random pairs for two sets of equal size, each of at most `MAX_HELD_OUT`. They are different pairs
    whose sides are neither empty nor equal.
    """
    survey, rng = CorpusSurvey(), random.Random(1)
    held_out: list[Pair] = []
    seen = set[bytes]()
    lengths: tuple[list[int], list[int]] = ([], [])
    num_eligible = 0
    for pair in pairs:
        if survey.pairs == MAX_SURVEYED_PAIRS:
            survey.is_complete = False
            break
        survey.pairs += 1
        sides = pair.source, pair.target
        if is_empty(*sides):
            survey.empty += 1
            continue
        for side_lengths, text in zip(lengths, sides, strict=True):
            side_lengths.append(count_words(text))
        survey.damaged += has_control_characters(*sides)
        survey.long += is_too_long(*sides, MAX_WORDS, None)
        survey.uneven += is_out_of_ratio(*sides, MAX_RATIO)
        is_equal = is_identical(*sides)
        survey.equal += is_equal
        digest = blake2b("\n".join(sides).encode("utf-8", "surrogatepass"), digest_size=12).digest()
        is_repeated = digest in seen
        survey.repeated += is_repeated
        seen.add(digest)
        if is_equal or is_repeated:
            continue
        # Reservoir sampling: each eligible pair is kept with the same probability.
        num_eligible += 1
        if len(held_out) < 2 * MAX_HELD_OUT:
            held_out.append(pair)
        elif (place := rng.randrange(num_eligible)) < 2 * MAX_HELD_OUT:
            held_out[place] = pair
    rng.shuffle(held_out)
    del held_out[2 * int(HELD_OUT_SHARE * num_eligible) :]
    survey.source_words, survey.target_words = (float(median(side)) if side else 0.0 for side in lengths)
    return survey, held_out
