"""Recipe of `dragoman adapt`: fine-tunes a bundle on a translation memory, with a tenth of its pairs held out.

Another twentieth is the validation set. The checkpoint with the lowest validation loss becomes the new bundle, and the start is
one of the checkpoints. So pairs that teach nothing leave the model as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from dragoman.bundle import check_bundle, read_config
from dragoman.cleaning.filters import is_empty
from dragoman.config import CorpusConfig, ModelConfig, Recipe, TaskConfig, TrainingConfig, make_recipe
from dragoman.errors import BundleError, DataError
from dragoman.evaluation.bootstrap import SIGNIFICANCE_LEVEL
from dragoman.formats.pair import Pair
from dragoman.formats.readers import read_pairs
from dragoman.io.storage import make_output_dir, write_lines
from dragoman.runtime.counts import format_count
from dragoman.training.lr_schedule import compute_learning_rate

MIN_PAIRS = 20
"""Fewer pairs give a held-out set of one sentence, which shows nothing."""
HELD_OUT_EVERY = 10
VALIDATE_EVERY = 20
MAX_HELD_OUT_PAIRS = 2_000
"""More sentences would hardly change the scores, but they take time to translate."""
HELD_OUT, GENERAL = "held-out", "general"
"""Names of the test sets: the held-out pairs, and the pairs of another domain that must not get worse."""
TITLES = {HELD_OUT: "held-out pairs", GENERAL: "general text"}
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF"}
LR_FRACTION = 0.2
"""Highest learning rate, relative to that of the bundle's own training."""
UNKNOWN_LR = 2e-4
"""Highest learning rate of a converted model with d_model = 512, whose own training is not known."""
NUM_VALIDATIONS, PATIENCE = 10, 3
KEPT_NOISE = ("placeholders", "terminology")
"""Noise types that the new bundle needs as the old one did, so that it still reads placeholders and terms."""
STEPS_PER_SQRT_PAIR = 5.0
"""Steps over √pairs: about 35 epochs of 100 pairs, 11 epochs of 1,000 pairs, and 4 epochs of 10,000 pairs."""


@dataclass(frozen=True)
class Adaptation:
    """Recipe that is ready to train, and the numbers of pairs to train on, to test on, and without a translation."""

    recipe: Recipe
    num_training_pairs: int
    num_held_out_pairs: int
    num_untranslated_pairs: int


