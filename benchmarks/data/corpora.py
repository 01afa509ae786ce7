"""Corpora of the data benchmark: real pairs, and variations of them.

The real text is English-German (Tatoeba, LibreOffice help, Debian package descriptions, the Bible, Multi30k).
If these corpora are absent, dragoman's synthetic phrases take their place and the report says so.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.pieces import train_pieces

TSV = ("tatoeba", "libreoffice-help", "debian-descriptions", "bible")
PHRASES = 60_000
SEED = 1

Pair = tuple[str, str]

# Characters that a program may read as the end of a line or of a field.
_BREAKS = str.maketrans(dict.fromkeys("\t\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))
# Digit substitutions by round: numbers differ between rounds and agree between the sides.
_DIGITS = [
    str.maketrans("0123456789", "".join(str((digit + round_number) % 10) for digit in range(10))) for round_number in range(10)
]


@dataclass(frozen=True)
class TextCorpus:
    """Corpus of two text files, in which equal line numbers are translations."""

    source: Path
    target: Path
    pairs: int

    @property
    def files(self) -> tuple[Path, Path]:
        return self.source, self.target


@dataclass(frozen=True)
class BaseCorpus:
    """Real pairs and the SentencePiece model that every program uses."""

    text: TextCorpus
    model: Path
    vocab_size: int
    description: str


def read_tsv(path: Path) -> Iterator[Pair]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        for line in stream:
            source, _, target = line.rstrip("\n").partition("\t")
            yield source, target


def read_multi30k(folder: Path) -> Iterator[Pair]:
    with (
        gzip.open(folder / "train.en.gz", "rt", encoding="utf-8", newline="\n") as sources,
        gzip.open(folder / "train.de.gz", "rt", encoding="utf-8", newline="\n") as targets,
    ):
        for source, target in zip(sources, targets, strict=True):
            yield source.rstrip("\n"), target.rstrip("\n")


def _shared_pairs(shared: Path) -> Iterator[Pair]:
    for name in TSV:
        yield from read_tsv(shared / name / "en-de" / "train.tsv.gz")
    yield from read_multi30k(shared / "multi30k" / "raw")


def _phrases() -> list[Pair]:
    from dragoman.data.synthetic_corpus import make_phrases

    return [(pair.source, pair.target) for pair in make_phrases("de", seed=SEED, train=PHRASES, valid=0, test=0).train]


def write_text(folder: Path, name: str, pairs: Iterator[Pair]) -> TextCorpus:
    """Write both sides, without pairs that have an empty side; keep a text that is complete already."""
    text = TextCorpus(folder / f"{name}.en", folder / f"{name}.de", 0)
    whole = folder / f"{name}.json"
    if whole.exists():
        return TextCorpus(*text.files, json.loads(whole.read_text())["pairs"])
    count = 0
    folder.mkdir(parents=True, exist_ok=True)
    with (
        text.source.open("w", encoding="utf-8", newline="\n") as sources,
        text.target.open("w", encoding="utf-8", newline="\n") as targets,
    ):
        for source, target in pairs:
            if source.strip() and target.strip():
                sources.write(source.translate(_BREAKS) + "\n")
                targets.write(target.translate(_BREAKS) + "\n")
                count += 1
    whole.write_text(json.dumps({"pairs": count}))
    return TextCorpus(*text.files, count)


def read_text(text: TextCorpus) -> Iterator[Pair]:
    with (
        text.source.open(encoding="utf-8", newline="\n") as sources,
        text.target.open(encoding="utf-8", newline="\n") as targets,
    ):
        for source, target in zip(sources, targets, strict=True):
            yield source.rstrip("\n"), target.rstrip("\n")


def make_base(shared: Path, folder: Path) -> BaseCorpus:
    """Write all real pairs in a random order and train a SentencePiece model of 32,000 pieces on them."""
    real = (shared / "tatoeba").is_dir()
    size, name = (32_000, "base") if real else (1_000, "phrases")
    description = (
        "Tatoeba, LibreOffice, Debian, Bible and Multi30k, en-de" if real else f"dragoman's phrases: no corpora in {shared}"
    )

    def shuffled() -> Iterator[Pair]:
        pairs = list(_shared_pairs(shared)) if real else _phrases()
        random.Random(SEED).shuffle(pairs)
        yield from pairs

    text = write_text(folder, name, shuffled())
    model = folder / f"{name}.model"
    if not model.exists():
        # The settings of dragoman's default recipe.
        train_pieces(model, size, input=list(map(str, text.files)), byte_fallback=True, max_sentence_length=65_536)
    return BaseCorpus(text, model, size, description)


def make_large(base: BaseCorpus, folder: Path, pairs: int) -> TextCorpus:
    """Write `pairs` pairs: the base repeatedly, each round in a new order with other digits and a running number."""

    def varied() -> Iterator[Pair]:
        originals = list(read_text(base.text))
        for number in range(pairs):
            round_number, index = divmod(number, len(originals))
            if index == 0:
                random.Random(SEED + round_number).shuffle(originals)
            source, target = originals[index]
            digits = _DIGITS[round_number % 10]
            yield f"{source.translate(digits)} {number}", f"{target.translate(digits)} {number}"

    return write_text(folder, f"{base.text.source.stem}-{pairs}", varied())


def fill_page_cache(*paths: Path) -> None:
    """Read files completely, so that the next program finds them in the page cache."""
    for path in paths:
        with path.open("rb") as stream:
            while stream.read(1 << 20):
                pass
