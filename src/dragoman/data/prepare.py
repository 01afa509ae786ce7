"""From text to an encoded corpus, once: read and clean, learn the subword model, encode, and write down what became of it all.

    files → Spool (cleaned text) → Tokeniser (source.model, target.model) → train-00000.arrow, …, train.lengths.arrow

Asked again with the same, and with the files that came out as they were, `prepare` does nothing (`manifest`). Interrupted, it
goes on after the last file that was whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.cleaning.cleaned_corpus import Progress, Sieve, Spool, kept_rows, spool_corpus, spool_training
from dragoman.cleaning.report import cleaning_page
from dragoman.config import CleaningConfig, CorpusConfig, Recipe
from dragoman.data.alignments import link_training
from dragoman.data.encode import NAMED, Encoder, Fate, encode_spool
from dragoman.data.encoded_corpus import Corpus, lengths_file, pair_files, write_lengths
from dragoman.data.link_table import links_file
from dragoman.data.manifest import (
    MANIFEST,
    digested_inputs,
    prepared_files,
    prepared_names,
    read_manifest,
    request_digest,
    write_manifest,
)
from dragoman.data.tokenization.sentencepiece import learn_subword, refuse_sampling, take_subword
from dragoman.data.tokenization.tokenizer import Tokeniser, learn_tokeniser, read_tokeniser, take_tokeniser, write_tokeniser
from dragoman.data.tokenization.tree_labels import learn_labels, source_text
from dragoman.errors import DataError, DragomanError, LostProcessError, OutputError, RecipeError
from dragoman.formats.readers import PIPE, corpus_files, format_of
from dragoman.io.storage import alone_in, cannot_write, write_lines
from dragoman.runtime.processes import cores
from dragoman.trees.ptb import read_tree
from dragoman.trees.tree import leaves

PAGE = "cleaning.html"
VALID = "valid"

Notice = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus. `fates` is what `prepared.json` tells of each part; `fresh` is false where nothing had to be done."""

    folder: Path
    tokeniser: Tokeniser
    fates: dict[str, Fate]
    fresh: bool

    def corpus(self, name: str) -> Corpus:
        """A training corpus by its name in the recipe, or `valid`."""
        return Corpus(pair_files(self.folder, name if name == VALID else training_name(name)))


def training_name(name: str) -> str:
    """What the files of a training corpus begin with: train for the only one, train.NAME for those of a mixture."""
    return name if name == "train" else f"train.{name}"


def prepare(
    recipe: Recipe,
    folder: Path,
    notice: Notice = lambda _: None,
    *,
    progress: Progress = lambda *_: None,
    accept: Callable[[dict[str, str]], None] = lambda _: None,
) -> Prepared:
    """Prepare the recipe's corpora in `folder`, or take what stands there if nothing changed.

    What stands there is replaced only when the new files are whole and `accept`, which is given the digest of each, lets them
    pass.
    """
    if not recipe.data.training_corpora():
        raise RecipeError("data.train is not given: name the files to learn from, or those of a mixture in data.corpora")
    refuse_another_tasks_files(recipe)
    work = folder.with_name(f".{folder.name}.partial")
    try:
        found = read_manifest(folder)
        inputs = digested_inputs(recipe, found["inputs"] if found is not None else {})
        wanted = request_digest(recipe, inputs)
        if found is not None and found["digest"] == wanted:
            if found["files"] == prepared_files(folder):
                accept(found["files"])
                if inputs != found["inputs"]:  # touched, or old enough now to go by size and time
                    write_manifest(folder, wanted, inputs, found["files"], found["fates"])
                if work.is_dir():  # of a preparation of something else that was interrupted
                    with suppress(OutputError), alone_in(work):
                        shutil.rmtree(work)
                return Prepared(folder, _tokeniser(recipe, folder), found["fates"], fresh=False)
            notice(f"{folder}: a prepared file is missing or was changed; preparing anew")
        work.mkdir(parents=True, exist_ok=True)
        with alone_in(work):
            _begin(work, wanted, inputs, notice)
            try:
                fates = _make(recipe, work, notice, progress)
                digests = prepared_files(work)
                accept(digests)
            except (LostProcessError, OutputError):
                raise
            except DragomanError:
                shutil.rmtree(work, ignore_errors=True)  # nothing of it would be of use when the mistake is mended
                raise
            write_manifest(work, wanted, inputs, digests, fates)
            _put_in_place(work, folder, digests)
    except OSError as error:
        raise OutputError(cannot_write(folder, error)) from None
    return Prepared(folder, _tokeniser(recipe, folder), fates, fresh=True)


