"""Speed, start and memory of one system with a student of Firefox: dragoman, line by line or in batches, or fxtranslate.

    PYTHONPATH=benchmarks python -m inference.students {dragoman,fxtranslate} MODEL TEXT [--shortlist] [--batch 32]

MODEL is the bundle for dragoman, and the folder with Mozilla's files for fxtranslate, which needs its package.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def open_fxtranslate(folder: Path, has_shortlist: bool) -> Callable[[list[str]], list[str]]:
    """Return a function that translates lines one by one, as fxtranslate does."""

    def read(pattern: str) -> bytes:
        return next(folder.glob(pattern)).read_bytes()

    vocabulary, shortlist = read("vocab*.spm"), read("lex*.bin") if has_shortlist else None
    translator = import_module("fxtranslate").Translator(read("model*.bin"), vocabulary, vocabulary, shortlist=shortlist)
    return lambda lines: [translator.translate(line) for line in lines]


def open_dragoman(bundle: Path, has_shortlist: bool) -> Callable[[list[str]], object]:
    """Return a function that translates lines in one batch, with int8 on one thread."""
    dragoman = import_module("dragoman")
    options = {"device": "cpu", "precision": "int8", "intra_threads": 1, "inter_threads": 1}
    translator = dragoman.load(bundle, task="translation", shortlist=bundle if has_shortlist else None, **options)
    return lambda lines: translator.translate(lines)


def main() -> None:
    """Print the seconds of the processor for the start with one line and for all lines, and the memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=["dragoman", "fxtranslate"])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--shortlist", action="store_true")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--lines", type=int, default=200)
    args = parser.parse_args()
    lines = args.text.read_text(encoding="utf-8").splitlines()[: args.lines]
    translate = (open_dragoman if args.system == "dragoman" else open_fxtranslate)(args.model, args.shortlist)
    translate(lines[:1])
    start, wall = time.process_time(), time.perf_counter()
    for first in range(0, len(lines), args.batch):
        translate(lines[first : first + args.batch])
    figures = {
        "start": start,
        "seconds": time.process_time() - start,
        "wall": time.perf_counter() - wall,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
