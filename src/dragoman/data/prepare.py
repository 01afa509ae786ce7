"""Preparation of a corpus: read and clean the text, train the tokenizer, encode the pairs, and write a manifest.

    files → CleanedCorpus → PairTokenizer (source.model, target.model) → train-00000.arrow, …, train.lengths.arrow

A second call with the same request and unchanged files does nothing (see `manifest`). After an interruption, the next call
continues after the last complete chunk of a file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dragoman.cleaning.cleaned_corpus import (
    CleanedCorpus,
    FilterPipeline,
    ProgressCallback,
    build_filter_pipelines,
    clean_corpus,
    clean_training_corpora,
)
from dragoman.cleaning.cleaning_report import render_cleaning_report
from dragoman.config import (
    CleaningConfig,
    CorpusConfig,
    DataConfig,
    Direction,
    Recipe,
    TaskConfig,
    locate_initial_bundle,
)
from dragoman.data.alignments import align_training_corpus
from dragoman.data.encode import MAX_LISTED_ORIGINS, PairEncoder, PairStats, encode_corpus
from dragoman.data.encoded_corpus import Corpus, get_lengths_file, list_pair_files, write_lengths
from dragoman.data.link_table import get_links_file
from dragoman.data.manifest import (
    MANIFEST,
    compute_request_digest,
    hash_inputs,
    hash_prepared_files,
    list_prepared_files,
    read_manifest,
    write_manifest,
)
from dragoman.data.term_noise import check_terminology
from dragoman.data.tokenization.extra_tokens import add_extra_tokens
from dragoman.data.tokenization.pair_tokenizer import (
    PairTokenizer,
    import_tokenizer,
    read_recipe_tokenizer,
    read_tokenizer,
    train_one_side,
    train_tokenizer,
    write_tokenizer,
)
from dragoman.data.tokenization.sentencepiece import check_sampling, import_sentencepiece
from dragoman.data.tokenization.vocabulary import NotifyFn, StructuredVocabulary, TextTokenizer
from dragoman.errors import ClusterError, DataError, DragomanError, OutputError, RecipeError, WorkerLostError
from dragoman.formats.readers import STDIN_PATH, detect_format, list_corpus_files
from dragoman.hooks import load_task
from dragoman.io.storage import lock_dir, to_write_error, write_lines
from dragoman.runtime.processes import MapFunction, count_cores, map_in_processes

CLEANING_PAGE = "cleaning.html"
VALID: Literal["valid"] = "valid"
TOKENIZER_MARKER, REQUEST_MARKER = "tokenizer-complete", "request"


@dataclass(frozen=True)
class PreparedData:
    """Prepared corpora of a recipe.

    folder: the prepared folder
    tokenizer: the tokenizers of both sides
    pair_counts: the statistics of each direction of a corpus by name; names of validation corpora begin with `valid`
    is_new: False if the folder was complete already
    """

    folder: Path
    tokenizer: PairTokenizer
    pair_counts: dict[str, PairStats]
    is_new: bool

    def corpus(self, name: str) -> Corpus:
        """Return one direction of a training corpus by its name, or `valid` for all validation corpora together."""
        if name != VALID:
            return Corpus(list_pair_files(self.folder, get_training_prefix(name)))
        prefixes = [prefix for prefix in self.pair_counts if is_validation(prefix)]
        return Corpus([path for prefix in prefixes for path in list_pair_files(self.folder, prefix)])


def open_prepared(recipe: Recipe, folder: Path) -> PreparedData:
    """Return the data that an earlier run has prepared in this folder, without its statistics if its manifest is damaged."""
    names = recipe.evaluation_directions(VALID)
    manifest = read_manifest(folder) or {"pair_counts": {get_validation_prefix(name): PairStats() for name in names}}
    return PreparedData(folder, read_recipe_tokenizer(folder, recipe), manifest["pair_counts"], is_new=False)


def get_training_prefix(name: str) -> str:
    """Return the prefix of a training corpus's files: `train` for the only corpus, `train.NAME` in a mixture."""
    return name if name == "train" else f"train.{name}"


def get_validation_prefix(name: str) -> str:
    """Return the prefix of a validation corpus's files: `valid` for the only corpus, `valid.NAME` for one of several."""
    return name if name == VALID else f"{VALID}.{name}"


