"""Counts, perplexities and times in messages."""

from __future__ import annotations

MAX_PRINTED_PERPLEXITY = 1e9
"""A model with a higher perplexity has diverged, and more digits would say nothing."""


def format_count(count: int, noun: str) -> str:
    """Return text such as `1 line` or `1,200 lines`. `noun` is the singular of a word whose plural ends in s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_perplexity(perplexity: float, format_spec: str = ",.2f") -> str:
    """Return a perplexity as text, and `> 1e9` for all above."""
    if not perplexity <= MAX_PRINTED_PERPLEXITY:
        return f"> {MAX_PRINTED_PERPLEXITY:.0e}".replace("e+0", "e")
    return f"{perplexity:{format_spec}}" if perplexity < 1e6 else f"{perplexity:.2e}"


def format_minutes(minutes: float) -> str:
    """Return a time in words, such as `12 minutes` or `3.5 hours`."""
    if minutes < 90:
        return f"{max(round(minutes), 1)} minute{'s' if round(minutes) > 1 else ''}"
    return f"{minutes / 60:.1f} hours" if minutes < 48 * 60 else f"{minutes / 1440:.0f} days"
