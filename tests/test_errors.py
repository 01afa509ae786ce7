"""Tests of the exceptions: stable codes, exit statuses, and the way between processes."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import errors
from dragoman.errors import (
    ERROR_CODES,
    BundleError,
    DataError,
    DragomanError,
    MissingDependencyError,
    RankZeroError,
    WriteError,
    format_code_table,
)

SOURCE_DIR = Path(errors.__file__).parent


def iter_subclasses(error: type[DragomanError]) -> Iterator[type[DragomanError]]:
    yield error
    for subclass in error.__subclasses__():
        yield from iter_subclasses(subclass)


def iter_raised_codes() -> Iterator[tuple[str, str, str]]:
    """Yield location, class name and code of each `code="…"` in the source."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE_DIR.rglob("*.py"))}
    for path in (path for path, text in texts.items() if "code=" in text):
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
                for keyword in node.keywords:
                    if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                        yield f"{path.relative_to(SOURCE_DIR)}:{node.lineno}", node.func.id, str(keyword.value.value)


def test_codes_are_unique_kebab_case() -> None:
    codes = [row.code for row in ERROR_CODES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


def test_each_class_default_is_listed() -> None:
    listed = {row.code: row.error for row in ERROR_CODES}
    for error in iter_subclasses(DragomanError):
        if error.__module__ == "dragoman.errors":
            assert listed[error.code] is error


def test_each_raised_code_is_listed() -> None:
    listed = {row.code: row.error for row in ERROR_CODES}
    for location, class_name, code in iter_raised_codes():
        assert code in listed, f"{location}: {code} is not in ERROR_CODES"
        raised_class = getattr(errors, class_name, None)
        if raised_class is not None:
            assert issubclass(raised_class, listed[code]), f"{location}: {code} belongs to {listed[code].__name__}"


def test_code_defaults_to_the_class() -> None:
    assert DataError("text: is empty").code == "invalid-data"
    assert DataError("text: is empty", code="empty-data").code == "empty-data"
    assert DataError.code == "invalid-data"


@pytest.mark.parametrize(
    "error",
    [
        BundleError("model: cut", code="bundle-damaged"),
        WriteError("the disk is full", code="disk-full", needed_bytes=3, available_bytes=2),
        MissingDependencyError("ftfy", "cleaning", "data.cleaning.mojibake"),
        RankZeroError(130),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: DragomanError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.code, copy.exit_code) == (str(error), error.code, error.exit_code)
    assert vars(copy) == vars(error)


def test_module_prints_its_code_table() -> None:
    printed = subprocess.run([sys.executable, "-m", "dragoman.errors"], capture_output=True, text=True, check=True).stdout
    assert printed.rstrip("\n") == format_code_table()
    assert "| `disk-full` | `OutputError` | 1 | The disk is full. |" in printed.splitlines()
