"""Settings that follow from the corpora, if the preset is `modern`: size, pieces, batch, learning rate and steps.

The presets `paper` and `t2t-2017` keep the values of the paper. The chosen values depend on the corpora and the size only, so
that a run resumes with the same recipe. The numbers are those of runs with 29,000 to a million pairs, see
`docs/how-to/defaults.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dragoman.cleaning.total_estimator import TotalEstimator
from dragoman.config import Recipe, TokenizerConfig, TrainingConfig, read_recipe
from dragoman.config.data_config import Direction
from dragoman.config.presets import SIZES, SectionValues
from dragoman.formats.object_store import is_url
from dragoman.formats.readers import check_files_exist, read_pairs

DERIVING_PRESET = "modern"
MAX_PAIRS_READ = 100_000
"""Pairs of a corpus that are read to estimate its size."""
BYTES_PER_TOKEN = 4.5
"""UTF-8 bytes of a piece, over languages and sizes of vocabularies."""
BYTES_PER_PIECE = 40
"""Bytes of text that the tokenizer's training needs for each piece of its vocabulary."""


@dataclass(frozen=True)
class CorpusSize:
    """Size of the training corpora before cleaning; both numbers are estimates for large files."""

    pairs: int
    tokens: int
    """Target tokens."""

    def describe(self) -> str:
        """Return the size in words."""
        return f"{self.pairs:,} pairs, about {self.tokens:,} target tokens"


@dataclass(frozen=True)
class _Tier:
    """Settings of corpora with fewer pairs than a limit."""

    max_pairs: float
    size: str
    pieces: int
    batch_tokens: int


TIERS = (
    _Tier(10_000, "tiny", 4_000, 2048),
    _Tier(100_000, "tiny", 8_000, 4096),
    _Tier(1_000_000, "small", 16_000, 8192),
    _Tier(10_000_000, "base", 32_000, 25_000),
    _Tier(float("inf"), "big", 32_000, 25_000),
)
PEAK_LR_TIMES_WIDTH = 0.35
"""Highest learning rate times d_model: 2.7e-3 for a width of 128, 7e-4 for 512."""
EPOCHS_TIMES_ROOT_PAIRS = 4_000
"""Epochs times the square root of the pairs: 20 epochs for 40,000 pairs, 4 for a million."""
MIN_EPOCHS, MAX_EPOCHS = 2, 60
NUM_VALIDATIONS = 20
WARMUP_SHARE, DECAY_SHARE = 0.1, 0.4


def read_training_recipe(path: Path, overrides: Sequence[str] = ()) -> tuple[Recipe, str | None]:
    """Read a recipe; what it leaves out follows from its corpora if its preset is `modern` and they are local files.

    Returns the recipe, and a line about what was chosen, or None if nothing was.

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
        return recipe, None
    check_files_exist(recipe.data.root, recipe.name, corpora.values())
    corpus_size = measure_corpora(Path(recipe.data.root), recipe.training_directions.values())
    size = recipe.size if "size" in recipe.model_fields_set else choose_size(corpus_size.pairs)
    chosen = choose_defaults(corpus_size, size, max_length=recipe.data.max_length)
    derived = read_recipe(path, overrides, defaults={"size": size, **chosen})
    if derived.training.schedule == "noam":  # the recipe chose it; its peak follows from its warm-up, so the preset's stays
        del chosen["training"]["warmup_steps"]
        derived = read_recipe(path, overrides, defaults={"size": size, **chosen})
    if derived == recipe:
        return derived, None
    return derived, describe_choice(derived.size, derived.tokenizer, derived.training, corpus_size)


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


def choose_size(pairs: int) -> str:
    """Return the size of a model for this number of pairs."""
    return _find_tier(pairs).size


def _find_tier(pairs: int) -> _Tier:
    return next(tier for tier in TIERS if pairs < tier.max_pairs)


def choose_defaults(corpus_size: CorpusSize, size: str, *, max_length: int) -> SectionValues:
    """Return the settings that follow from the corpora and the size of the model; a recipe's own values win over them.

    max_length: tokens of the longest sentence; a batch holds four of them
    """
    tier = _find_tier(corpus_size.pairs)
    batch_tokens = max(tier.batch_tokens, 4 * max_length)
    epochs = min(max(EPOCHS_TIMES_ROOT_PAIRS / max(corpus_size.pairs, 1) ** 0.5, MIN_EPOCHS), MAX_EPOCHS)
    steps = _round(max(epochs * corpus_size.tokens / batch_tokens, 200))
    interval = max(steps // NUM_VALIDATIONS, 10)
    text_bytes = 2 * corpus_size.tokens * BYTES_PER_TOKEN
    return {
        "tokenizer": {"vocab_size": max(min(tier.pieces, _round(text_bytes / BYTES_PER_PIECE)), 500)},
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


def _round(number: float) -> int:
    """Return the number rounded to two digits."""
    return int(float(f"{number:.1e}"))


def describe_choice(size: str, tokenizer: TokenizerConfig, training: TrainingConfig, corpus_size: CorpusSize) -> str:
    """Return one line about the settings that follow from the corpora."""
    epochs = training.max_steps * training.batch_tokens * training.batches_per_update / max(corpus_size.tokens, 1)
    return (
        f"{corpus_size.describe()}: size {size}, {tokenizer.vocab_size:,} pieces, batches of "
        f"{training.batch_tokens:,} tokens, {training.max_steps:,} steps ({epochs:.{int(epochs < 9.5)}f} epochs), warm-up of "
        f"{training.warmup_steps:,}; the recipe may set each"
    )