def is_validation(name: str) -> bool:
    """Return whether the name in `PreparedData.pair_counts` is that of a validation corpus."""
    return name == VALID or name.startswith(f"{VALID}.")


def prepare(
    recipe: Recipe,
    folder: Path,
    notify: NotifyFn = lambda _: None,
    *,
    on_progress: ProgressCallback = lambda *_: None,
    accept: Callable[[dict[str, str]], None] = lambda _: None,
    map_items: MapFunction = map_in_processes,
) -> PreparedData:
    """Prepare the recipe's corpora in `folder`, or return the existing ones if nothing has changed.

    The new files replace the old ones only when they are complete and `accept` returns.

    on_progress: receives the task, the pairs done, and the number of pairs or None, at short intervals
    accept: receives the digest of each prepared file, and raises to reject the files
    map_items: function that filters and encodes chunks of pairs, by default in processes of this machine

    Raises RecipeError: the recipe names no corpus, or a file or a tokenizer that does not fit it.
    Raises DataError: a file cannot be read, does not follow its format, or holds no pairs.
    Raises OutputError: the folder cannot be written.
    Raises WorkerLostError: the system killed a worker process.
    Raises ClusterError: workers of a cluster were lost repeatedly, or have another version.
    """
    if not recipe.data.training_corpora():
        raise RecipeError(
            "data.train: is not set; name the training files, or those of a mixture in data.corpora", code="missing-key"
        )
    check_task_formats(recipe.task, recipe.data)
    work_dir = folder.with_name(f".{folder.name}.partial")
    builder = CorpusBuilder(recipe, work_dir, notify, on_progress, map_items)
    try:
        manifest = read_manifest(folder)
        inputs = hash_inputs(recipe, manifest["inputs"] if manifest is not None else {})
        digest = compute_request_digest(recipe, inputs)
        if manifest is not None and manifest["digest"] == digest:
            if manifest["files"] == hash_prepared_files(folder):
                accept(manifest["files"])
                _tidy_up(folder, work_dir, manifest, inputs)
                tokenizer = builder.read_tokenizer(folder)
                check_terminology(recipe.data, recipe.default_pair, tokenizer)
                return PreparedData(folder, tokenizer, manifest["pair_counts"], is_new=False)
            notify(f"{folder}: a prepared file is missing or was changed; preparing again")
        work_dir.mkdir(parents=True, exist_ok=True)
        with lock_dir(work_dir):
            _resume_or_clear(work_dir, digest, inputs, notify)
            pair_counts, digests = _build_files(builder, work_dir, accept)
            write_manifest(work_dir, digest, inputs, digests, pair_counts)
            _publish(work_dir, folder, digests)
    except OSError as error:
        raise to_write_error(folder, error) from None
    return PreparedData(folder, builder.read_tokenizer(folder), pair_counts, is_new=True)


def _build_files(
    builder: CorpusBuilder, work_dir: Path, accept: Callable[[dict[str, str]], None]
) -> tuple[dict[str, PairStats], dict[str, str]]:
    """Return the counts of pairs and the digests of the files. A mistake in the recipe or in a corpus removes the files."""
    try:
        pair_counts = builder.build()
        digests = hash_prepared_files(work_dir)
        accept(digests)
    except (WorkerLostError, ClusterError, OutputError):
        raise
    except DragomanError:
        shutil.rmtree(work_dir, ignore_errors=True)  # a corrected request cannot use any of it
        raise
    return pair_counts, digests


def _tidy_up(folder: Path, work_dir: Path, manifest: dict[str, Any], inputs: dict[str, Any]) -> None:
    """Update the inputs in the manifest of a complete folder, and remove an interrupted preparation of another request."""
    if inputs != manifest["inputs"]:  # a new time stamp, or old enough to be settled
        write_manifest(folder, manifest["digest"], inputs, manifest["files"], manifest["pair_counts"])
    if work_dir.is_dir():
        with suppress(OutputError), lock_dir(work_dir):
            shutil.rmtree(work_dir)


