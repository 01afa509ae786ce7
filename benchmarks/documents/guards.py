"""Guards: false alarms on human translations, and how many artificial damages each check finds.

    PYTHONPATH=benchmarks python -m documents.guards ../shared/data [--annotated corpus_w_annotations.csv]

The limits of lengths are measured on the training pairs of each corpus, as `dragoman train` does. The test pairs, which have
other sources, are first checked as they are. Then each damage is made on those for which it is possible.

`--annotated` reads the set of Guerreiro et al. (2023): data/corpus_w_annotations.csv of deep-spin/hallucinations-in-nmt. It has
outputs of a German-English model, with the classes that people gave them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.text.guards import Check, check_translation
from dragoman.text.length_ratios import LengthRatios, measure_length_ratios

CORPORA = (
    "libreoffice-help/en-de", "libreoffice-help/en-fr", "libreoffice-help/en-zh", "debian-descriptions/en-de",
    "debian-descriptions/en-fr", "tatoeba/en-de", "tatoeba/en-fr", "tatoeba/en-zh",
)  # fmt: skip
NEWS = {"de": "deu", "fr": "fra", "cs": "ces", "zh": "zho-CN"}
CHECKS: tuple[Check, ...] = ("numbers", "urls", "repetition", "length", "endpunc", "untranslated", "script")
MAX_PAIRS = 3000

Pair = tuple[str, str]
Damage = Callable[[str, str, Sequence[Pair], random.Random], str | None]
"""Function from a source, its translation and other pairs to a damaged translation; None if the damage is not possible."""


def split_words(text: str) -> tuple[list[str], str]:
    """Return the words of a text and what joins them; the characters of a text without spaces."""
    words = text.split()
    return (words, " ") if len(words) > 3 else (list(text), "")


def repeat_words(source: str, target: str, others: Sequence[Pair], rng: random.Random) -> str | None:
    """Repeat a group of one to three words three to five times in a row."""
    words, space = split_words(target)
    if len(words) < 5:
        return None
    size = rng.randint(1, 3)
    start = rng.randrange(len(words) - size)
    return space.join(words[: start + size] + words[start : start + size] * rng.randint(3, 5) + words[start + size :])


def repeat_sentence(source: str, target: str, others: Sequence[Pair], rng: random.Random) -> str | None:
    """Write the translation three times."""
    return " ".join([target] * 3)


def omit_words(source: str, target: str, others: Sequence[Pair], rng: random.Random) -> str | None:
    """Keep the first third of the words."""
    words, space = split_words(target)
    return space.join(words[: len(words) // 3]) if len(words) >= 6 else None


def detach(source: str, target: str, others: Sequence[Pair], rng: random.Random) -> str | None:
    """Return the translation of another source."""
    other = rng.choice(others)
    return other[1] if other[0] != source else None


def copy_source(source: str, target: str, others: Sequence[Pair], rng: random.Random) -> str | None:
    """Return the source."""
    return source if source != target and len(source.split()) >= 4 else None


def change_number(source: str, target: str, others: Sequence[Pair], rng: random.Random) -> str | None:
    """Change a digit of a number of three or more digits, which the source has as well."""
    numbers = [match for match in re.finditer(r"\d{3,}", target) if match[0] in source]
    if not numbers:
        return None
    match = rng.choice(numbers)
    position = rng.randrange(match.start(), match.end())
    return target[:position] + str((int(target[position]) + rng.randint(1, 9)) % 10) + target[position + 1 :]


def omit_number(source: str, target: str, others: Sequence[Pair], rng: random.Random) -> str | None:
    """Leave out a number of two or more digits."""
    numbers = [match for match in re.finditer(r"\d{2,}", target) if match[0] in source and int(match[0]) > 12]
    return None if not numbers else target.replace(rng.choice(numbers)[0], "", 1)


def change_address(source: str, target: str, others: Sequence[Pair], rng: random.Random) -> str | None:
    """Leave out a letter of an address."""
    addresses = [match for match in re.finditer(r"https?://[\w./-]{8,}", target) if match[0] in source]
    if not addresses:
        return None
    position = rng.choice(addresses).start() + 9
    return target[:position] + target[position + 1 :]


def change_script(source: str, target: str, others: Sequence[Pair], rng: random.Random) -> str | None:
    """Write each letter as a Cyrillic one."""
    return "".join("\u0430" if character.isalpha() else character for character in target)


DAMAGES: dict[str, Damage] = {
    "group of words 4 to 6 times": repeat_words,
    "whole translation 3 times": repeat_sentence,
    "first third only": omit_words,
    "translation of another text": detach,
    "copy of the source": copy_source,
    "digit changed": change_number,
    "number left out": omit_number,
    "address changed": change_address,
    "other script": change_script,
}


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file of two columns."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        pairs = [line.rstrip("\n").split("\t") for line in stream]
    return [(pair[0], pair[1]) for pair in pairs if len(pair) == 2 and pair[0] and pair[1]]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().split("\n")[:-1]


def read_sets(folder: Path) -> dict[str, tuple[list[Pair], LengthRatios | None]]:
    """Return the test pairs of each corpus and its limits of lengths; news has those of the help of its language."""
    sets: dict[str, tuple[list[Pair], LengthRatios | None]] = {}
    for name in CORPORA:
        lengths = [(len(source), len(target)) for source, target in read_pairs(folder / name / "train.tsv.gz")]
        sets[name] = read_pairs(folder / name / "test.tsv.gz")[:MAX_PAIRS], measure_length_ratios(lengths)
    sources = read_lines(folder / "ntrex" / "newstest2019-src.eng.gz")
    for code, name in NEWS.items():
        targets = read_lines(folder / "ntrex" / f"newstest2019-ref.{name}.gz")
        sets[f"ntrex/en-{code}"] = list(zip(sources, targets, strict=True)), None
    return sets


def count_checks(pairs: Sequence[Pair], language: str, ratios: LengthRatios | None) -> Counter[str]:
    """Return how many pairs fail each check, and any of them."""
    counts: Counter[str] = Counter()
    for source, target in pairs:
        failed = check_translation(source, target, language, ratios)
        counts.update(failed)
        counts["any"] += bool(failed)
    return counts


def _write_row(name: str, counts: Counter[str], total: int) -> str:
    shares = [f"{counts[check] / total:.1%}" if total else "-" for check in (*CHECKS, "any")]
    return f"| {name} | {total:,} | " + " | ".join(shares) + " |"


def _print_header(title: str) -> None:
    print(f"\n| {title} | pairs | {' | '.join(CHECKS)} | any |\n| --- " + "| --- " * (len(CHECKS) + 2) + "|")


def measure_sets(folder: Path) -> None:
    """Print false alarms by corpus, found damages by kind, and the precision of each check."""
    sets = read_sets(folder)
    _print_header("human translations")
    clean: Counter[str] = Counter()
    num_clean = 0
    for name, (pairs, ratios) in sets.items():
        counts = count_checks(pairs, name[-2:], ratios)
        print(_write_row(name, counts, len(pairs)))
        clean += counts
        num_clean += len(pairs)
    print(_write_row("all", clean, num_clean))
    _print_header("damaged translations")
    detected: dict[str, float] = dict.fromkeys((*CHECKS, "any"), 0.0)
    num_damaged = 0
    for damage, make in DAMAGES.items():
        total: Counter[str] = Counter()
        size = 0
        for name, (pairs, ratios) in sets.items():
            rng = random.Random(f"{damage} {name}")
            damaged = [
                (source, text) for source, target in pairs if (text := make(source, target, pairs, rng)) not in (None, target)
            ]
            total += count_checks([(source, text or "") for source, text in damaged], name[-2:], ratios)
            size += len(damaged)
        print(_write_row(damage, total, size))
        for check in (*CHECKS, "any"):
            detected[check] += total[check] / size
        num_damaged += 1
    print("\n| precision, if one translation in 20 is damaged | " + " | ".join((*CHECKS, "any")) + " |")
    print("| --- " * (len(CHECKS) + 2) + "|")
    shares = []
    for check in (*CHECKS, "any"):
        right, wrong = 0.05 * detected[check] / num_damaged, 0.95 * clean[check] / num_clean
        shares.append(f"{right / (right + wrong):.2f}" if right + wrong else "-")
    print("| equally many of each kind | " + " | ".join(shares) + " |")


def measure_annotated(path: Path) -> None:
    """Print, for each check, the flagged outputs, its precision, and the found outputs of each class."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    classes = ("repetitions", "strong-unsupport", "full-unsupport", "omission", "named-entities")
    print(
        f"\n{len(rows):,} annotated outputs\n\n| check | flagged | precision, hallucinations | precision, any error |", end=""
    )
    print("".join(f" {name} of {sum(int(row[name]) for row in rows)} |" for name in classes) + "\n" + "| --- " * 9 + "|")
    flags = [check_translation(row["src"], row["mt"], "en") for row in rows]
    for check in (*CHECKS, "any"):
        flagged = [row for row, failed in zip(rows, flags, strict=True) if check in failed or (check == "any" and failed)]
        hallucinations = sum(any(int(row[name]) for name in classes[:3]) for row in flagged)
        errors = sum(any(int(row[name]) for name in classes) for row in flagged)
        shares = [f"{count / len(flagged):.2f}" if flagged else "-" for count in (hallucinations, errors)]
        detected = [str(sum(int(row[name]) for row in flagged)) for name in classes]
        print(f"| {check} | {len(flagged)} | " + " | ".join(shares + detected) + " |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the corpora")
    parser.add_argument("--annotated", type=Path, help="the annotated set, a CSV file")
    options = parser.parse_args()
    measure_sets(options.folder)
    if options.annotated is not None:
        measure_annotated(options.annotated)


if __name__ == "__main__":
    main()
