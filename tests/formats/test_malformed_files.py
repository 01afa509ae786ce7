"""Damaged and hostile corpora of every format: each gives pairs or a one-line error, in little time and memory.

A child process reads the files, so that its memory can be measured and a crash is noticed. File number n is always the same.
"""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from corpus_files import COMPRESSORS, FORMAT_SUFFIXES, write_corpus
from dragoman.config import Format
from dragoman.errors import DataError
from dragoman.formats.pair import Pair
from dragoman.formats.readers import read_file, read_sides

MAX_SECONDS = 10.0
"""Processor time for one file."""
MAX_MIB = 200
"""Growth of the process's memory. The readers hold at most one line of 16 MiB."""
FORMATS: tuple[Format, ...] = (*FORMAT_SUFFIXES, "brackets")
SECRET = "the secret of the file outside"
WORDS = ["one", "größer", "AT&T", "日本語", "שלום", "emoji😀", "a.b", "3,5", "it's", "é", "x\xa0y"]


def write_intact_files(folder: Path, file_format: Format, rng: random.Random) -> list[Path]:
    """Write a corpus in one file, or in two for formats with a file for each side."""
    pairs = [Pair(*(" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(2))) for _ in range(rng.randint(1, 30))]
    if file_format != "brackets":
        return list(write_corpus(folder, pairs, file_format, source_language="en", target_language="de").files)
    path = folder / "corpus.mrg"
    path.write_text("".join(f"(S (NP (NN {pair.source.split(' ')[0]})) (-NONE- *))\n" for pair in pairs), encoding="utf-8")
    return [path]


# Bytes that a file gets anywhere.
INSERTED: dict[str, tuple[bytes, ...]] = {
    "not UTF-8": (b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", "ä".encode("utf-16")),
    "NUL": (b"\0", b"\0" * 1000),
    "surrogates": (b"\\ud800", b"\\udfff\\ud800", b"&#xD800;", b'<cp hex="D83D"/>', b"\\ud83d\\ude00"),
    "a line of 1 MB": tuple(unit * (10**6 // len(unit)) for unit in (b"x", b" ", b"&", b"\\", b"\t", b'"', b"id=", b"<")),
    "marks": ("\u202e\u200f\u2067\u061c".encode() * 1000, "\u0301".encode() * 10**5),
    "line ends": (b"\r", b"\r\n", "\u2028\u0085".encode(), b"\n" * 1000, b"\x0b\x0c\x1c"),
    "nesting": tuple(part * 20_000 for part in (b"<g>", b"(", b"[", b'{"a":', b"((S ", b"<tu>", b"<seg>", b'msgid "a"\n')),
}
_BOMB = "<!ENTITY a0 'ha'>" + "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 20}'>" for n in range(1, 12))
# Declarations that expand, read files or open connections.
DECLARATIONS = (
    _BOMB, "<!ENTITY a11 SYSTEM '{text}'>", "<!ENTITY a11 SYSTEM 'http://127.0.0.1:{port}/x.dtd'>",
    "<!ENTITY % p SYSTEM '{declarations}'> %p;", "<!ENTITY % p SYSTEM 'ftp://127.0.0.1:{port}/x'> %p;",
)  # fmt: skip
OTHERS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "nothing": lambda content, rng: content,
    "flips": lambda content, rng: flip_bits(content, rng),
    "cut": lambda content, rng: content[: rng.randrange(len(content))],
    "random": lambda content, rng: rng.randbytes(rng.randint(0, 5000)),
    "entities": lambda content, rng: declare_entities(content, rng.choice(DECLARATIONS).encode()),
}
DAMAGES = [*OTHERS, *INSERTED]


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 2, 5, 50])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def declare_entities(content: bytes, declarations: bytes) -> bytes:
    """Return a file with these declarations, and with a reference in its first text."""
    for tag in (b"<seg>", b"<source>"):
        content = content.replace(tag, tag + b"&a11;", 1)
    start = content.find(b"?>") + 2 if content.startswith(b"<?xml") else 0
    return content[:start] + b"<!DOCTYPE x [" + declarations + b"]>" + content[start:]


def damage(content: bytes, name: str, rng: random.Random) -> bytes:
    if name in OTHERS:
        return OTHERS[name](content, rng)
    position = rng.randint(0, len(content))
    return content[:position] + rng.choice(INSERTED[name]) + content[position:]


def read(paths: list[Path], file_format: Format) -> Iterator[Pair]:
    if len(paths) == 2:
        return read_sides(paths[0], paths[1], file_format)
    return read_file(paths[0], file_format, source_language="en", target_language="de")


def find_faults(paths: list[Path], file_format: Format, damage_name: str) -> tuple[str, list[str]]:
    """Read a file; return the outcome, and a message for each fault of the reader."""
    faults, outcome = [], "pairs"
    start = time.process_time()
    try:
        for pair in read(paths, file_format):
            for text in (pair.source, pair.target):
                text.encode("utf-8")
                if "\n" in text or SECRET in text:
                    faults.append(f"the text is {text!r}")
            if not pair.origin.startswith(str(paths[0])):
                faults.append(f"the origin is {pair.origin!r}")
    except DataError as error:
        outcome, line = "refused", str(error)
        if not line.isprintable() or len(line) > 1500 or SECRET in line or not any(str(path) in line for path in paths):
            faults.append(f"the message is {line!r}")
    except Exception as error:
        faults.append(f"{type(error).__name__}: {error}")
    seconds = time.process_time() - start
    if seconds > MAX_SECONDS:
        faults.append(f"took {seconds:.1f} seconds")
    return outcome, [f"{paths[0].name} ({damage_name}): {fault}" for fault in faults]


@cache
def compress_block(block: bytes, ending: str) -> bytes:
    return COMPRESSORS[ending](block * (2**24 // len(block)))


def write_cases(folder: Path, numbers: range, replacements: dict[bytes, bytes]) -> Iterator[tuple[list[Path], Format, str]]:
    """Write damaged files, and yield their paths, their format and the damage.

    replacements: paths and port that hostile files refer to
    """
    for number in numbers:
        rng = random.Random(f"file {number}")
        file_format, name = FORMATS[number % len(FORMATS)], DAMAGES[number // len(FORMATS) % len(DAMAGES)]
        paths = write_intact_files(folder, file_format, rng)
        path = rng.choice(paths)
        content = damage(path.read_bytes(), name, rng)
        for placeholder, value in replacements.items():
            content = content.replace(placeholder, value)
        path.write_bytes(content)
        yield paths, file_format, name


def write_bombs(folder: Path) -> Iterator[tuple[list[Path], Format, str]]:
    """Write an archive of each kind and format that expands to a gigabyte, with a line that never ends."""
    for file_format in FORMATS:
        for ending in COMPRESSORS if file_format != "parquet" else ():
            if ending:
                rng = random.Random(f"{file_format}{ending}")
                num_sides = 2 if file_format in ("lines", "sgm") else 1
                paths = [folder / f"{side}.{file_format}{ending}" for side in range(num_sides)]
                for path in paths:
                    path.write_bytes(compress_block(rng.choice((b"x", b"\0", b"(", b"[", b"<g>", b"&amp;", b'"')), ending) * 64)
                yield paths, file_format, f"bomb of {ending}"


def read_many(folder: Path, num_files: int) -> dict[str, Any]:
    """Write and read so many damaged files, or decompression bombs if it is 0; return the results."""
    text, declarations = folder / "secret.txt", folder / "secret.dtd"
    text.write_text(SECRET)
    declarations.write_text(f"<!ENTITY a11 '{SECRET}'>")
    server = socket.create_server(("127.0.0.1", 0))
    server.setblocking(False)
    replacements = {
        b"{text}": text.as_uri().encode(),
        b"{declarations}": declarations.as_uri().encode(),
        b"{port}": str(server.getsockname()[1]).encode(),
    }
    for file_format in FORMATS:  # loads every library before the memory is measured
        list(read(write_intact_files(folder, file_format, random.Random(1)), file_format))
    start_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    outcomes: Counter[str] = Counter()
    all_faults: list[str] = []
    for case in write_cases(folder, range(num_files), replacements) if num_files else write_bombs(folder):
        outcome, faults = find_faults(*case)
        outcomes[f"{outcome}: {case[2]}"] += 1
        all_faults += faults
    try:
        server.accept()
        all_faults.append("a connection was opened")
    except BlockingIOError:
        server.close()
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - start_mib
    return {"outcomes": outcomes, "faults": all_faults, "growth": growth}


def run_in_child(folder: Path, num_files: int) -> Counter[str]:
    """Run `read_many` in a child process, check memory and faults, and return the outcomes."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # pytest puts the folder of the helpers there
    command = [sys.executable, __file__, str(folder), str(num_files)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environment)
    assert child.returncode == 0, f"{child.returncode}: {child.stderr[-2000:]}"
    results = cast(dict[str, Any], json.loads(child.stdout))
    assert results["faults"] == []
    assert results["growth"] < MAX_MIB
    return Counter(results["outcomes"])


@pytest.mark.slow
def test_damaged_and_hostile_files(tmp_path: Path) -> None:
    outcomes = run_in_child(tmp_path, 4 * len(FORMATS) * len(DAMAGES))
    refused = {name.removeprefix("refused: ") for name in outcomes if name.startswith("refused")}
    assert refused >= {*DAMAGES} - {"nothing", "marks"}
    assert outcomes["pairs: nothing"] == 4 * len(FORMATS)


@pytest.mark.slow
def test_archives_that_expand_to_a_gigabyte_are_refused(tmp_path: Path) -> None:
    outcomes = run_in_child(tmp_path, 0)
    assert [name for name in outcomes if not name.startswith("refused")] == []
    assert sum(outcomes.values()) == (len(FORMATS) - 1) * (len(COMPRESSORS) - 1)


if __name__ == "__main__":
    print(json.dumps(read_many(Path(sys.argv[1]), int(sys.argv[2]))))