def check_task_formats(task: TaskConfig, data: DataConfig) -> None:
    """Raise RecipeError if a file holds trees and the task is translation, or the reverse.

    The recipe has already checked the formats that it names.
    """
    is_parsing = not task.has_text_target
    expectation = "needs trees; give format = 'brackets'" if is_parsing else "does not use trees; set task.kind = 'parsing'"
    corpora = [*data.training_corpora().values()]
    corpora += [corpus for split in ("valid", "test") for corpus in data.evaluation_corpora(split).values()]
    for corpus in corpora:
        if corpus.file is None:
            continue
        for path in list_corpus_files(corpus.model_copy(update={"source": None, "target": None}), Path(data.root)):
            if ((file_format := detect_format(path, corpus.format)) == "brackets") != is_parsing:
                raise RecipeError(
                    f"{path}: is read as {file_format}, but task.kind = {task.kind!r} {expectation}",
                    code="format-mismatch",
                )


def _resume_or_clear(work_dir: Path, digest: str, inputs: dict[str, Any], notify: NotifyFn) -> None:
    """Keep the files of an interrupted preparation of the same request, unless it read a pipe; else empty the folder."""
    marker = work_dir / REQUEST_MARKER
    if "-" not in inputs and marker.is_file() and marker.read_text(encoding="utf-8") == digest + "\n":
        notify("resuming an interrupted preparation")
        return
    for entry in work_dir.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    write_lines(marker, [digest])


