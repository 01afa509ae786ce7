"""Plural expressions of gettext, such as `n%10==1 && n%100!=11 ? 0 : 1`, read as the subset of C that gettext allows."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_DEPTH = 50
MAX_LENGTH = 1000
NUM_TRIED = 200
"""Numbers from which the number of a form is chosen."""

_TOKEN = re.compile(r"\s*(n|\d{1,9}|&&|\|\||[=!<>]=|[-+*/%<>?:()!])")
_OPERATORS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
    },
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.floordiv, "%": operator.mod},
)
"""Operators with two sides, by rising precedence."""


def find_form_numbers(expression: str) -> dict[int, int]:
    """Return a number for each form that some number below `NUM_TRIED` has; none for an expression that cannot be read.

    The number is the smallest one above 0 of the form, or 0.
    """
    if len(expression) > MAX_LENGTH:
        return {}
    tokens = _TOKEN.findall(expression)
    if "".join(tokens) != re.sub(r"\s", "", expression):
        return {}
    numbers: dict[int, int] = {}
    try:
        for n in [*range(1, NUM_TRIED), 0]:
            parser = _Evaluation(tokens, n)
            form = parser.read_condition(0)
            if parser.position != len(tokens):
                return {}
            numbers.setdefault(form, n)
    except (ValueError, ZeroDivisionError):
        return {}
    return numbers


@dataclass
class _Evaluation:
    """Evaluation of an expression for one number. position: number of tokens that are read"""

    tokens: list[str]
    n: int
    position: int = 0

    def _take(self, *expected: str) -> str:
        """Return the next token if it is one of these, or an empty text."""
        token = self.tokens[self.position] if self.position < len(self.tokens) else ""
        if token not in expected:
            return ""
        self.position += 1
        return token

    def read_condition(self, depth: int) -> int:
        """Return the value of `a ? b : c`, or of what is simpler. Raises ValueError for other text."""
        if depth > MAX_DEPTH:
            raise ValueError("the expression is too deep")
        value = self._read_binary(0, depth)
        if not self._take("?"):
            return value
        first = self.read_condition(depth + 1)
        if not self._take(":"):
            raise ValueError("a ? has no :")
        second = self.read_condition(depth + 1)
        return first if value else second

    def _read_binary(self, level: int, depth: int) -> int:
        if level == len(_OPERATORS):
            return self._read_value(depth)
        value = self._read_binary(level + 1, depth)
        while token := self._take(*_OPERATORS[level]):
            value = _OPERATORS[level][token](value, self._read_binary(level + 1, depth))
        return value

    def _read_value(self, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise ValueError("the expression is too deep")
        if self._take("!"):
            return int(not self._read_value(depth + 1))
        if self._take("("):
            value = self.read_condition(depth + 1)
            if not self._take(")"):
                raise ValueError("a parenthesis stays open")
            return value
        if self._take("n"):
            return self.n
        token = self.tokens[self.position] if self.position < len(self.tokens) else ""
        self.position += 1
        return int(token)
