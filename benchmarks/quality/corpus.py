"""Multi30k, or every so manieth of its training pairs, and these in two halves: every other pair, so that neither is of another
kind.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TRAIN, VALID = "train", "val"
Pairs = Literal["all", "first", "second"]
"""All that are learnt from, or a half of them."""


class NoText(Exception):
    """There is nothing to learn from here; the message says why."""


@dataclass(frozen=True)
class Corpus:
    """tok: the tokenised files"""

    tok: Path
    cut: Path

    def train(self, pairs: Pairs, language: str) -> Path:
        return self.cut / f"{pairs}.{language}"

    def valid(self, language: str) -> list[str]:
        return _lines(self.tok / f"{VALID}.{language}.gz")


def find_corpus(shared: Path, work: Path, every: int = 1) -> Corpus:
    """every: 4 for every fourth pair alone, which is a small corpus. Raises NoText."""
    tok = shared / "multi30k" / "tok"
    if not tok.is_dir():
        raise NoText(f"no Multi30k in {shared}: nothing to learn from")
    corpus = Corpus(tok, work / f"pairs-{every}")
    corpus.cut.mkdir(parents=True, exist_ok=True)
    for language in ("en", "de"):
        lines = _lines(tok / f"{TRAIN}.{language}.gz")[::every]
        some: dict[Pairs, list[str]] = {"all": lines, "first": lines[::2], "second": lines[1::2]}
        for pairs in some:
            corpus.train(pairs, language).write_text("".join(f"{line}\n" for line in some[pairs]), encoding="utf-8")
    return corpus


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().split("\n")[:-1]
