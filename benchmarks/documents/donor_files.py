"""Files of other projects: no change gives the same bytes, and a pseudo-translation reads as written.

    PYTHONPATH=benchmarks python -m documents.donor_files FOLDER... [--mutations 200] [--files 500]

Every file under the folders whose ending names a format is read, each content once. Then `--mutations` files of each format
are damaged at random. A file may be refused, with the code of the error. Each other outcome is printed as a defect.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import random
import re
import sys
import time
import traceback
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.documents.document import (
    Document,
    Edit,
    Unit,
    UnitTranslation,
    UnwritableUnitsError,
    check_round_trip,
    check_written,
    write_document,
)
from dragoman.documents.formats import SUFFIXES, get_parser, parse_document
from dragoman.errors import DataError

MAX_MUTATED_BYTES = 100_000
MAX_ROUNDS = 20
ZIP_FORMATS = frozenset(("docx", "pptx", "xlsx", "odt", "epub"))
_TAG = re.compile(r"</?g\d+>|<x\d+/>|<[^<>]*>")
_ASCII_PSEUDO = "[{}] 'x' 100% xx"
_PSEUDO = "Ŧḗẋŧ „{}“ ‏שלום 🐉"


@dataclass
class FormatCounts:
    """Outcomes of the files of a format.

    read: files that were read
    same: files that are the same without a change
    exact: files whose pseudo-translation reads as exactly the written texts
    units: translated texts; left_out: those that the format cannot write, which stay as they were
    refused: codes of the files that were refused
    """

    read: int = 0
    same: int = 0
    exact: int = 0
    units: int = 0
    left_out: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")


@dataclass(frozen=True)
class Outcome:
    """Outcome for one file that was read. left_out: texts that the format cannot write"""

    units: int
    left_out: int


def check_file(name: str, content: bytes) -> Outcome:
    """Return the outcome for a file. Raises DataError for a refusal, and AssertionError for bytes or texts that are wrong."""
    document = parse_document(name, content)
    parse = get_parser(name)
    assert write_document(document, {}) == content, "no change gives other bytes"
    ids = [unit.id for unit in document.units]
    assert len(set(ids)) == len(ids), "two units have one id"
    assert [unit.source for unit in parse(content).units] == [unit.source for unit in document.units], (
        "a second reading differs"
    )
    check_round_trip(document, parse)
    try:
        return _check_pseudo_translation(document, parse, _PSEUDO)
    except DataError as error:
        if error.code != "invalid-encoding":
            raise
        return _check_pseudo_translation(document, parse, _ASCII_PSEUDO)


def _check_pseudo_translation(document: Document, parse: Callable[[bytes], Document], pattern: str) -> Outcome:
    """Write a pseudo-translation as `translate-file` does: without the texts that would not be read as written."""
    texts = {unit.id: make_pseudo_text(unit, pattern) for unit in document.units if unit.state != "locked"}
    left_out: set[str] = set()
    for _ in range(MAX_ROUNDS):
        translations = {name: UnitTranslation(text, "fuzzy") for name, text in texts.items() if name not in left_out}
        written = write_document(document, translations)
        try:
            check_written(document, translations, written, parse)
            break
        except UnwritableUnitsError as error:
            names = set(error.unit_ids) & translations.keys()
            if not names:
                raise
            left_out |= names
    else:
        raise DataError("more rounds than translate-file has", code="invalid-data")
    if translations:
        _check_exact_texts(document, translations, parse(written))
    _check_outside(document, translations, written)
    return Outcome(len(translations), len(left_out))


def make_pseudo_text(unit: Unit, pattern: str) -> str:
    """Return a longer text, with other letters and the line breaks and tags of the source."""
    body = unit.source.strip("\n")
    head, _, tail = unit.source.partition(body) if body else (unit.source, "", "")
    return head + pattern.format(body) + tail


def _check_exact_texts(document: Document, translations: dict[str, UnitTranslation], again: Document) -> None:
    """Check that the texts are read letter by letter. The numbers of tags, and white space that folds, may differ."""
    for before, after in zip(document.units, again.units, strict=True):
        if before.id in translations:
            expected, readings = translations[before.id].text, (after.target or after.source, after.source)
            assert any(_normalize(document, before, text) == _normalize(document, before, expected) for text in readings), (
                f"{before.id}: {expected[:60]!r} reads {readings[0][:60]!r}"
            )


def _normalize(document: Document, unit: Unit, text: str) -> str:
    text = _TAG.sub("<>", text) if unit.markup != "none" else text
    is_folded = document.format == "text" or not unit.keep_line_breaks  # a wrapped paragraph is wrapped again
    return " ".join(text.split()) if is_folded else text


def _check_outside(document: Document, translations: dict[str, UnitTranslation], written: bytes) -> None:
    """Check that the bytes between the edits are those of the original, in order; in an archive, those of the other members."""
    edits = [
        edit for unit in document.units if unit.id in translations for edit in document.make_edits(unit, translations[unit.id])
    ]
    edits += document.make_document_edits(translations, "")
    if document.format in ZIP_FORMATS:
        _check_members(document.content, written, has_edits=bool(edits))
        return
    position = written_position = 0
    end = len(document.content)
    for edit in sorted([*edits, Edit(end, end, b"")], key=lambda edit: (edit.start, edit.end)):
        kept = document.content[position : edit.start]
        assert written[written_position : written_position + len(kept)] == kept, f"other bytes before {edit.start}"
        position, written_position = edit.end, written_position + len(kept) + len(edit.content)
    assert written_position == len(written), "bytes behind the last edit"


def _check_members(content: bytes, written: bytes, *, has_edits: bool) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(io.BytesIO(written)) as after:
        assert before.namelist() == after.namelist(), "other members"
        changed = [name for name in before.namelist() if _read_member(before, name) != _read_member(after, name)]
    assert all(name.endswith((".xml", ".xhtml", ".html", ".htm", ".ncx", ".opf")) for name in changed), changed
    assert has_edits or not changed


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of a member, or nothing for a damaged one, which is copied as it is."""
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError):
        return b""


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to four random damages."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        size = len(data)
        start = rng.randrange(size + 1)
        length = min(rng.choice((1, 2, 5, 20, 200)), size - start)
        match rng.randrange(7):
            case 0 if start < size:
                data[start] = _draw_byte(rng)
            case 1:
                del data[start : start + length]
            case 2:
                data[start:start] = data[start : start + length]
            case 3:
                data[start:start] = bytes(_draw_byte(rng) for _ in range(length or 1))
            case 4:
                data[start:start] = rng.choice(_FRAGMENTS)
            case 5:
                other = rng.randrange(size + 1)
                data[start : start + length] = data[other : other + length]
            case _ if rng.random() < 0.2:
                del data[start:]
    return bytes(data)


