"""Settings that follow from the corpora, if the preset is `modern`: size, dropout, pieces, batch, learning rate and steps.

The presets `paper` and `t2t-2017` keep the values of the paper. The size follows from the corpora, and from the machine if the
recipe has `training.max_minutes`. A run that resumes keeps its size. The rest follows from the corpora and the size. The
numbers are those of runs with 5,000 to a million pairs, see `docs/how-to/defaults.md`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.cleaning.total_estimator import TotalEstimator
from dragoman.config import Recipe, TokenizerConfig, TrainingConfig, read_recipe
from dragoman.config.data_config import Direction
from dragoman.config.presets import SIZES, SectionValues
from dragoman.formats.object_store import is_url
from dragoman.formats.readers import check_files_exist, read_pairs
from dragoman.runtime.thread_count import get_num_threads

DERIVING_PRESET = "modern"
MAX_PAIRS_READ = 100_000
"""Pairs of a corpus that are read to estimate its size."""
BYTES_PER_TOKEN = 4.5
"""UTF-8 bytes of a piece, over languages and sizes of vocabularies."""
BYTES_AT_8000, BYTES_PER_DOUBLING = 4.85, 0.75
"""UTF-8 bytes of a piece of 8,000, and how many fewer with half of them: 3.36, 4.15 and 4.85 for 2,000, 4,000 and 8,000."""
BATCH_FILL = 0.93
"""Target tokens of a batch over `batch_tokens`, the rest being padding: 0.95 for batches of 4,096, and 0.91 for 2,048."""
BYTES_PER_PIECE = 40
"""Bytes of text that the tokenizer's training needs for each piece of its vocabulary."""


@dataclass(frozen=True)
class CorpusSize:
    """Size of the training corpora before cleaning; both numbers are estimates for large files."""

    pairs: int
    tokens: int
    """Target tokens."""


@dataclass(frozen=True)
class _Tier:
    """Settings of corpora with fewer pairs than a limit."""

    max_pairs: float
    size: str
    pieces: int
    batch_tokens: int


TIERS = (
    _Tier(10_000, "tiny", 4_000, 2048),
    _Tier(30_000, "tiny", 8_000, 4096),
    _Tier(100_000, "small", 8_000, 4096),
    _Tier(1_000_000, "small", 16_000, 8192),
    _Tier(10_000_000, "base", 32_000, 25_000),
    _Tier(float("inf"), "big", 32_000, 25_000),
)
PEAK_LR_TIMES_WIDTH = 0.35
"""Highest learning rate times d_model: 2.7e-3 for a width of 128, 7e-4 for 512."""
EPOCHS_TIMES_ROOT_PAIRS = 4_000
"""Epochs times the square root of the pairs: 20 epochs for 40,000 pairs, 4 for a million."""
MIN_EPOCHS, MAX_EPOCHS = 2, 120
MIN_TOKENS = 14_000_000
"""Target tokens that a training reads, if `MAX_EPOCHS` are enough for them."""
TINY_PIECES = 8_000
"""Most pieces of the size `tiny`, whose output layer would take most of the time otherwise."""
DROPOUT_PER_EPOCH = 0.002
"""Rate of dropout for each epoch: 43,522 pairs reach 27 BLEU in 15 epochs with 0.1, and 19 with 0.3."""
MIN_DROPOUT, MAX_DROPOUT = 0.1, 0.2
MIN_PART = 0.4
"""Part of the epochs that a size must be able to read within `training.max_minutes`; otherwise a smaller size is better."""
CORE_FLOPS, GPU_FLOPS = 8e10, 5e13
"""Expected operations a second. One core of a server of 2023 did 7e10 at a width of 128 and 1e11 at 256."""
NUM_VALIDATIONS = 20
WARMUP_SHARE, DECAY_SHARE = 0.1, 0.4


