"""Checks before a run resumes: a run folder continues only with the recipe and the corpus that it started with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dragoman.config import recipe_from_dict
from dragoman.errors import RunError
from dragoman.training.checkpoints.checkpoint import Checkpoint

# Keys that may change when a run resumes. A change of any other key would make it another run.
CHANGEABLE_KEYS = {
    "name", "run", "card", "decoding",
    "data.root", "data.test", "data.test_corpora", "data.preprocessing_workers", "data.num_workers",
    "training.max_steps", "training.max_epochs", "training.max_minutes", "training.max_flops", "training.patience",
    "training.log_every_steps",
    "training.checkpoint_every_steps", "training.checkpoint_every_minutes", "training.checkpoint_url",
    "training.keep_last", "training.keep_best",
    "training.checkpoint_averaging", "training.num_averaged_checkpoints", "training.parallel",
    "training.distributed_timeout_minutes", "training.loggers", "training.max_consecutive_skips", "training.on_divergence",
}  # fmt: skip


def check_corpus_unchanged(checkpoint: Checkpoint, data_digests: Mapping[str, str], folder: Path) -> None:
    """Raise RunError if the prepared corpus has changed since the checkpoint, because its token ids may differ."""
    names = sorted(
        name
        for name in checkpoint.data_digests.keys() | data_digests.keys()
        if checkpoint.data_digests.get(name) != data_digests.get(name)
    )
    if names:
        changed_names = ", ".join(names[:3]) + (", …" if names[3:] else "")
        raise RunError(
            f"{folder}: was started with another corpus ({changed_names} differ); restore the text, or start in another "
            "folder with run=FOLDER",
            code="data-changed",
        )


def check_no_earlier_run(folder: Path) -> None:
    """Raise RunError if the folder holds a run without a good checkpoint. A new run would replace its bundle."""
    has_damaged = any((folder / "checkpoints").glob("damaged-*"))
    if has_damaged or (folder / "bundle").exists():
        raise RunError(
            f"{folder}: holds an earlier run without an intact checkpoint, so it cannot resume; start in another folder with "
            "run=FOLDER, or remove this folder to start over",
            code="checkpoint-not-found",
        )


def check_recipe_unchanged(previous_recipe: Mapping[str, Any], current_recipe: Mapping[str, Any], folder: Path) -> None:
    """Raise RunError with the differences if a run folder was started with another recipe. Both are as JSON."""
    previous_recipe = recipe_from_dict(previous_recipe, where=str(folder)).model_dump()
    changes = [
        f"{key} was {old!r} and is {new!r}"
        for key, old, new in _iter_differences(previous_recipe, current_recipe)
        if not _is_changeable(key)
    ]
    if changes:
        raise RunError(
            f"{folder}: was started with another recipe: {'; '.join(changes)}; set them back, or start in another folder with "
            "run=FOLDER",
            code="recipe-changed",
        )


def _iter_differences(
    previous: Mapping[str, Any], current: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted(previous.keys() | current.keys()):
        old, new = previous.get(key), current.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _iter_differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}", old, new


def _is_changeable(key: str) -> bool:
    return any(key == allowed or key.startswith(f"{allowed}.") for allowed in CHANGEABLE_KEYS)