_FRAGMENTS = (
    b"<", b">", b"</", b"/>", b"&", b"&#0;", b"&lt;", b'"', b"'", b"\\", b"\\u", b"\n", b"\r\n", b"\r", b"\0", b"\t", b"{",
    b"}", b"[", b"]", b"#", b"-->", b"<!--", b"<![CDATA[", b"]]>", b"<b>", b"</b>", b"<p>", b"%s", b"{0}", b"|", b">\n",
    b"- ", b"* ", b"```\n", b'msgid ""\n', b"#~ ", b"#, fuzzy\n", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", b"\xe2\x80\xa8",
    b"\x85", b":", b"? ",
)  # fmt: skip


def _draw_byte(rng: random.Random) -> int:
    """Return a byte of ASCII in most cases, because any other one makes most files invalid at once."""
    return rng.randrange(256) if rng.random() < 0.02 else rng.randrange(32, 127)


def mutate_archive(content: bytes, rng: random.Random) -> bytes:
    """Return a damaged archive, or one with a damaged XML member."""
    if rng.random() < 0.3:
        return mutate(content, rng)
    output = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as after:
            names = [name for name in before.namelist() if name.endswith((".xml", ".rels", ".xhtml", ".opf", ".ncx", ".html"))]
            chosen = rng.choice(names)
            for info in before.infolist():
                data = before.read(info)
                after.writestr(info, mutate(data, rng) if info.filename == chosen else data)
    except (zipfile.BadZipFile, zlib.error, IndexError):
        return mutate(content, rng)
    return output.getvalue()


_SAME_FORMAT = {
    "pot": "po", "xliff": "xlf", "htm": "html", "xhtml": "html", "markdown": "md", "yml": "yaml", "arb": "json", "resw": "resx",
}  # fmt: skip


