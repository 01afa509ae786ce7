"""Setup of a run on all ranks: lock the folder, find the checkpoint, prepare the corpora, build the trainer.

Rank 0 does the work that changes files; the other ranks read the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dragoman.config import Recipe, TrainingConfig
from dragoman.data.dataloader import BatchStream, TrainingBatches
from dragoman.data.prepare import PreparedData, prepare
from dragoman.errors import DataError, RankError, RecipeError
from dragoman.evaluation.bleu_tokenizer import check_bleu_tokenizer
from dragoman.formats.object_store import is_url
from dragoman.formats.pair import Pair
from dragoman.formats.readers import check_files_exist, list_corpus_files
from dragoman.formats.text import is_blank
from dragoman.io.storage import lock_dir, make_dirs, make_output_dir, to_write_error, write_json
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.torch_engine.inference_model import get_max_positions
from dragoman.training.checkpoints.checkpoint import Checkpoint, TrainerState, remove_unfinished
from dragoman.training.checkpoints.checkpointer import Checkpointer, find_latest_on_all_ranks
from dragoman.training.compute_plan import ComputePlan, choose_compute_plan, limit_kernel_cache
from dragoman.training.distributed.process_group import DistributedContext, check_even_split
from dragoman.training.early_stopping import EarlyStopping
from dragoman.training.gradient_guard import GradientGuard
from dragoman.training.initial_model import copy_initial_bundle
from dragoman.training.monitoring.events import Callback, Notice, PreparationProgress, TrainingEvent, ignore_event
from dragoman.training.monitoring.metrics_log import MetricsLog
from dragoman.training.resume_checks import check_corpus_unchanged, check_no_earlier_run, check_recipe_unchanged
from dragoman.training.train_state import build_train_state
from dragoman.training.train_step import TrainStep
from dragoman.training.trainer import Trainer
from dragoman.training.validation import build_validator, read_evaluation_pairs


@contextmanager
def lock_run_folder(run: str) -> Iterator[None]:
    """Keep other runs out of the run folder. Raise OutputError if another process uses it."""
    if is_url(run):
        raise RecipeError(
            f"run = {run!r}: training writes to a folder; give one, and the URL as training.checkpoint_url",
            code="invalid-option",
        )
    folder = Path(run)
    make_output_dir(folder)
    with lock_dir(folder):
        try:
            yield
        finally:
            with suppress(OSError):  # removes the folder if it is empty
                folder.rmdir()


def read_test_sets(recipe: Recipe) -> dict[str, list[Pair]]:
    """Read the test sets by name, so that an error in one appears before training. That of data.test is named test."""
    corpora = recipe.data.evaluation_corpora("test")
    check_files_exist(recipe.data.root, recipe.name, corpora.values())
    test_sets, directions = read_evaluation_pairs(recipe, "test"), recipe.evaluation_directions("test")
    for name, pairs in test_sets.items():
        if all(is_blank(pair.target) for pair in pairs):
            files = " and ".join(str(path) for path in list_corpus_files(directions[name].corpus, Path(recipe.data.root)))
            raise DataError(
                f"{files}: the test set is empty, or all references are blank; add lines, or leave it out", code="empty-data"
            )
    return test_sets


def check_same_recipe(recipe: Mapping[str, Any], distributed: DistributedContext) -> None:
    """Raise RankError if this rank has another recipe than rank 0. recipe: as JSON"""
    if distributed.broadcast_object(recipe) != recipe:
        raise RankError(
            f"rank {distributed.rank}: has another recipe than rank 0; give all ranks the same file and the same settings"
        )


def find_checkpoint(recipe: Recipe, callback: Callback, distributed: DistributedContext) -> Checkpoint | None:
    """Return the checkpoint that the run resumes from; None for a new run. Raise RunError if it has another recipe."""
    folder = Path(recipe.run)

    def accept(checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            check_recipe_unchanged(checkpoint.recipe, recipe.model_dump(), folder)
        else:
            check_no_earlier_run(folder)

    check_even_split(recipe.data, recipe.tokenizer, recipe.training, distributed)
    return find_latest_on_all_ranks(folder / "checkpoints", lambda text: callback(Notice(text)), distributed, accept)


def prepare_run(
    recipe: Recipe, checkpoint: Checkpoint | None, callback: Callback, distributed: DistributedContext
) -> tuple[PreparedData, dict[str, str]]:
    """Prepare the corpora and create the run folder. Return the prepared data and the SHA-256 of its files.

    Raises RunError if the checkpoint was trained on other data.
    """
    folder = Path(recipe.run)
    data_digests: dict[str, str] = {}

    def notify(text: str) -> None:
        callback(Notice(text))

    def report_progress(task_name: str, done: int, total: int | None) -> None:
        callback(PreparationProgress(task_name, done, total))

    def accept(digests: dict[str, str]) -> None:
        if checkpoint is not None:
            check_corpus_unchanged(checkpoint, digests, folder)
        data_digests.update(digests)

    def prepare_corpora() -> PreparedData:
        if recipe.training.num_validation_translations or recipe.data.evaluation_corpora("test"):
            for direction in (*recipe.evaluation_directions("valid").values(), *recipe.evaluation_directions("test").values()):
                check_bleu_tokenizer(recipe.with_languages(direction.languages).task)
        return prepare(recipe, folder / "data", notify, on_progress=report_progress, accept=accept)

    with distributed.rank_zero_first():
        if distributed.is_rank_zero:
            copy_initial_bundle(folder, recipe.training, has_checkpoint=checkpoint is not None, notify=notify)
            prepared = prepare_corpora()
            for name, stats in prepared.pair_counts.items():
                for sentence in stats.summarize(recipe.data.overlong_pairs):
                    notify(f"{name}: {sentence}")
            _create_run_folder(folder, recipe.model_dump())
    if not distributed.is_rank_zero:
        prepared = prepare_corpora()
    if data_digests != distributed.broadcast_object(data_digests):
        raise RankError(f"rank {distributed.rank}: has other files in {folder / 'data'} than rank 0; give all ranks one folder")
    return prepared, data_digests


def _create_run_folder(folder: Path, recipe: dict[str, Any]) -> None:
    checkpoint_dir = folder / "checkpoints"
    try:
        make_dirs(checkpoint_dir)
        write_json(folder / "recipe.json", recipe, overwrite=True)
    except OSError as error:
        raise to_write_error(checkpoint_dir, error) from None
    remove_unfinished(checkpoint_dir)


def _open_log(folder: Path, step: int, callback: Callback) -> Callback:
    """Return the callback that writes each event into the metrics log before it reports the event."""
    metrics_log = MetricsLog.resume(folder / "metrics.jsonl", step=step, on_error=lambda text: callback(Notice(text)))
    return _chain(metrics_log, callback)


def build_trainer(
    recipe: Recipe,
    prepared: PreparedData,
    data_digests: Mapping[str, str],
    checkpoint: Checkpoint | None,
    callback: Callback = ignore_event,
    distributed: DistributedContext | None = None,
    *,
    reuse_plan: Mapping[str, str] | None = None,
) -> Trainer:
    """Build the trainer of a new run, or of a run that resumes from a checkpoint.

    reuse_plan: compute plan of a run to compare with, for a new run
    """
    distributed = distributed or DistributedContext()
    folder, config = Path(recipe.run), recipe.training
    trainer_state = checkpoint.trainer_state if checkpoint is not None else TrainerState()
    limit_kernel_cache()
    plan = _agree_on_plan(config, distributed, checkpoint.compute_plan if checkpoint is not None else reuse_plan)
    train_state = build_train_state(recipe, prepared.tokenizer, plan, distributed, checkpoint)
    validator = build_validator(recipe, prepared, plan, max_positions=get_max_positions([train_state.model]))
    guard = GradientGuard.from_state(trainer_state, plan.device, grad_norm_spike_sigma=config.grad_norm_spike_sigma)
    log_and_report = _open_log(folder, trainer_state.step, callback) if distributed.is_rank_zero else ignore_event
    train_step = TrainStep(
        train_state.loss,
        train_state.optimizer,
        config=config,
        plan=plan,
        distributed=distributed,
        guard=guard,
        callback=log_and_report,
    )
    checkpointer = Checkpointer(
        folder / "checkpoints",
        recipe.model_dump(),
        config,
        data_digests,
        plan.to_dict(),
        distributed,
        log_and_report,
        checkpoint,
    )
    return Trainer(
        recipe,
        prepared=prepared,
        trainer_state=trainer_state,
        train_state=train_state,
        train_step=train_step,
        stream=BatchStream(
            TrainingBatches(recipe, prepared.folder, start_id=get_decoder_start_id(recipe.model)),
            position=trainer_state.data_position,
            num_workers=recipe.data.num_workers,
            rank=distributed.rank,
            world_size=distributed.world_size,
            pin_memory=plan.device.type == "cuda",
        ),
        checkpointer=checkpointer,
        early_stopping=EarlyStopping(config, validator, distributed, log_and_report, len(prepared.tokenizer.target)),
        callback=log_and_report,
    )


def _chain(first: Callback, second: Callback) -> Callback:
    """Return a callback that passes each event to both."""

    def call_both(event: TrainingEvent) -> None:
        first(event)
        second(event)

    return call_both


def _agree_on_plan(
    training: TrainingConfig, distributed: DistributedContext, reuse_plan: Mapping[str, str] | None
) -> ComputePlan:
    """Choose the compute plan on rank 0, and return the same plan on all ranks."""
    plan_dict = None
    if distributed.is_rank_zero:
        plan_dict = choose_compute_plan(training, reuse_plan=reuse_plan).to_dict()
    return choose_compute_plan(training, reuse_plan=distributed.broadcast_object(plan_dict))
