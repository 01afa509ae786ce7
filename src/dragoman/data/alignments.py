"""The word alignment of a training corpus: by our own aligner, or from files in Pharaoh's format that the recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from dragoman.cleaning.cleaned_corpus import Spool, kept_rows
from dragoman.config import CorpusConfig, Recipe, listed
from dragoman.data.encode import NAMED
from dragoman.data.encoded_corpus import Corpus
from dragoman.data.link_table import write_links
from dragoman.data.tokenization.tokenizer import Tokeniser
from dragoman.data.tokenization.word_boundaries import Sides
from dragoman.errors import DataError
from dragoman.formats.pharaoh import read_pharaoh, refuse_outside
from dragoman.formats.text import read_lines
from dragoman.io.storage import put_in_place
from dragoman.runtime.processes import spread
from dragoman.word_aligner import Link, align_block, blocks


def link_files(corpus: CorpusConfig, root: Path) -> list[Path]:
    """The files that a corpus's links are in, in the order of its own."""
    return [root / name for name in listed(corpus.alignments)]


def link_training(
    recipe: Recipe,
    spool: Spool,
    corpus: Corpus,
    tokeniser: Tokeniser,
    path: Path,
    *,
    processes: int,
    notice: Callable[[str], None],
) -> None:
    """Write which words of a training corpus belong together, from the recipe's files or else by our own aligner.

    Where `path` stands already, it is whole, and left as it is.
    """
    if path.exists():
        return
    files = link_files(recipe.data.training_corpora()[spool.name], Path(recipe.data.root))
    if not files:
        notice(f"aligning the words of {spool.name}")
        link_corpus(corpus, tokeniser, path, processes=processes)
        return
    given = GivenLinks(files, spool, recipe.data.max_length if recipe.data.overlong_pairs == "truncate" else None)
    if left_out := given.take(corpus, tokeniser, path):
        places = ", ".join(left_out[:NAMED]) + (", …" if left_out[NAMED:] else "")
        notice(f"{spool.name}: {len(left_out)} pairs have no links, since the subword model parts other words ({places})")


def link_corpus(corpus: Corpus, tokeniser: Tokeniser, path: Path, *, processes: int) -> None:
    """Align the words of an encoded corpus by its pairs themselves, and write their links."""
    sides = Sides(tokeniser)
    pairs = (
        (sides.source.split(sides.read(corpus.source(index))), sides.target.split(corpus.target(index)))
        for index in range(len(corpus))
    )
    _write(path, chain.from_iterable(spread(align_block, blocks(pairs), processes=processes)))


@dataclass(frozen=True)
class GivenLinks:
    """Files that hold a line of links for each pair that was read, those included that were dropped.

    cut_to: the length that longer sides were truncated to, if they were
    """

    files: Sequence[Path]
    spool: Spool
    cut_to: int | None = None

    def check(self) -> None:
        """Raise DataError where there are not as many lines as pairs."""
        lines = sum(1 for path in self.files for _ in read_lines(path))
        if lines != self.spool.tally.read:
            names = ", ".join(map(str, self.files))
            raise DataError(f"{names}: {lines} lines of links, but {self.spool.name} has {self.spool.tally.read} pairs")

    def take(self, corpus: Corpus, tokeniser: Tokeniser, path: Path) -> list[str]:
        """Write the links of an encoded corpus; returns where stand those that are left out.

        They are left out where the subword model parts the text of their pair into other words than spaces do. Raises
        DataError naming file and line for a link that is none, or beyond the words of its pair.
        """
        self.check()
        left_out: list[str] = []
        _write(path, self._of(corpus, Sides(tokeniser), left_out))
        return left_out

    def _of(self, corpus: Corpus, sides: Sides, left_out: list[str]) -> Iterator[list[Link]]:
        texts, lines = self._texts(), self._lines()
        for index in range(len(corpus)):
            number = corpus.number(index)
            source, target = next((source, target) for at, source, target in texts if at == number)
            links, where = next((links, where) for at, links, where in lines if at == number)
            given = len(source.split()), len(target.split())
            refuse_outside(links, *given, where=where)
            one, other = sides.read(corpus.source(index)), corpus.target(index)
            cut = self.cut_to is not None and max(len(one), len(other)) + 1 == self.cut_to
            if cut or (sides.source.count(one), sides.target.count(other)) == given:
                yield links
            else:
                left_out.append(where)
                yield []

    def _texts(self) -> Iterator[tuple[int, str, str]]:
        for place in self.spool.places():
            text = kept_rows(*place)
            yield from zip(*(text.column(name).to_pylist() for name in ("number", "source", "target")), strict=True)

    def _lines(self) -> Iterator[tuple[int, list[Link], str]]:
        at = 0
        for path in self.files:
            for number, links in enumerate(read_pharaoh(path), start=1):
                at += 1
                yield at, links, f"{path}, line {number}"


def _write(path: Path, links: Iterator[Sequence[Link]]) -> None:
    partial = path.with_suffix(".partial")
    write_links(partial, links)
    put_in_place(partial, path)
