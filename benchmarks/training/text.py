"""The text that every system trains on: the same pairs, in the same pieces, in the forms that they ask for.

Multi30k's English-German captions (lower-cased and tokenised) where they lie beside the project, else made-up text of similar
lengths. 10,000 joint pieces are learnt from it once.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import sentencepiece as spm

VOCABULARY = 10_000
SPECIAL = 4  # padding, unknown, begin, end: the first ids
PAIRS = {"train": 29_000, "valid": 1_014}
SIDES = ("en", "de")
SEED = 1
LONGEST = 100  # pieces on a side; longer pairs are left out for all

Pair = tuple[str, str]


@dataclass(frozen=True)
class Lengths:
    """Sums over all training pairs of s and t, the tokens of source and target with their end tokens."""

    pairs: int = 0
    s: int = 0
    t: int = 0
    ss: int = 0
    tt: int = 0
    st: int = 0


@dataclass(frozen=True)
class Corpus:
    """A folder with, for each part and side, `PART.SIDE` as text, `PART.bpe.SIDE` in pieces and `PART.ids.SIDE` as numbers."""

    folder: Path
    lengths: Lengths
    described: str

    @property
    def pieces(self) -> Path:
        """The SentencePiece model."""
        return self.folder / "pieces.model"

    @property
    def vocabulary(self) -> Path:
        """A piece a line, without the special ones."""
        return self.folder / "pieces.txt"

    @property
    def counted(self) -> Path:
        """The same with how often each comes, which some ask for."""
        return self.folder / "pieces-counted.txt"


def make_corpus(shared: Path, folder: Path) -> Corpus:
    """The text in `folder`/NAME, made where it is not there whole."""
    real = (shared / "multi30k" / "tok").is_dir()
    described = "Multi30k, en-de" if real else f"made-up text: no Multi30k in {shared}"
    folder = folder / ("multi30k" if real else "made-up")
    whole = folder / "whole.json"
    if not whole.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pairs = {part: list(_multi30k(shared, part) if real else _made_up(part)) for part in PAIRS}
        whole.write_text(json.dumps(asdict(_write(folder, pairs))))
    return Corpus(folder, Lengths(**json.loads(whole.read_text())), described)


def _multi30k(shared: Path, part: str) -> Iterator[Pair]:
    name = {"valid": "val"}.get(part, part)
    paths = [shared / "multi30k" / "tok" / f"{name}.{side}.gz" for side in SIDES]
    with gzip.open(paths[0], "rt", encoding="utf-8") as sources, gzip.open(paths[1], "rt", encoding="utf-8") as targets:
        for source, target in zip(sources, targets, strict=True):
            yield source.strip(), target.strip()


def _made_up(part: str) -> Iterator[Pair]:
    """Words of syllables, drawn by Zipf's law, each with one translation; as long as captions are."""
    chance = random.Random(SEED)
    syllables = [first + vowel + last for first in "bdfgklmnprst" for vowel in "aeiou" for last in ("", "n", "r", "s", "l")]
    lexicon = [tuple("".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in SIDES) for _ in range(12_000)]
    weights = [1.0 / rank for rank in range(3, 12_003)]
    chance = random.Random(part)
    for _ in range(PAIRS[part]):
        words = chance.choices(lexicon, weights, k=min(max(round(chance.gauss(12.0, 4.0)), 4), 40))
        yield " ".join(word[0] for word in words), " ".join(word[1] for word in words)


def _write(folder: Path, pairs: dict[str, list[Pair]]) -> Lengths:
    processor = _learn(pairs["train"], folder / "pieces.model")
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())][SPECIAL:]
    counts: Counter[str] = Counter()
    lengths = Lengths()
    for part, told in pairs.items():
        encoded = [[processor.encode(side, out_type=str) for side in pair] for pair in told]
        kept = [number for number, pair in enumerate(encoded) if all(0 < len(side) < LONGEST for side in pair)]
        for index, side in enumerate(SIDES):
            rows = [encoded[number][index] for number in kept]
            _write_lines(folder / f"{part}.{side}", [told[number][index] for number in kept])
            _write_lines(folder / f"{part}.bpe.{side}", [" ".join(row) for row in rows])
            _write_lines(folder / f"{part}.ids.{side}", [" ".join(map(str, processor.piece_to_id(row))) for row in rows])
        if part == "train":
            counts.update(piece for number in kept for side in encoded[number] for piece in side)
            both = [(len(encoded[number][0]) + 1, len(encoded[number][1]) + 1) for number in kept]
            sums = [sum(column) for column in zip(*((s, t, s * s, t * t, s * t) for s, t in both), strict=True)]
            lengths = Lengths(len(both), *sums)
    _write_lines(folder / "pieces.txt", pieces)
    _write_lines(folder / "pieces-counted.txt", [f"{piece}\t{counts[piece] or 1}" for piece in pieces])
    return lengths


def _learn(pairs: list[Pair], model: Path) -> spm.SentencePieceProcessor:
    """With the special ids where dragoman has them."""
    with model.open("wb") as written:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(side for pair in pairs for side in pair),
            model_writer=written,
            model_type="bpe",
            vocab_size=VOCABULARY,
            character_coverage=1.0,
            normalization_rule_name="identity",
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            num_threads=2,
            minloglevel=2,
        )
    return spm.SentencePieceProcessor(model_file=str(model))


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
