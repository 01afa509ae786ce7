"""Budget of each run of a table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.errors import RecipeError
from dragoman.runtime.counts import format_count

Clock = Literal["wall", "processor"]
MAX_STEPS = 2**31 - 1


@dataclass(frozen=True)
class Budget:
    """Budget of a run: updates, counted floating-point operations, or minutes of steps by a clock."""

    steps: int | None = None
    flops: float | None = None
    minutes: float | None = None
    clock: Clock = "wall"

    def to_training_settings(self) -> dict[str, Any]:
        """Return the keys of the section `training`."""
        return {"max_steps": self.steps or MAX_STEPS, "max_minutes": self.minutes, "max_epochs": None, "patience": None}

    def check_steps(self, name: str, report: Mapping[str, Any]) -> None:
        """Raise RecipeError if the budget of a run ended before a second step."""
        seconds = float(report["seconds"])
        if self.steps is None and int(report["steps"]) <= 1 and (self.minutes is None or seconds > 60.0 * self.minutes):
            raise RecipeError(
                f"budget of {self}: is too small for two steps of {name}, of which one took {seconds:.1f} seconds; give more, "
                "and another --folder"
            )

    def __str__(self) -> str:
        if self.steps is not None:
            return format_count(self.steps, "step")
        if self.flops is not None:
            return f"{self.flops:.2e} FLOPs"
        return f"{self.minutes:g} {'processor minutes' if self.clock == 'processor' else 'min'}"


def parse_budget(text: str) -> Budget:
    """Return the budget of text such as 2000, 2000steps or 10min. Raises RecipeError for other text or a budget of zero."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(steps?|min(?:utes?)?|)\s*", text)
    if match is None:
        raise RecipeError(f"--budget {text!r}: is not a budget; give steps, such as 2000, or minutes, such as 10min")
    amount, unit = float(match[1]), match[2]
    if unit.startswith("min"):
        if amount == 0:
            raise RecipeError(f"--budget {text!r}: is too small to train one step; give more minutes")
        return Budget(minutes=amount)
    if not amount.is_integer() or not 1 <= amount <= MAX_STEPS:
        problem = "is too small to train one step" if amount < 1 else "is not a number of steps"
        raise RecipeError(f"--budget {text!r}: {problem}; give a whole number from 1, or minutes, such as 10min")
    return Budget(steps=int(amount))
