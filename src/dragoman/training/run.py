"""The end of a run: averaged weights as a bundle with its story, and the report."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import load_weights, save_bundle
from dragoman.config import STANDARD_INPUT, Recipe, as_list, recipe_from_dict
from dragoman.config.paper_settings import find_deviations
from dragoman.data.manifest import hash_prepared_files
from dragoman.data.prepare import VALID
from dragoman.data.tokenization.tokenizer import PairTokenizer, read_tokenizer
from dragoman.errors import (
    DataError,
    DragomanError,
    InterruptedRun,
    OutOfMemoryError,
    OutputError,
    RankError,
    RunError,
    is_out_of_memory,
)
from dragoman.formats.pair import Pair
from dragoman.formats.readers import check_files_exist, list_corpus_files
from dragoman.formats.text import describe_path
from dragoman.io.storage import describe_write_error, lock_dir, verify_checksums
from dragoman.model.factory import assemble_model
from dragoman.tasks.attention_alignment import choose_alignment_head, get_guided_head
from dragoman.tasks.parsing import parser_options
from dragoman.training.checkpoints.checkpoint import (
    Checkpoint,
    average_checkpoints,
    quarantine_if_damaged,
    quarantine_unreadable,
    read_all_checkpoints,
    select_best,
    select_scheduled,
)
from dragoman.training.distributed.process_group import context_from_environment, init_process_group
from dragoman.training.distributed.signals import interrupt_on_signals
from dragoman.training.monitoring.callbacks import Callback, NullCallback
from dragoman.training.monitoring.trackers import with_loggers
from dragoman.training.report import write_report
from dragoman.training.resume_checks import check_corpus_unchanged
from dragoman.training.trainer import Trainer
from dragoman.training.validation import read_eval_pairs
from dragoman.version import __version__

# Validation pairs by which the head is chosen that alignments are read off: more would tell little more.
NUM_ALIGNMENT_PAIRS = 1000


def train(
    recipe: Recipe,
    callback: Callback | None = None,
    *,
    attention_source: str | None = None,
    reuse_plan: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a recipe to its end and return what `report.json` holds; on all ranks but the first, nothing.

    picture_of: the test source whose attention the report shows; one of fitting length when not given
    like: what `Machine.memory` told of runs that this one is compared with; measured when not given
    """
    callback = callback or NullCallback()
    test_pairs = None
    distributed = context_from_environment(os.environ, timeout_minutes=recipe.training.distributed_timeout_minutes)
    with init_process_group(distributed), ExitStack() as exit_stack:
        with distributed.rank_zero_first():
            if distributed.is_rank_zero:
                test_pairs = read_test_pairs(recipe)
                exit_stack.enter_context(lock_run_folder(recipe))
                callback = with_loggers(recipe, callback)
        if distributed.broadcast_object(recipe.model_dump(mode="json")) != recipe.model_dump(mode="json"):
            raise RankError(
                f"rank {distributed.rank}: has another recipe than rank 0; give all ranks one file and the same settings"
            )
        callback = callback if distributed.is_rank_zero else NullCallback()
        exit_stack.callback(callback.close)
        trainer = Trainer(recipe, callback, distributed, reuse_plan=reuse_plan)
        if distributed.world_size == 1:  # ranks that wait for each other hear a signal only if it ends them
            exit_stack.enter_context(interrupt_on_signals())
        try:
            trainer.run()
            if not distributed.is_rank_zero:
                return {}
            if distributed.world_size > 1:
                exit_stack.enter_context(interrupt_on_signals())
            report = finalize(trainer, test_pairs, callback, attention_source)
            callback.finish(report)
            return report
        except KeyboardInterrupt:
            message = f"interrupted after step {trainer.state.step}; {trainer.describe_latest()}"
            trainer.log_event("stopped", trainer.state.step, message)
            raise InterruptedRun(message) from None
        except InterruptedRun:
            raise
        except DragomanError as error:
            trainer.log_event("failed", trainer.state.step, str(error))
            raise


