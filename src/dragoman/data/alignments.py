"""The word alignment of a training corpus: by our own aligner, or from files in Pharaoh's format that the recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from dragoman.cleaning.cleaned_corpus import CleanedCorpus, read_batch
from dragoman.config import CorpusConfig, Recipe, as_list
from dragoman.data.encode import MAX_LISTED_ORIGINS
from dragoman.data.encoded_corpus import Corpus
from dragoman.data.link_table import write_links
from dragoman.data.tokenization.tokenizer import PairTokenizer
from dragoman.data.tokenization.word_boundaries import PairTokens
from dragoman.errors import DataError
from dragoman.formats.pharaoh import check_links, read_pharaoh
from dragoman.formats.text import read_lines
from dragoman.io.storage import commit_file
from dragoman.runtime.processes import map_in_processes
from dragoman.word_aligner import Link, align_block, split_blocks


def list_alignment_files(corpus: CorpusConfig, root: Path) -> list[Path]:
    """The files that a corpus's links are in, in the order of its own."""
    return [root / name for name in as_list(corpus.alignments)]


def align_training_corpus(
    recipe: Recipe,
    cleaned_corpus: CleanedCorpus,
    corpus: Corpus,
    tokenizer: PairTokenizer,
    path: Path,
    *,
    num_workers: int,
    notify: Callable[[str], None],
) -> None:
    """Write which words of a training corpus belong together, from the recipe's files or else by our own aligner.

    Where `path` stands already, it is whole, and left as it is.
    """
    if path.exists():
        return
    files = list_alignment_files(recipe.data.training_corpora()[cleaned_corpus.name], Path(recipe.data.root))
    if not files:
        notify(f"aligning the words of {cleaned_corpus.name}")
        align_corpus(corpus, tokenizer, path, num_workers=num_workers)
        return
    alignments = AlignmentFiles(
        files, cleaned_corpus, recipe.data.max_length if recipe.data.overlong_pairs == "truncate" else None
    )
    if skipped := alignments.import_links(corpus, tokenizer, path):
        examples = ", ".join(skipped[:MAX_LISTED_ORIGINS]) + (", …" if skipped[MAX_LISTED_ORIGINS:] else "")
        notify(
            f"{cleaned_corpus.name}: {len(skipped)} pairs have no links, since the subword model parts other words ({examples})"
        )


def align_corpus(corpus: Corpus, tokenizer: PairTokenizer, path: Path, *, num_workers: int) -> None:
    """Align the words of an encoded corpus by its pairs themselves, and write their links."""
    pair_tokens = PairTokens(tokenizer)
    pairs = (
        (
            pair_tokens.source.split_words(pair_tokens.strip_source_eos(corpus.source(index))),
            pair_tokens.target.split_words(corpus.target(index)),
        )
        for index in range(len(corpus))
    )
    _write_links_file(path, chain.from_iterable(map_in_processes(align_block, split_blocks(pairs), num_processes=num_workers)))


@dataclass(frozen=True)
class AlignmentFiles:
    """Files that hold a line of links for each pair that was read, those included that were dropped.

    cut_to: the length that longer sides were truncated to, if they were
    """

    files: Sequence[Path]
    cleaned_corpus: CleanedCorpus
    max_length: int | None = None

    def check_line_count(self) -> None:
        """Raise DataError where there are not as many lines as pairs."""
        num_lines = sum(1 for path in self.files for _ in read_lines(path))
        if num_lines != self.cleaned_corpus.stats.num_read:
            names = ", ".join(map(str, self.files))
            raise DataError(
                f"{names}: {num_lines} lines of links, but {self.cleaned_corpus.name} has {self.cleaned_corpus.stats.num_read} pairs"
            )

    def import_links(self, corpus: Corpus, tokenizer: PairTokenizer, path: Path) -> list[str]:
        """Write the links of an encoded corpus; returns where stand those that are left out.

        They are left out where the subword model parts the text of their pair into other words than spaces do. Raises
        DataError naming file and line for a link that is none, or beyond the words of its pair.
        """
        self.check_line_count()
        skipped: list[str] = []
        _write_links_file(path, self._match_pairs(corpus, PairTokens(tokenizer), skipped))
        return skipped

    def _match_pairs(self, corpus: Corpus, pair_tokens: PairTokens, skipped: list[str]) -> Iterator[list[Link]]:
        texts, lines = self._iter_texts(), self._iter_lines()
        for index in range(len(corpus)):
            pair_number = corpus.pair_number(index)
            source, target = next((source, target) for row_number, source, target in texts if row_number == pair_number)
            links, location = next((links, where) for at, links, where in lines if at == pair_number)
            word_counts = len(source.split()), len(target.split())
            check_links(links, *word_counts, location=location)
            source_ids, target_ids = pair_tokens.strip_source_eos(corpus.source(index)), corpus.target(index)
            is_truncated = self.max_length is not None and max(len(source_ids), len(target_ids)) + 1 == self.max_length
            if (
                is_truncated
                or (pair_tokens.source.count_words(source_ids), pair_tokens.target.count_words(target_ids)) == word_counts
            ):
                yield links
            else:
                skipped.append(location)
                yield []

    def _iter_texts(self) -> Iterator[tuple[int, str, str]]:
        for batch_reference in self.cleaned_corpus.iter_batches():
            text = read_batch(*batch_reference)
            yield from zip(*(text.column(name).to_pylist() for name in ("number", "source", "target")), strict=True)

    def _iter_lines(self) -> Iterator[tuple[int, list[Link], str]]:
        pair_number = 0
        for path in self.files:
            for line_number, links in enumerate(read_pharaoh(path), start=1):
                pair_number += 1
                yield pair_number, links, f"{path}, line {line_number}"


def _write_links_file(path: Path, links: Iterator[Sequence[Link]]) -> None:
    partial = path.with_suffix(".partial")
    write_links(partial, links)
    commit_file(partial, path)
