"""End of a run: the bundle of averaged weights with its metadata, and the report."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dragoman.adapter import Adapter, save_adapter
from dragoman.bundle import BundleMetadata, compute_bundle_digest, load_weights, save_bundle
from dragoman.config import INITIAL_DIR, STANDARD_INPUT, Recipe, as_list, recipe_from_dict
from dragoman.config.paper_settings import find_deviations
from dragoman.data.manifest import hash_prepared_files
from dragoman.data.prepare import PreparedData, is_validation
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, read_tokenizer, with_recipe_languages
from dragoman.errors import DataError, OutOfMemoryError, RunError, is_out_of_memory
from dragoman.formats.pair import Pair
from dragoman.formats.text import describe_path
from dragoman.io.storage import verify_checksums
from dragoman.model.factory import assemble_model
from dragoman.model.lora import merge_adapters, split_adapter
from dragoman.model.transformer import Transformer
from dragoman.tasks.attention_alignment import AlignmentHead, choose_alignment_head, get_guided_head
from dragoman.tasks.confidence import (
    MAX_CALIBRATION_SENTENCES,
    MIN_CALIBRATION_SENTENCES,
    ConfidenceCalibration,
    calibrate_model,
)
from dragoman.tasks.parsing import parser_options
from dragoman.text.length_ratios import LengthRatios, measure_length_ratios
from dragoman.training.checkpoints.checkpoint import (
    Checkpoint,
    average_checkpoints,
    quarantine_if_damaged,
    quarantine_unreadable,
    read_all_checkpoints,
    select_best,
    select_scheduled,
)
from dragoman.training.initial_model import add_initial_bundle
from dragoman.training.monitoring.events import Callback, Notice
from dragoman.training.report import write_report
from dragoman.training.resume_checks import check_corpus_unchanged
from dragoman.training.trainer import Trainer
from dragoman.training.validation import get_references, group_by_languages, read_validation_pairs
from dragoman.version import __version__

# Number of validation pairs for the choice of the alignment head. More pairs would hardly change the choice.
NUM_ALIGNMENT_PAIRS = 1000
# Number of training pairs of a corpus for the quantiles of lengths; 20 of them are beyond each limit.
NUM_LENGTH_PAIRS = 20_000
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
    recipe, folder, tokenizer = trainer.recipe, trainer.folder, trainer.prepared.tokenizer
    selected = _select_intact_checkpoints(trainer, callback)
    callback(Notice(f"writing {folder / 'bundle'} from {', '.join(checkpoint.path.name for checkpoint in selected)}"))
    weights = compute_final_weights(selected, recipe.training.checkpoint_averaging)
    weights = _save_and_merge_adapter(recipe, folder, weights)
    alignment = _choose_alignment(recipe, tokenizer, trainer.early_stopping.pairs, weights, location=folder)
    metadata = replace(
        add_initial_bundle(collect_metadata(trainer, selected), recipe, folder),
        alignment=alignment,
        confidence=_calibrate_confidence(recipe, tokenizer, weights, alignment, location=folder, device=trainer.plan.device),
        length_ratios=_measure_length_ratios(recipe, trainer.prepared),
    )
    save_bundle(
        folder / "bundle",
        recipe=recipe,
        tokenizer=tokenizer,
        weights=weights,
        metadata=metadata,
        overwrite=True,
    )
    return write_report(folder, recipe, metadata, test_sets, callback, attention_source, trainer.plan.device)


def _save_and_merge_adapter(recipe: Recipe, folder: Path, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Write the low-rank adapter of a run to a folder of its own, and return the weights with the adapter merged into them.

    The weights of a run without an adapter are returned as they are, and nothing is written.
    """
    if (lora := recipe.training.lora) is None:
        return weights
    base_weights, adapter_weights = split_adapter(weights)
    adapter = Adapter(recipe.name, compute_bundle_digest(folder / INITIAL_DIR), lora, adapter_weights)
    save_adapter(folder / ADAPTER_DIR, adapter, overwrite=True)
    return merge_adapters(base_weights, adapter_weights, scale=adapter.scale)


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
    """Return the attention head for word alignments; None if no pairs show which head aligns best.

    A model of many languages has one head for all: that of the first pair of languages.
    """
    guided_head_ref, pairs = get_guided_head(recipe), pairs[:NUM_ALIGNMENT_PAIRS]
    if not pairs or recipe.task.kind == "parsing":
        return guided_head_ref
    languages, indices = next(iter(group_by_languages(pairs).items()))
    if languages is not None:
        tokenizer = tokenizer.select_languages(*languages, zero_shot=True)
        pairs = [pairs[index] for index in indices]
    model = _build_model(recipe, tokenizer, weights, location=location)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    candidates = None if guided_head_ref is None else [guided_head_ref]
    return choose_alignment_head(model, tokenizer, recipe, sources, targets, candidates=candidates)


def _calibrate_confidence(
    recipe: Recipe,
    tokenizer: PairTokenizer,
    weights: dict[str, torch.Tensor],
    alignment: AlignmentHead | None,
    *,
    location: Path,
    device: torch.device,
) -> ConfidenceCalibration | None:
    """Return the calibration of the confidence on the validation set; None for a parser and for a small or missing set.

    A model of many languages has none, because the signals of its pairs of languages differ. A model without cross-attention
    lacks one of the signals.
    """
    has_one_pair = recipe.task.kind == "translation" and recipe.tokenizer.language_token is None
    pairs = (
        []
        if not has_one_pair or not recipe.model.num_cross_attentions
        else _read_validation_pairs(recipe, MAX_CALIBRATION_SENTENCES)
    )
    if len(pairs) < MIN_CALIBRATION_SENTENCES:
        return None
    model = _build_model(recipe, tokenizer, weights, location=location).to(device)
    sources, references = [pair.source for pair in pairs], get_references(pairs, recipe)
    return calibrate_model(model, tokenizer, recipe, sources, references, head=alignment)


