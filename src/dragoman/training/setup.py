"""The start of a run, made alike on all ranks: what to go on from, and the corpora. Rank 0 does it, the others follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dragoman.config import Recipe
from dragoman.data.prepare import Prepared, prepare
from dragoman.errors import OutputError, RankError, RunError
from dragoman.io.storage import cannot_write, check_seal, make_folder, write_json
from dragoman.training.checkpoints.checkpoint import Checkpoint, newest_checkpoint, read_checkpoint, remove_unfinished
from dragoman.training.distributed.process_group import World
from dragoman.training.monitoring.callbacks import Listener
from dragoman.training.resume_checks import refuse_changed_corpus, refuse_changes, refuse_to_start_over


def find_checkpoint(folder: Path, recipe: Recipe, listener: Listener, world: World) -> Checkpoint | None:
    """The checkpoint in a run folder that this recipe goes on from. Raises RunError where it is another recipe's."""

    def accept(found: Checkpoint | None) -> None:
        if found is not None:
            refuse_changes(found.recipe, recipe, folder)
        else:
            refuse_to_start_over(folder)

    return newest_of_all(folder / "checkpoints", listener.notice, world, accept)


def newest_of_all(
    checkpoints: Path,
    notice: Callable[[str], None],
    world: World,
    accept: Callable[[Checkpoint | None], None] = lambda found: None,
) -> Checkpoint | None:
    """The newest checkpoint that is whole, as rank 0 finds and accepts it; every rank verifies its own view of it."""
    found = None
    with world.led():
        if world.leads:
            found = newest_checkpoint(checkpoints, notice)
            accept(found)
    name = world.from_leader(found.path.name if found is not None else None)
    if name is None or world.leads:
        return found
    try:
        check_seal(checkpoints / name, RunError)
        return read_checkpoint(checkpoints / name)
    except RunError as error:
        raise RankError(f"rank {world.rank}: {error}; rank 0 goes on from it") from None


def prepare_run(
    folder: Path, recipe: Recipe, found: Checkpoint | None, listener: Listener, world: World
) -> tuple[Prepared, dict[str, str]]:
    """The prepared corpora and the digests of their files; the run folder is ready for what the run will write.

    Raises RunError where they are not those that `found` learned from.
    """
    corpus: dict[str, str] = {}

    def accept(digests: dict[str, str]) -> None:
        if found is not None:
            refuse_changed_corpus(found, digests, folder)
        corpus.update(digests)

    def prepared() -> Prepared:
        return prepare(recipe, folder / "data", listener.notice, progress=listener.progress, accept=accept)

    with world.led():
        if world.leads:
            result = prepared()
            for name, fate in result.fates.items():
                for sentence in fate.sentences(recipe.data.overlong_pairs):
                    listener.notice(f"{name}: {sentence}")
            _make_ready(folder, recipe)
    if not world.leads:
        result = prepared()
    if corpus != world.from_leader(corpus):
        raise RankError(f"rank {world.rank}: has other files in {folder / 'data'} than rank 0; give all ranks one folder")
    return result, corpus


def _make_ready(folder: Path, recipe: Recipe) -> None:
    checkpoints = folder / "checkpoints"
    try:
        make_folder(checkpoints)
        write_json(folder / "recipe.json", recipe.model_dump(mode="json"), overwrite=True)
    except OSError as error:
        raise OutputError(cannot_write(checkpoints, error)) from None
    remove_unfinished(checkpoints)
