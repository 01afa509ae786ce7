"""End of a run: the bundle of averaged weights with its metadata, and the report."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dragoman.adapter import Adapter, save_adapter
from dragoman.bundle import BundleMetadata, compute_bundle_digest, read_config, save_bundle
from dragoman.bundle_parts import inherit_parts, inherit_shortlist
from dragoman.config import INITIAL_DIR, STANDARD_INPUT, DataConfig, Recipe, TrainingConfig, as_list, recipe_from_dict
from dragoman.config.paper_settings import find_deviations
from dragoman.data.manifest import hash_prepared_files
from dragoman.data.prepare import PreparedData, is_validation, open_prepared
from dragoman.errors import BundleError, OutOfMemoryError, RunError, is_out_of_memory
from dragoman.formats.pair import Pair
from dragoman.formats.text import describe_path
from dragoman.io.storage import verify_checksums
from dragoman.model.lora import split_adapter
from dragoman.model.weights import to_arrays
from dragoman.model_weights import merge_weights
from dragoman.runtime.counts import format_count
from dragoman.training.checkpoints.checkpoint import (
    Checkpoint,
    TrainerState,
    average_checkpoints,
    quarantine_if_damaged,
    quarantine_unreadable,
    read_all_checkpoints,
    select_best,
    select_scheduled,
)
from dragoman.training.initial_model import add_initial_bundle
from dragoman.training.measure_parts import RunMeasurement
from dragoman.training.monitoring.events import Callback, Notice
from dragoman.training.report import write_report
from dragoman.training.resume_checks import check_corpus_unchanged
from dragoman.training.trainer import Trainer
from dragoman.version import __version__

ADAPTER_DIR = "adapter"
"""Folder of a run with its low-rank adapter; the bundle beside it has the adapter merged into its weights."""


def finalize(
    trainer: Trainer, test_sets: Mapping[str, Sequence[Pair]], callback: Callback, attention_source: str | None
) -> dict[str, Any]:
    """Write the bundle and the report of a run whose training is complete. Raise OutOfMemoryError if memory is short."""
    try:
        return _write_bundle_and_report(trainer, test_sets, callback, attention_source)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    message = "out of memory while writing or scoring the bundle; lower decoding.batch_tokens or decoding.beam_size"
    raise OutOfMemoryError(f"{message}; {trainer.describe_latest()}")


def _write_bundle_and_report(
    trainer: Trainer, test_sets: Mapping[str, Sequence[Pair]], callback: Callback, attention_source: str | None
) -> dict[str, Any]:
    recipe, folder = trainer.recipe, trainer.folder
    selected = _select_intact_checkpoints(trainer, callback)
    for text in _describe_missing_checkpoints(trainer, selected):
        callback(Notice(text))
    callback(Notice(f"writing {folder / 'bundle'} from {', '.join(checkpoint.path.name for checkpoint in selected)}"))
    weights = compute_final_weights(selected, recipe.training.checkpoint_averaging)
    weights = _save_and_merge_adapter(recipe.name, recipe.training, folder, weights)
    measurement = RunMeasurement(recipe, trainer.prepared, weights, folder, trainer.plan.device)
    metadata = _write_bundle(
        folder / "bundle", measurement, collect_metadata(trainer, selected), lambda text: callback(Notice(text)), overwrite=True
    )
    return write_report(folder, recipe, metadata, test_sets, callback, attention_source, trainer.plan.device)


def _save_and_merge_adapter(
    name: str, training: TrainingConfig, folder: Path, weights: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Write the low-rank adapter of a run to a folder of its own, and return the weights with the adapter merged into them.

    The weights of a run without an adapter are returned as they are, and nothing is written.
    """
    if (lora := training.lora) is None:
        return weights
    adapter_weights = to_arrays(split_adapter(weights)[1])
    adapter = Adapter(name, compute_bundle_digest(folder / INITIAL_DIR), lora, adapter_weights)
    save_adapter(folder / ADAPTER_DIR, adapter, overwrite=True)
    return _merge_adapter(weights, scale=adapter.scale)


def _merge_adapter(weights: dict[str, torch.Tensor], *, scale: float) -> dict[str, torch.Tensor]:
    """Return the weights with those of the low-rank adapter merged into them."""
    base, adapter = map(to_arrays, split_adapter(weights))
    return {name: torch.from_numpy(array) for name, array in merge_weights(base, adapter, scale=scale).items()}


