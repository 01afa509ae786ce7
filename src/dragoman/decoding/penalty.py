"""Length penalties: what a hypothesis's log-probability is divided by, so that long ones may win.

|Y| counts the end token. The two forms with the same α are different things: see Wu et al. 2016, equation 14, for `gnmt`.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

Length = TypeVar("Length", float, Tensor)


class LengthPenalty:
    """`gnmt`: ((5+|Y|)/6)^α; `power`: |Y|^α; `none`: 1. Grows with |Y| or stays, as early stopping assumes (α ≥ 0)."""

    def __init__(self, form: str, alpha: float) -> None:
        self.offset, self.divisor, self.alpha = {
            "gnmt": (5.0, 6.0, alpha),
            "power": (0.0, 1.0, alpha),
            "none": (0.0, 1.0, 0.0),
        }[form]

    def __call__(self, length: Length) -> Length:
        result: Length = ((self.offset + length) / self.divisor) ** self.alpha
        return result
