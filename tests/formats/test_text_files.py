"""Lines of plain and compressed text files, and the pairs of aligned files and TSV files."""

from __future__ import annotations

import io
import lzma
import random
import re
import subprocess
import sys
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import dragoman.formats.text
from corpus_files import COMPRESSORS
from dragoman.errors import DataError
from dragoman.formats import text as text_module
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.text import UTF8_HINT, read_lines
from dragoman.formats.tsv import read_aligned
from expected_errors import error_message

ARCHIVES = [suffix for suffix in COMPRESSORS if suffix]
NUMBERED_LINES = "".join(f"line {number}\n" for number in range(1, 2001)).encode()


def write_text(path: Path, content: str) -> Path:
    """Write a file, and compress it if its ending says so."""
    path.write_bytes(COMPRESSORS[path.suffix if path.suffix in COMPRESSORS else ""](content.encode()))
    return path


# --- one line a text -------------------------------------------------------------------------------------------------


def test_line_break_becomes_space(subtests: pytest.Subtests) -> None:
    for text, line in [
        ("a b", "a b"),
        (" a\t", " a\t"),
        ("a\nb", "a b"),
        ("a\r\nb\rc", "a b c"),
        ("a  \n\n\t b", "a b"),
        ("\n  a\n", "a"),
        (" a\nb ", " a b "),
        ("\n", ""),
        (" \n ", ""),
        ("a\u2028b\u0085c\vd", "a\u2028b\u0085c\vd"),
    ]:
        with subtests.test(text=text, line=line):
            assert to_single_line(text) == line


# --- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_line_length_is_limited(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "MAX_LINE_BYTES", 2**20)
    path = tmp_path / f"a{ending}"
    for end in (b"\n", b""):
        path.write_bytes(COMPRESSORS[ending](b"a\n" + b"x" * 2**20 + end))
        assert [len(line) for line in read_lines(path)] == [1, 2**20]
        path.write_bytes(COMPRESSORS[ending](b"a\n" + b"x" * (2**20 + 1) + end))
        assert "line 2: longer than " in error_message(lambda: list(read_lines(path)))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_lines_do_not_depend_on_chunk_size(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "_CHUNK_BYTES", size)
    path = write_text(tmp_path / "a.xz", "ä\r\n\n\r\nbc\rd\n\n\nlast\r")
    assert list(read_lines(path)) == ["ä", "", "", "bc\rd", "", "", "last\r"]


@pytest.mark.parametrize("ending", [".xz", ".bz2"])
@pytest.mark.parametrize("garbage", [b"junk", b"\x00junk"])
def test_garbage_after_archive_is_refused(tmp_path: Path, ending: str, garbage: bytes) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(COMPRESSORS[ending](b"a\n") + garbage)
    assert error_message(lambda: list(read_lines(path))).startswith(f"{path}: damaged after line 1: ")


def test_padding_between_xz_parts_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"a\n") + b"\0" * 8 + lzma.compress(b"b\n") + b"\0" * 4)
    assert list(read_lines(path)) == ["a", "b"]


READ_SCRIPT = """
import sys
from pathlib import Path
from dragoman.errors import DataError
from dragoman.formats.text import read_lines
for name in sys.argv[1:]:
    try:
        next(iter(read_lines(Path(name))))
    except DataError as error:
        print(error)
"""


