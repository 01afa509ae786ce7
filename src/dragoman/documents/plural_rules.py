"""Plural forms of catalogs: the rule of gettext for a language, and a number of each form of Qt.

The rules are those of the table in GNU gettext's manual, "Plural forms". For Arabic, Welsh, Gaelic and Sorbian they are those
of CLDR. Qt's lupdate writes as many forms, unless a language stands in a list of Qt below.

Expressions such as `n%10==1 && n%100!=11 ? 0 : 1` are read as the subset of C that gettext allows.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from dragoman.languages import get_language

_SLAVIC = "n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
_RULES = {
    "bo dz id ja km ko lo ms my th vi yo zh": (1, "0"),
    "fr": (2, "n > 1"),
    "be bs hr ru sr uk": (3, f"n%10==1 && n%100!=11 ? 0 : {_SLAVIC}"),
    "pl": (3, f"n==1 ? 0 : {_SLAVIC}"),
    "cs sk": (3, "n==1 ? 0 : n>=2 && n<=4 ? 1 : 2"),
    "lt": (3, "n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2"),
    "lv": (3, "n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2"),
    "ro": (3, "n==1 ? 0 : n==0 || (n%100>0 && n%100<20) ? 1 : 2"),
    "dsb hsb sl": (4, "n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3"),
    "gd": (4, "n==1 || n==11 ? 0 : n==2 || n==12 ? 1 : n>2 && n<20 ? 2 : 3"),
    "mt": (4, "n==1 ? 0 : n==0 || (n%100>=1 && n%100<=10) ? 1 : n%100>10 && n%100<20 ? 2 : 3"),
    "ga": (5, "n==1 ? 0 : n==2 ? 1 : n>=3 && n<=6 ? 2 : n>=7 && n<=10 ? 3 : 4"),
    "ar": (6, "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5"),
    "cy": (6, "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n==3 ? 3 : n==6 ? 4 : 5"),
}
_BY_LANGUAGE = {language: rule for languages, rule in _RULES.items() for language in languages.split()}
_DEFAULT = (2, "n != 1")
_QT_FORMS = {
    language: tuple(numbers.split())
    for languages, numbers in {
        "dsb fa gn hsb hu ig jv om su tr tt": "=1",
        "br km lo": "=1 =2",
        "ga mk": "=1 =2 =3",
        "cy": "=0 =1 =2 =6 =7",
    }.items()
    for language in languages.split()
}
"""Numbers of forms in Qt that are others than those of gettext, as lrelease writes their rules."""
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


def get_plural_rule(language: str) -> tuple[int, str]:
    """Return the number of plural forms of a language and gettext's expression for them; `n != 1` for most languages."""
    if language.replace("_", "-").lower() == "pt-br":
        return _BY_LANGUAGE["fr"]
    return _BY_LANGUAGE.get(get_language(language), _DEFAULT)


@lru_cache(maxsize=64)
def list_qt_forms(language: str) -> tuple[str, ...]:
    """Return a number of each form that Qt has for a language, such as `=1`; none for a language without a known rule."""
    if not language:
        return ()
    if forms := _QT_FORMS.get(get_language(language)):
        return forms
    numbers = find_form_numbers(get_plural_rule(language)[1])
    return tuple(f"={numbers[form]}" for form in sorted(numbers))


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
