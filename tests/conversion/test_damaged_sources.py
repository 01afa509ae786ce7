"""Damaged models of each format that `dragoman convert` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from conversion_sources import WRITERS
from damaged_sources import check_damaged_file, damage_folder

JSON_FILES = "config.json", "tokenizer.json", "tokenizer_config.json"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
@pytest.mark.parametrize("name", [name for name, write in WRITERS.items() if write])
def test_damaged_sources_give_one_line(name: str, tmp_path: Path) -> None:
    """Damage one file in 300 ways: the result is a bundle that loads, or one error of one line."""
    write = WRITERS[name]
    assert write is not None
    assert damage_folder(write(tmp_path / "source"), tmp_path, 300) == 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file_name"),
    [
        *(("marian-npz", file_name) for file_name in ("opus.npz", "decoder.yml", "opus.vocab.yml")),
        *((name, file_name) for name in ("bart", "t5") for file_name in JSON_FILES),
        *((name, "model.safetensors") for name in ("bart", "t5")),
    ],
)
def test_each_damaged_file_gives_one_line_in_little_memory(name: str, file_name: str, tmp_path: Path) -> None:
    write = WRITERS[name]
    assert write is not None
    check_damaged_file(write(tmp_path / "source") / file_name, tmp_path)
