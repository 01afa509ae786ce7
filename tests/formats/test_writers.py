"""Writers: files read back unchanged, appear only when complete, and take little memory. Formats that are only read, too."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_readers import LANGUAGES, Texts, read, texts

from corpus_files import COMPRESSORS, FORMAT_SUFFIXES, READ_ONLY_FORMATS, write_corpus
from dragoman.config import Format
from dragoman.errors import DataError, OutputError
from dragoman.formats import parquet as parquet_module
from dragoman.formats.pair import Pair
from dragoman.formats.readers import read_file, read_sides
from dragoman.formats.writers import WritableFormat, WrittenFiles, write_pairs
from expected_errors import error_message

# Any text that UTF-8 can hold on one line, and any that XML can.
LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=40)
XML_LINE = st.text(
    st.characters(exclude_characters="\r\n\ufffe\uffff", exclude_categories=["Cs", "Cc"]) | st.sampled_from("\t\x85\x9f"),
    max_size=40,
)
FORMAT_TEXTS = {"tmx": XML_LINE, "xliff": XML_LINE, "tsv": LINE.map(lambda text: text.replace("\t", " "))}


def read_back(written: WrittenFiles, file_format: Format, **languages: str) -> Iterator[Pair]:
    return read_sides(*written.files) if len(written.files) == 2 else read_file(written.files[0], file_format, **languages)


@pytest.mark.parametrize("file_format", FORMAT_SUFFIXES)
def test_written_pairs_read_back(file_format: Format, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp(file_format)
    text = FORMAT_TEXTS.get(file_format, LINE)

    @given(
        st.lists(st.tuples(text, text), max_size=6),
        st.sampled_from([LANGUAGES, {"source_language": "x", "target_language": "x"}]),
    )
    def check_round_trip(pairs: Texts, languages: dict[str, str]) -> None:
        written = write_corpus(folder, [Pair(*pair) for pair in pairs], file_format, **languages)
        assert written.num_pairs == len(pairs)
        assert texts(read_back(written, file_format, **languages)) == pairs

    check_round_trip()


def test_pairs_written_into_archive_read_back(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    endings = [ending for ending in COMPRESSORS if ending]
    formats = [name for name in FORMAT_SUFFIXES if name != "parquet"]
    for file_format, ending in [*((name, endings[0]) for name in formats), *(("tsv", ending) for ending in endings[1:])]:
        with subtests.test(ending=ending, file_format=file_format):
            tmp_path = tmp_path_factory.mktemp("case")
            pairs = [(f"sentence {n}", f"Satz {n} ä") for n in range(1000)]
            written = write_corpus(tmp_path, [Pair(*pair) for pair in pairs], file_format, ending, **LANGUAGES)
            assert all(file.suffix == ending and file.stat().st_size < 12_000 for file in written.files)
            assert texts(read_back(written, file_format, **LANGUAGES)) == pairs
            assert sorted(tmp_path.iterdir()) == sorted(written.files)


def test_two_files_have_languages_in_names(tmp_path: Path) -> None:
    def names(name: str, **settings: Any) -> list[str]:
        return [file.name for file in write_pairs(tmp_path / name, [Pair("a", "b")], overwrite=True, **settings).files]

    assert names("a.gz", file_format="lines", **LANGUAGES) == ["a.en.gz", "a.de.gz"]
    assert names("a", file_format="lines") == ["a.source", "a.target"]
    assert names("a.b", file_format="lines", **LANGUAGES) == ["a.b.en", "a.b.de"]
    assert names("a", file_format="tsv") == ["a.tsv"]
    assert names("a.txt", file_format="tsv") == ["a.txt"]
    assert names("a.xz", file_format="tmx", **LANGUAGES) == ["a.tmx.xz"]
    assert names("a", file_format="lines", source_language="en", target_language="en") == ["a.source", "a.target"]
    assert "'../x' is not a language code" in error_message(
        lambda: names("a", file_format="lines", source_language="../x", target_language="de")
    )


def test_columns_and_keys_are_languages(tmp_path: Path) -> None:
    write_pairs(tmp_path / "a.jsonl", [Pair("a", "ä")], **LANGUAGES)
    assert (tmp_path / "a.jsonl").read_text() == '{"en": "a", "de": "ä"}\n'
    write_pairs(tmp_path / "b.jsonl", [Pair("a", "ä")])
    assert (tmp_path / "b.jsonl").read_text() == '{"source": "a", "target": "ä"}\n'
    write_pairs(tmp_path / "a.parquet", [Pair("a", "ä")], **LANGUAGES)
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == [{"en": "a", "de": "ä"}]


def test_written_line_breaks_and_tabs_become_spaces(tmp_path: Path) -> None:
    pairs = [Pair("a\tb\r\nc", "d\r")]
    expected: dict[WritableFormat, str] = {"tsv": "a b c", "lines": "a\tb c", "jsonl": "a\tb c"}
    for file_format, source in expected.items():
        written = write_pairs(tmp_path / f"x{file_format}", pairs, file_format=file_format)
        assert texts(read_back(written, file_format)) == [(source, "d")]


@pytest.mark.parametrize("file_format", READ_ONLY_FORMATS)
def test_line_breaks_are_read_as_spaces(tmp_path: Path, file_format: Format) -> None:
    written = write_corpus(tmp_path, [Pair("a\tb\r\nc", "d\r")], file_format)
    assert texts(read_back(written, file_format)) == [("a\tb c", "d")]


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1f", "\ufffe"])
def test_characters_outside_xml_are_refused_with_origin(tmp_path: Path, character: str) -> None:
    pairs = [Pair("a", "b", "corpus.tsv:1"), Pair("a", f"b{character}", "corpus.tsv:2")]
    line = error_message(lambda: write_pairs(tmp_path / "a.xml", pairs, file_format="tmx", **LANGUAGES))
    assert line.startswith(f"corpus.tsv:2: holds the character U+{ord(character):04X}, which XML cannot")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file_format", [name for name in FORMAT_SUFFIXES if name not in READ_ONLY_FORMATS])
def test_surrogate_half_is_refused_without_leftovers(tmp_path: Path, file_format: WritableFormat) -> None:
    pairs = [Pair("a", "b"), Pair("a\udc80", "b")]
    path = tmp_path / f"a{FORMAT_SUFFIXES[file_format]}"
    line = error_message(lambda: write_pairs(path, pairs, file_format=file_format, **LANGUAGES))
    assert line == "pair 2: holds half a surrogate pair (\\udc80)"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("", {"file_format": "tsv"}, ".: is a folder; give a file name"),
        ("a.txt", LANGUAGES, "a.txt: its ending does not name a format; known are .tsv .jsonl"),
        (
            "a.mrg",
            LANGUAGES,
            "a.mrg: brackets files can be read but not written; choose one of lines, tsv, jsonl, tmx, parquet",
        ),
        ("a.po", LANGUAGES, "a.po: po files can be read but not written"),
        ("a.xlf.gz", LANGUAGES, "a.xlf.gz: xliff files can be read but not written"),
        ("a.sgm", LANGUAGES, "a.sgm: sgm files can be read but not written"),
        ("a.tmx", {}, "a.tmx: TMX files name both languages; give task.source_language and task.target_language"),
        ("a.parquet.gz", LANGUAGES, "a.parquet.gz: Parquet is already compressed; drop the ending .gz"),
    ],
)
def test_invalid_output_path_is_refused(
    tmp_path: Path, name: str, settings: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert error_message(lambda: write_pairs(Path(name), [], **settings)).startswith(expected)


@pytest.mark.parametrize("ending", ["", *(ending for ending in COMPRESSORS if ending)])
def test_file_appears_only_when_complete(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.tsv{ending}"

    def pairs() -> Iterator[Pair]:
        for number in range(10_000):
            yield Pair(f"{number}", "x")
        assert not path.exists()
        raise DataError("the pairs have an end")

    assert error_message(lambda: write_pairs(path, pairs())) == "the pairs have an end"
    assert not list(tmp_path.iterdir())
    path.write_text("old")
    assert "exists already" in error_message(lambda: write_pairs(path, [Pair("a", "b")]), OutputError)
    assert path.read_text() == "old"
    write_pairs(path, [Pair("a", "b")], overwrite=True)
    assert texts(read(path)) == [("a", "b")]


def test_equal_pairs_make_equal_archives(tmp_path: Path) -> None:
    for ending in ("gz", "xz", "bz2", "zst"):
        first, second = (write_pairs(tmp_path / f"{n}.tsv.{ending}", [Pair("a", "b")]).files[0] for n in (1, 2))
        assert first.read_bytes() == second.read_bytes()


# --- memory -----------------------------------------------------------------------------------------------------------


def generate_pairs(count: int) -> Iterator[Pair]:
    for n in range(count):
        yield Pair(f"Sentence {n} of a corpus {'that goes on and on ' * 100}", f"Satz {n} {'und so weiter ' * 100}")


@pytest.mark.slow
@pytest.mark.parametrize("file_format", [name for name in FORMAT_SUFFIXES if name != "parquet"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_memory_does_not_grow_with_file(tmp_path: Path, file_format: Format, ending: str) -> None:
    """Four times as many pairs, 14 MB in all, take no more memory to write and to read."""
    peaks = []
    for number in (1_000, 4_000):
        tracemalloc.start()
        written = write_corpus(tmp_path, generate_pairs(number), file_format, ending, **LANGUAGES)
        assert sum(1 for _ in read_back(written, file_format, **LANGUAGES)) == number
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2**20, peaks  # other threads of the test run count as well


@pytest.mark.slow
def test_parquet_memory_is_one_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow allocates this memory itself, so tracemalloc does not see it."""
    monkeypatch.setattr(parquet_module, "_ROW_GROUP_CHARACTERS", 2**20)
    peaks = []
    for number in (2_000, 16_000):
        before, peak = pa.total_allocated_bytes(), 0
        written = write_pairs(tmp_path / f"{number}.parquet", generate_pairs(number))
        for _ in read_back(written, "parquet"):
            peak = max(peak, pa.total_allocated_bytes() - before)
        peaks.append(peak)
    assert peaks[1] < peaks[0] + 2**21, peaks