def refuse_another_tasks_files(recipe: Recipe) -> None:
    """Raise RecipeError where a file holds trees and the task is translation, or the reverse; the formats that a recipe names
    were looked at before.
    """
    parses = recipe.task.kind == "parsing"
    told = "learns from trees (format = 'brackets')" if parses else "does not learn from trees; 'parsing' does"
    for corpus in (*recipe.data.training_corpora().values(), recipe.data.valid, recipe.data.test):
        if corpus is None or corpus.file is None:
            continue
        for path in corpus_files(corpus.model_copy(update={"source": None, "target": None}), Path(recipe.data.root)):
            if ((holds := format_of(path, corpus.format)) == "brackets") != parses:
                raise RecipeError(f"{path}: is read as {holds}, but task.kind = {recipe.task.kind!r} {told}")


def _begin(work: Path, wanted: str, inputs: dict[str, Any], notice: Notice) -> None:
    """Go on with a preparation of the same that was interrupted, save of a pipe; or else begin with an empty folder."""
    beginning = work / "beginning"
    if "-" not in inputs and beginning.is_file() and beginning.read_text(encoding="utf-8") == wanted + "\n":
        notice("going on with a preparation that was interrupted")
        return
    for entry in work.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    write_lines(beginning, [wanted])


def _make(recipe: Recipe, work: Path, notice: Notice, progress: Progress) -> dict[str, Fate]:
    """Everything that a prepared folder holds save its manifest; what stands in `work` already is not made again."""
    processes = recipe.data.preprocessing_workers or cores()
    corpora = recipe.data.training_corpora() | ({VALID: recipe.data.valid} if recipe.data.valid is not None else {})
    root = Path(recipe.data.root)
    for name, corpus in corpora.items():
        notice(f"reading {name}: {_names(corpus, root)}")
    spools = spool_training(recipe, work / "text", processes=processes, progress=progress)
    valid = None
    if recipe.data.valid is not None:
        sieve = Sieve(CleaningConfig(), recipe.task.source_language, recipe.task.target_language)
        valid = spool_corpus(work / "text", VALID, recipe.data.valid, root, sieve, processes=processes, progress=progress)
    for spool in [*spools, *([valid] if valid is not None else [])]:
        if not len(spool):
            raise _nothing_left(_names(corpora[spool.name], root), _cleaned(spool))
    tokeniser = _learn(recipe, spools, work, notice)
    if any(knob is not None and knob is not False for _, knob in recipe.data.cleaning):
        page = cleaning_page({spool.name: spool.tally for spool in spools})
        write_lines(work / PAGE, [page], overwrite=True)
    encoder = Encoder(tokeniser, recipe.data.max_length, recipe.data.overlong_pairs)
    fates = {spool.name: _encode(spool, work, training_name(spool.name), encoder, processes, progress) for spool in spools}
    if valid is not None:
        fates[VALID] = _encode(valid, work, VALID, Encoder(tokeniser, None, recipe.data.overlong_pairs), processes, progress)
    for name, fate in fates.items():
        if fate.kept == 0:
            raise _nothing_left(_names(corpora[name], root), fate)
    if recipe.training.guided_alignment_weight:
        for spool in spools:
            name = training_name(spool.name)
            found = Corpus(pair_files(work, name))
            link_training(recipe, spool, found, tokeniser, links_file(work, name), processes=processes, notice=notice)
    return fates


def _names(corpus: CorpusConfig, root: Path) -> str:
    return ", ".join("standard input" if path == PIPE else str(path) for path in corpus_files(corpus, root))


def _nothing_left(files: str, fate: Fate) -> DataError:
    why = "; ".join(fate.sentences("drop", examples="dragoman clean shows examples"))  # cleaning.html is not written
    return DataError(f"{files}: no pair is left ({why or 'the corpus is empty'})")


