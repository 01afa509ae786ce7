"""Places of tags in translations of LibreOffice help: our projection beside Bergamot's scheme, with the same attention.

    PYTHONPATH=benchmarks python -m documents.tag_placement ../shared/data/libreoffice-help-tagged

The translations are the references without their tags, so the words are right and only the places count. The attention of each
target word is the mean of the posteriors of two IBM models 2, one for each direction, with a prior near the diagonal. They are
estimated from the pairs of the language, so no translation model is needed.

An element is exact if it has the target words of the reference's element, all and no others, in one piece. Texts are divided
into sentences, and a pair of tags around a whole sentence is left out, as `translate-file` does; `--whole` does neither.

Bergamot's scheme (browsermt/bergamot-translator, html.cpp) gives each target word the tags of the source word with the most
attention. Neighbors with the same tags share them. So an element can be split in several pieces or lost.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dragoman.inference.whole_texts import TextOptions, divide
from dragoman.text.inline_codes import CodedText, Element, Slot, list_markup, parse_markup
from dragoman.text.projection import project, split_units

NULL_PROBABILITY = 0.08
DIAGONAL_TENSION = 4.0
NUM_ITERATIONS = 10
HIRAGANA = re.compile("[\u3041-\u309f]")
JAPANESE_RUN = re.compile("[\u3041-\u309f]+|[\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")

Weights = npt.NDArray[np.float64]
PlacedElement = tuple[str, int, int]
"""Start tag, number of the first target unit, and of the unit after the last one."""


@dataclass(frozen=True)
class TaggedPair:
    """Source with codes, translation without them, and the elements of the reference in target units."""

    source: CodedText
    target: str
    elements: Sequence[PlacedElement]


def read_pairs(path: Path, languages: tuple[str, str], *, is_whole: bool) -> Iterator[TaggedPair]:
    """Yield the pairs of a file with the same tags on both sides.

    is_whole: keep texts of several sentences, and pairs of tags around a whole text
    """
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            source, target = (parse_markup(text, is_html=False) for text in line.rstrip("\n").split("\t"))
            pairs = [(source, target)]
            if not is_whole:
                sentences = [_divide(text, language) for text, language in zip((source, target), languages, strict=True)]
                if len(sentences[0]) == len(sentences[1]) and all(map(_have_same_tags, *sentences)):
                    pairs = list(zip(*sentences, strict=True))
                pairs = [_peel(*pair) for pair in pairs]
            yield from (
                TaggedPair(source, target.clean.text, list_elements(target.clean.slots, target.clean.text))
                for source, target in pairs
                if _have_same_tags(source, target)
                and all(has_whole_units(text.clean.slots, text.clean.text) for text in (source, target))
            )


def _divide(text: CodedText, language: str) -> list[CodedText]:
    """Return the segments that `translate-file` translates one by one."""
    pieces = divide(text.write(), TextOptions("xml", source_language=language, keep_line_breaks=False))
    return [piece for piece in pieces if isinstance(piece, CodedText)]


def _have_same_tags(source: CodedText, target: CodedText) -> bool:
    return Counter(list_markup(source.parts)) == Counter(list_markup(target.parts))


def _peel(source: CodedText, target: CodedText) -> tuple[CodedText, CodedText]:
    """Return texts without the pairs of tags that are around both."""
    while (inner_source := _get_content(source)) and (inner_target := _get_content(target)):
        source, target = inner_source, inner_target
    return source, target


def has_whole_units(slots: Sequence[Slot], text: str) -> bool:
    """Return whether the text has units, and no element ends inside one or has none."""
    units = split_units(text)
    starts, ends = {start for start, _ in units}, {end for _, end in units}
    return bool(units) and all(
        not isinstance(slot.part, Element)
        or not text[slot.start : slot.end].strip()
        or (
            slot.end - len(text[slot.start : slot.end]) + len(text[slot.start : slot.end].rstrip()) in ends
            and slot.start + len(text[slot.start : slot.end]) - len(text[slot.start : slot.end].lstrip()) in starts
            and has_whole_units(slot.children, text)
        )
        for slot in slots
    )


def _get_content(text: CodedText) -> CodedText | None:
    """Return what is inside the pair of tags around a whole text; None if there is no such pair."""
    parts = [part for part in text.parts if not (isinstance(part, str) and not part.strip())]
    if len(parts) == 1 and isinstance(parts[0], Element):
        return CodedText(parts[0].parts, is_escaped=True)
    return None


def list_elements(slots: Sequence[Slot], text: str) -> list[PlacedElement]:
    """Return the elements with text among the slots and inside them."""
    units = split_units(text)
    output: list[PlacedElement] = []
    for slot in slots:
        if isinstance(slot.part, Element):
            inside = [number for number, (start, end) in enumerate(units) if slot.start <= start and end <= slot.end]
            if inside:
                output.append((slot.part.start_tag, inside[0], inside[-1] + 1))
        output += list_elements(slot.children, text)
    return output


def estimate_weights(pairs: Sequence[TaggedPair]) -> list[Weights]:
    """Return the mean of the posteriors of both directions, as target units by source units. (T, S) each"""
    texts = [(pair.source.clean.text, pair.target) for pair in pairs]
    forward = estimate_posteriors(texts)
    backward = estimate_posteriors([(target, source) for source, target in texts])
    return [(weights + other.T) / 2 for weights, other in zip(forward, backward, strict=True)]


def estimate_posteriors(texts: Sequence[tuple[str, str]]) -> list[Weights]:
    """Return the posteriors of the source units for each target unit. (T, S) each

    The words of the models are units, and in Japanese runs of kanji and of hiragana, each character of which has the posterior
    of its run.
    """
    words = [tuple(_list_words(text) for text in pair) for pair in texts]
    posteriors = _estimate_word_posteriors(
        [
            tuple([text[start:end] for start, end, _ in side] for text, side in zip(pair, sides, strict=True))
            for pair, sides in zip(texts, words, strict=True)
        ]
    )
    return [
        np.repeat(
            np.repeat(weights / [size for _, _, size in source], [size for _, _, size in source], axis=1),
            [size for _, _, size in target],
            axis=0,
        )
        for weights, (source, target) in zip(posteriors, words, strict=True)
    ]


def _list_words(text: str) -> list[tuple[int, int, int]]:
    """Return the start, the end and the number of units of each word of a text."""
    runs = {match.start(): match.end() for match in JAPANESE_RUN.finditer(text)} if HIRAGANA.search(text) else {}
    words: list[tuple[int, int, int]] = []
    for start, end in split_units(text):
        if words and end <= words[-1][1]:
            words[-1] = (*words[-1][:2], words[-1][2] + 1)
        else:
            words.append((start, runs.get(start, end), 1))
    return words


def _estimate_word_posteriors(texts: Sequence[tuple[Sequence[str], ...]]) -> list[Weights]:
    """Return the posteriors of the source words for each target word. (T, S) each"""
    ids: dict[str, int] = {}

    def number(words: Sequence[str]) -> npt.NDArray[np.int64]:
        return np.array([ids.setdefault(word.casefold(), len(ids) + 1) for word in words], dtype=np.int64)

    sources, targets = [number(source) for source, _ in texts], [number(target) for _, target in texts]
    num_ids = len(ids) + 1
    keys, priors, sizes = [], [], []
    for source, target in zip(sources, targets, strict=True):
        keys.append((np.r_[0, source][None, :] * num_ids + target[:, None]).ravel())
        priors.append(_diagonal_prior(len(source), len(target)).ravel())
        sizes.append(np.full(len(target), len(source) + 1))
    unique, index = np.unique(np.concatenate(keys), return_inverse=True)
    prior, size = np.concatenate(priors), np.concatenate(sizes)
    start = np.r_[0, np.cumsum(size)[:-1]]
    source_of = unique // num_ids
    probability = np.ones(len(unique))
    for iteration in range(NUM_ITERATIONS + 1):
        posterior = probability[index]
        if iteration >= NUM_ITERATIONS / 2:
            posterior *= prior
        posterior /= np.repeat(np.add.reduceat(posterior, start), size)
        counts = np.bincount(index, posterior, len(unique))
        probability = counts / np.maximum(np.bincount(source_of, counts), 1e-12)[source_of]
        probability = np.maximum(probability, 1e-9)
    weights, position = [], 0
    for source, target in zip(sources, targets, strict=True):
        cells = (len(source) + 1) * len(target)
        weights.append(posterior[position : position + cells].reshape(len(target), -1)[:, 1:])
        position += cells
    return weights


def _diagonal_prior(num_source: int, num_target: int) -> Weights:
    """Return the prior of each source unit, the null word first. (T, 1 + S)"""
    distance = np.abs(np.arange(1, num_source + 1)[None, :] / num_source - np.arange(1, num_target + 1)[:, None] / num_target)
    prior = np.exp(-DIAGONAL_TENSION * distance)
    prior *= (1 - NULL_PROBABILITY) / prior.sum(1, keepdims=True)
    return np.concatenate([np.full((num_target, 1), NULL_PROBABILITY), prior], axis=1)


def place_by_projection(pair: TaggedPair, weights: Weights) -> list[PlacedElement]:
    """Return the elements that `translate-file` writes."""
    written = parse_markup(project(pair.source, pair.target, weights), is_html=False)
    if split_texts(written.clean.text) != split_texts(pair.target):
        return []  # an address that other letters stand beside now
    return list_elements(written.clean.slots, written.clean.text)


def split_texts(text: str) -> list[str]:
    """Return the words and marks of a text."""
    return [text[start:end] for start, end in split_units(text)]


def place_by_hard_links(pair: TaggedPair, weights: Weights) -> list[PlacedElement]:
    """Return the elements of Bergamot's scheme: each run of target units with the tag is a piece of the element."""
    elements = list_elements(pair.source.clean.slots, pair.source.clean.text)
    links = weights.argmax(axis=1)
    output: list[PlacedElement] = []
    for tag, first, last in elements:
        is_inside = np.r_[False, (links >= first) & (links < last), False]
        starts, ends = np.flatnonzero(~is_inside[:-1] & is_inside[1:]), np.flatnonzero(is_inside[:-1] & ~is_inside[1:])
        output += [(tag, int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
    return output


def place_proportionally(pair: TaggedPair, weights: Weights) -> list[PlacedElement]:
    """Return the elements at the same share of the text as in the source."""
    num_target, num_source = weights.shape
    return [
        (tag, round(first * num_target / num_source), round(last * num_target / num_source))
        for tag, first, last in list_elements(pair.source.clean.slots, pair.source.clean.text)
    ]


SCHEMES: dict[str, Callable[[TaggedPair, Weights], list[PlacedElement]]] = {
    "proportional position": place_proportionally,
    "Bergamot's scheme": place_by_hard_links,
    "dragoman": place_by_projection,
}


@dataclass
class SchemeScore:
    """Counts of one scheme. split: texts with an element in several pieces; lost: texts without one of their elements"""

    elements: int = 0
    exact: int = 0
    texts: int = 0
    texts_exact: int = 0
    split: int = 0
    lost: int = 0

    def add(self, expected: Sequence[PlacedElement], placed: Sequence[PlacedElement]) -> None:
        """Count the elements of a text."""
        tags, placed_tags = Counter(tag for tag, *_ in expected), Counter(tag for tag, *_ in placed)
        equal = Counter(expected) & Counter(placed)
        # A piece that has the right words is not exact if the element has other pieces as well.
        right = sum(count for (tag, *_), count in equal.items() if placed_tags[tag] <= tags[tag])
        self.elements += len(expected)
        self.exact += right
        self.texts += 1
        self.texts_exact += Counter(expected) == Counter(placed)
        self.split += bool(placed_tags - tags)
        self.lost += bool(tags - placed_tags)


def main() -> None:
    """Print a table for each pair of languages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with en-de, en-fr and en-ja")
    parser.add_argument("--pairs", nargs="+", default=["en-de", "en-fr", "en-ja"])
    parser.add_argument("--whole", action="store_true", help="texts of several sentences, with the tags around a whole text")
    parser.add_argument("--splits", nargs="+", default=["train", "dev", "test"], help="splits to score")
    options = parser.parse_args()
    for name in options.pairs:
        source, target = name.split("-")
        pairs: list[TaggedPair] = []
        scored: list[int] = []
        for split in ("train", "dev", "test"):
            start = len(pairs)
            pairs += read_pairs(options.folder / name / f"{split}.tsv.gz", (source, target), is_whole=options.whole)
            if split in options.splits:
                scored += [index for index in range(start, len(pairs)) if pairs[index].elements]
        weights = estimate_weights(pairs)
        print(f"\n{name}: {len(scored):,} texts with elements of {', '.join(options.splits)}; {len(pairs):,} pairs\n")
        print(
            "| scheme | element exact | text exact | texts with a split element | texts with a lost element |\n| --- "
            + "| --- " * 4
            + "|"
        )
        for scheme, place in SCHEMES.items():
            score = SchemeScore()
            for index in scored:
                score.add(pairs[index].elements, place(pairs[index], weights[index]))
            print(
                f"| {scheme} | {score.exact / score.elements:.3f} | {score.texts_exact / score.texts:.3f} | "
                f"{score.split / score.texts:.1%} | {score.lost / score.texts:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
