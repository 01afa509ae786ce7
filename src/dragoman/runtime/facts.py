"""Facts about a model or a run as texts: names and values with units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.runtime.progress import format_duration


def format_facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the names and values at the top level of a report, formatted for the page."""
    facts = []
    for key, value in report.items():
        name, format_value = _FACT_FORMATS.get(key, (key.replace("_", " "), _format_plain))
        if isinstance(value, str | int | float):
            facts.append((name, format_value(value)))
    return facts


def format_flops(flops: float) -> str:
    """Return floating-point operations with a unit, such as `13.1 TFLOP`."""
    units = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP")
    exponent = 0
    while flops >= 1000.0 and exponent < len(units) - 1:
        flops, exponent = flops / 1000.0, exponent + 1
    return f"{flops:,.1f} {units[exponent]}"


def _format_plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _format_percent(value: float) -> str:
    return f"{100 * value:.1f} %"


_FACT_FORMATS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "seconds": ("training time", format_duration),
    "flops": ("floating-point operations", format_flops),
    "mfu": ("MFU (share of the peak FLOP/s)", _format_percent),
    "data_wait_fraction": ("time waiting for batches", _format_percent),
    "bleu": ("BLEU", _format_plain),
    "chrf": ("chrF", _format_plain),
    "f1": ("F1", _format_plain),
    "exact_match": ("exact match", lambda percent: f"{percent:.2f} %"),
    "paper_bleu": ("compound-split BLEU", _format_plain),
}