def _learn(recipe: Recipe, spools: Sequence[Spool], work: Path, notice: Notice) -> Tokeniser:
    """Learn the subword model from the cleaned text, or take the one that the recipe names."""
    if (work / "learnt").is_file():
        return _tokeniser(recipe, work)
    config = recipe.tokenizer
    if recipe.task.kind == "parsing":
        tokeniser = _learn_from_trees(recipe, spools, notice)
    elif config.model_file is not None:
        tokeniser = take_tokeniser(config, root=Path(recipe.data.root), append_source_eos=recipe.model.append_source_eos)
    else:
        notice(f"learning {config.model_type} pieces ({config.vocab_size})")
        pairs = sum(map(len, spools))
        most = max(config.max_train_sentences // 2, 1) if config.joint else config.max_train_sentences
        tokeniser = learn_tokeniser(
            _spread_evenly(spools, 0, pairs, most),
            _spread_evenly(spools, 1, pairs, most),
            config,
            append_source_eos=recipe.model.append_source_eos,
            seed=recipe.training.seed,
            notice=notice,
        )
    write_tokeniser(work, tokeniser)
    write_lines(work / "learnt", [])
    return tokeniser


def _learn_from_trees(recipe: Recipe, spools: Sequence[Spool], notice: Notice) -> Tokeniser:
    """The labels of all trees, and the subword model of their words: learnt, or the one that the recipe names."""
    config = recipe.tokenizer
    pairs = chain.from_iterable(spool.pairs() for spool in spools)
    labels = learn_labels((read_tree(pair.target, name=pair.origin) for pair in pairs), recipe.task)
    notice(f"{len(labels.brackets)} labels of brackets and {len(labels.tags)} tags in the trees")
    if config.model_file is not None:
        source = take_subword(config, "model", Path(recipe.data.root) / config.model_file)
    else:
        notice(f"learning {config.model_type} pieces ({config.vocab_size})")
        lines = _spread_evenly(spools, 1, sum(map(len, spools)), config.max_train_sentences)
        texts = (source_text([leaf.word for leaf in leaves(labels.plain(read_tree(line)))]) for line in lines)
        size, seed = config.vocab_size, recipe.training.seed
        source = learn_subword(texts, config, vocab_size=size, seed=seed, notice=notice)
    return Tokeniser(source, labels, append_source_eos=recipe.model.append_source_eos)


def _spread_evenly(spools: Sequence[Spool], side: int, pairs: int, most: int) -> Iterator[str]:
    """One side of `most` of the pairs, spread evenly over all of them, or of all where there are not so many."""
    row = 0
    for spool in spools:
        for batch in (kept_rows(*place) for place in spool.places()):
            rows = np.arange(row, row + batch.num_rows)
            row += batch.num_rows
            here = np.flatnonzero(rows * most // pairs != (rows + 1) * most // pairs) if pairs > most else slice(None)
            yield from np.array(batch.column(side).to_pylist(), dtype=object)[here]


def _encode(spool: Spool, work: Path, name: str, encoder: Encoder, processes: int, progress: Progress) -> Fate:
    """Encode a spool and group its pairs by length; returns what became of every pair that was read."""
    fate = encode_spool(spool, work, name, encoder, processes=processes, progress=progress)
    write_lengths(lengths_file(work, name), Corpus(pair_files(work, name)))
    cleaned = _cleaned(spool)
    cleaned.add(fate)
    return cleaned


def _cleaned(spool: Spool) -> Fate:
    """What became of a spool's pairs so far."""
    fate = Fate(read=spool.tally.read)
    for rule, dropped in spool.tally.dropped.items():
        if dropped.count:
            fate.dropped[rule] = dropped.count
            fate.dropped_at[rule] = [pair.origin for pair in dropped.examples[:NAMED]]
    return fate


def _put_in_place(work: Path, folder: Path, digests: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    (work / "beginning").unlink()  # from here on there is nothing to go on from
    for name in (MANIFEST, PAGE, *prepared_names(folder)):
        (folder / name).unlink(missing_ok=True)
    page = [PAGE] if (work / PAGE).exists() else []
    for name in (*digests, *page, MANIFEST):
        (work / name).rename(folder / name)
    shutil.rmtree(work, ignore_errors=True)


def _tokeniser(recipe: Recipe, folder: Path) -> Tokeniser:
    tokeniser = read_tokeniser(folder, recipe.tokenizer, append_source_eos=recipe.model.append_source_eos)
    for side in (tokeniser.source, tokeniser.target):
        refuse_sampling(side, recipe.tokenizer, str(folder))
    return tokeniser
