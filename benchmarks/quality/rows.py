"""What is trained: the recipe as it is, with one switch each, and with those together that a user would put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PLAIN, HALF, REVERSED = "plain", "half", "half-reversed"


@dataclass(frozen=True)
class Row:
    """A model to train.

    settings: what differs from the recipe
    steps: so many times those that are asked for
    pairs: which it learns from: all, the first half, or that the other way round
    beside: what it learns from as well, keys of `MADE`
    over: the row that it is compared with; none where a model is trained for what it makes
    """

    name: str
    what: str
    settings: tuple[str, ...] = ()
    steps: float = 1.0
    pairs: Literal["all", "half", "half-reversed"] = "all"
    beside: tuple[str, ...] = ()
    over: str = PLAIN


@dataclass(frozen=True)
class Making:
    """Pairs that a model makes: `dragoman augment HOW`, by the model of this row, of these pairs' sides in these languages."""

    how: Literal["distil", "back-translate", "self-train"]
    by: str
    pairs: Literal["all", "first", "second"]
    languages: tuple[str, ...]
    options: tuple[str, ...] = ()


BEST = ("--best-of", "5", "--original", "beam_size=5")
MADE = {
    "distilled": Making("distil", PLAIN, "all", ("en", "de"), BEST),
    "half-distilled": Making("distil", HALF, "first", ("en", "de"), BEST),
    "back-translated": Making("back-translate", REVERSED, "second", ("de",)),
    "self-translated": Making("self-train", HALF, "second", ("en",)),
}
SAMPLED, MOVING = "tokenizer.sampling_alpha=0.1", ("training.checkpoint_averaging=ema", "training.ema_decay=0.99")
# At the recipe's rate of 5e-3 six layers that are normalised after the sum never learn to look at the source.
DEEP = ("model.encoder_layers=6", "model.decoder_layers=2", "training.peak_lr=2.5e-3")
DROPOUT = ("model.residual_dropout=0.1", "model.embedding_dropout=0.1")
ROWS = (
    Row(PLAIN, "the recipe, the mean of the last five checkpoints"),
    Row("last", "the last weights alone", ("training.checkpoint_averaging=none",)),
    Row("moving", "their moving average, 0.99", MOVING),
    Row("dropout", "dropout of 0.1, as the paper has it, for 0.3", DROPOUT),
    Row("pieces", "2,000 pieces", ("tokenizer.vocab_size=2000",)),
    Row("sampled", "BPE-dropout of 0.1", (SAMPLED,)),
    Row("r-drop", "R-Drop, α = 5: twice a step's price", ("training.r_drop_alpha=5",)),
    Row("r-drop-half", "R-Drop, half the steps: the same price", ("training.r_drop_alpha=5",), steps=0.5),
    Row("deep", "6 + 2 layers for 4 + 4, half the rate", DEEP),
    Row("distilled", "and what plain makes of the same captions", beside=("distilled",)),
    Row("together", "distilled, BPE-dropout, moving average", (SAMPLED, *MOVING), beside=("distilled",)),
    Row(HALF, "the first half of the pairs", pairs="half", over=HALF),
    Row(REVERSED, "", pairs="half-reversed", over=""),
    Row("half-back", "half, and back-translated German of the other", pairs="half", beside=("back-translated",), over=HALF),
    Row("half-self", "half, and translated English of the other", pairs="half", beside=("self-translated",), over=HALF),
    Row(
        "half-both",
        "half-back, and what half makes of its own captions",
        pairs="half",
        beside=("back-translated", "half-distilled"),
        over=HALF,
    ),
)
QUICK = (PLAIN, "moving")


def needed(names: tuple[str, ...]) -> list[Row]:
    """These rows, with those that they are compared with and learn from; first those that learn from none. All for none."""
    by_name = {row.name: row for row in ROWS}
    wanted = set[str]()

    def want(name: str) -> None:
        if name and name not in wanted:
            wanted.add(name)
            row = by_name[name]
            want(row.over)
            for made in row.beside:
                want(MADE[made].by)

    for name in names or by_name:
        want(name)
    return sorted((row for row in ROWS if row.name in wanted), key=lambda row: bool(row.beside))