def _select_intact_checkpoints(trainer: Trainer, callback: Callback) -> list[Checkpoint]:
    """Return the checkpoints for the bundle. Damaged ones are set aside, and others take their place."""
    training, consequence = trainer.recipe.training, "the bundle is made without it"

    def notice(text: str) -> None:
        callback(Notice(text))

    quarantine_unreadable(trainer.checkpoint_dir, notice, consequence)
    while True:
        selected = select_checkpoints(trainer.checkpoint_dir, training.checkpoint_averaging, training.num_averaged_checkpoints)
        selected = selected or select_checkpoints(trainer.checkpoint_dir, "none", 1)
        if not any([quarantine_if_damaged(checkpoint.path, notice, consequence) for checkpoint in selected]):
            return selected


def _describe_missing_checkpoints(trainer: Trainer, selected: Sequence[Checkpoint]) -> list[str]:
    """Return what the recipe asks for and the run folder does not hold, one sentence each."""
    training, state = trainer.recipe.training, trainer.state
    sentences = []
    steps = [checkpoint.step for checkpoint in selected]
    if training.checkpoint_averaging == "best" and state.best is not None and state.best_step not in steps:
        sentences.append(
            f"the best checkpoint, of step {state.best_step}, is no longer in {trainer.checkpoint_dir}; the bundle is made "
            f"without it, from step {', '.join(map(str, steps))}"
        )
    if training.checkpoint_averaging in ("best", "last") and len(selected) < training.num_averaged_checkpoints:
        sentences.append(
            f"training.num_averaged_checkpoints = {training.num_averaged_checkpoints}, but the run has saved "
            f"{format_count(len(selected), 'such checkpoint')}; the bundle is their mean"
        )
    return sentences


def _read_bases(run_dir: Path) -> dict[str, BundleMetadata]:
    """Return the metadata of the bundles that the weights of a run come from, by path: its own earlier one, its initial one."""
    bases = {}
    for path in (run_dir / "bundle", run_dir / INITIAL_DIR):
        with suppress(BundleError):
            bases[str(path)] = read_config(path)[2]
    return bases


def select_checkpoints(folder: Path, averaging: str, count: int) -> list[Checkpoint]:
    """Return the newest checkpoint (`none`), the newest `count` (`last`), or the best `count` (`best`).

    It returns fewer if there are fewer. Only validated checkpoints can be the best. Raises RunError if there is no checkpoint,
    or if one cannot be read.
    """
    checkpoints = read_all_checkpoints(folder)
    if not checkpoints:
        raise RunError(f"{folder}: holds no checkpoint; train the run first", code="checkpoint-not-found")
    match averaging:
        case "last":
            return select_scheduled(checkpoints)[-count:]
        case "best":
            return select_best(checkpoints, count)
        case _:
            return checkpoints[-1:]


def compute_final_weights(selected: Sequence[Checkpoint], averaging: str) -> dict[str, torch.Tensor]:
    """Return the mean of the checkpoints' weights, or the moving average (`ema`) of the last one.

    Raises RunError if there is no checkpoint, or no moving average.
    """
    if averaging != "ema":
        return average_checkpoints(list(selected))
    ema_weights = selected[-1].ema_weights()
    if ema_weights is None:
        raise RunError(f"{selected[-1].path}: holds no moving average; set training.ema_decay for a new run")
    return selected[-1].weights() | ema_weights  # the word tables of a parser have no average


