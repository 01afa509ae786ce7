"""Is this still the same run? A run folder goes on only with the recipe and the corpus that it was begun with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dragoman.config import Recipe, recipe_from_dict
from dragoman.errors import RunError
from dragoman.training.checkpoints.checkpoint import Checkpoint

# What may change between two stretches of one run; all else would make it another run.
CHANGEABLE_KEYS = {
    "name", "run", "data.root", "data.test", "data.preprocessing_workers", "data.num_workers", "decoding",
    "training.max_steps", "training.max_epochs", "training.max_minutes", "training.patience", "training.log_every_steps",
    "training.checkpoint_every_steps", "training.checkpoint_every_minutes", "training.keep_last", "training.keep_best",
    "training.checkpoint_averaging", "training.num_averaged_checkpoints", "training.parallel", "training.distributed_timeout_minutes", "training.loggers",
    "training.max_consecutive_skips", "training.on_divergence",
}  # fmt: skip


def check_corpus_unchanged(checkpoint: Checkpoint, data_digests: Mapping[str, str], folder: Path) -> None:
    """Raise RunError where the corpus was changed since: the weights would go on with ids that mean something else."""
    names = sorted(
        name
        for name in checkpoint.data_digests.keys() | data_digests.keys()
        if checkpoint.data_digests.get(name) != data_digests.get(name)
    )
    if names:
        changed_names = ", ".join(names[:3]) + (", …" if names[3:] else "")
        raise RunError(
            f"{folder} was begun with another corpus: {changed_names} came out differently. Put the text back as it was, "
            "or start elsewhere with run=FOLDER"
        )


def check_no_earlier_run(folder: Path) -> None:
    """Raise RunError where a run was here whose checkpoints are gone or damaged: step 0 would end in its bundle's place."""
    has_damaged = any((folder / "checkpoints").glob("damaged-*"))
    if has_damaged or (folder / "bundle").exists():
        raise RunError(
            f"{folder} holds an earlier run but no checkpoint that is whole, so it cannot go on; start elsewhere with "
            "run=FOLDER, or remove the folder to start over in its place"
        )


def check_recipe_unchanged(previous_recipe: Mapping[str, Any], recipe: Recipe, folder: Path) -> None:
    """Raise RunError with the difference where a run folder was begun with another recipe.

    A knob that there was not yet is taken for what it now is by itself.
    """
    previous_recipe = recipe_from_dict(previous_recipe, where=str(folder)).model_dump(mode="json")
    current_recipe = recipe.model_dump(mode="json")
    changes = [
        f"{key} was {old!r} and is {new!r}"
        for key, old, new in _iter_differences(previous_recipe, current_recipe)
        if not _is_changeable(key)
    ]
    if changes:
        raise RunError(
            f"{folder} was begun with another recipe: {'; '.join(changes)}. Set them back, or start elsewhere with run=FOLDER"
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
