"""Data of the adaptation benchmark: LibreOffice help, test sets of the old domains, and pairs of three languages.

All files are TSV with source and target column. The order of the pairs is that of a hash of the pair, so it does not depend on
the order of the corpora.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

Pair = tuple[str, str]

ADAPTATION_SIZES = (100, 1_000, 10_000)
MAX_WORDS = 40
OLD_TEST_SENTENCES = 200
"""Test sentences of each of the four old domains."""
REHEARSAL_SENTENCES = 5_000
"""Training sentences of each old domain that a rehearsal mixes in."""
OLD_DOMAINS = ("tatoeba", "debian", "bible", "multi30k")
LANGUAGES = ("de", "fr", "ja")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")


class MissingCorpusError(Exception):
    """Error for a missing corpus; the message gives the reason."""


@dataclass(frozen=True)
class Corpora:
    """Folder of the open corpora, as recipe general-ende names them."""

    root: Path

    def read_libreoffice(self, language: str, split: str) -> list[Pair]:
        """Return English and `language`. Japanese comes from the tagged corpus, without its tags."""
        if language == "ja":
            pairs = read_tsv(self._find(f"libreoffice-help-tagged/en-ja/{split}.tsv.gz"))
            stripped = ((strip_tags(source), strip_tags(target)) for source, target in pairs)
            return [pair for pair in dict.fromkeys(stripped) if all(pair)]
        return read_tsv(self._find(f"libreoffice-help/en-{language}/{split}.tsv.gz"))

    def read_old_domain(self, domain: str, split: str) -> list[Pair]:
        """Return English and German of `train`, `dev` or `test`."""
        match domain:
            case "multi30k":
                stem = {"train": "train", "dev": "val", "test": "test_2016_flickr"}[split]
                sides = [read_lines(self._find(f"multi30k/raw/{stem}.{language}.gz")) for language in ("en", "de")]
                return list(zip(*sides, strict=True))
            case "debian":
                return read_tsv(self._find(f"debian-descriptions/en-de/{split}.tsv.gz"))
            case _:
                return read_tsv(self._find(f"{domain}/en-de/{split}.tsv.gz"))

    def _find(self, name: str) -> Path:
        path = self.root / name
        if not path.is_file():
            raise MissingCorpusError(f"{path}: no such file; give the folder of the corpora by --shared")
        return path


def read_lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\r\n") for line in file]


def read_tsv(path: Path) -> list[Pair]:
    rows = (line.split("\t") for line in read_lines(path))
    return [(row[0], row[1]) for row in rows]


def strip_tags(text: str) -> str:
    """Return the text without inline tags, with single spaces."""
    return " ".join(_TAG.sub("", text).split())


def order_by_hash(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the pairs in the order of the SHA-256 of `source TAB target`."""
    return sorted(pairs, key=lambda pair: hashlib.sha256("\t".join(pair).encode()).digest())


def select_adaptation_pairs(pairs: Sequence[Pair], evaluated: Iterable[Pair], size: int) -> list[Pair]:
    """Return `size` distinct pairs of at most 40 words a side, none of whose sides is in `evaluated`.

    A smaller selection is the start of a larger one.
    """
    sides = {side for pair in evaluated for side in pair}
    usable = [
        pair
        for pair in dict.fromkeys(pairs)
        if not sides.intersection(pair) and max(len(side.split()) for side in pair) <= MAX_WORDS
    ]
    return order_by_hash(usable)[:size]


def select_language_pairs(corpora: Corpora) -> dict[str, dict[str, list[Pair]]]:
    """Return the pairs of each language and split. No training pair has a side of any validation or test set."""
    splits = ("train", "dev", "test")
    pairs = {language: {split: corpora.read_libreoffice(language, split) for split in splits} for language in LANGUAGES}
    evaluated = {side for by_split in pairs.values() for split in ("dev", "test") for pair in by_split[split] for side in pair}
    for by_split in pairs.values():
        by_split["train"] = [pair for pair in dict.fromkeys(by_split["train"]) if not evaluated.intersection(pair)]
    return pairs


def join_on_source(first: Sequence[Pair], second: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of the targets that have an equal source."""
    targets = dict(second)
    return [(target, targets[source]) for source, target in dict(first).items() if source in targets]


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write PATH.tsv, and its sides to PATH.source and PATH.target."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix, lines in (
        (".tsv", ["\t".join(pair) for pair in pairs]),
        (".source", [source for source, _ in pairs]),
        (".target", [target for _, target in pairs]),
    ):
        path.with_name(path.name + suffix).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def prepare_adaptation(corpora: Corpora, folder: Path) -> None:
    """Write the subsets of the new domain, and the validation and test sets of both domains."""
    dev, test = corpora.read_libreoffice("de", "dev"), corpora.read_libreoffice("de", "test")
    train = corpora.read_libreoffice("de", "train")
    for size in ADAPTATION_SIZES:
        write_pairs(folder / f"new-{size}", select_adaptation_pairs(train, [*dev, *test], size))
    write_pairs(folder / "new-test", test)
    write_pairs(folder / "new-dev", order_by_hash(dev)[: 2 * OLD_TEST_SENTENCES])
    for split, sentences in (("test", OLD_TEST_SENTENCES), ("dev", OLD_TEST_SENTENCES // 2), ("train", REHEARSAL_SENTENCES)):
        old = [order_by_hash(corpora.read_old_domain(domain, split))[:sentences] for domain in OLD_DOMAINS]
        write_pairs(folder / f"old-{split}", [pair for pairs in old for pair in pairs])


def prepare_languages(corpora: Corpora, folder: Path) -> None:
    """Write the pairs of each language and split, and the German-French test set."""
    pairs = select_language_pairs(corpora)
    for language, by_split in pairs.items():
        for split, selected in by_split.items():
            write_pairs(folder / f"en-{language}-{split}", selected)
    write_pairs(folder / "de-fr-test", join_on_source(pairs["de"]["test"], pairs["fr"]["test"]))
    write_pairs(folder / "de-fr-dev", join_on_source(pairs["de"]["dev"], pairs["fr"]["dev"]))
