"""The start of a run, made alike on all ranks: what to go on from, and the corpora. Rank 0 does it, the others follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dragoman.config import Recipe
from dragoman.data.prepare import PreparedData, prepare
from dragoman.errors import OutputError, RankError, RunError
from dragoman.io.storage import describe_write_error, make_dirs, verify_checksums, write_json
from dragoman.training.checkpoints.checkpoint import Checkpoint, find_latest_checkpoint, read_checkpoint, remove_unfinished
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.monitoring.callbacks import Callback
from dragoman.training.resume_checks import check_corpus_unchanged, check_no_earlier_run, check_recipe_unchanged


def find_checkpoint(folder: Path, recipe: Recipe, callback: Callback, distributed: DistributedContext) -> Checkpoint | None:
    """The checkpoint in a run folder that this recipe goes on from. Raises RunError where it is another recipe's."""

    def accept(checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            check_recipe_unchanged(checkpoint.recipe, recipe, folder)
        else:
            check_no_earlier_run(folder)

    return find_latest_on_all_ranks(folder / "checkpoints", callback.notice, distributed, accept)


def find_latest_on_all_ranks(
    checkpoint_dir: Path,
    notice: Callable[[str], None],
    distributed: DistributedContext,
    accept: Callable[[Checkpoint | None], None] = lambda checkpoint: None,
) -> Checkpoint | None:
    """The newest checkpoint that is whole, as rank 0 finds and accepts it; every rank verifies its own view of it."""
    checkpoint = None
    with distributed.rank_zero_first():
        if distributed.is_rank_zero:
            checkpoint = find_latest_checkpoint(checkpoint_dir, notice)
            accept(checkpoint)
    name = distributed.broadcast_object(checkpoint.path.name if checkpoint is not None else None)
    if name is None or distributed.is_rank_zero:
        return checkpoint
    try:
        verify_checksums(checkpoint_dir / name, RunError)
        return read_checkpoint(checkpoint_dir / name)
    except RunError as error:
        raise RankError(f"rank {distributed.rank}: {error}; rank 0 goes on from it") from None


def prepare_run(
    folder: Path, recipe: Recipe, checkpoint: Checkpoint | None, callback: Callback, distributed: DistributedContext
) -> tuple[PreparedData, dict[str, str]]:
    """The prepared corpora and the digests of their files; the run folder is ready for what the run will write.

    Raises RunError where they are not those that `found` learned from.
    """
    data_digests: dict[str, str] = {}

    def accept(digests: dict[str, str]) -> None:
        if checkpoint is not None:
            check_corpus_unchanged(checkpoint, digests, folder)
        data_digests.update(digests)

    def prepare_corpora() -> PreparedData:
        return prepare(recipe, folder / "data", callback.notice, on_progress=callback.progress, accept=accept)

    with distributed.rank_zero_first():
        if distributed.is_rank_zero:
            result = prepare_corpora()
            for name, stats in result.pair_counts.items():
                for sentence in stats.summarize(recipe.data.overlong_pairs):
                    callback.notice(f"{name}: {sentence}")
            _create_run_folder(folder, recipe)
    if not distributed.is_rank_zero:
        result = prepare_corpora()
    if data_digests != distributed.broadcast_object(data_digests):
        raise RankError(f"rank {distributed.rank}: has other files in {folder / 'data'} than rank 0; give all ranks one folder")
    return result, data_digests


def _create_run_folder(folder: Path, recipe: Recipe) -> None:
    checkpoint_dir = folder / "checkpoints"
    try:
        make_dirs(checkpoint_dir)
        write_json(folder / "recipe.json", recipe.model_dump(mode="json"), overwrite=True)
    except OSError as error:
        raise OutputError(describe_write_error(checkpoint_dir, error)) from None
    remove_unfinished(checkpoint_dir)
