"""Manifest of a prepared folder, `prepared.json`: digests of all inputs and of each output file."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from dragoman.config import CorpusConfig, DataConfig, Recipe, locate_initial_bundle
from dragoman.data.alignments import list_alignment_files
from dragoman.data.encode import PairStats
from dragoman.data.tokenization.pair_tokenizer import LABELS_FILE, list_tokenizer_files
from dragoman.errors import DataError
from dragoman.formats.readers import check_files_exist, list_corpus_files
from dragoman.io.storage import write_json

MANIFEST = "prepared.json"
VERSION = 3
PREPARED_FILES = ("*.arrow", "*.model", "*.tokens.json", "*.vocab.json", LABELS_FILE)
"""Patterns of the names of prepared files."""
# A file that was modified less long ago may change again without a later time stamp, so its digest is not reused.
MIN_MTIME_AGE_SECONDS = 2.0


def write_manifest(
    folder: Path, digest: str, inputs: dict[str, Any], files: dict[str, str], pair_counts: dict[str, PairStats]
) -> None:
    """Write `prepared.json`.

    digest: the digest of the request, from `compute_request_digest`
    inputs: size, time and digest of each input file, from `hash_inputs`
    """
    counts = {name: asdict(stats) for name, stats in pair_counts.items()}
    write_json(folder / MANIFEST, {"digest": digest, "inputs": inputs, "files": files, "pair_counts": counts}, overwrite=True)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the content of `prepared.json`, or None if it is missing or damaged."""
    try:
        return parse_manifest((folder / MANIFEST).read_bytes())
    except OSError:
        return None


def parse_manifest(content: bytes) -> dict[str, Any] | None:
    """Return the content of a manifest, or None if it is damaged."""
    try:
        manifest = json.loads(content)
        pair_counts = {name: PairStats.from_dict(stats) for name, stats in manifest["pair_counts"].items()}
        inputs = {name: {**entry, "sha256": str(entry["sha256"])} for name, entry in manifest["inputs"].items()}
        return {"digest": manifest["digest"], "inputs": inputs, "files": manifest["files"], "pair_counts": pair_counts}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def list_input_digests(inputs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the digests of all inputs, independent of the names and folders of the files."""
    return tuple(sorted(entry["sha256"] for entry in inputs.values()))


def list_prepared_files(folder: Path) -> list[str]:
    return sorted(path.name for pattern in PREPARED_FILES for path in folder.glob(pattern))


def hash_prepared_files(folder: Path) -> dict[str, str]:
    return {name: _hash_file(folder / name) for name in list_prepared_files(folder)}


def _hash_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _list_input_files(recipe: Recipe) -> list[list[Path]]:
    """Return the input files: those of each corpus, the tokenizer models, and the alignment files if there are any."""
    root, data = Path(recipe.data.root), recipe.data
    models = [root / path for path in recipe.tokenizer.files]
    models += [root / data.term_file] if data.term_file is not None else []
    if recipe.training.init_from is not None:
        models += list_tokenizer_files(locate_initial_bundle(recipe.training.init_from, recipe.run))
    links = [path for corpus in data.training_corpora().values() for path in list_alignment_files(corpus, root)]
    return [*(list_corpus_files(corpus, root) for corpus in list_corpora(recipe.data)), models, *([links] if links else [])]


def list_corpora(data: DataConfig) -> list[CorpusConfig]:
    """Return the corpora that a preparation reads."""
    splits: tuple[Literal["valid", "test"], ...] = ("valid", "test") if data.cleaning.eval_overlap else ("valid",)
    evaluation_corpora = [corpus for split in splits for corpus in data.evaluation_corpora(split).values()]
    return [*data.training_corpora().values(), *evaluation_corpora]


def _get_input_name(path: Path) -> str:
    return "-" if str(path) == "-" else str(path.absolute())


def hash_inputs(recipe: Recipe, previous_inputs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return size, time and digest of each input file. A file of known size and time keeps its known digest.

    previous_inputs: the result of an earlier call

    Raises DataError: a file cannot be read.
    """
    check_files_exist(recipe.data.root, recipe.name, list_corpora(recipe.data))
    inputs: dict[str, dict[str, Any]] = {}
    for path in chain.from_iterable(_list_input_files(recipe)):
        name = _get_input_name(path)
        if name == "-":
            inputs[name] = {"sha256": ""}  # a pipe can be read only once
            continue
        try:
            stat = path.stat()
            current = {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
            previous = previous_inputs.get(name, {})
            if {key: previous.get(key) for key in current} == current and previous.get("settled") is True:
                inputs[name] = previous
                continue
            is_settled = time.time() - stat.st_mtime > MIN_MTIME_AGE_SECONDS
            inputs[name] = {**current, "settled": is_settled, "sha256": _hash_file(path)}
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}", code="file-unreadable") from None
    return inputs


def _describe_corpora(corpora: Mapping[str, CorpusConfig]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, corpus.model_dump(exclude={"weight", "alignments"})) for name, corpus in corpora.items()]


def compute_request_digest(recipe: Recipe, inputs: dict[str, dict[str, Any]]) -> str:
    """Return the digest of the settings and the input bytes that the prepared files depend on."""
    data = recipe.data
    settings = {
        "version": VERSION,
        "corpora": _describe_corpora(data.training_corpora()),
        "valid": _describe_corpora(data.evaluation_corpora("valid")),
        "test": _describe_corpora(data.evaluation_corpora("test")) if data.cleaning.eval_overlap else None,
        "cleaning": data.cleaning.model_dump(),
        "max_length": data.max_length,
        "overlong_pairs": data.overlong_pairs,
        "languages": [recipe.task.source_language, recipe.task.target_language],
        "tokenizer": recipe.tokenizer.model_dump(exclude={"sampling_alpha"}),
        "append_source_eos": recipe.model.append_source_eos,
        "seed": recipe.training.seed,
        "inputs": [[inputs[_get_input_name(path)]["sha256"] for path in paths] for paths in _list_input_files(recipe)],
    }
    if recipe.aligns_words:
        settings["links"] = [corpus.alignments is not None for corpus in data.training_corpora().values()]
    if not recipe.task.has_text_target:
        settings["trees"] = [recipe.task.linearization, recipe.task.function_tags, recipe.task.traces]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
