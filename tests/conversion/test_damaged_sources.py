"""Damaged models of each format that `dragoman convert` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from conversion_sources import WRITERS
from damaged_sources import damage_folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
@pytest.mark.parametrize("name", [name for name, write in WRITERS.items() if write])
def test_damaged_sources_give_one_line(name: str, tmp_path: Path) -> None:
    """Damage one file in 300 ways: the result is a bundle that loads, or one error of one line."""
    write = WRITERS[name]
    assert write is not None
    assert damage_folder(write(tmp_path / "source"), tmp_path, 300) == 300