def test_unreadable_archive_leaves_no_open_file(tmp_path: Path) -> None:
    """Python's development mode reports files that stay open and exceptions that are ignored."""
    endings = [".gz", ".xz", ".bz2", ".zst"]
    missing = [tmp_path / f"missing{ending}" for ending in endings]
    empty = [tmp_path / f"empty{ending}" for ending in endings]
    damaged = [tmp_path / f"damaged{ending}" for ending in endings]
    cut = [tmp_path / f"cut{ending}" for ending in endings]
    intact = [write_text(tmp_path / f"intact{ending}", "a\n" * 9) for ending in endings]
    for path, packed in zip(damaged, intact, strict=True):
        path.write_bytes(packed.read_bytes()[:9] + b"\xff" * 9)
    for path, packed in zip(cut, intact, strict=True):
        path.write_bytes(packed.read_bytes()[:12])
    for path in empty:
        path.touch()
    paths = [*missing, *empty, *damaged, *cut, *intact]
    command = [sys.executable, "-X", "dev", "-c", READ_SCRIPT, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[:4] == [f"{path}: there is no such file; check its name and its folder" for path in missing]
    for line, path in zip(lines, paths[:-4], strict=True):
        assert line.startswith(f"{path}: ")


def test_xz_archive_with_large_dictionary_is_refused(tmp_path: Path) -> None:
    """The block header asks for a dictionary of 2^29 bytes and ends with its checksum (.xz format 1.0.4, 3.1 and 5.3.1)."""
    path = tmp_path / "a.xz"
    packed = bytearray(lzma.compress(b"a\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**20}]))
    header = 12
    end = header + (packed[header] + 1) * 4 - 4
    packed[packed.index(b"\x21\x01", header) + 2] = 34
    packed[end : end + 4] = zlib.crc32(packed[header:end]).to_bytes(4, "little")
    path.write_bytes(packed)
    assert error_message(lambda: list(read_lines(path))) == f"{path}: cannot be read: Memory usage limit exceeded"


# --- content of lines -------------------------------------------------------------------------------------------------


def test_lines_end_only_with_line_feed(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for content, lines in [
        (b"", []),
        (b"\n", [""]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\n", ["a\r"]),
        (b"a\rb\nc\r", ["a\rb", "c\r"]),
        ("a\u2028b\u2029c\u0085d\ve\ff\x1cg\n".encode(), ["a\u2028b\u2029c\u0085d\ve\ff\x1cg"]),
        ("\ufeffa\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
        (b"a\x00b\n\x00\n", ["a\x00b", "\x00"]),
        ("ä€😀\n".encode(), ["ä€😀"]),
        (b"  a\t b \n", ["  a\t b "]),
    ]:
        with subtests.test(content=content, lines=lines):
            tmp_path = tmp_path_factory.mktemp("case")
            for suffix, compress in COMPRESSORS.items():
                path = tmp_path / f"a.txt{suffix}"
                path.write_bytes(compress(content))
                assert list(read_lines(path)) == lines, suffix


def test_invalid_bytes_are_named_with_location(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for content, location in [
        (b"ok\nab\xffc\n", "line 2: not UTF-8 (byte 0xff at column 3)"),
        ("ää".encode() + b"\x80\n", "line 1: not UTF-8 (byte 0x80 at column 5)"),  # a column counts bytes
        (b"a\nb\n\xe2\x82", "line 3: not UTF-8 (byte 0xe2 at column 1)"),
        (b"a\n\xed\xa0\x80\n", "line 2: not UTF-8 (byte 0xed at column 1)"),  # a surrogate
    ]:
        with subtests.test(content=content, location=location):
            tmp_path = tmp_path_factory.mktemp("case")
            for suffix, compress in COMPRESSORS.items():
                path = tmp_path / f"a.txt{suffix}"
                path.write_bytes(compress(content))
                assert error_message(partial(list, read_lines(path))) == f"{path}, {location}; {UTF8_HINT}"


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_archive_of_several_parts_is_read_completely(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b"a\nb") + COMPRESSORS[suffix](b"c\n") + COMPRESSORS[suffix](NUMBERED_LINES))
    assert list(read_lines(path)) == ["a", "bc", *NUMBERED_LINES.decode().splitlines()]


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_truncated_archive_raises(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    compressed = COMPRESSORS[suffix](NUMBERED_LINES)
    draw = random.Random(suffix)
    for length in [
        1,
        2,
        10,
        len(compressed) - 1,
        len(compressed) - 4,
        *(draw.randrange(1, len(compressed)) for _ in range(40)),
    ]:
        path.write_bytes(compressed[:length])
        message = error_message(lambda: list(read_lines(path)))
        assert re.match(rf"{re.escape(str(path))}: (damaged after line \d+|cannot be read): .", message), message


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])  # these have checksums; a .zst file may have none
def test_damaged_archive_raises_or_reads_the_same(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    compressed = COMPRESSORS[suffix](NUMBERED_LINES)
    draw = random.Random(suffix)
    num_errors = 0
    for _ in range(60):
        changed = bytearray(compressed)
        changed[draw.randrange(10, len(compressed))] ^= 1 << draw.randrange(
            8
        )  # gzip's header of 10 bytes holds time and system
        path.write_bytes(changed)
        try:
            assert list(read_lines(path)) == NUMBERED_LINES.decode().splitlines()
        except DataError:
            num_errors += 1
    assert num_errors > 50


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_unreadable_path_raises(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"a{suffix}"
    assert error_message(lambda: list(read_lines(path))) == f"{path}: there is no such file; check its name and its folder"
    path.mkdir()
    assert error_message(lambda: list(read_lines(path))) == f"{path}: is a folder; give a file"
    below = tmp_path / "file" / f"a{suffix}"
    below.parent.touch()
    assert error_message(lambda: list(read_lines(below))) == f"{below}: cannot be read: Not a directory"

    def closed(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(dragoman.formats.text, "open_bytes", closed)
    assert error_message(lambda: list(read_lines(path))) == f"{path}: no permission to read it"


def test_standard_input_is_read_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("ä\r\nb\u2028".encode()), encoding="ascii"))
    assert list(read_lines(None)) == ["ä", "b\u2028"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff"), encoding="latin-1"))
    expected = f"standard input, line 2: not UTF-8 (byte 0xff at column 1); {UTF8_HINT}"
    assert error_message(lambda: list(read_lines(None))) == expected


# --- pairs ------------------------------------------------------------------------------------------------------------


def write_file(path: Path, lines: Sequence[str]) -> Path:
    return write_text(path, "".join(f"{line}\n" for line in lines))


def test_unequal_files_error_names_both_counts(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for suffixes in [("", ""), (".xz", ".bz2")]:
        for counts in [(5, 3), (3, 5), (4, 5), (5, 0), (0, 1)]:
            with subtests.test(suffixes=suffixes, counts=counts):
                tmp_path = tmp_path_factory.mktemp("case")
                source, target = (
                    write_file(tmp_path / f"{name}{suffix}", ["x"] * count)
                    for name, count, suffix in zip(("s", "t"), counts, suffixes, strict=True)
                )
                (short_count, short_path), (long_count, long_path) = sorted(zip(counts, (source, target), strict=True))
                pairs: list[Pair] = []
                with pytest.raises(DataError) as caught:
                    pairs.extend(read_aligned(source, target))
                message = str(caught.value)
                assert f"{short_path} has {short_count} lines" in message
                assert f"{long_path} has {long_count}" in message
                assert len(pairs) == short_count
