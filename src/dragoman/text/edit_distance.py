"""Edit distance of two texts."""

from __future__ import annotations

from collections import defaultdict


def compute_distance(first: str, second: str) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and replacements of characters.

    The differences within a column of the table of distances are 1, 0 or -1. Two integers hold them, one bit for a row (Myers
    1999, in the form of Hyyrö 2003).
    """
    if not first:
        return len(second)
    places: dict[str, int] = defaultdict(int)
    for index, character in enumerate(first):
        places[character] |= 1 << index
    all_rows, last_row = (1 << len(first)) - 1, 1 << (len(first) - 1)
    rises, falls, distance = all_rows, 0, len(first)
    for character in second:
        matches = places.get(character, 0)
        diagonal = (((matches & rises) + rises) ^ rises) | matches | falls
        right_rises, right_falls = falls | ~(diagonal | rises), rises & diagonal
        distance += bool(right_rises & last_row) - bool(right_falls & last_row)
        right_rises, right_falls = right_rises << 1 | 1, right_falls << 1
        rises, falls = (right_falls | ~(diagonal | right_rises)) & all_rows, right_rises & diagonal & all_rows
    return distance
