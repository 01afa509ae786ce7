"""Training text of the benchmark: the same pairs and pieces for every system, in the formats that they read.

The text is Multi30k English-German (lower-cased, tokenized) if it is available, else synthetic text of similar lengths.
10,000 joint pieces are trained once.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from common.pieces import train_pieces

VOCABULARY = 10_000
SPECIAL = 4  # padding, unknown, begin, end: the first ids
PAIRS = {"train": 29_000, "valid": 1_014}
SIDES = ("en", "de")
SEED = 1
LONGEST = 100  # most pieces on a side; no system trains on longer pairs

Pair = tuple[str, str]


@dataclass(frozen=True)
class Lengths:
    """Training pairs, and the sum of their target tokens with end tokens."""

    pairs: int = 0
    t: int = 0


@dataclass(frozen=True)
class TrainingText:
    """Folder with `PART.SIDE` as text, `PART.bpe.SIDE` as pieces and `PART.ids.SIDE` as ids."""

    folder: Path
    lengths: Lengths
    description: str

    @property
    def pieces(self) -> Path:
        """Return the path of the SentencePiece model."""
        return self.folder / "pieces.model"

    @property
    def vocabulary(self) -> Path:
        """Return the path of the vocabulary, a piece a line, without special tokens."""
        return self.folder / "pieces.txt"

    @property
    def counted_vocabulary(self) -> Path:
        """Return the path of the vocabulary with counts."""
        return self.folder / "pieces-counted.txt"


def make_training_text(shared: Path, folder: Path) -> TrainingText:
    """Return the text in `folder`; write it if it is not complete."""
    real = (shared / "multi30k" / "tok").is_dir()
    described = "Multi30k, en-de" if real else f"synthetic text, because {shared} holds no Multi30k"
    folder = folder / ("multi30k" if real else "synthetic")
    marker = folder / "whole-2.json"
    if not marker.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pairs = {part: list(_multi30k(shared, part) if real else _synthetic(part)) for part in PAIRS}
        marker.write_text(json.dumps(asdict(_write(folder, pairs))))
    return TrainingText(folder, Lengths(**json.loads(marker.read_text())), described)


def _multi30k(shared: Path, part: str) -> Iterator[Pair]:
    name = {"valid": "val"}.get(part, part)
    paths = [shared / "multi30k" / "tok" / f"{name}.{side}.gz" for side in SIDES]
    with gzip.open(paths[0], "rt", encoding="utf-8") as sources, gzip.open(paths[1], "rt", encoding="utf-8") as targets:
        for source, target in zip(sources, targets, strict=True):
            yield source.strip(), target.strip()


def _synthetic(part: str) -> Iterator[Pair]:
    """Yield pairs of random words by Zipf's law, each word with one translation, as long as captions."""
    rng = random.Random(SEED)
    syllables = [first + vowel + last for first in "bdfgklmnprst" for vowel in "aeiou" for last in ("", "n", "r", "s", "l")]
    lexicon = [tuple("".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in SIDES) for _ in range(12_000)]
    weights = [1.0 / rank for rank in range(3, 12_003)]
    rng = random.Random(part)
    for _ in range(PAIRS[part]):
        words = rng.choices(lexicon, weights, k=min(max(round(rng.gauss(12.0, 4.0)), 4), 40))
        yield " ".join(word[0] for word in words), " ".join(word[1] for word in words)


def _write(folder: Path, pairs: dict[str, list[Pair]]) -> Lengths:
    lines = (side for pair in pairs["train"] for side in pair)
    processor = train_pieces(folder / "pieces.model", VOCABULARY, sentence_iterator=lines, normalization_rule_name="identity")
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())][SPECIAL:]
    counts: Counter[str] = Counter()
    lengths = Lengths()
    for part, side_pairs in pairs.items():
        encoded = [[processor.encode(side, out_type=str) for side in pair] for pair in side_pairs]
        selected = [number for number, pair in enumerate(encoded) if all(0 < len(side) < LONGEST for side in pair)]
        for index, side in enumerate(SIDES):
            rows = [encoded[number][index] for number in selected]
            _write_lines(folder / f"{part}.{side}", [side_pairs[number][index] for number in selected])
            _write_lines(folder / f"{part}.bpe.{side}", [" ".join(row) for row in rows])
            _write_lines(folder / f"{part}.ids.{side}", [" ".join(map(str, processor.piece_to_id(row))) for row in rows])
        if part == "train":
            counts.update(piece for number in selected for side in encoded[number] for piece in side)
            lengths = Lengths(len(selected), sum(len(encoded[number][1]) + 1 for number in selected))
    _write_lines(folder / "pieces.txt", pieces)
    _write_lines(folder / "pieces-counted.txt", [f"{piece}\t{counts[piece] or 1}" for piece in pieces])
    return lengths


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