def read_training_recipe(path: Path, overrides: Sequence[str] = ()) -> tuple[Recipe, str | None, dict[str, Any]]:
    """Read a recipe; what it leaves out follows from its corpora if its preset is `modern` and they are local files.

    Returns the recipe, a line about what was chosen, or None if nothing was, and the values that follow from the corpora.

    Raises RecipeError for a recipe that is not valid, and DataError for a corpus that cannot be read.
    """
    recipe = read_recipe(path, overrides)
    corpora = recipe.data.training_corpora()
    if (
        recipe.preset != DERIVING_PRESET
        or not recipe.task.has_text_target
        or recipe.training.init_from is not None
        or not corpora
        or any(corpus.reads_standard_input for corpus in corpora.values())
        or is_url(recipe.data.root)
    ):
        return recipe, None, {}
    check_files_exist(recipe.data.root, recipe.name, corpora.values())
    corpus_size = measure_corpora(Path(recipe.data.root), recipe.training_directions.values())
    size = recipe.size if "size" in recipe.model_fields_set else _read_size_of_run(Path(recipe.run))
    if size is None:
        size = choose_size(corpus_size, max_operations=count_operations(recipe.training))
    chosen: dict[str, Any] = {"size": size, **choose_defaults(corpus_size, size, max_length=recipe.data.max_length)}
    derived = read_recipe(path, overrides, defaults=chosen)
    if derived.training.schedule == "noam":  # the recipe chose it; its peak follows from its warm-up, so the preset's stays
        del chosen["training"]["warmup_steps"]
        derived = read_recipe(path, overrides, defaults=chosen)
    if derived == recipe:
        return derived, None, {}
    return derived, describe_choice(derived.size, derived.tokenizer, derived.training, corpus_size), chosen


def measure_corpora(root: Path, directions: Iterable[Direction]) -> CorpusSize:
    """Return the number of pairs and of target tokens of the training corpora. Large files are read in part."""
    pairs = tokens = 0
    for direction in directions:
        if direction.is_reversed:
            continue
        estimator = TotalEstimator(direction.corpus, root)
        num_bytes = 0
        languages = {"source_language": direction.source_language, "target_language": direction.target_language}
        stream = estimator.count(read_pairs(direction.corpus, root, **languages))
        for pair in islice(stream, MAX_PAIRS_READ):
            num_bytes += len(pair.target.encode())
        num_read = estimator.num_pairs
        total = num_read if num_read < MAX_PAIRS_READ else estimator.estimate() or num_read
        times = 2 if direction.corpus.both_directions else 1
        pairs += times * total
        tokens += int(times * num_bytes / BYTES_PER_TOKEN * total / max(num_read, 1))
    return CorpusSize(pairs, tokens)


def _read_size_of_run(folder: Path) -> str | None:
    """Return the size of the run that a folder holds; None if it holds none, or a damaged one."""
    with suppress(OSError, ValueError):
        document = json.loads((folder / "recipe.json").read_bytes())
        size = document.get("size") if isinstance(document, dict) else None
        return size if isinstance(size, str) and size in SIZES else None
    return None


def count_operations(config: TrainingConfig) -> float:
    """Return the floating-point operations that this machine should do in `max_minutes`; infinity without a limit."""
    if config.max_minutes is None:
        return math.inf
    num_cores = get_num_threads() if config.clock == "wall" else 1
    return 60 * config.max_minutes * (_count_gpus() * GPU_FLOPS or num_cores * CORE_FLOPS)


def _count_gpus() -> int:
    """Return the number of GPUs that PyTorch would train on; 0 without PyTorch."""
    try:
        import torch
    except ModuleNotFoundError:
        return 0
    return torch.cuda.device_count()


def choose_size(corpus_size: CorpusSize, *, max_operations: float = math.inf) -> str:
    """Return the size of a model for these corpora.

    It is the largest size up to that of the number of pairs that can read a part of the epochs, `MIN_PART`, within the
    floating-point operations.
    """
    tier = _find_tier(corpus_size.pairs)
    sizes = list(dict.fromkeys(other.size for other in TIERS[: TIERS.index(tier) + 1]))
    tokens = MIN_PART * count_epochs(corpus_size) * corpus_size.tokens
    affordable = [size for size in sizes if tokens * _count_token_operations(size, tier.pieces) <= max_operations]
    return (affordable or sizes[:1])[-1]