@contextmanager
def lock_run_folder(recipe: Recipe) -> Iterator[None]:
    """Keep other runs out of the run folder. Raises OutputError where one is in there."""
    folder = Path(recipe.run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(describe_write_error(folder, error)) from None
    with lock_dir(folder):
        try:
            yield
        finally:
            with suppress(OSError):  # where nothing came of it, nothing is left behind
                folder.rmdir()


def read_test_pairs(recipe: Recipe) -> list[Pair] | None:
    """The test set as text: nothing learns from it, but a mistake in it must not come out after hours of training."""
    if recipe.data.test is None:
        return None
    check_files_exist(recipe, [recipe.data.test])
    pairs = read_eval_pairs(recipe.data.test, recipe)
    if not pairs:
        files = " and ".join(str(path) for path in list_corpus_files(recipe.data.test, Path(recipe.data.root)))
        raise DataError(f"{files}: the test set is empty")
    return pairs


def finalize(
    trainer: Trainer, test_pairs: Sequence[Pair] | None, callback: Callback, attention_source: str | None
) -> dict[str, Any]:
    """Write bundle and report of a run that has come to its end. Raises MemoryShortError."""
    try:
        return _write_bundle_and_report(trainer, test_pairs, callback, attention_source)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    message = "out of memory as the bundle was made and judged; lower decoding.batch_tokens or decoding.beam_size"
    raise OutOfMemoryError(f"{message}; {trainer.describe_latest()}")


def _write_bundle_and_report(
    trainer: Trainer, test_pairs: Sequence[Pair] | None, callback: Callback, attention_source: str | None
) -> dict[str, Any]:
    recipe, folder = trainer.recipe, trainer.folder
    selected = _select_intact_checkpoints(trainer, callback)
    callback.notice(f"writing {folder / 'bundle'} from {', '.join(checkpoint.path.name for checkpoint in selected)}")
    weights = compute_final_weights(selected, recipe.training.checkpoint_averaging)
    alignment_metadata = _collect_alignment_metadata(
        recipe, trainer.prepared.tokenizer, trainer.early_stopping.pairs, weights, where=folder
    )
    metadata = {**collect_metadata(trainer, selected), **alignment_metadata}
    save_bundle(
        folder / "bundle",
        recipe=recipe,
        tokenizer=trainer.prepared.tokenizer,
        weights=weights,
        metadata=metadata,
        overwrite=True,
    )
    return write_report(folder, recipe, metadata, test_pairs, callback, attention_source, trainer.plan.device)


def _select_intact_checkpoints(trainer: Trainer, callback: Callback) -> list[Checkpoint]:
    """What the bundle is made from; of checkpoints that are damaged, those that stand in for them."""
    training, consequence = trainer.recipe.training, "the bundle is made without it"
    quarantine_unreadable(trainer.checkpoint_dir, callback.notice, consequence)
    while True:
        selected = select_checkpoints(trainer.checkpoint_dir, training.checkpoint_averaging, training.num_averaged_checkpoints)
        selected = selected or select_checkpoints(trainer.checkpoint_dir, "none", 1)
        if not any([quarantine_if_damaged(checkpoint.path, callback.notice, consequence) for checkpoint in selected]):
            return selected


def _collect_alignment_metadata(
    recipe: Recipe, tokenizer: PairTokenizer, pairs: Sequence[Pair], weights: dict[str, torch.Tensor], *, where: Path
) -> dict[str, Any]:
    """What the story says of the head that alignments are read off, if there are sentences to find it by."""
    guided_head_ref, pairs = get_guided_head(recipe), pairs[:NUM_ALIGNMENT_PAIRS]
    if not pairs or recipe.task.kind == "parsing":
        return {} if guided_head_ref is None else {"alignment": asdict(guided_head_ref)}
    sizes = {"source_vocabulary": len(tokenizer.source), "target_vocabulary": len(tokenizer.target)}
    with torch.device("meta"):
        model = assemble_model(recipe.model, **sizes | parser_options(recipe))
    load_weights(model, weights, location=where)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    candidates = None if guided_head_ref is None else [guided_head_ref]
    best_head = choose_alignment_head(model.eval(), tokenizer, recipe, sources, targets, candidates=candidates)
    return {} if best_head is None else {"alignment": best_head}


def select_checkpoints(folder: Path, averaging: str, count: int) -> list[Checkpoint]:
    """The newest one (`none`), the newest `count` (`last`), or the best `count` (`best`) of a run; fewer where there are.

    Best are those that were validated: none of a run that never was. Raises RunError where there is none, or one that cannot
    be read.
    """
    checkpoints = read_all_checkpoints(folder)
    if not checkpoints:
        raise RunError(f"{folder}: holds no checkpoint")
    match averaging:
        case "last":
            return select_scheduled(checkpoints)[-count:]
        case "best":
            return select_best(checkpoints, count)
        case _:
            return checkpoints[-1:]


def compute_final_weights(selected: Sequence[Checkpoint], averaging: str) -> dict[str, torch.Tensor]:
    """The mean of these checkpoints, or the moving average (`ema`) that the last of them kept. Raises RunError without one.

    Their digests have been checked.
    """
    if averaging != "ema":
        return average_checkpoints(list(selected))
    ema_weights = selected[-1].ema_weights()
    if ema_weights is None:
        raise RunError(f"{selected[-1].path}: keeps no moving average; training.ema_decay makes one")
    return selected[-1].weights() | ema_weights  # a parser's tables of words are no averages


def average_run(run_dir: Path, output: Path, *, averaging: str, count: int, overwrite: bool = False) -> dict[str, Any]:
    """Average checkpoints of a run into a bundle elsewhere; returns its story. Raises RunError where there are too few."""
    selected = select_checkpoints(run_dir / "checkpoints", averaging, count)
    if len(selected) < count:
        checkpoint_kind = "validated checkpoints" if averaging == "best" else "checkpoints"
        raise RunError(
            f"{run_dir}: {count} {checkpoint_kind} asked for, but {len(selected)} are there; training.keep_{averaging} keeps more"
        )
    for checkpoint in selected:
        verify_checksums(checkpoint.path, RunError)
    latest = max(selected, key=lambda checkpoint: checkpoint.step)
    recipe = recipe_from_dict(latest.recipe, where=str(latest.path))
    metadata = {
        "trained_on": list_training_files(recipe),
        "averaged": [checkpoint.path.name for checkpoint in selected],
        "steps": latest.step,
        "target_tokens": latest.trainer_state.target_tokens,
        "seconds": round(latest.trainer_state.minutes * 60.0, 1),
        "departures": [departure.describe() for departure in find_deviations(recipe.model_dump(mode="json"))],
    }
    check_corpus_unchanged(latest, hash_prepared_files(run_dir / "data"), run_dir)
    tokenizer = read_tokenizer(run_dir / "data", recipe.tokenizer, append_source_eos=recipe.model.append_source_eos)
    weights = compute_final_weights(selected, averaging)
    metadata |= _collect_alignment_metadata(recipe, tokenizer, _read_validation_pairs(recipe), weights, where=run_dir)
    save_bundle(output, recipe=recipe, tokenizer=tokenizer, weights=weights, metadata=metadata, overwrite=overwrite)
    return metadata


def _read_validation_pairs(recipe: Recipe) -> list[Pair]:
    """What the run was validated by, as text; none where it is not there any more."""
    if recipe.data.valid is None:
        return []
    with suppress(DataError):
        return read_eval_pairs(recipe.data.valid, recipe, max_pairs=recipe.training.num_validation_translations)
    return []


def list_training_files(recipe: Recipe) -> list[str]:
    """The files that a recipe learns from, as it names them: at the end of a run they need not be there any more."""
    root = Path(recipe.data.root)
    sides = [side for corpus in recipe.data.training_corpora().values() for side in (corpus.source, corpus.target, corpus.file)]
    return [describe_path(None if name == STANDARD_INPUT else root / name) for side in sides for name in as_list(side)]


def collect_metadata(trainer: Trainer, selected: Sequence[Checkpoint]) -> dict[str, Any]:
    """What the model was trained on and how, as `dragoman info` tells it."""
    recipe, trainer_state = trainer.recipe, trainer.state
    pair_counts = [stats for name, stats in trainer.prepared.pair_counts.items() if name != VALID]
    dropped_pairs: Counter[str] = Counter()
    for stats in pair_counts:
        dropped_pairs.update({**stats.dropped, "overlong_pairs": stats.overlong_pairs})
    seconds = trainer_state.minutes * 60.0
    return {
        "trained_on": list_training_files(recipe),
        "pairs": sum(stats.kept for stats in pair_counts),
        "pairs_not_as_given": dict(dropped_pairs),
        "parameters": trainer.model.num_parameters(),
        "steps": trainer_state.step,
        "epochs": round(trainer.epochs(), 2),
        "seconds": round(seconds, 1),
        "target_tokens": trainer_state.target_tokens,
        "target_tokens_per_second": round(trainer_state.target_tokens / max(seconds, 1e-9)),
        "machine": trainer.plan.describe(),
        **collect_cost(trainer),
        "averaged": [checkpoint.path.name for checkpoint in selected],
        "departures": [departure.describe() for departure in find_deviations(recipe.model_dump(mode="json"))],
        "dragoman": __version__,
        "torch": torch.__version__,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def collect_cost(trainer: Trainer) -> dict[str, Any]:
    """What the steps of a run took, over all its stretches and devices; energy where the machine tells."""
    trainer_state, seconds = trainer.state, max(trainer.state.minutes * 60.0, 1e-9)
    cost: dict[str, Any] = {"flops": trainer_state.flops}
    if trainer.peak_flops:
        cost["share_of_ceiling"] = round(trainer_state.flops / seconds / trainer.peak_flops, 4)
    if trainer_state.joules is not None:
        cost["kilowatt_hours"] = round(trainer_state.joules / 3.6e6, 6)
    data_wait_fraction = round(trainer_state.data_wait_minutes * 60.0 / seconds, 4)
    return {**cost, "share_waiting_for_batches": data_wait_fraction, "skipped_steps": trainer_state.skipped_steps}
