"""End of a run: the bundle of averaged weights with its metadata, and the report."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import BundleMetadata, load_weights, save_bundle
from dragoman.config import STANDARD_INPUT, Recipe, as_list, recipe_from_dict
from dragoman.config.paper_settings import find_deviations
from dragoman.data.manifest import hash_prepared_files
from dragoman.data.prepare import VALID
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, read_tokenizer
from dragoman.errors import DataError, OutOfMemoryError, RunError, is_out_of_memory
from dragoman.formats.pair import Pair
from dragoman.formats.text import describe_path
from dragoman.io.storage import verify_checksums
from dragoman.model.factory import assemble_model
from dragoman.tasks.attention_alignment import AlignmentHead, choose_alignment_head, get_guided_head
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
from dragoman.training.monitoring.events import Callback, Notice
from dragoman.training.report import write_report
from dragoman.training.resume_checks import check_corpus_unchanged
from dragoman.training.trainer import Trainer
from dragoman.training.validation import read_eval_pairs
from dragoman.version import __version__

# Number of validation pairs for the choice of the alignment head. More pairs would hardly change the choice.
NUM_ALIGNMENT_PAIRS = 1000


def finalize(
    trainer: Trainer, test_pairs: Sequence[Pair] | None, callback: Callback, attention_source: str | None
) -> dict[str, Any]:
    """Write the bundle and the report of a run whose training is complete. Raise OutOfMemoryError if memory is short."""
    try:
        return _write_bundle_and_report(trainer, test_pairs, callback, attention_source)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    message = "out of memory while writing or scoring the bundle; lower decoding.batch_tokens or decoding.beam_size"
    raise OutOfMemoryError(f"{message}; {trainer.describe_latest()}")


def _write_bundle_and_report(
    trainer: Trainer, test_pairs: Sequence[Pair] | None, callback: Callback, attention_source: str | None
) -> dict[str, Any]:
    recipe, folder, tokenizer = trainer.recipe, trainer.folder, trainer.prepared.tokenizer
    selected = _select_intact_checkpoints(trainer, callback)
    callback(Notice(f"writing {folder / 'bundle'} from {', '.join(checkpoint.path.name for checkpoint in selected)}"))
    weights = compute_final_weights(selected, recipe.training.checkpoint_averaging)
    metadata = replace(
        collect_metadata(trainer, selected),
        alignment=_choose_alignment(recipe, tokenizer, trainer.early_stopping.pairs, weights, location=folder),
    )
    save_bundle(
        folder / "bundle",
        recipe=recipe,
        tokenizer=tokenizer,
        weights=weights,
        metadata=metadata,
        overwrite=True,
    )
    return write_report(folder, recipe, metadata, test_pairs, callback, attention_source, trainer.plan.device)


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


def _choose_alignment(
    recipe: Recipe, tokenizer: PairTokenizer, pairs: Sequence[Pair], weights: dict[str, torch.Tensor], *, location: Path
) -> AlignmentHead | None:
    """Return the attention head for word alignments; None if no pairs show which head aligns best."""
    guided_head_ref, pairs = get_guided_head(recipe), pairs[:NUM_ALIGNMENT_PAIRS]
    if not pairs or recipe.task.kind == "parsing":
        return guided_head_ref
    with torch.device("meta"):
        model = assemble_model(
            recipe.model,
            source_vocab_size=len(tokenizer.source),
            target_vocab_size=len(tokenizer.target),
            **parser_options(recipe),
        )
    load_weights(model, weights, location=location)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    candidates = None if guided_head_ref is None else [guided_head_ref]
    return choose_alignment_head(model.eval(), tokenizer, recipe, sources, targets, candidates=candidates)


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


def average_run(run_dir: Path, output: Path, *, averaging: str, count: int, overwrite: bool = False) -> dict[str, Any]:
    """Average checkpoints of a run into a bundle at another path, and return its metadata.

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
    tokenizer = read_tokenizer(run_dir / "data", recipe.tokenizer, append_source_eos=recipe.model.append_source_eos)
    weights = compute_final_weights(selected, averaging)
    metadata = BundleMetadata(
        training_files=list_training_files(recipe),
        averaged_checkpoints=[checkpoint.path.name for checkpoint in selected],
        steps=latest.step,
        target_tokens=latest.trainer_state.target_tokens,
        seconds=round(latest.trainer_state.minutes * 60.0, 1),
        paper_deviations=_list_deviations(recipe),
        alignment=_choose_alignment(recipe, tokenizer, _read_validation_pairs(recipe), weights, location=run_dir),
    )
    save_bundle(output, recipe=recipe, tokenizer=tokenizer, weights=weights, metadata=metadata, overwrite=overwrite)
    return metadata.to_dict()


def _read_validation_pairs(recipe: Recipe) -> list[Pair]:
    """Read the validation pairs as text; none if the files are no longer there."""
    if recipe.data.valid is None:
        return []
    with suppress(DataError):
        return read_eval_pairs(recipe.data.valid, recipe, max_pairs=recipe.training.num_validation_translations)
    return []


def list_training_files(recipe: Recipe) -> list[str]:
    """Return the training files as the recipe names them. They need not exist any more at the end of a run."""
    root = Path(recipe.data.root)
    sides = [side for corpus in recipe.data.training_corpora().values() for side in (corpus.source, corpus.target, corpus.file)]
    return [describe_path(None if name == STANDARD_INPUT else root / name) for side in sides for name in as_list(side)]


def _list_deviations(recipe: Recipe) -> list[str]:
    return [deviation.describe() for deviation in find_deviations(recipe.model_dump(mode="json"))]


def collect_metadata(trainer: Trainer, selected: Sequence[Checkpoint]) -> BundleMetadata:
    """Return the data, settings and cost of a run, for the bundle and the report."""
    recipe, trainer_state = trainer.recipe, trainer.state
    pair_counts = [stats for name, stats in trainer.prepared.pair_counts.items() if name != VALID]
    dropped_pairs: Counter[str] = Counter()
    for stats in pair_counts:
        dropped_pairs.update({**stats.dropped, "overlong_pairs": stats.overlong_pairs})
    seconds = trainer_state.minutes * 60.0
    positive_seconds = max(seconds, 1e-9)
    return BundleMetadata(
        training_files=list_training_files(recipe),
        pairs=sum(stats.kept for stats in pair_counts),
        dropped_pairs=dict(dropped_pairs),
        parameters=trainer.model.num_parameters(),
        steps=trainer_state.step,
        epochs=round(trainer.epochs(), 2),
        seconds=round(seconds, 1),
        target_tokens=trainer_state.target_tokens,
        target_tokens_per_second=round(trainer_state.target_tokens / positive_seconds),
        machine=trainer.plan.describe(),
        flops=trainer_state.flops,
        mfu=round(trainer_state.flops / positive_seconds / trainer.peak_flops, 4) if trainer.peak_flops else None,
        data_wait_fraction=round(trainer_state.data_wait_minutes * 60.0 / positive_seconds, 4),
        skipped_steps=trainer_state.skipped_steps,
        averaged_checkpoints=[checkpoint.path.name for checkpoint in selected],
        paper_deviations=_list_deviations(recipe),
        dragoman=__version__,
        torch=torch.__version__,
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
