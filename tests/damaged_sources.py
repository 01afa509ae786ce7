"""Damage to the files of a model to convert: bits that flip, and bytes that vanish or appear."""

from __future__ import annotations

import json
import random
import resource
import shutil
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import dragoman
import dragoman.conversion.converter
from dragoman.bundle import load_bundle
from dragoman.errors import DragomanError
from dragoman.io.safetensors import TensorStream
from expected_errors import raises_code

MAX_PEAK, MAX_RESIDENT_GROWTH = 32 * 2**20, 64 * 2**20
"""Most bytes that a conversion of a folder of less than 1 MiB allocates, and by which the process grows in 300 of them."""


class RunsCode:
    """Object whose pickle ends the process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (3,)


def damage_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to three damages."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(max(1, len(data)))
        match chance.randrange(3):
            case 0 if data:
                data[start] ^= 1 << chance.randrange(8)
            case 1:
                del data[start : start + chance.randint(1, 64)]
            case _:
                data[start:start] = chance.randbytes(chance.randint(1, 16))
    return bytes(data)


def consume_bundle(path: Path, *, weights: Mapping[str, TensorStream], **_: Any) -> None:
    """Compute all weights as `save_bundle` does, but write none."""
    path.mkdir()
    for stream in weights.values():
        for _chunk in stream.iter_chunks():
            stream.release()


def check_refusal(source: Path, code: str, *names: str) -> None:
    """Check that a conversion ends with an error of one line that names the source and these names, and without output."""
    output = source.with_name(f"{source.name}-refused")
    with raises_code(code, str(source), *names):
        dragoman.convert(source, output)
    assert not output.exists()


def check_any_refusal(source: Path, *names: str) -> None:
    """Check the same as `check_refusal` for one of the codes of unsupported and of damaged models."""
    output = source.with_name(f"{source.name}-refused")
    with pytest.raises(DragomanError) as raised:
        dragoman.convert(source, output)
    assert raised.value.code in ("conversion-unsupported", "source-damaged", "tokenizer-damaged", "checkpoint-unsafe")
    assert [name for name in (str(source), *names) if name not in str(raised.value)] == [], raised.value
    assert "\n" not in str(raised.value)
    assert not output.exists()


def change_json(path: Path, change: Callable[[Any], object] = lambda document: None, **values: Any) -> None:
    """Change the object in a JSON file by a function, and set some of its values."""
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document | values), encoding="utf-8")


def converts_or_raises(source: Path, output: Path, *, is_written: bool) -> bool:
    """Return whether a conversion ends well, or with an error of one line that names the source, and without output.

    is_written: write the bundle, and open it
    """
    try:
        if is_written:
            dragoman.convert(source, output)
        else:
            with mock.patch.object(dragoman.conversion.converter, "save_bundle", consume_bundle):
                dragoman.convert(source, output)
    except DragomanError as error:
        is_clean = not (is_written and output.exists())
        shutil.rmtree(output, ignore_errors=True)
        return is_clean and "\n" not in str(error) and str(source) in str(error)
    if is_written:
        load_bundle(output)
    shutil.rmtree(output)
    return True


def damage_folder(folder: Path, work: Path, count: int, file_name: str = "") -> int:
    """Damage one file of a folder `count` times, and return how often the conversion was as it should be.

    Half of the damages are in the first 2,000 bytes of a file, because most of a file is the values of weights. One in 20
    bundles is written and opened.

    file_name: the file that is damaged; empty for another one each time
    """
    chance, num_good = random.Random(1), 0
    contents = {path.name: path.read_bytes() for path in folder.iterdir() if path.name == (file_name or path.name)}
    for index in range(count):
        name = chance.choice(sorted(contents))
        content = contents[name]
        head = 2000 if chance.randrange(2) else len(content)
        (folder / name).write_bytes(damage_bytes(content[:head], chance) + content[head:])
        num_good += converts_or_raises(folder, work / "damaged", is_written=index % 20 == 0)
        (folder / name).write_bytes(content)
    return num_good


def check_damaged_file(path: Path, work: Path, count: int = 300) -> None:
    """Damage a file of a folder. Check the errors and the memory.

    Allocations count even where no byte is written, so a header that states huge sizes may not reserve memory.
    """
    damage_folder(path.parent, work, 20, path.name)  # imports, and tables that stay
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start(1)
    try:
        assert damage_folder(path.parent, work, count, path.name) == count
        assert tracemalloc.get_traced_memory()[1] < MAX_PEAK
    finally:
        tracemalloc.stop()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) * 1024 < MAX_RESIDENT_GROWTH