def average_run(
    run_dir: Path,
    output: Path,
    *,
    averaging: str,
    count: int,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Average checkpoints of a run into a bundle at another path, and return its metadata.

    notify: takes one sentence if parts of the run's bundle are not measured again

    Raises RunError if there are fewer than `count` checkpoints.
    """
    selected = select_checkpoints(run_dir / "checkpoints", averaging, count)
    if len(selected) < count:
        checkpoint_kind = "validated checkpoints" if averaging == "best" else "checkpoints"
        raise RunError(
            f"{run_dir}: {count} {checkpoint_kind} are asked for, but it holds {len(selected)}; lower the number, or keep more "
            f"with training.keep_{averaging}",
            code="checkpoint-not-found",
        )
    for checkpoint in selected:
        verify_checksums(checkpoint.path, RunError)
    latest = max(selected, key=lambda checkpoint: checkpoint.step)
    recipe = recipe_from_dict(latest.recipe, where=str(latest.path))
    check_corpus_unchanged(latest, hash_prepared_files(run_dir / "data"), run_dir)
    weights = compute_final_weights(selected, averaging)
    if recipe.training.lora is not None:
        weights = _merge_adapter(weights, scale=recipe.training.lora.alpha / recipe.training.lora.rank)
    prepared, bases = open_prepared(recipe, run_dir / "data"), _read_bases(run_dir)
    metadata = _describe_training(recipe, latest.trainer_state, prepared, selected)
    if (finished := bases.get(str(run_dir / "bundle"))) is not None:  # the rest is known at the end of the run only
        metadata = replace(metadata, parameters=finished.parameters, machine=finished.machine)
        if finished.steps == latest.step:
            metadata = replace(metadata, epochs=finished.epochs, mfu=finished.mfu)
    measurement = RunMeasurement(recipe, prepared, weights, run_dir, torch.device("cpu"))
    return _write_bundle(output, measurement, metadata, notify, overwrite=overwrite).to_dict()


def _write_bundle(
    output: Path,
    measurement: RunMeasurement,
    metadata: BundleMetadata,
    notify: Callable[[str], None],
    *,
    overwrite: bool,
) -> BundleMetadata:
    """Write a bundle of a run with its measured and inherited parts, and return its metadata."""
    run_dir, recipe, tokenizer = measurement.location, measurement.recipe, measurement.prepared.tokenizer
    bases = _read_bases(run_dir)
    known = bases.get(str(run_dir / INITIAL_DIR), BundleMetadata())
    metadata = measurement.measure_parts(add_initial_bundle(metadata, recipe.training, run_dir), known)
    metadata, sentences = inherit_parts(metadata, bases)
    shortlist, reasons = inherit_shortlist(bases, tokenizer)
    for sentence in (*sentences, *reasons):
        notify(sentence)
    save_bundle(
        output,
        recipe=recipe,
        tokenizer=tokenizer,
        weights=measurement.weights,
        metadata=metadata,
        overwrite=overwrite,
        shortlist=shortlist,
    )
    return metadata


def list_training_files(data: DataConfig) -> list[str]:
    """Return the training files as the recipe names them. They need not exist any more at the end of a run."""
    root = Path(data.root)
    sides = [side for corpus in data.training_corpora().values() for side in (corpus.source, corpus.target, corpus.file)]
    return [describe_path(None if name == STANDARD_INPUT else root / name) for side in sides for name in as_list(side)]


def collect_metadata(trainer: Trainer, selected: Sequence[Checkpoint]) -> BundleMetadata:
    """Return the data, settings and cost of a run, for the bundle and the report."""
    state = trainer.state
    metadata = _describe_training(trainer.recipe, state, trainer.prepared, selected)
    mfu = trainer.compute_mfu(state.flops / max(state.minutes * 60.0, 1e-9))
    return replace(
        metadata,
        parameters=sum(weight.numel() for weight in split_adapter(dict(trainer.model.named_parameters()))[0].values()),
        epochs=round(trainer.epochs(), 2),
        machine=trainer.plan.describe(),
        mfu=None if mfu is None else round(mfu, 4),
    )


def _describe_training(
    recipe: Recipe, state: TrainerState, prepared: PreparedData, selected: Sequence[Checkpoint]
) -> BundleMetadata:
    """Return what the prepared data and the state of a run tell about its training."""
    pair_counts = [stats for name, stats in prepared.pair_counts.items() if not is_validation(name)]
    dropped_pairs: Counter[str] = Counter()
    for stats in pair_counts:
        dropped_pairs.update({**stats.dropped, "overlong_pairs": stats.overlong_pairs})
    seconds = state.minutes * 60.0
    positive_seconds = max(seconds, 1e-9)
    return BundleMetadata(
        training_files=list_training_files(recipe.data),
        language_pairs=recipe.language_pairs if recipe.tokenizer.language_token is not None else None,
        pairs=sum(stats.kept for stats in pair_counts),
        dropped_pairs=dict(dropped_pairs),
        steps=state.step,
        seconds=round(seconds, 1),
        target_tokens=state.target_tokens,
        target_tokens_per_second=round(state.target_tokens / positive_seconds),
        flops=state.flops,
        data_wait_fraction=round(state.data_wait_minutes * 60.0 / positive_seconds, 4),
        skipped_steps=state.skipped_steps,
        infeasible_pairs=state.infeasible_pairs or None,
        averaged_checkpoints=[checkpoint.path.name for checkpoint in selected],
        paper_deviations=[deviation.describe() for deviation in find_deviations(recipe.model_dump())],
        dragoman=__version__,
        torch=torch.__version__,
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