@dataclass(frozen=True)
class CorpusBuilder:
    """Builder of the files of a prepared folder, which keeps existing files."""

    recipe: Recipe
    work_dir: Path
    notify: NotifyFn
    on_progress: ProgressCallback
    map_items: MapFunction

    @property
    def num_workers(self) -> int:
        return self.recipe.data.preprocessing_workers or count_cores()

    def read_tokenizer(self, folder: Path) -> PairTokenizer:
        """Read the tokenizers of a prepared folder. Raises RecipeError if they cannot sample as the recipe asks."""
        tokenizer = read_recipe_tokenizer(folder, self.recipe)
        for vocabulary in (tokenizer.source, tokenizer.target):
            check_sampling(vocabulary, self.recipe.tokenizer, str(folder))
        return tokenizer

    def build(self) -> dict[str, PairStats]:
        """Write all files except the manifest, and return the statistics."""
        recipe, root = self.recipe, Path(self.recipe.data.root)
        cleaned_training, cleaned_valid = self._clean()
        tokenizer = self._train_or_load_tokenizer(list(cleaned_training.values()))
        check_terminology(recipe.data, recipe.default_pair, tokenizer)
        if any(value is not None and value is not False for _, value in recipe.data.cleaning):
            page = render_cleaning_report({name: cleaned_corpus.stats for name, cleaned_corpus in cleaned_training.items()})
            write_lines(self.work_dir / CLEANING_PAGE, [page], overwrite=True)
        encoded = [
            (get_training_prefix(name), name, direction, cleaned_training[direction.corpus_name], recipe.data.max_length)
            for name, direction in recipe.training_directions.items()
        ] + [
            (get_validation_prefix(name), get_validation_prefix(name), direction, cleaned_valid[direction.corpus_name], None)
            for name, direction in recipe.evaluation_directions(VALID).items()
        ]
        pair_counts: dict[str, PairStats] = {}
        for prefix, name, direction, cleaned_corpus, max_length in encoded:
            encoder = PairEncoder(
                select_direction(tokenizer, direction),
                max_length,
                recipe.data.overlong_pairs,
                is_reversed=direction.is_reversed,
            )
            stats = self._encode_and_index(cleaned_corpus, prefix, encoder)
            if stats.kept == 0:
                raise _build_empty_error(_join_file_names(direction.corpus, root), stats)
            pair_counts[name] = stats
        if recipe.aligns_words:
            for direction in recipe.training_directions.values():
                name = get_training_prefix(direction.name)
                align_training_corpus(
                    recipe.data,
                    cleaned_training[direction.corpus_name],
                    Corpus(list_pair_files(self.work_dir, name)),
                    tokenizer,
                    get_links_file(self.work_dir, name),
                    num_workers=self.num_workers,
                    notify=self.notify,
                    on_progress=self.on_progress,
                )
        return pair_counts

    def _encode_and_index(self, cleaned_corpus: CleanedCorpus, name: str, encoder: PairEncoder) -> PairStats:
        """Encode a cleaned corpus, group its pairs by length, and return the statistics of all pairs that were read."""
        encoding_stats = encode_corpus(
            cleaned_corpus,
            self.work_dir,
            name,
            encoder,
            num_workers=self.num_workers,
            on_progress=self.on_progress,
            map_items=self.map_items,
        )
        write_lengths(get_lengths_file(self.work_dir, name), Corpus(list_pair_files(self.work_dir, name)))
        stats = _get_cleaning_stats(cleaned_corpus)
        stats.add(encoding_stats)
        return stats

    def _clean(self) -> tuple[dict[str, CleanedCorpus], dict[str, CleanedCorpus]]:
        """Return the training corpora by name, filtered, and the validation corpora, unfiltered. None of them is empty."""
        recipe, root, folder = self.recipe, Path(self.recipe.data.root), self.work_dir / "text"
        valid_corpora = {get_validation_prefix(name): corpus for name, corpus in recipe.data.evaluation_corpora(VALID).items()}
        corpora = recipe.data.training_corpora() | valid_corpora
        for name, corpus in corpora.items():
            self.notify(f"reading {name}: {_join_file_names(corpus, root)}")
        options: dict[str, Any] = {
            "processes": self.num_workers, "on_progress": self.on_progress, "map_items": self.map_items
        }  # fmt: skip
        cleaned_training = clean_training_corpora(recipe.data, build_filter_pipelines(recipe), folder, **options)
        cleaned_valid = {
            name: clean_corpus(
                folder,
                get_validation_prefix(name),
                direction.corpus,
                root,
                FilterPipeline(CleaningConfig(), *direction.languages),
                **options,
            )
            for name, direction in recipe.evaluation_directions(VALID).items()
            if not direction.is_reversed
        }
        for cleaned in [*cleaned_training, *cleaned_valid.values()]:
            if not len(cleaned):
                raise _build_empty_error(_join_file_names(corpora[cleaned.name], root), _get_cleaning_stats(cleaned))
        return {cleaned_corpus.name: cleaned_corpus for cleaned_corpus in cleaned_training}, cleaned_valid

    def _train_or_load_tokenizer(self, cleaned_corpora: Sequence[CleanedCorpus]) -> PairTokenizer:
        """Train the tokenizer on the cleaned text, or read the models that the recipe names."""
        recipe, config = self.recipe, self.recipe.tokenizer
        if (self.work_dir / TOKENIZER_MARKER).is_file():
            return self.read_tokenizer(self.work_dir)
        if recipe.training.init_from is not None:
            folder = locate_initial_bundle(recipe.training.init_from, recipe.run)
            self.notify(f"using the tokenizer of {folder}")
            tokenizer = read_tokenizer(folder, config, append_source_eos=recipe.model.append_source_eos)
        elif not recipe.task.has_text_target:
            tokenizer = self._train_parser_tokenizer(cleaned_corpora)
        elif config.model_file is not None:
            tokenizer = import_tokenizer(
                config,
                root=Path(recipe.data.root),
                append_source_eos=recipe.model.append_source_eos,
                languages=recipe.languages,
            )
        else:
            self.notify(config.describe_training())
            num_pairs = sum(map(len, cleaned_corpora))
            max_lines = max(config.max_train_sentences // 2, 1) if config.joint else config.max_train_sentences
            tokenizer = train_tokenizer(
                _sample_evenly(cleaned_corpora, 0, num_pairs, max_lines),
                _sample_evenly(cleaned_corpora, 1, num_pairs, max_lines),
                config,
                append_source_eos=recipe.model.append_source_eos,
                seed=recipe.training.seed,
                languages=recipe.languages,
                root=Path(recipe.data.root),
                notify=self.notify,
            )
        tokenizer = add_extra_tokens(tokenizer, config.extra_tokens)
        _check_language_tokens(map(recipe.tokenizer.format_language_token, recipe.languages), tokenizer)
        write_tokenizer(self.work_dir, tokenizer)
        write_lines(self.work_dir / TOKENIZER_MARKER, [])
        return read_recipe_tokenizer(self.work_dir, recipe)

    def _train_parser_tokenizer(self, cleaned_corpora: Sequence[CleanedCorpus]) -> PairTokenizer:
        """Return the labels of all trees, and the tokenizer of their words: trained, or read from the recipe's file."""
        recipe, config = self.recipe, self.recipe.tokenizer
        pairs = chain.from_iterable(cleaned_corpus.iter_pairs() for cleaned_corpus in cleaned_corpora)
        labels: StructuredVocabulary = load_task(recipe.task.kind).collect_vocabulary(pairs, recipe.task)
        self.notify(labels.describe())
        if config.model_file is not None:
            source: TextTokenizer = import_sentencepiece(config, "model_file", Path(recipe.data.root) / config.model_file)
        else:
            self.notify(config.describe_training())
            lines = _sample_evenly(cleaned_corpora, 1, sum(map(len, cleaned_corpora)), config.max_train_sentences)
            root = Path(recipe.data.root)
            options: dict[str, Any] = {"normalization": "identity", "seed": recipe.training.seed}  # a parser keeps its words
            source = train_one_side(
                map(labels.get_source_text, lines), config, "source", **options, root=root, notify=self.notify
            )
        return PairTokenizer(source, labels, append_source_eos=recipe.model.append_source_eos)


def select_direction(tokenizer: PairTokenizer, direction: Direction) -> PairTokenizer:
    """Return the tokenizers for the languages of a direction; unchanged for a model of one pair."""
    if tokenizer.languages is None:
        return tokenizer
    return tokenizer.select_languages(*direction.languages, zero_shot=True)


def _join_file_names(corpus: CorpusConfig, root: Path) -> str:
    return ", ".join("standard input" if path == STDIN_PATH else str(path) for path in list_corpus_files(corpus, root))


def _build_empty_error(files: str, stats: PairStats) -> DataError:
    reasons = "; ".join(stats.summarize("drop", examples="dragoman clean shows examples"))  # cleaning.html is not written
    return DataError(
        f"{files}: no pair is left ({reasons or 'the corpus is empty'}); check the files and data.cleaning", code="empty-data"
    )


def _check_language_tokens(tokens: Iterable[str], tokenizer: PairTokenizer) -> None:
    """Raise RecipeError if the vocabulary of an initial bundle lacks the token of a language."""
    for token in tokens:
        if tokenizer.source.piece_to_id(token) is None:
            raise RecipeError(
                f"data.corpora: the vocabulary has no language token {token}; add it to tokenizer.extra_tokens",
                code="tokenizer-mismatch",
            )


def _sample_evenly(cleaned_corpora: Sequence[CleanedCorpus], side: int, num_pairs: int, limit: int) -> Iterator[str]:
    """Yield one side of `limit` pairs, spread evenly over all pairs; of all pairs if there are fewer."""
    row = 0
    for cleaned_corpus in cleaned_corpora:
        for batch in (batch_reference.read() for batch_reference in cleaned_corpus.iter_batches()):
            rows = np.arange(row, row + batch.num_rows)
            row += batch.num_rows
            selected = (
                np.flatnonzero(rows * limit // num_pairs != (rows + 1) * limit // num_pairs)
                if num_pairs > limit
                else slice(None)
            )
            yield from np.array(batch.column(side).to_pylist(), dtype=object)[selected]


def _get_cleaning_stats(cleaned_corpus: CleanedCorpus) -> PairStats:
    """Return the statistics of a cleaned corpus as those of its pairs before encoding."""
    stats = PairStats(read=cleaned_corpus.stats.num_read)
    for rule, filter_stats in cleaned_corpus.stats.filter_stats.items():
        if filter_stats.num_dropped:
            stats.dropped[rule] = filter_stats.num_dropped
            stats.dropped_examples[rule] = [pair.origin for pair in filter_stats.examples[:MAX_LISTED_ORIGINS]]
    return stats


def _publish(work_dir: Path, folder: Path, digests: dict[str, str]) -> None:
    """Move the complete files into the prepared folder, the manifest last."""
    folder.mkdir(exist_ok=True)
    (work_dir / REQUEST_MARKER).unlink()  # from here on, an interrupted preparation cannot be resumed
    for name in (MANIFEST, CLEANING_PAGE, *list_prepared_files(folder)):
        (folder / name).unlink(missing_ok=True)
    page_names = [CLEANING_PAGE] if (work_dir / CLEANING_PAGE).exists() else []
    for name in (*digests, *page_names, MANIFEST):
        (work_dir / name).rename(folder / name)
    shutil.rmtree(work_dir, ignore_errors=True)
