"""`prepared.json`: digests of everything that went into a prepared folder, and of each file that came out."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from dragoman.config import CorpusConfig, Recipe
from dragoman.data.alignments import link_files
from dragoman.data.encode import Fate
from dragoman.data.tokenization.tokenizer import LABELS
from dragoman.errors import DataError
from dragoman.formats.readers import corpus_files, refuse_missing
from dragoman.io.storage import write_json

MANIFEST = "prepared.json"
VERSION = 2
# A file that was written so shortly before it was looked at may be written again without a later time stamp.
UNSURE_SECONDS = 2.0


def write_manifest(folder: Path, digest: str, inputs: dict[str, Any], files: dict[str, str], fates: dict[str, Fate]) -> None:
    told = {name: asdict(fate) for name, fate in fates.items()}
    write_json(folder / MANIFEST, {"digest": digest, "inputs": inputs, "files": files, "fates": told}, overwrite=True)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What `prepared.json` tells; none where there is none, or one that cannot be read."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
        fates = {name: Fate.from_dict(fate) for name, fate in found["fates"].items()}
        inputs = {name: {**known, "sha256": str(known["sha256"])} for name, known in found["inputs"].items()}
        return {"digest": found["digest"], "inputs": inputs, "files": found["files"], "fates": fates}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def texts_of(inputs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """The digests of everything that goes in, whatever the files are called and wherever they lie."""
    return tuple(sorted(known["sha256"] for known in inputs.values()))


def prepared_names(folder: Path) -> list[str]:
    return sorted(path.name for kind in ("*.arrow", "*.model", LABELS) for path in folder.glob(kind))


def prepared_files(folder: Path) -> dict[str, str]:
    """The digest of each prepared file in a folder."""
    return {name: _file_digest(folder / name) for name in prepared_names(folder)}


def _file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _input_files(recipe: Recipe) -> list[list[Path]]:
    """The files that go in: those of each corpus, and the subword models."""
    root, data = Path(recipe.data.root), recipe.data
    models = [root / path for path in (recipe.tokenizer.model_file, recipe.tokenizer.target_model_file) if path is not None]
    links = [path for corpus in data.training_corpora().values() for path in link_files(corpus, root)]
    return [*(corpus_files(corpus, root) for corpus in _corpora(recipe)), models, *([links] if links else [])]


def _corpora(recipe: Recipe) -> list[CorpusConfig]:
    data = recipe.data
    corpora = [*data.training_corpora().values(), data.valid, data.test if data.cleaning.eval_overlap else None]
    return [corpus for corpus in corpora if corpus is not None]


def _input_name(path: Path) -> str:
    return "-" if str(path) == "-" else str(path.absolute())


def digested_inputs(recipe: Recipe, known: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Size, time and digest of each file that goes in; of one that has the size and time that are known, the known digest."""
    refuse_missing(recipe, _corpora(recipe))
    inputs: dict[str, dict[str, Any]] = {}
    for path in chain.from_iterable(_input_files(recipe)):
        name = _input_name(path)
        if name == "-":
            inputs[name] = {"sha256": ""}  # a pipe can be read but once
            continue
        try:
            stat = path.stat()
            now = {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
            before = known.get(name, {})
            if {key: before.get(key) for key in now} == now and before.get("sure") is True:
                inputs[name] = before
                continue
            sure = time.time() - stat.st_mtime > UNSURE_SECONDS
            inputs[name] = {**now, "sure": sure, "sha256": _file_digest(path)}
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    return inputs


def request_digest(recipe: Recipe, inputs: dict[str, dict[str, Any]]) -> str:
    """Of the settings and the bytes that prepared files depend on."""
    data = recipe.data
    settings = {
        "version": VERSION,
        "corpora": [
            (name, corpus.model_dump(exclude={"weight", "alignments"})) for name, corpus in data.training_corpora().items()
        ],
        "valid": data.valid.model_dump(exclude={"alignments"}) if data.valid is not None else None,
        "test": data.test.model_dump(exclude={"alignments"}) if data.test is not None and data.cleaning.eval_overlap else None,
        "cleaning": data.cleaning.model_dump(),
        "max_length": data.max_length,
        "overlong_pairs": data.overlong_pairs,
        "languages": [recipe.task.source_language, recipe.task.target_language],
        "tokenizer": recipe.tokenizer.model_dump(exclude={"sampling_alpha"}),
        "append_source_eos": recipe.model.append_source_eos,
        "seed": recipe.training.seed,
        "inputs": [[inputs[_input_name(path)]["sha256"] for path in paths] for paths in _input_files(recipe)],
    }
    if recipe.training.guided_alignment_weight:
        settings["links"] = [corpus.alignments is not None for corpus in data.training_corpora().values()]
    if recipe.task.kind == "parsing":
        settings["trees"] = [recipe.task.linearization, recipe.task.function_tags, recipe.task.traces]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
