"""Word alignment of a training corpus, by dragoman's aligner or from Pharaoh files that the recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from dragoman.cleaning.cleaned_corpus import CleanedCorpus, ProgressCallback
from dragoman.config import CorpusConfig, DataConfig, as_list
from dragoman.data.encode import MAX_LISTED_ORIGINS
from dragoman.data.encoded_corpus import Corpus
from dragoman.data.link_table import write_links
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.word_boundaries import PairTokens
from dragoman.errors import DataError
from dragoman.formats.pharaoh import check_links, read_pharaoh
from dragoman.formats.text import read_lines
from dragoman.io.storage import commit_file
from dragoman.runtime.processes import map_in_processes
from dragoman.word_aligner import Link, align_block, split_blocks


def list_alignment_files(corpus: CorpusConfig, root: Path) -> list[Path]:
    """Return the alignment files of a corpus, in the order of its text files."""
    return [root / name for name in as_list(corpus.alignments)]


def align_training_corpus(
    config: DataConfig,
    cleaned_corpus: CleanedCorpus,
    corpus: Corpus,
    tokenizer: PairTokenizer,
    path: Path,
    *,
    num_workers: int,
    notify: Callable[[str], None],
    on_progress: ProgressCallback = lambda *_: None,
) -> None:
    """Write the word alignment of a training corpus to `path`, from the files of the section or by dragoman's aligner.

    The aligner has a lexical model of the corpus's own pairs. An existing `path` is complete, so it is kept.

    on_progress: receives the task, the pairs done and the number of pairs

    Raises DataError: a file has another number of lines than pairs, a line holds no valid links, or a link points beyond the
        words of its pair.
    """
    if path.exists():
        return
    files = list_alignment_files(config.training_corpora()[cleaned_corpus.name], Path(config.root))
    pair_tokens = PairTokens(tokenizer)
    skipped: list[str] = []
    if files:
        _check_line_count(files, cleaned_corpus)
        max_length = config.max_length if config.overlong_pairs == "truncate" else None
        links = _match_pairs(files, cleaned_corpus, corpus, pair_tokens, max_length, skipped)
    else:
        task_name = f"aligning {cleaned_corpus.name}"
        notify(f"aligning the words of {cleaned_corpus.name}")
        pairs = (
            (
                pair_tokens.source.split_words(pair_tokens.strip_source_eos(corpus.source(index))),
                pair_tokens.target.split_words(corpus.target(index)),
            )
            for index in range(len(corpus))
        )
        blocks = map_in_processes(align_block, split_blocks(pairs), num_processes=num_workers)
        links = _chain_blocks(blocks, lambda done: on_progress(task_name, done, len(corpus)))
    partial = path.with_suffix(".partial")
    write_links(partial, links)
    commit_file(partial, path)
    if skipped:
        examples = ", ".join(skipped[:MAX_LISTED_ORIGINS]) + (", …" if skipped[MAX_LISTED_ORIGINS:] else "")
        notify(
            f"{cleaned_corpus.name}: {len(skipped)} pairs have no links, because the tokenizer changes their words ({examples})"
        )


def _chain_blocks(blocks: Iterable[list[list[Link]]], on_progress: Callable[[int], None]) -> Iterator[list[Link]]:
    """Yield the links of each pair and report the number of pairs after each block."""
    num_pairs = 0
    for block in blocks:
        num_pairs += len(block)
        on_progress(num_pairs)
        yield from block


def _check_line_count(files: Sequence[Path], cleaned_corpus: CleanedCorpus) -> None:
    """Raise DataError unless the files have a line of links for each pair that was read, including dropped pairs."""
    num_lines = sum(1 for path in files for _ in read_lines(path))
    if num_lines != cleaned_corpus.stats.num_read:
        names = ", ".join(map(str, files))
        raise DataError(
            f"{names}: has {num_lines} lines of links, but {cleaned_corpus.name} has "
            f"{cleaned_corpus.stats.num_read} pairs; give one line for each pair",
            code="length-mismatch",
        )


def _match_pairs(
    files: Sequence[Path],
    cleaned_corpus: CleanedCorpus,
    corpus: Corpus,
    pair_tokens: PairTokens,
    max_length: int | None,
    skipped: list[str],
) -> Iterator[list[Link]]:
    """Yield the links of each encoded pair; none if the tokenizer changes the number of its words.

    max_length: length in tokens to which longer sides were truncated, or None
    skipped: receives file and line of the pairs without links
    """
    texts, lines = _iter_texts(cleaned_corpus), _iter_lines(files)
    for index in range(len(corpus)):
        pair_number = corpus.pair_number(index)
        source, target = next((source, target) for text_pair, source, target in texts if text_pair == pair_number)
        links, location = next((links, location) for line_pair, links, location in lines if line_pair == pair_number)
        word_counts = len(source.split()), len(target.split())
        check_links(links, *word_counts, location=location)
        source_ids, target_ids = pair_tokens.strip_source_eos(corpus.source(index)), corpus.target(index)
        is_truncated = max_length is not None and max(len(source_ids), len(target_ids)) + 1 == max_length
        token_counts = pair_tokens.source.count_words(source_ids), pair_tokens.target.count_words(target_ids)
        if is_truncated or token_counts == word_counts:
            yield links
        else:
            skipped.append(location)
            yield []


def _iter_texts(cleaned_corpus: CleanedCorpus) -> Iterator[tuple[int, str, str]]:
    for batch_reference in cleaned_corpus.iter_batches():
        text = batch_reference.read()
        yield from zip(*(text.column(name).to_pylist() for name in ("number", "source", "target")), strict=True)


def _iter_lines(files: Sequence[Path]) -> Iterator[tuple[int, list[Link], str]]:
    pair_number = 0
    for path in files:
        for line_number, links in enumerate(read_pharaoh(path), start=1):
            pair_number += 1
            yield pair_number, links, f"{path}, line {line_number}"
