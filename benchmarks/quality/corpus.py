"""Multi30k, its training pairs in two halves: every other pair, so that neither is of another kind."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

TRAIN, VALID = "train", "val"


class NoText(Exception):
    """There is nothing to learn from here; the message says why."""


@dataclass(frozen=True)
class Corpus:
    """tok: the tokenised files. halves: `first.en`, `first.de`, `second.en` and `second.de`"""

    tok: Path
    halves: Path

    def valid(self, language: str) -> list[str]:
        return _lines(self.tok / f"{VALID}.{language}.gz")


def find_corpus(shared: Path, work: Path) -> Corpus:
    """Raises NoText."""
    tok = shared / "multi30k" / "tok"
    if not tok.is_dir():
        raise NoText(f"no Multi30k in {shared}: nothing to learn from")
    halves = work / "halves"
    halves.mkdir(parents=True, exist_ok=True)
    for language in ("en", "de"):
        lines = _lines(tok / f"{TRAIN}.{language}.gz")
        for first, name in enumerate(("first", "second")):
            text = "".join(f"{line}\n" for line in islice(lines, first, None, 2))
            (halves / f"{name}.{language}").write_text(text, encoding="utf-8")
    return Corpus(tok, halves)


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().split("\n")[:-1]
