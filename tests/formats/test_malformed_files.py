"""Damaged and hostile files of every format: each gives pairs, or one line that names it, soon and in little memory.

The files are read in a process of its own, so that its memory is known and a crash is seen. File number n is always the same.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
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

from dragoman.config import Format
from dragoman.errors import DataError
from dragoman.formats.pair import Pair
from dragoman.formats.parquet import write_parquet
from dragoman.formats.readers import read_file, read_sides
from dragoman.formats.sgm import format_sgm
from dragoman.formats.tmx import format_tmx
from dragoman.formats.xliff import format_xliff

SECONDS = 1.0
"""Of processor time that a file may take."""
MEMORY = 200
"""MiB that the process may grow by, whatever it reads. A line of 16 MiB is the most that is ever read of anything."""
FORMATS: tuple[Format, ...] = ("lines", "tsv", "jsonl", "tmx", "xliff", "po", "sgm", "parquet", "brackets")
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda written: written,
    ".gz": lambda written: gzip.compress(written, 1),
    ".xz": lambda written: lzma.compress(written, preset=0),
    ".bz2": lambda written: bz2.compress(written, 1),
    ".zst": lambda written: cast(bytes, pa.compress(written, codec="zstd", asbytes=True)),
}
SECRET = "the secret of the file outside"
LANGUAGES = {"source_language": "en", "target_language": "de"}

# --- files that are as they should be ---------------------------------------------------------------------------------

WORDS = [
    "one", "zwei", "größer", "AT&amp;T", "日本語", "שלום", "emoji😀", "a.b", "3,5", "it's", "\u200f\u0645\u0631",
    "e\u0301", "—", "x\u00a0y",
]  # fmt: skip


def sentence(chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(1, 9)))


def tree(chance: random.Random, depth: int = 0) -> str:
    if depth > 4 or chance.random() < 0.3:
        return f"({chance.choice(['NN', '-NONE-', 'VB'])} {chance.choice(WORDS)})"
    children = "".join(f" {tree(chance, depth + 1)}" for _ in range(chance.randint(1, 3)))
    return f"({chance.choice(['S', 'NP', ''])}{children})"


def po_entry(chance: random.Random, pair: Pair) -> str:
    head = chance.choice(["", "#, fuzzy\n", "#: a.c:1\n#, c-format\n", f'msgctxt "{chance.random()}"\n', '#| msgid "old"\n'])
    if chance.random() < 0.3:
        return f'{head}msgid "{pair.source}"\nmsgid_plural "{pair.source}s"\nmsgstr[0] "{pair.target}"\nmsgstr[1] ""\n"x\\n"\n'
    return f'{head}msgid "{pair.source}"\nmsgstr ""\n"{pair.target}"\n\n#~ msgid "gone"\n#~ msgstr "weg"\n'


def xliff2(pairs: list[Pair]) -> Iterator[str]:
    yield '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de"><file id="f">\n'
    for number, pair in enumerate(pairs):
        source = f'<pc id="1">{pair.source}</pc><ph id="2"/><cp hex="0007"/>'
        yield f'<unit id="{number}"><segment><source>{source}</source><target>{pair.target}</target></segment></unit>\n'
    yield "</file></xliff>"


def whole(format: Format, chance: random.Random) -> list[bytes]:
    """A file of a format, or two, with nothing wrong."""
    pairs = [Pair(sentence(chance), sentence(chance)) for _ in range(chance.randint(1, 30))]
    match format:
        case "lines":
            return ["".join(f"{getattr(pair, side)}\n" for pair in pairs).encode() for side in ("source", "target")]
        case "tsv":
            return ["".join(f"{pair.source}\t{pair.target}\n" for pair in pairs).encode()]
        case "jsonl":
            rows = [
                {"id": 1.5, "translation": {"en": pair.source, "de": pair.target}} if len(pairs) % 2 else vars_of(pair)
                for pair in pairs
            ]
            return ["".join(json.dumps(row, ensure_ascii=chance.random() < 0.5) + "\n" for row in rows).encode()]
        case "tmx":
            head = chance.choice(["", '<!DOCTYPE tmx SYSTEM "tmx14.dtd">'])
            written = "".join(format_tmx(pairs, "en-GB", "de")).replace("<tmx", f"{head}<tmx")
            return [written.replace("<seg>", '<seg><bpt i="1">&lt;b></bpt>').encode(chance.choice(["utf-8", "utf-8-sig"]))]
        case "xliff":
            return ["".join(format_xliff(pairs, "en", "de") if chance.random() < 0.5 else xliff2(pairs)).encode()]
        case "po":
            head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
            return [(head + "\n".join(po_entry(chance, pair) for pair in pairs)).encode()]
        case "sgm":
            return ["".join(side).encode() for side in zip(*format_sgm(pairs, "en", "de"), strict=True)]
        case "parquet":
            stream = io.BytesIO()
            write_parquet(stream, pairs, ("en", "de"))
            return [stream.getvalue()]
        case _:
            identifiers = ["", "id 7\t"]
            return ["".join(f"{chance.choice(identifiers)}{tree(chance)}\n" for _ in pairs).encode()]


def vars_of(pair: Pair) -> dict[str, str | None]:
    return {"source": pair.source, "target": pair.target or None}


# --- what is done to them ---------------------------------------------------------------------------------------------


def insert(written: bytes, chance: random.Random, what: bytes) -> bytes:
    place = chance.randint(0, len(written))
    return written[:place] + what + written[place:]


def flipped(written: bytes, chance: random.Random) -> bytes:
    changed = bytearray(written)
    for _ in range(chance.choice([1, 1, 2, 5, 50])):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(written: bytes, chance: random.Random) -> bytes:
    return written[: chance.randrange(len(written))]


def spliced(written: bytes, chance: random.Random) -> bytes:
    first, second, third = sorted(chance.randint(0, len(written)) for _ in range(3))
    return written[:second] + written[first:third] if chance.random() < 0.5 else written[:first] + written[second:]


def not_utf8(written: bytes, chance: random.Random) -> bytes:
    what = [
        b"\xff",
        b"\xc3(",
        b"\x80",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98",
        b"\xc0\xaf",
        b"\xf5\x80\x80\x80",
        "ä".encode("utf-16"),
    ]
    return insert(written, chance, chance.choice(what))


def surrogates(written: bytes, chance: random.Random) -> bytes:
    what = [b"\\ud800", b"\\udfff\\ud800", b"&#xD800;", b"&#55296;", b'<cp hex="D83D"/>', b"\\ud83d\\ude00"]
    return insert(written, chance, chance.choice(what))


def inserted(*what: bytes) -> Callable[[bytes, random.Random], bytes]:
    return lambda written, chance: insert(written, chance, chance.choice(what))


def nested(written: bytes, chance: random.Random) -> bytes:
    opening = chance.choice([b"<g>", b"(", b"[", b'{"a":', b"((S ", b"<tu>", b"<seg>", b'msgid "a"\n', b"<sub>"])
    return insert(written, chance, opening * chance.choice([2, 300, 20_000]))


def entities(written: bytes, chance: random.Random) -> bytes:
    """Entities that unfold, that read files, or that ask the network, declared at the head and referred to in a text."""
    outside = chance.choice(["{text}", "http://127.0.0.1:{port}/x.dtd", "ftp://127.0.0.1:{port}/x", "//127.0.0.1/x"])
    bomb = "<!ENTITY a0 'ha'>" + "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 20}'>" for n in range(1, 12))
    head = chance.choice(
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
    reference = chance.choice(
        [
            b"&a11;",
            b"&a11;" * 1000,
            b"<x xmlns:xi='http://www.w3.org/2001/XInclude'><xi:include href='{text}' parse='text'/></x>",
        ]
    )
    within = [found.end() for found in re.finditer(rb"<(seg|source|target)>", written)]
    place = chance.choice(within or [written.find(b">", chance.randrange(len(written))) + 1])
    written = written[:place] + reference + written[place:]
    start = written.find(b"?>") + 2 if written.startswith(b"<?xml") else 0
    return written[:start] + head.encode() + written[start:]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "nothing": lambda written, chance: written,
    "flips": flipped,
    "cut": cut,
    "splice": spliced,
    "not UTF-8": not_utf8,
    "NUL": inserted(b"\0", b"\0" * 1000),
    "surrogates": surrogates,
    "a line of 1 MB": inserted(*(what * (10**6 // len(what)) for what in (b"x", b" ", b"&", b"\\", b"\t", b'"', b"id=", b"<"))),
    "right-to-left marks": inserted(*("\u202e\u200f\u2067\u061c".encode() * times for times in (1, 1000))),
    "combining marks": inserted("\u0301".encode() * 10**5),
    "line ends": inserted(b"\r", b"\r\n", "\u2028\u0085".encode(), b"\n" * 1000, b"\x0b\x0c\x1c"),
    "nesting": nested,
    "entities": entities,
    "chance": lambda written, chance: chance.randbytes(chance.randint(0, 5000)),
}  # fmt: skip
# Archives of a head, and of a block that is repeated for ever so long. A gigabyte of line feeds would be a gigabyte of empty
# sentences, which takes its time.
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
def packed_block(block: bytes, ending: str) -> bytes:
    return PACKERS[ending](block * (2**24 // len(block)))


def bomb(format: Format, ending: str, chance: random.Random, blocks: int) -> bytes:
    """An archive that unpacks to as many times 16 MiB."""
    head = chance.choice([b"", BOMB_HEADS.get(format, b"")])
    return PACKERS[ending](head) + packed_block(chance.choice(BLOCKS), ending) * blocks


# --- one file ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A file, or two, with what is wrong with it."""

    format: Format
    paths: list[Path]
    what: str


