"""Damaged and hostile files of every format: each gives pairs or a one-line error, in little time and memory.

A child process reads the files, so that its memory can be measured and a crash is noticed. File number n is always the same.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import re
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest

from corpus_files import format_sgm, format_xliff
from dragoman.config import Format
from dragoman.errors import DataError
from dragoman.formats.pair import Pair
from dragoman.formats.parquet import write_parquet
from dragoman.formats.readers import read_file, read_sides
from dragoman.formats.tmx import format_tmx

MAX_SECONDS = 10.0
"""Processor time for one file."""
MAX_MIB = 200
"""Growth of the process's memory. The readers hold at most one line of 16 MiB."""
FORMATS: tuple[Format, ...] = ("lines", "tsv", "jsonl", "tmx", "xliff", "po", "sgm", "parquet", "brackets")
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": lambda content: gzip.compress(content, 1),
    ".xz": lambda content: lzma.compress(content, preset=0),
    ".bz2": lambda content: bz2.compress(content, 1),
    ".zst": lambda content: cast(bytes, pa.compress(content, codec="zstd", asbytes=True)),
}
SECRET = "the secret of the file outside"
LANGUAGES = {"source_language": "en", "target_language": "de"}

# --- intact files -------------------------------------------------------------------------------------------------------

WORDS = [
    "one", "zwei", "größer", "AT&amp;T", "日本語", "שלום", "emoji😀", "a.b", "3,5", "it's", "\u200f\u0645\u0631",
    "e\u0301", "—", "x\u00a0y",
]  # fmt: skip


def make_sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))


def make_tree(rng: random.Random, depth: int = 0) -> str:
    if depth > 4 or rng.random() < 0.3:
        return f"({rng.choice(['NN', '-NONE-', 'VB'])} {rng.choice(WORDS)})"
    children = "".join(f" {make_tree(rng, depth + 1)}" for _ in range(rng.randint(1, 3)))
    return f"({rng.choice(['S', 'NP', ''])}{children})"


def make_po_entry(rng: random.Random, pair: Pair) -> str:
    head = rng.choice(["", "#, fuzzy\n", "#: a.c:1\n#, c-format\n", f'msgctxt "{rng.random()}"\n', '#| msgid "old"\n'])
    if rng.random() < 0.3:
        return f'{head}msgid "{pair.source}"\nmsgid_plural "{pair.source}s"\nmsgstr[0] "{pair.target}"\nmsgstr[1] ""\n"x\\n"\n'
    return f'{head}msgid "{pair.source}"\nmsgstr ""\n"{pair.target}"\n\n#~ msgid "gone"\n#~ msgstr "weg"\n'


def format_xliff2(pairs: list[Pair]) -> Iterator[str]:
    yield '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de"><file id="f">\n'
    for number, pair in enumerate(pairs):
        source = f'<pc id="1">{pair.source}</pc><ph id="2"/><cp hex="0007"/>'
        yield f'<unit id="{number}"><segment><source>{source}</source><target>{pair.target}</target></segment></unit>\n'
    yield "</file></xliff>"


def make_intact_files(file_format: Format, rng: random.Random) -> list[bytes]:
    """Return the content of an intact file, or of two for formats with a file for each side."""
    pairs = [Pair(make_sentence(rng), make_sentence(rng)) for _ in range(rng.randint(1, 30))]
    match file_format:
        case "lines":
            return ["".join(f"{getattr(pair, side)}\n" for pair in pairs).encode() for side in ("source", "target")]
        case "tsv":
            return ["".join(f"{pair.source}\t{pair.target}\n" for pair in pairs).encode()]
        case "jsonl":
            rows = [
                {"id": 1.5, "translation": {"en": pair.source, "de": pair.target}} if len(pairs) % 2 else to_row(pair)
                for pair in pairs
            ]
            return ["".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) + "\n" for row in rows).encode()]
        case "tmx":
            head = rng.choice(["", '<!DOCTYPE tmx SYSTEM "tmx14.dtd">'])
            content = "".join(format_tmx(pairs, "en-GB", "de")).replace("<tmx", f"{head}<tmx")
            return [content.replace("<seg>", '<seg><bpt i="1">&lt;b></bpt>').encode(rng.choice(["utf-8", "utf-8-sig"]))]
        case "xliff":
            return ["".join(format_xliff(pairs) if rng.random() < 0.5 else format_xliff2(pairs)).encode()]
        case "po":
            head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
            return [(head + "\n".join(make_po_entry(rng, pair) for pair in pairs)).encode()]
        case "sgm":
            return ["".join(side).encode() for side in zip(*format_sgm(pairs), strict=True)]
        case "parquet":
            stream = io.BytesIO()
            write_parquet(stream, pairs, ("en", "de"))
            return [stream.getvalue()]
        case _:
            identifiers = ["", "id 7\t"]
            return ["".join(f"{rng.choice(identifiers)}{make_tree(rng)}\n" for _ in pairs).encode()]


