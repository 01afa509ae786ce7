"""Multi30k or every n-th of its training pairs, split into two halves of alternating pairs."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TRAIN, VALID = "train", "val"
Pairs = Literal["all", "first", "second"]
"""All training pairs, or one half of them."""


class MissingMulti30kError(Exception):
    """Error for a missing corpus; the message gives the reason."""


@dataclass(frozen=True)
class Multi30kCorpus:
    """Paths of the corpus. tokenized_path: the tokenized files; subset_path: the written subsets."""

    tokenized_path: Path
    subset_path: Path

    def train(self, pairs: Pairs, language: str) -> Path:
        return self.subset_path / f"{pairs}.{language}"

    def valid(self, language: str) -> list[str]:
        return _lines(self.tokenized_path / f"{VALID}.{language}.gz")


def find_corpus(shared: Path, work: Path, every: int = 1) -> Multi30kCorpus:
    """Return the corpus with every `every`-th pair. Raises MissingMulti30kError."""
    tok = shared / "multi30k" / "tok"
    if not tok.is_dir():
        raise MissingMulti30kError(f"{shared}: holds no Multi30k; give its folder by --shared")
    corpus = Multi30kCorpus(tok, work / f"pairs-{every}")
    corpus.subset_path.mkdir(parents=True, exist_ok=True)
    for language in ("en", "de"):
        lines = _lines(tok / f"{TRAIN}.{language}.gz")[::every]
        subsets: dict[Pairs, list[str]] = {"all": lines, "first": lines[::2], "second": lines[1::2]}
        for pairs in subsets:
            corpus.train(pairs, language).write_text("".join(f"{line}\n" for line in subsets[pairs]), encoding="utf-8")
    return corpus


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().split("\n")[:-1]
