"""Files that we write, read by OmegaT's filters.

    PYTHONPATH=benchmarks python -m documents.omegat_readers FOLDER... [--files 20] [--omegat omegat]

Each file under the folders is pseudo-translated and put into a project of OmegaT. OmegaT lists every segment that its filters
read (`console-createpseudotranslatetmx`), and writes the files of the project (`console-translate`). For formats with one
language, the list must have the new texts. For PO and TS, it must have the sources. Texts that OmegaT does not list from the
original file do not count. In XLIFF, OmegaT 3.6 reads the elements `target` alone, so the list must have every new text.
OmegaT is under the GPL and is no dependency; Debian has it as `omegat`.
"""

from __future__ import annotations

import argparse
import html
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from .donor_files import find_files
from .other_programs import translate

FORMATS = ("po", "html", "docx", "pptx", "xlsx", "odt", "properties", "resx", "srt", "xlf", "xml", "ts", "txt")
SOURCE_FORMATS = frozenset(("po", "ts"))
"""Formats of which OmegaT lists the sources."""
TARGET_FORMATS = frozenset(("xlf",))
"""Formats of which OmegaT lists the translations that the file has."""
_PROJECT = """<?xml version="1.0" encoding="UTF-8"?>
<omegat><project version="1.0"><source_dir>__DEFAULT__</source_dir><target_dir>__DEFAULT__</target_dir>
<tm_dir>__DEFAULT__</tm_dir><glossary_dir>__DEFAULT__</glossary_dir><dictionary_dir>__DEFAULT__</dictionary_dir>
<source_lang>EN</source_lang><target_lang>DE</target_lang><sentence_seg>false</sentence_seg></project></omegat>
"""
_SEGMENT = re.compile(r"<seg>(.*?)</seg>", re.DOTALL)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")


def make_project(folder: Path, files: dict[str, bytes]) -> None:
    """Write a project with these files."""
    for name in ("source", "target", "omegat", "tm", "glossary", "dictionary"):
        (folder / name).mkdir(parents=True)
    (folder / "omegat.project").write_text(_PROJECT, encoding="utf-8")
    for name, content in files.items():
        (folder / "source" / name).write_bytes(content)


def run_omegat(program: str, folder: Path, *arguments: str) -> str:
    """Run OmegaT on a project, and return what it prints."""
    command = [program, str(folder), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    return result.stdout + result.stderr


def list_segments(program: str, folder: Path) -> set[str]:
    """Return the segments that OmegaT reads in a project, without tags."""
    output = folder / "segments.tmx"
    printed = run_omegat(
        program,
        folder,
        "--mode=console-createpseudotranslatetmx",
        f"--pseudotranslatetmx={output}",
        "--pseudotranslatetype=equal",
    )
    if not output.exists():
        raise SystemExit(f"OmegaT wrote no list of segments:\n{printed[-2000:]}")
    return {fold(html.unescape(segment)) for segment in _SEGMENT.findall(output.read_text(encoding="utf-8"))}


def fold(text: str) -> str:
    """Return a text without tags and without the spaces that a format may change."""
    return "".join(_TAG.sub("", text).split())


def measure(program: str, kind: str, paths: list[Path]) -> tuple[Counter[str], list[str]]:
    """Return counts of the files and texts of a format, and the texts that OmegaT does not read."""
    counts: Counter[str] = Counter()
    originals: dict[str, bytes] = {}
    written: dict[str, bytes] = {}
    texts: dict[str, str] = {}
    for number, path in enumerate(paths):
        name, content = f"{number}.{kind}", path.read_bytes()
        if (result := translate(path.name, content)) is not None:
            originals[name], written[name] = content, result[0]
            texts.update((fold(source), fold(text)) for source, text in result[1])
    counts["files"] = len(written)
    with tempfile.TemporaryDirectory() as name:
        before, after = Path(name) / "before", Path(name) / "after"
        make_project(before, originals)
        make_project(after, written)
        known, segments = list_segments(program, before), list_segments(program, after)
        if kind in SOURCE_FORMATS | TARGET_FORMATS:
            run_omegat(program, after, "--mode=console-translate")
            counts["written"] = sum(1 for path in (after / "target").iterdir() if path.stat().st_size)
    expected = {
        (source if kind in SOURCE_FORMATS else text)
        for source, text in texts.items()
        if (source in known or kind in TARGET_FORMATS) and any(map(str.isalnum, source))
    }
    counts["texts"] = len(expected)
    missing = sorted(expected - segments)
    counts["missing"] = len(missing)
    return counts, missing


def main() -> int:
    """Print a table. The status is 1 if OmegaT does not read a text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--files", type=int, default=20, help="most files of each format")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS))
    parser.add_argument("--omegat", default="omegat", help="the program")
    options = parser.parse_args()
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    print("| format | files | texts that OmegaT reads in the original | missing in ours | files that OmegaT wrote |")
    print("| --- " * 5 + "|")
    for kind, paths in find_files(options.folders, options.files, random.Random(1)).items():
        if kind not in options.formats:
            continue
        rows[kind], missing = measure(options.omegat, kind, paths)
        row = rows[kind]
        print(f"| {kind} | {row['files']} | {row['texts']:,} | {row['missing']} | {row['written'] or ''} |", flush=True)
        for text in missing[:3]:
            print(f"MISSING {kind}: {text[:100]!r}")
    return int(any(row["missing"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