def to_row(pair: Pair) -> dict[str, str | None]:
    return {"source": pair.source, "target": pair.target or None}


# --- damage -------------------------------------------------------------------------------------------------------------


def insert(content: bytes, rng: random.Random, extra: bytes) -> bytes:
    position = rng.randint(0, len(content))
    return content[:position] + extra + content[position:]


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 50])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def splice(content: bytes, rng: random.Random) -> bytes:
    first, second, third = sorted(rng.randint(0, len(content)) for _ in range(3))
    return content[:second] + content[first:third] if rng.random() < 0.5 else content[:first] + content[second:]


def insert_invalid_utf8(content: bytes, rng: random.Random) -> bytes:
    choices = [
        b"\xff",
        b"\xc3(",
        b"\x80",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98",
        b"\xc0\xaf",
        b"\xf5\x80\x80\x80",
        "ä".encode("utf-16"),
    ]
    return insert(content, rng, rng.choice(choices))


def insert_surrogates(content: bytes, rng: random.Random) -> bytes:
    choices = [b"\\ud800", b"\\udfff\\ud800", b"&#xD800;", b"&#55296;", b'<cp hex="D83D"/>', b"\\ud83d\\ude00"]
    return insert(content, rng, rng.choice(choices))


def inserter(*choices: bytes) -> Callable[[bytes, random.Random], bytes]:
    return lambda content, rng: insert(content, rng, rng.choice(choices))


def insert_nesting(content: bytes, rng: random.Random) -> bytes:
    opening = rng.choice([b"<g>", b"(", b"[", b'{"a":', b"((S ", b"<tu>", b"<seg>", b'msgid "a"\n', b"<sub>"])
    return insert(content, rng, opening * rng.choice([2, 300, 20_000]))