def prepare_adaptation(
    bundle: Path, files: Sequence[Path], run: Path, *, general: Path | None = None, changes: Sequence[str] = ()
) -> Adaptation:
    """Return the recipe, and write the pairs of the files into `run`/pairs.

    files: pairs in bilingual formats, such as TMX, XLIFF, PO or TSV; untranslated ones are left out
    general: pairs of another domain, which are scored before and after
    changes: `section.key=value` settings

    Raises BundleError for a parser, and DataError if a file cannot be read or all hold too few pairs.
    """
    check_bundle(bundle)
    base, _, metadata = read_config(bundle)
    if not base.task.has_text_target:
        raise BundleError(f"{bundle}: is a parser; give the bundle of a translator", code="wrong-task")
    files = list(dict.fromkeys(files))  # one that is given twice would be in training and in the held-out pairs
    pairs, num_untranslated = _read_translated_pairs(files, base.task, MIN_PAIRS, "an adaptation")
    general_pairs = _read_translated_pairs([general], base.task, 1, "the test on general text")[0] if general else []
    stride = max(HELD_OUT_EVERY, -(-len(pairs) // MAX_HELD_OUT_PAIRS))
    held_out = pairs[stride // 2 :: stride]
    remaining = [pair for index, pair in enumerate(pairs) if index % stride != stride // 2]
    validation_stride = max(VALIDATE_EVERY, 2 * stride)
    validation = remaining[validation_stride // 2 :: validation_stride]
    training = [pair for index, pair in enumerate(remaining) if index % validation_stride != validation_stride // 2]
    test_corpora = {HELD_OUT: _write_corpus(run / "pairs", HELD_OUT, held_out)}
    if general_pairs:
        test_corpora[GENERAL] = _write_corpus(run / "pairs", GENERAL, general_pairs)
    is_converted = metadata.origin is not None and base.training.init_from is None
    document = {
        "name": f"{base.name} adapted to {files[0].name if len(files) == 1 else f'{len(files)} files'}",
        "run": str(run),
        "preset": "modern",
        "data": {
            "train": _write_corpus(run / "pairs", "train", training),
            "valid": _write_corpus(run / "pairs", "validation", validation),
            "test_corpora": test_corpora,
            "cleaning": {"duplicate_pairs": True, "eval_overlap": True},
            "noise": {name: getattr(base.data.noise, name) for name in KEPT_NOISE},
            "max_length": min(256, base.model.max_positions) if base.model.position_encoding == "learned" else 256,
        },
        "training": _choose_training(bundle, base.model, base.training, len(training), is_converted=is_converted),
    }
    return Adaptation(make_recipe(document, changes, where="adapt"), len(training), len(held_out), num_untranslated)


def _choose_training(
    bundle: Path, model: ModelConfig, training: TrainingConfig, num_pairs: int, *, is_converted: bool
) -> dict[str, Any]:
    """Return the training section: a short warm-up to a small learning rate, and its decay to zero.

    The label smoothing is that of the bundle's own training, because another one would change the distribution of outputs. The
    regularization towards the bundle keeps most of what the model could do before. A decoder that predicts all tokens at once
    has none, because it has no distribution of the next token.
    """
    max_steps = max(round(STEPS_PER_SQRT_PAIR * sqrt(num_pairs)), 20)
    return {
        "init_from": str(bundle),
        "kl_to_init": 0.3 if model.is_autoregressive else 0.0,
        "batch_tokens": 2048,
        "max_steps": max_steps,
        "schedule": "constant",
        "peak_lr": _choose_lr(model, training, is_converted=is_converted),
        "warmup_steps": max(max_steps // 10, 1),
        "lr_decay_ratio": 0.9,
        "label_smoothing": training.label_smoothing,
        "label_smoothing_mode": training.label_smoothing_mode,
        "clip_norm": 1.0,
        "log_every_steps": 10,
        "validate_every_steps": max(max_steps // NUM_VALIDATIONS, 1),
        "num_validation_translations": 0,
        "patience": PATIENCE,
        "checkpoint_every_steps": max(max_steps // 4, 1),
        "checkpoint_every_minutes": 10.0,
        "checkpoint_averaging": "best",
        "keep_last": 1,
        "keep_best": 1,
        "num_averaged_checkpoints": 1,
    }


def _choose_lr(model: ModelConfig, training: TrainingConfig, *, is_converted: bool) -> float:
    """Return the highest learning rate: a fraction of the bundle's own, or its own if it is adapted already.

    The rate of a converted model shrinks with its width as in equation 3.
    """
    config, d_model = training, model.d_model
    if is_converted:
        return UNKNOWN_LR * sqrt(512 / d_model)
    own_lr = compute_learning_rate(config.model_copy(update={"lr_decay_ratio": 0.0}), d_model=d_model, step=config.warmup_steps)
    return own_lr if config.init_from is not None else LR_FRACTION * own_lr


def _read_translated_pairs(files: Sequence[Path], task: TaskConfig, min_pairs: int, purpose: str) -> tuple[list[Pair], int]:
    """Return the translated pairs, and the number of others. Raises DataError for fewer than `min_pairs`."""
    corpus = CorpusConfig.model_validate({"file": [str(file) for file in files]})
    languages = {"source_language": task.source_language, "target_language": task.target_language}
    pairs = list(read_pairs(corpus, Path(), **languages))
    translated_pairs = [pair for pair in pairs if not is_empty(pair.source, pair.target)]
    if len(translated_pairs) < min_pairs:
        names, number = ", ".join(map(str, files)), len(translated_pairs)
        raise DataError(
            f"{names}: {format_count(number, 'translated pair')}, but {purpose} needs {min_pairs} or more; add pairs",
            code="empty-data",
        )
    return translated_pairs, len(pairs) - len(translated_pairs)


def _write_corpus(folder: Path, name: str, pairs: Sequence[Pair]) -> dict[str, str]:
    """Write the sides of pairs as two files of lines, and return the corpus section that names them."""
    make_output_dir(folder)
    paths = {side: folder / f"{name}.{side}.txt" for side in ("source", "target")}
    for side, path in paths.items():
        lines = [getattr(pair, side) for pair in pairs]
        text = "".join(f"{line}\n" for line in lines).encode()
        if not path.exists() or path.read_bytes() != text:  # a new time would prepare again
            write_lines(path, lines, overwrite=True)
    return {side: str(path) for side, path in paths.items()}


def describe_result(report: dict[str, Any]) -> list[str]:
    """Return the verdict on an adapted model in words and numbers: a sentence for each test set, and one if none is general.

    report: content of `report.json`
    """
    kept_start = report.get("averaged_checkpoints") == ["step-00000000"]
    lines = ["No step improved the validation loss, so the new bundle has the weights of the old one."] if kept_start else []
    lines += [
        f"On the {TITLES.get(name, name)} ({test_set['sentences']:,} sentences), {_judge(test_set['changes'])}."
        for name, test_set in report["test_sets"].items()
        if "changes" in test_set
    ]
    if GENERAL not in report["test_sets"]:
        lines.append("No other text was scored, which the new bundle may translate worse: see --general.")
    return lines


def _judge(changes: dict[str, dict[str, float]]) -> str:
    """Return the verdict of all metrics on one test set. A change counts if its p-value is below 0.05."""
    differences = [change["difference"] for change in changes.values() if change["p_value"] < SIGNIFICANCE_LEVEL]
    if not differences:
        verdict = "no difference is proven"
    elif min(differences) > 0:
        verdict = "the new bundle is better"
    elif max(differences) < 0:
        verdict = "the new bundle is worse"
    else:
        verdict = "the metrics disagree"
    numbers = [
        f"{METRIC_NAMES[metric]} {change['before']:.1f} → {change['after']:.1f}, p = {change['p_value']:.3f}"
        for metric, change in changes.items()
    ]
    return f"{verdict} ({'; '.join(numbers)})"
