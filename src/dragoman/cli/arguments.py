"""What commands that read lines are given: a file or standard input, and settings written key=value."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.errors import RecipeError


def file_and_settings(rest: Sequence[str]) -> tuple[Path | None, dict[str, Any]]:
    """FILE and the decoding knobs, told apart by their equals sign."""
    from dragoman.config import parse_setting

    decoding: dict[str, Any] = {}
    files = []
    for word in rest:
        if "=" in word and not os.path.exists(word):
            key, value = parse_setting(word)
            decoding[key.removeprefix("decoding.")] = value
        else:
            files.append(Path(word))
    if len(files) > 1:
        raise RecipeError(f"{files[1]}: one file at a time; settings are written key=value")
    return (files[0] if files else None), decoding


def count_lines(source: Path | None) -> int | None:
    """How many lines there are to do, where a file can tell; a mistake in one of them comes out before any work is done."""
    from dragoman.formats.lines import read_lines

    if source is None or (source.exists() and not source.is_file()):
        return None
    return sum(1 for _ in read_lines(source))


def named(numbers: Sequence[int], most: int = 5) -> str:
    """How many lines, and which: 7 (1, 2, 3, 4, 5, …)."""
    return f"{len(numbers)} ({', '.join(map(str, numbers[:most]))}{', …' if len(numbers) > most else ''})"
