"""No regular expression of the package takes exponential time; a search that does ends at the limit of time for a test."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import dragoman

ROOT = Path(dragoman.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if "re.compile(" in path.read_text(encoding="utf-8"))
NUM_TRIES, LENGTH = 60, 120


@cache
def import_file(path: Path) -> Any:
    return import_module(".".join(("dragoman", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"))


def iter_patterns(value: object, depth: int = 3) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    elif depth and isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from iter_patterns(item, depth - 1)


def find_characters(pattern: str) -> list[str]:
    """Return the characters that a pattern names, and one of each kind that it may mean."""
    return sorted({*re.sub(r"\\[A-Za-z]|[\\^$]", "", pattern), *"a1 \t\n-_é"})


def make_texts(pattern: str) -> Iterable[str]:
    rng, characters = random.Random(1), find_characters(pattern)
    for _ in range(NUM_TRIES):
        start, word = ("".join(rng.choices(characters, k=rng.randint(*sizes))) for sizes in ((0, 3), (1, 4)))
        yield f"{start}{word * (LENGTH // len(word))}\x01"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_patterns_do_not_backtrack_exponentially(path: Path) -> None:
    """The texts repeat a few characters of the pattern and end in one that it does not have."""
    try:
        module = import_file(path)
    except ImportError as error:
        pytest.skip(str(error))
    for pattern in iter_patterns(tuple(vars(module).values())):
        for text in make_texts(pattern.pattern):
            pattern.match(text)
            pattern.fullmatch(text)