def _count_token_operations(size: str, pieces: int) -> float:
    """Return the operations of a step for a source and a target token: 6 for each weight (Kaplan et al. 2020, section 2.1)."""
    model = SIZES[size]["model"]
    width: int = model["d_model"]
    square, feed_forward = width * width, 2 * width * model["d_ff"]
    encoder: int = model["encoder_layers"] * (4 * square + feed_forward)
    decoder: int = model["decoder_layers"] * (8 * square + feed_forward)
    return 6.0 * (encoder + decoder + width * pieces)


def count_epochs(corpus_size: CorpusSize) -> float:
    """Return the number of times that a training reads the corpora."""
    of_pairs = EPOCHS_TIMES_ROOT_PAIRS / math.sqrt(max(corpus_size.pairs, 1))
    return min(max(of_pairs, MIN_TOKENS / max(corpus_size.tokens, 1), MIN_EPOCHS), MAX_EPOCHS)


def _find_tier(pairs: int) -> _Tier:
    return next(tier for tier in TIERS if pairs < tier.max_pairs)


def choose_defaults(corpus_size: CorpusSize, size: str, *, max_length: int) -> SectionValues:
    """Return the settings that follow from the corpora and the size of the model; a recipe's own values win over them.

    max_length: tokens of the longest sentence; a batch holds four of them
    """
    tier = _find_tier(corpus_size.pairs)
    batch_tokens = max(tier.batch_tokens, 4 * max_length)
    epochs = count_epochs(corpus_size)
    steps = _round(max(epochs * corpus_size.tokens / batch_tokens, 200))
    interval = max(steps // NUM_VALIDATIONS, 10)
    pieces = min(tier.pieces, TINY_PIECES) if size == "tiny" else tier.pieces
    text_bytes = 2 * corpus_size.tokens * BYTES_PER_TOKEN
    return {
        "model": _choose_dropout(size, epochs),
        "tokenizer": {"vocab_size": max(min(pieces, _round(text_bytes / BYTES_PER_PIECE)), 500)},
        "training": {
            "batch_tokens": batch_tokens,
            "schedule": "inverse_sqrt",
            "peak_lr": float(f"{PEAK_LR_TIMES_WIDTH / SIZES[size]['model']['d_model']:.1e}"),
            "warmup_steps": max(int(WARMUP_SHARE * steps), 20),
            "lr_decay_ratio": DECAY_SHARE,
            "max_steps": steps,
            "log_every_steps": min(interval, TrainingConfig().log_every_steps),
            "validate_every_steps": interval,
            "checkpoint_every_steps": interval,
            "checkpoint_averaging": "none",  # the rate ends at zero, and the mean of few and distant checkpoints is worse
        },
    }


def _choose_dropout(size: str, epochs: float) -> dict[str, float]:
    """Return the rates of the sizes for small corpora; other sizes have their own."""
    if size not in ("tiny", "small"):
        return {}
    rate = round(min(max(epochs * DROPOUT_PER_EPOCH, MIN_DROPOUT), MAX_DROPOUT), 2)
    return {"residual_dropout": rate, "embedding_dropout": rate, "attention_dropout": 0.0, "activation_dropout": 0.0}


def _round(number: float) -> int:
    """Return the number rounded to two digits."""
    return int(float(f"{number:.1e}"))


def describe_choice(size: str, tokenizer: TokenizerConfig, training: TrainingConfig, corpus_size: CorpusSize) -> str:
    """Return one line about the settings that follow from the corpora."""
    bytes_per_token = BYTES_AT_8000 + BYTES_PER_DOUBLING * math.log2(min(tokenizer.vocab_size, 8000) / 8000)
    num_bytes = corpus_size.tokens * BYTES_PER_TOKEN
    tokens = int(num_bytes / (1.0 if tokenizer.model_type == "byte" else max(bytes_per_token, 1.0))) + corpus_size.pairs
    epochs = BATCH_FILL * training.max_steps * training.batch_tokens * training.batches_per_update / max(tokens, 1)
    return (
        f"{corpus_size.pairs:,} pairs, about {tokens:,} target tokens: "
        f"size {size}, {tokenizer.vocab_size:,} pieces, batches of "
        f"{training.batch_tokens:,} tokens, {training.max_steps:,} steps ({epochs:.{int(epochs < 9.5)}f} epochs), warm-up of "
        f"{training.warmup_steps:,}; the recipe may set each"
    )