def get_format(name: str) -> str:
    """Return the ending of a file, with one name for endings of one format."""
    suffix = Path(name).suffix.lower().removeprefix(".")
    return _SAME_FORMAT.get(suffix, suffix)


def find_files(folders: Iterable[Path], max_files: int, rng: random.Random) -> dict[str, list[Path]]:
    """Return files by format, at most `max_files` of each, and no content twice."""
    paths = sorted(
        path for folder in folders for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    )
    rng.shuffle(paths)
    files: dict[str, list[Path]] = defaultdict(list)
    seen: set[bytes] = set()
    for path in paths:
        name = get_format(path.name)
        if len(files[name]) < max_files and path.stat().st_size:
            digest = hashlib.sha256(path.read_bytes()).digest()
            if digest not in seen:
                seen.add(digest)
                files[name].append(path)
    return dict(sorted(files.items()))


def run_file(counts: FormatCounts, name: str, content: bytes, label: str) -> None:
    """Check a file and count its outcome."""
    start = time.process_time()
    try:
        outcome = check_file(name, content)
    except DataError as error:
        counts.refused[error.code] += 1
    except Exception as error:  # each other error is a defect
        place = traceback.extract_tb(error.__traceback__)[-1]
        counts.defects.append(
            f"{label}: {type(error).__name__}: {str(error)[:200]} ({Path(place.filename).name}:{place.lineno})"
        )
    else:
        counts.read += 1
        counts.same += 1
        counts.exact += not outcome.left_out
        counts.units += outcome.units
        counts.left_out += outcome.left_out
    seconds = (time.process_time() - start) / (len(content) / 2**20 + 0.02)
    counts.slowest = max(counts.slowest, (seconds, label))


def make_mutations(name: str, contents: Sequence[tuple[str, bytes]], count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield the label, the file name and the bytes of damaged files of a format."""
    small = [(label, content) for label, content in contents if len(content) <= MAX_MUTATED_BYTES] or list(contents)
    for seed in range(count):
        rng = random.Random(f"{name} {seed}")
        label, content = small[seed % len(small)]
        change = mutate_archive if name in ZIP_FORMATS else mutate
        yield f"{label} seed {seed}", f"file.{name}", change(content, rng)


def _print_table(title: str, counts: dict[str, FormatCounts]) -> None:
    columns = "format|read|same bytes|exact pseudo-translation|texts|left out|refused|defects|CPU s/MB, slowest"
    print(f"\n{title}\n\n| {columns.replace('|', ' | ')} |")
    print("| --- " * 9 + "|")
    for name, row in counts.items():
        refused = ", ".join(f"{number} {code}" for code, number in row.refused.most_common()) or "0"
        cells = [
            row.read,
            row.same,
            row.exact,
            f"{row.units:,}",
            row.left_out,
            refused,
            len(row.defects),
            f"{row.slowest[0]:.1f}",
        ]
        print(f"| {name} | {' | '.join(map(str, cells))} |")
    for row in counts.values():
        for defect in row.defects:
            print(f"DEFECT {defect}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the files and print tables. The status is 1 if there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--mutations", type=int, default=200, help="damaged files of each format")
    parser.add_argument("--files", type=int, default=500, help="most files of each format")
    parser.add_argument("--formats", nargs="*", default=[], help="formats to check, by their endings; all by default")
    parser.add_argument("--verbose", action="store_true", help="also print the slowest file of each format")
    options = parser.parse_args(arguments)
    files = find_files(options.folders, options.files, random.Random(1))
    whole: dict[str, FormatCounts] = {}
    damaged: dict[str, FormatCounts] = {}
    for name, paths in files.items():
        if options.formats and name not in options.formats:
            continue
        whole[name], damaged[name] = FormatCounts(), FormatCounts()
        contents = [(str(path), path.read_bytes()) for path in paths]
        for label, content in contents:
            run_file(whole[name], label, content, label)
        for label, file_name, content in make_mutations(name, contents, options.mutations):
            run_file(damaged[name], file_name, content, label)
        if options.verbose:
            print(f"{name}: {whole[name].slowest} {damaged[name].slowest} {whole[name].refused}", flush=True)
    _print_table("Files", whole)
    _print_table("Damaged files", damaged)
    return int(any(row.defects for row in [*whole.values(), *damaged.values()]))


if __name__ == "__main__":
    sys.exit(main())
