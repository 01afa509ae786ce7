"""Rows of the quality benchmark: the recipe as it is, with one option each, and with useful combinations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PLAIN, HALF, REVERSED = "plain", "half", "half-reversed"


@dataclass(frozen=True)
class ExperimentRow:
    """Model to train.

    settings: differences from the recipe
    steps: factor on the number of steps
    pairs: training pairs: all, the first half, or the first half reversed
    synthetic: further training pairs, keys of `SYNTHETIC`
    baseline: name of the row for comparison; empty if the model only makes pairs
    """

    name: str
    description: str
    settings: tuple[str, ...] = ()
    steps: float = 1.0
    pairs: Literal["all", "half", "half-reversed"] = "all"
    synthetic: tuple[str, ...] = ()
    baseline: str = PLAIN


@dataclass(frozen=True)
class SyntheticPairs:
    """Pairs that a model makes with `dragoman augment METHOD`, from one half of the pairs."""

    method: Literal["distill", "back-translate", "self-train"]
    model_row: str
    pairs: Literal["all", "first", "second"]
    languages: tuple[str, ...]
    options: tuple[str, ...] = ()


BEST = ("--best-of", "5", "--fallback-to-reference", "beam_size=5")
SYNTHETIC = {
    "distilled": SyntheticPairs("distill", PLAIN, "all", ("en", "de"), BEST),
    "half-distilled": SyntheticPairs("distill", HALF, "first", ("en", "de"), BEST),
    "back-translated": SyntheticPairs("back-translate", REVERSED, "second", ("de",)),
    "self-translated": SyntheticPairs("self-train", HALF, "second", ("en",)),
}
SAMPLED, MOVING = "tokenizer.sampling_alpha=0.1", ("training.checkpoint_averaging=ema", "training.ema_decay=0.99")
# At the recipe's peak_lr of 5e-3, six post-norm layers never learn to attend to the source.
DEEP = ("model.encoder_layers=6", "model.decoder_layers=2", "training.peak_lr=2.5e-3")
DROPOUT = ("model.residual_dropout=0.1", "model.embedding_dropout=0.1")
ROWS = (
    ExperimentRow(PLAIN, "the recipe, the mean of the last five checkpoints"),
    ExperimentRow("last", "weights of the last step", ("training.checkpoint_averaging=none",)),
    ExperimentRow("moving", "moving average of the weights, 0.99", MOVING),
    ExperimentRow("dropout", "dropout of 0.1, as in the paper, instead of 0.3", DROPOUT),
    ExperimentRow("pieces", "2,000 pieces", ("tokenizer.vocab_size=2000",)),
    ExperimentRow("sampled", "BPE-dropout of 0.1", (SAMPLED,)),
    ExperimentRow("r-drop", "R-Drop, α = 5: steps cost twice as much", ("training.r_drop_alpha=5",)),
    ExperimentRow("r-drop-half", "R-Drop, half the steps: equal cost", ("training.r_drop_alpha=5",), steps=0.5),
    ExperimentRow("deep", "6 + 2 layers instead of 4 + 4, half the learning rate", DEEP),
    ExperimentRow("distilled", "the pairs and translations of the same captions by plain", synthetic=("distilled",)),
    ExperimentRow("together", "distilled, BPE-dropout, moving average", (SAMPLED, *MOVING), synthetic=("distilled",)),
    ExperimentRow(HALF, "the first half of the pairs", pairs="half", baseline=HALF),
    ExperimentRow(REVERSED, "", pairs="half-reversed", baseline=""),
    ExperimentRow(
        "half-back",
        "half, and back-translated German of the other half",
        pairs="half",
        synthetic=("back-translated",),
        baseline=HALF,
    ),
    ExperimentRow(
        "half-self",
        "half, and translated English of the other half",
        pairs="half",
        synthetic=("self-translated",),
        baseline=HALF,
    ),
    ExperimentRow(
        "half-both",
        "half-back, and translations of its own captions by half",
        pairs="half",
        synthetic=("back-translated", "half-distilled"),
        baseline=HALF,
    ),
)
QUICK = (PLAIN, "moving")


def select_rows(names: tuple[str, ...]) -> list[ExperimentRow]:
    """Return these rows with their baselines and sources, those without synthetic pairs first; all rows for no names."""
    by_name = {row.name: row for row in ROWS}
    selected = set[str]()

    def select(name: str) -> None:
        if name and name not in selected:
            selected.add(name)
            row = by_name[name]
            select(row.baseline)
            for synthetic_name in row.synthetic:
                select(SYNTHETIC[synthetic_name].model_row)

    for name in names or by_name:
        select(name)
    return sorted((row for row in ROWS if row.name in selected), key=lambda row: bool(row.synthetic))
