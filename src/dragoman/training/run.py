"""A training run from top to bottom: a recipe becomes a run folder with a bundle and a report.

runs/NAME/  recipe.json  data/  checkpoints/  metrics.jsonl  bundle/  report.json  curve.svg  report.html
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dragoman.config import Recipe
from dragoman.errors import DragomanError, InterruptedRun
from dragoman.training.checkpoints.upload import with_uploads
from dragoman.training.distributed.process_group import context_from_environment, init_process_group
from dragoman.training.distributed.signals import interrupt_on_signals
from dragoman.training.finalize import finalize
from dragoman.training.monitoring.events import Callback, CallbackList, RunClosed, RunFinished, ignore_event
from dragoman.training.monitoring.loggers import with_loggers
from dragoman.training.monitoring.run_page import PAGE_FILE, RunPage
from dragoman.training.setup import (
    build_trainer,
    check_same_recipe,
    find_checkpoint,
    lock_run_folder,
    prepare_run,
    read_test_sets,
)
from dragoman.training.time_estimate import estimate_evaluations


def train(
    recipe: Recipe,
    callback: Callback = ignore_event,
    *,
    attention_source: str | None = None,
    reuse_plan: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Train a recipe and return the content of `report.json`; an empty dict on ranks other than 0.

    The recipe's run folder may hold an earlier part of the run, which then resumes.

    callback: takes the events of the run, see `monitoring.events`
    attention_source: test source whose attention the report shows; by default one of a readable length
    reuse_plan: compute plan of a run to compare with, as `Checkpoint.compute_plan` holds it; measured by default
    """
    test_sets = {}
    distributed = context_from_environment(os.environ, timeout_minutes=recipe.training.distributed_timeout_minutes)
    with init_process_group(distributed), ExitStack() as exit_stack:
        if distributed.world_size == 1:  # ranks that wait for each other would not react to a signal
            exit_stack.enter_context(interrupt_on_signals())
        with distributed.rank_zero_first():
            if distributed.is_rank_zero:
                test_sets = read_test_sets(recipe)
                exit_stack.enter_context(lock_run_folder(recipe.run))
                run = Path(recipe.run)
                callback = CallbackList(callback, {PAGE_FILE: RunPage(run)})
                callback = with_loggers(run, recipe.training.loggers, callback)
                callback = with_uploads(run, recipe.training.checkpoint_url, callback)
        check_same_recipe(recipe.model_dump(), distributed)
        callback = callback if distributed.is_rank_zero else ignore_event
        exit_stack.callback(callback, RunClosed())

        checkpoint = find_checkpoint(recipe, callback, distributed)
        prepared, data_digests = prepare_run(recipe, checkpoint, callback, distributed)
        trainer = build_trainer(recipe, prepared, data_digests, checkpoint, callback, distributed, reuse_plan=reuse_plan)
        if trainer.plan.device.type == "cpu":
            validator, vocab_size = trainer.early_stopping.validator, len(prepared.tokenizer.target)
            validation = None if validator is None else validator.corpus
            model, beam_size, pairs = recipe.model, recipe.decoding.beam_size, trainer.early_stopping.pairs
            callback(estimate_evaluations(model, beam_size, validation, pairs, test_sets, vocab_size))
        try:
            trainer.run()
            if not distributed.is_rank_zero:
                return {}
            if distributed.world_size > 1:
                exit_stack.enter_context(interrupt_on_signals())
            report = finalize(trainer, test_sets, callback, attention_source)
            callback(RunFinished(report))
            return report
        except KeyboardInterrupt:
            message = f"interrupted after step {trainer.state.step}; {trainer.describe_latest()}"
            trainer.log_event("stopped", message)
            raise InterruptedRun(message) from None
        except InterruptedRun:
            raise
        except DragomanError as error:
            trainer.log_event("failed", str(error))
            raise
