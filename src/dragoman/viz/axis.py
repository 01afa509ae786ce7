"""Axes: limits, ticks and tick labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MAX_VALUE = 1e300
"""Greatest value that is drawn. The span of an axis with a greater one would overflow."""


@dataclass(frozen=True)
class Axis:
    """Linear axis with ticks at whole multiples of `step`."""

    low: float
    high: float
    step: float

    def ticks(self) -> list[float]:
        """Return the values of the ticks."""
        first, last = math.ceil(self.low / self.step - 1e-6), math.floor(self.high / self.step + 1e-6)
        return [index * self.step for index in range(first, last + 1)]

    def labels(self) -> list[str]:
        """Return one label for each tick."""
        return format_ticks(self.ticks(), self.step)

    def transform(self, value: float, start: float, end: float) -> float:
        """Return the position of `value` if `low` is drawn at `start` and `high` at `end`."""
        return start + (value - self.low) / (self.high - self.low) * (end - start)


@dataclass(frozen=True)
class LogAxis:
    """Logarithmic axis of positive numbers with given ticks."""

    tick_values: tuple[float, ...]

    def ticks(self) -> list[float]:
        """Return the values of the ticks."""
        return list(self.tick_values)

    def labels(self) -> list[str]:
        """Return one label for each tick."""
        return [format_ticks([tick], tick)[0] for tick in self.tick_values]

    def transform(self, value: float, start: float, end: float) -> float:
        """Return the position of `value` if the first tick is drawn at `start` and the last at `end`."""
        low, high = math.log(self.tick_values[0]), math.log(self.tick_values[-1])
        return start + (math.log(value) - low) / (high - low) * (end - start)


def make_log_axis(values: Iterable[float], max_ticks: int) -> LogAxis | None:
    """Return a logarithmic axis that ends at ticks, with about `max_ticks` of them: 1, 2, 5, 10 … or powers of ten.

    Return None for values within a factor of ten, or if a value is not positive.
    """
    values = list(values)
    if not values or min(values) <= 0 or max(values) < 10 * min(values):
        return None
    first_power, last_power = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    candidates = [factor * 10.0**power for power in range(first_power, last_power) for factor in (1, 2, 5)] + [10.0**last_power]
    first_tick = [tick for tick in candidates if tick <= min(values) * (1 + 1e-9)][-1]
    inner_ticks = [tick for tick in candidates if first_tick <= tick < max(values) * (1 - 1e-9)]
    ticks = [*inner_ticks, candidates[candidates.index(inner_ticks[-1]) + 1]]
    if len(ticks) > max_ticks + 1:
        stride = math.ceil((last_power - first_power) / max_ticks)
        ticks = [10.0**power for power in range(first_power, last_power + stride, stride)]
    return LogAxis(tuple(ticks))


def make_tight_axis(values: Iterable[float], max_ticks: int) -> Axis:
    """Return an axis from the least to the greatest value, with about `max_ticks` ticks. Integers get integer ticks.

    If the least value is close to zero, the axis begins at zero.
    """
    values = list(values)
    low, high = _find_limits(values)
    if 0 < low < 0.05 * high:
        low = 0.0
    step = _round_step_up((high - low) / max_ticks)
    is_integral = bool(values) and all(value == math.floor(value) for value in values)
    return Axis(low, high, max(step, 1.0) if is_integral else step)


def make_round_axis(values: Iterable[float], max_ticks: int) -> Axis:
    """Return an axis that ends at ticks, with about `max_ticks` of them."""
    low, high = _find_limits(list(values))
    step = _round_step_up((high - low) / max_ticks)
    return Axis(math.floor(low / step + 1e-6) * step, math.ceil(high / step - 1e-6) * step, step)


def _find_limits(values: list[float]) -> tuple[float, float]:
    if not any(values):
        return 0.0, 1.0
    low, high = min(values), max(values)
    largest = max(abs(low), abs(high))
    if high - low > max(1e-9 * largest, 1e-200):
        return low, high
    margin = 0.1 * largest if largest > 1e-190 else 1.0
    return low - margin, high + margin


def _round_step_up(minimum: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is at least `minimum`."""
    power = 10.0 ** math.floor(math.log10(minimum))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= minimum * (1 - 1e-9)), 10 * power)


def format_ticks(ticks: list[float], step: float) -> list[str]:
    """Return one short label for each tick: 0.2, 400, 20k, 1.5M, 2e-4."""
    largest = max(map(abs, ticks), default=0.0)
    return ["0" if abs(tick) < step / 2 else _format_tick(tick, step, largest) for tick in ticks]


def _format_tick(tick: float, step: float, largest: float) -> str:
    step_power = math.floor(math.log10(step) + 1e-9)
    if largest < 1e-3 or largest >= 1e9:
        digits = max(0, math.floor(math.log10(abs(tick)) + 1e-9) - step_power)
        mantissa, exponent = f"{tick:.{digits}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if largest < 1e4:
        return f"{tick:.{max(0, -step_power)}f}"
    power, unit = (6, "M") if abs(tick) >= 1e6 else (3, "k") if abs(tick) >= 1e3 else (0, "")
    scaled = f"{tick / 10**power:.{max(0, power - step_power)}f}"
    return (scaled.rstrip("0").rstrip(".") if "." in scaled else scaled) + unit
