"""Counts in messages."""

from __future__ import annotations


def format_count(count: int, noun: str) -> str:
    """Return text such as `1 line` or `1,200 lines`. `noun` is the singular of a word whose plural ends in s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