def make(number: int, folder: Path, fill: dict[bytes, bytes]) -> Case:
    chance = random.Random(f"file {number}")
    format = FORMATS[number % len(FORMATS)]
    damage = [*DAMAGES][number // len(FORMATS) % len(DAMAGES)]
    ending = "" if format == "parquet" else chance.choice(["", "", *PACKERS])
    files = whole(format, chance)
    harmed = chance.randrange(len(files))
    files[harmed] = DAMAGES[damage](files[harmed], chance)
    for mark, meant in fill.items():
        files[harmed] = files[harmed].replace(mark, meant)
    files = [PACKERS[ending](written) for written in files]
    what = damage
    if ending and damage != "nothing" and (spoilt := chance.choice(["", "", "cut", "flips", "behind", "bomb"])):
        what = f"{spoilt} of {ending}"
        match spoilt:
            case "bomb":
                files[harmed] = bomb(format, ending, chance, 4)
            case "behind":
                files[harmed] += chance.choice([b"junk", b"\0\0\0", files[harmed][: len(files[harmed]) // 2]])
            case _:
                files[harmed] = DAMAGES[spoilt](files[harmed], chance)
    return Case(format, put(folder, number, format, ending, files), what)


def put(folder: Path, number: int, format: Format, ending: str, files: list[bytes]) -> list[Path]:
    paths = [folder / f"{number}-{place}.{format}{ending}" for place in range(len(files))]
    for path, written in zip(paths, files, strict=True):
        path.write_bytes(written)
    return paths


def read(case: Case) -> Iterator[Pair]:
    match case.paths:
        case [source, target]:
            return read_sides(source, target, case.format)
        case _:
            return read_file(case.paths[0], case.format, **LANGUAGES)


# Where a file as a whole is wrong, there is no line to name.
PLACED = re.compile(r", line \d+|damaged after line \d+|: cannot be read: .| has \d+ lines but .* has \d+|: no line has ")


def faults(case: Case) -> tuple[str, list[str]]:
    """What came of reading a file, and what is wrong with that."""
    found = []
    pairs = 0
    start = time.process_time()
    try:
        for pair in read(case):
            pairs += 1
            for text in (pair.source, pair.target):
                text.encode("utf-8")
                if "\n" in text or ("\r" in text and case.format not in ("lines", "tsv")):
                    found.append("a text holds a line break")
                if SECRET in text:
                    found.append("the file outside was read")
            if not pair.origin.startswith(str(case.paths[0])):
                found.append(f"the origin is {pair.origin!r}")
        came = "pairs"
    except DataError as error:
        came, line = "refused", str(error)
        if not line.isprintable() or len(line) > 1500:
            found.append(f"not one line: {line!r}")
        if not any(str(path) in line for path in case.paths):
            found.append(f"no file is named: {line}")
        if case.format not in ("tmx", "xliff", "parquet") and not PLACED.search(line):
            found.append(f"no line is named: {line}")
        if SECRET in line:
            found.append("the file outside was read")
        if case.what == "nothing":
            found.append(f"a good file is refused: {line}")
    except Exception as error:
        came = "broken"
        found.append(f"{type(error).__name__}: {error}")
    if case.what == "nothing" and not pairs:
        found.append("a good file has no pairs")
    seconds = time.process_time() - start
    if seconds > SECONDS:
        found.append(f"took {seconds:.1f} seconds")
    return came, [f"file {case.paths[0].name} ({case.what}): {fault}" for fault in found]


# --- many files, in a process of their own ----------------------------------------------------------------------------


def peak() -> float:
    """MiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read_many(folder: Path, first: int, last: int, bombs: int) -> dict[str, Any]:
    """Make and read the files of these numbers, and bombs of as many times 16 MiB, and tell what came of it."""
    text, declarations = folder / "secret.txt", folder / "secret.dtd"
    text.write_text(SECRET)
    declarations.write_text(f"<!ENTITY a11 '{SECRET}'>")
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    fill = {
        b"{text}": text.as_uri().encode(),
        b"{declarations}": declarations.as_uri().encode(),
        b"{port}": str(listener.getsockname()[1]).encode(),
    }
    for format in FORMATS:  # so that what is loaded once is loaded
        faults(Case(format, put(folder, -1, format, "", whole(format, random.Random(1))), "nothing"))
    before = peak()
    came: Counter[str] = Counter()
    told: list[str] = []
    highest = (0.0, "")

    def take(case: Case) -> None:
        nonlocal highest
        held = peak()
        outcome, found = faults(case)
        came[f"{outcome}: {case.what}"] += 1
        told.extend(found)
        highest = max(highest, (peak() - held, f"{case.paths[0].name} ({case.what})"))
        for path in case.paths:
            path.unlink()

    closed = mock.Mock(side_effect=AssertionError("the network was asked"))
    with mock.patch.object(socket, "socket", closed), mock.patch.object(socket, "create_connection", closed):
        for number in range(first, last):
            take(make(number, folder, fill))
        if bombs:
            chance = random.Random("bombs")
            endings = [ending for ending in PACKERS if ending]
            for number, (format, ending) in enumerate((f, e) for f in FORMATS if f != "parquet" for e in endings):
                files = [bomb(format, ending, chance, bombs) for _ in whole(format, chance)]
                take(Case(format, put(folder, number, format, ending, files), f"bomb of {ending}"))
    try:
        listener.accept()
        told.append("the network was asked")
    except BlockingIOError:
        listener.close()
    return {"came": came, "faults": told, "grown": peak() - before, "most": highest}


def told_by_a_process(folder: Path, first: int, last: int, bombs: int = 0) -> dict[str, Any]:
    command = [sys.executable, __file__, str(folder), str(first), str(last), str(bombs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    told = cast(dict[str, Any], json.loads(done.stdout))
    assert told["faults"] == []
    assert told["grown"] < MEMORY, told["most"]
    return told


def test_600_damaged_and_hostile_files(tmp_path: Path) -> None:
    came = told_by_a_process(tmp_path, 0, 600)["came"]
    assert sum(came.values()) == 600
    # Each kind of damage came up, and refused something; and so did each kind of damage to an archive.
    refused = {name.removeprefix("refused: ") for name in came if name.startswith("refused: ")}
    assert refused >= DAMAGES.keys() - {"nothing", "right-to-left marks"}
    assert {name.split(" of ")[0] for name in refused if " of ." in name} == {"cut", "flips", "behind", "bomb"}
    assert came["pairs: nothing"] == 45  # 5 of each format


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_10_000_damaged_and_hostile_files(tmp_path: Path, part: int) -> None:
    came = told_by_a_process(tmp_path, 1000 * part, 1000 * part + 1000)["came"]
    assert sum(came.values()) == 1000


@pytest.mark.slow
def test_archives_that_unpack_to_a_gigabyte(tmp_path: Path) -> None:
    came = told_by_a_process(tmp_path, 0, 0, bombs=64)["came"]
    assert {name: count for name, count in came.items() if name.startswith("refused")} == came
    assert sum(came.values()) == 8 * 4


if __name__ == "__main__":
    print(json.dumps(read_many(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