def insert_entities(content: bytes, rng: random.Random) -> bytes:
    """Declare entities that expand, read files or open connections, and refer to one of them in a text."""
    outside = rng.choice(["{text}", "http://127.0.0.1:{port}/x.dtd", "ftp://127.0.0.1:{port}/x", "//127.0.0.1/x"])
    bomb = "<!ENTITY a0 'ha'>" + "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 20}'>" for n in range(1, 12))
    head = rng.choice(
        [
            f"<!DOCTYPE x [{bomb}]>",
            f"<!DOCTYPE x [<!ENTITY a11 SYSTEM '{outside}'>]>",
            f"<!DOCTYPE x [<!ENTITY % p SYSTEM '{outside}'> %p;]>",
            "<!DOCTYPE x SYSTEM '{declarations}'>",
            f"<!DOCTYPE x SYSTEM '{outside}'>",
            f"<!DOCTYPE x PUBLIC 'x' '{outside}' [<!ENTITY a11 'x'>]>",
            f"<?xml-stylesheet href='{outside}'?>",
            f"<!DOCTYPE x [<!ENTITY a11 '{'x' * 100_000}'>]>",
        ]
    )
    reference = rng.choice(
        [
            b"&a11;",
            b"&a11;" * 1000,
            b"<x xmlns:xi='http://www.w3.org/2001/XInclude'><xi:include href='{text}' parse='text'/></x>",
        ]
    )
    positions = [match.end() for match in re.finditer(rb"<(seg|source|target)>", content)]
    position = rng.choice(positions or [content.find(b">", rng.randrange(len(content))) + 1])
    content = content[:position] + reference + content[position:]
    start = content.find(b"?>") + 2 if content.startswith(b"<?xml") else 0
    return content[:start] + head.encode() + content[start:]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "nothing": lambda content, rng: content,
    "flips": flip_bits,
    "cut": truncate,
    "splice": splice,
    "not UTF-8": insert_invalid_utf8,
    "NUL": inserter(b"\0", b"\0" * 1000),
    "surrogates": insert_surrogates,
    "a line of 1 MB": inserter(*(unit * (10**6 // len(unit)) for unit in (b"x", b" ", b"&", b"\\", b"\t", b'"', b"id=", b"<"))),
    "right-to-left marks": inserter(*("\u202e\u200f\u2067\u061c".encode() * times for times in (1, 1000))),
    "combining marks": inserter("\u0301".encode() * 10**5),
    "line ends": inserter(b"\r", b"\r\n", "\u2028\u0085".encode(), b"\n" * 1000, b"\x0b\x0c\x1c"),
    "nesting": insert_nesting,
    "entities": insert_entities,
    "random": lambda content, rng: rng.randbytes(rng.randint(0, 5000)),
}  # fmt: skip
# A decompression bomb is a head and a block that is repeated. Line feeds are left out, because reading a gigabyte of empty
# sentences takes long.
BOMB_HEADS = {
    "tmx": b'<tmx><body><tu><tuv xml:lang="en"><seg>',
    "xliff": b'<xliff version="1.2"><file><body><trans-unit><source>',
    "po": b'msgid "',
    "sgm": b'<doc docid="x"><seg id="1">',
    "jsonl": b'{"source": "',
    "brackets": b"(S ",
}
BLOCKS = (b"x", b" ", b"\0", b"(", b"[", b"<g>", b"&amp;", b'"', b"\\", "é".encode())


@cache
def compress_block(block: bytes, ending: str) -> bytes:
    return COMPRESSORS[ending](block * (2**24 // len(block)))


def make_bomb(file_format: Format, ending: str, rng: random.Random, num_blocks: int) -> bytes:
    """Return an archive that expands to `num_blocks` times 16 MiB."""
    head = rng.choice([b"", BOMB_HEADS.get(file_format, b"")])
    return COMPRESSORS[ending](head) + compress_block(rng.choice(BLOCKS), ending) * num_blocks


# --- one file ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One file, or two, and its damage."""

    file_format: Format
    paths: list[Path]
    damage: str


def make_case(number: int, folder: Path, replacements: dict[bytes, bytes]) -> Case:
    """Write the files of a number. `replacements` fills in the paths and the port that hostile files refer to."""
    rng = random.Random(f"file {number}")
    file_format = FORMATS[number % len(FORMATS)]
    damage = [*DAMAGES][number // len(FORMATS) % len(DAMAGES)]
    ending = "" if file_format == "parquet" else rng.choice(["", "", *COMPRESSORS])
    files = make_intact_files(file_format, rng)
    index = rng.randrange(len(files))
    files[index] = DAMAGES[damage](files[index], rng)
    for placeholder, value in replacements.items():
        files[index] = files[index].replace(placeholder, value)
    files = [COMPRESSORS[ending](content) for content in files]
    description = damage
    if ending and damage != "nothing" and (archive_damage := rng.choice(["", "", "cut", "flips", "behind", "bomb"])):
        description = f"{archive_damage} of {ending}"
        match archive_damage:
            case "bomb":
                files[index] = make_bomb(file_format, ending, rng, 4)
            case "behind":
                files[index] += rng.choice([b"junk", b"\0\0\0", files[index][: len(files[index]) // 2]])
            case _:
                files[index] = DAMAGES[archive_damage](files[index], rng)
    return Case(file_format, write_files(folder, number, file_format, ending, files), description)


def write_files(folder: Path, number: int, file_format: Format, ending: str, files: list[bytes]) -> list[Path]:
    paths = [folder / f"{number}-{index}.{file_format}{ending}" for index in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    return paths


def read(case: Case) -> Iterator[Pair]:
    match case.paths:
        case [source, target]:
            return read_sides(source, target, case.file_format)
        case _:
            return read_file(case.paths[0], case.file_format, **LANGUAGES)


# A message about a file as a whole names no line.
POSITION = re.compile(r", line \d+|damaged after line \d+|: cannot be read: .| has \d+ lines but .* has \d+|: no line has ")


def find_faults(case: Case) -> tuple[str, list[str]]:
    """Read a file; return the outcome, and a message for each fault of the reader."""
    faults = []
    num_pairs = 0
    start = time.process_time()
    try:
        for pair in read(case):
            num_pairs += 1
            for text in (pair.source, pair.target):
                text.encode("utf-8")
                if "\n" in text or ("\r" in text and case.file_format not in ("lines", "tsv")):
                    faults.append("a text holds a line break")
                if SECRET in text:
                    faults.append("the file outside was read")
            if not pair.origin.startswith(str(case.paths[0])):
                faults.append(f"the origin is {pair.origin!r}")
        outcome = "pairs"
    except DataError as error:
        outcome, line = "refused", str(error)
        if not line.isprintable() or len(line) > 1500:
            faults.append(f"not one line: {line!r}")
        if not any(str(path) in line for path in case.paths):
            faults.append(f"no file is named: {line}")
        if case.file_format not in ("tmx", "xliff", "parquet") and not POSITION.search(line):
            faults.append(f"no line is named: {line}")
        if SECRET in line:
            faults.append("the file outside was read")
        if case.damage == "nothing":
            faults.append(f"a good file is refused: {line}")
    except Exception as error:
        outcome = "broken"
        faults.append(f"{type(error).__name__}: {error}")
    if case.damage == "nothing" and not num_pairs:
        faults.append("a good file has no pairs")
    seconds = time.process_time() - start
    if seconds > MAX_SECONDS:
        faults.append(f"took {seconds:.1f} seconds")
    return outcome, [f"file {case.paths[0].name} ({case.damage}): {fault}" for fault in faults]


# --- many files in a child process -----------------------------------------------------------------------------------


def peak_mib() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read_many(folder: Path, first: int, last: int, num_bomb_blocks: int) -> dict[str, Any]:
    """Write and read the files of these numbers, and decompression bombs if `num_bomb_blocks` is not 0; return the results."""
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
        files = make_intact_files(file_format, random.Random(1))
        find_faults(Case(file_format, write_files(folder, -1, file_format, "", files), "nothing"))
    start_mib = peak_mib()
    outcomes: Counter[str] = Counter()
    all_faults: list[str] = []
    largest_growth = (0.0, "")

    def run_case(case: Case) -> None:
        nonlocal largest_growth
        before_mib = peak_mib()
        outcome, faults = find_faults(case)
        outcomes[f"{outcome}: {case.damage}"] += 1
        all_faults.extend(faults)
        largest_growth = max(largest_growth, (peak_mib() - before_mib, f"{case.paths[0].name} ({case.damage})"))
        for path in case.paths:
            path.unlink()

    no_network = mock.Mock(side_effect=AssertionError("a connection was opened"))
    with mock.patch.object(socket, "socket", no_network), mock.patch.object(socket, "create_connection", no_network):
        for number in range(first, last):
            run_case(make_case(number, folder, replacements))
        if num_bomb_blocks:
            rng = random.Random("bombs")
            endings = [ending for ending in COMPRESSORS if ending]
            for number, (file_format, ending) in enumerate((f, e) for f in FORMATS if f != "parquet" for e in endings):
                files = [make_bomb(file_format, ending, rng, num_bomb_blocks) for _ in make_intact_files(file_format, rng)]
                run_case(Case(file_format, write_files(folder, number, file_format, ending, files), f"bomb of {ending}"))
    try:
        server.accept()
        all_faults.append("a connection was opened")
    except BlockingIOError:
        server.close()
    return {"outcomes": outcomes, "faults": all_faults, "growth": peak_mib() - start_mib, "largest_growth": largest_growth}


def run_in_child(folder: Path, first: int, last: int, num_bomb_blocks: int = 0) -> Counter[str]:
    """Run `read_many` in a child process, check time, memory and faults, and return the outcomes."""
    command = [sys.executable, __file__, str(folder), str(first), str(last), str(num_bomb_blocks)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # pytest puts the folder of the helpers there
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environment)
    assert child.returncode == 0, f"{child.returncode}: {child.stderr[-2000:]}"
    results = cast(dict[str, Any], json.loads(child.stdout))
    assert results["faults"] == []
    assert results["growth"] < MAX_MIB, results["largest_growth"]
    return Counter(results["outcomes"])


@pytest.mark.slow
def test_600_damaged_and_hostile_files(tmp_path: Path) -> None:
    outcomes = run_in_child(tmp_path, 0, 600)
    assert sum(outcomes.values()) == 600
    # Each kind of damage, and each kind of damage to an archive, led to at least one error.
    refused = {name.removeprefix("refused: ") for name in outcomes if name.startswith("refused: ")}
    assert refused >= DAMAGES.keys() - {"nothing", "right-to-left marks"}
    assert {name.split(" of ")[0] for name in refused if " of ." in name} == {"cut", "flips", "behind", "bomb"}
    assert outcomes["pairs: nothing"] == 45  # 5 of each format


@pytest.mark.slow
def test_archives_that_expand_to_a_gigabyte_are_refused(tmp_path: Path) -> None:
    outcomes = run_in_child(tmp_path, 0, 0, num_bomb_blocks=64)
    assert {name: count for name, count in outcomes.items() if name.startswith("refused")} == outcomes
    assert sum(outcomes.values()) == 8 * 4


if __name__ == "__main__":
    print(json.dumps(read_many(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