def _measure_length_ratios(recipe: Recipe, prepared: PreparedData) -> list[LengthRatios] | None:
    """Return the usual lengths of translations for each pair of languages, by a sample of the training pairs."""
    if recipe.task.kind == "parsing":
        return None
    lengths: dict[tuple[str, str], list[tuple[int, int]]] = {}
    tokenizer, skipped = prepared.tokenizer, prepared.tokenizer.prefix_lengths
    for name, direction in recipe.training_directions.items():
        corpus = prepared.corpus(name)
        num_pairs = min(len(corpus), NUM_LENGTH_PAIRS)
        indices = [position * len(corpus) // num_pairs for position in range(num_pairs)]
        lengths.setdefault(direction.languages, []).extend(
            (
                len(tokenizer.source.decode(corpus.source(index)[skipped[0] :].tolist())),
                len(tokenizer.target.decode(corpus.target(index)[skipped[1] :].tolist())),
            )
            for index in indices
        )
    ratios = [measure_length_ratios(pairs, *languages) for languages, pairs in lengths.items()]
    return [item for item in ratios if item is not None] or None


def _build_model(recipe: Recipe, tokenizer: PairTokenizer, weights: dict[str, torch.Tensor], *, location: Path) -> Transformer:
    with torch.device("meta"):
        model = assemble_model(
            recipe.model,
            source_vocab_size=len(tokenizer.source),
            target_vocab_size=len(tokenizer.target),
            **parser_options(recipe),
        )
    load_weights(model, weights, location=location)
    return model.eval()


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
    tokenizer = with_recipe_languages(
        read_tokenizer(run_dir / "data", recipe.tokenizer, append_source_eos=recipe.model.append_source_eos), recipe
    )
    weights = compute_final_weights(selected, averaging)
    if recipe.training.lora is not None:
        weights = merge_adapters(*split_adapter(weights), scale=recipe.training.lora.alpha / recipe.training.lora.rank)
    pairs = _read_validation_pairs(recipe, recipe.training.num_validation_translations)
    alignment = _choose_alignment(recipe, tokenizer, pairs, weights, location=run_dir)
    metadata = BundleMetadata(
        training_files=list_training_files(recipe),
        language_pairs=list_language_pairs(recipe),
        averaged_checkpoints=[checkpoint.path.name for checkpoint in selected],
        steps=latest.step,
        target_tokens=latest.trainer_state.target_tokens,
        seconds=round(latest.trainer_state.minutes * 60.0, 1),
        paper_deviations=_list_deviations(recipe),
        alignment=alignment,
        confidence=_calibrate_confidence(recipe, tokenizer, weights, alignment, location=run_dir, device=torch.device("cpu")),
    )
    metadata = add_initial_bundle(metadata, recipe, run_dir)
    save_bundle(output, recipe=recipe, tokenizer=tokenizer, weights=weights, metadata=metadata, overwrite=overwrite)
    return metadata.to_dict()


def _read_validation_pairs(recipe: Recipe, max_pairs: int | None) -> list[Pair]:
    """Read at most `max_pairs` validation pairs as text; none if the files are no longer there."""
    with suppress(DataError):
        return read_validation_pairs(recipe, max_pairs=max_pairs)
    return []


def list_training_files(recipe: Recipe) -> list[str]:
    """Return the training files as the recipe names them. They need not exist any more at the end of a run."""
    root = Path(recipe.data.root)
    sides = [side for corpus in recipe.data.training_corpora().values() for side in (corpus.source, corpus.target, corpus.file)]
    return [describe_path(None if name == STANDARD_INPUT else root / name) for side in sides for name in as_list(side)]


def list_language_pairs(recipe: Recipe) -> list[tuple[str, str]] | None:
    """Return the pairs of languages that a model of many languages is trained on; None for a model of one pair."""
    return recipe.language_pairs if recipe.tokenizer.language_token is not None else None


def _list_deviations(recipe: Recipe) -> list[str]:
    return [deviation.describe() for deviation in find_deviations(recipe.model_dump(mode="json"))]


def collect_metadata(trainer: Trainer, selected: Sequence[Checkpoint]) -> BundleMetadata:
    """Return the data, settings and cost of a run, for the bundle and the report."""
    recipe, trainer_state = trainer.recipe, trainer.state
    pair_counts = [stats for name, stats in trainer.prepared.pair_counts.items() if not is_validation(name)]
    dropped_pairs: Counter[str] = Counter()
    for stats in pair_counts:
        dropped_pairs.update({**stats.dropped, "overlong_pairs": stats.overlong_pairs})
    seconds = trainer_state.minutes * 60.0
    positive_seconds = max(seconds, 1e-9)
    return BundleMetadata(
        training_files=list_training_files(recipe),
        language_pairs=list_language_pairs(recipe),
        pairs=sum(stats.kept for stats in pair_counts),
        dropped_pairs=dict(dropped_pairs),
        parameters=sum(weight.numel() for weight in split_adapter(dict(trainer.model.named_parameters()))[0].values()),
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
        infeasible_pairs=trainer_state.infeasible_pairs if recipe.model.decoder == "ctc" else None,
        averaged_checkpoints=[checkpoint.path.name for checkpoint in selected],
        paper_deviations=_list_deviations(recipe),
        dragoman=__version__,
        torch=torch.__version__,
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
