"""Imports of a Python file, also by way of the modules beside the tests."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


@cache
def find_imports(path: Path) -> frozenset[str]:
    """Return the names that a file imports when it is imported itself, with those that modules in `tests/` import for it."""
    names = set[str]()
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Import):
            names |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            names |= {f"{statement.module}.{alias.name}" for alias in statement.names}
    for name in [*names]:
        file = f"{name.partition('.')[0]}.py"
        for helper in {TESTS / file, path.with_name(file)} - {path}:
            if helper.is_file():
                names |= find_imports(helper)
    return frozenset(names)
