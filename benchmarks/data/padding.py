"""Padding in the batches of an epoch, and the order of batch lengths.

Padding is the fraction of positions in a batch without a token. Toolkits count it in three ways:

    longer            rows × the longest side in the batch, with each pair as its longer side; the budget counts this
    both              rows × (longest source + longest target)
    source, target    each side by itself
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common.results import Ratio, Section, Table
from common.usage import run_commands

from .corpora import BaseCorpus, TextCorpus
from .dragoman_runner import build_command, build_dataloader_command, build_settings, read_pair_counts

BATCH_TOKENS = 25_000
TARGET_BATCHES = 300
WIDTH = 60
BARS = "▁▂▃▄▅▆▇█"

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ServedPairs:
    """Pairs in the order of serving: lengths with end tokens, and batch numbers that run on over epochs."""

    source: Numbers
    target: Numbers
    batch: Numbers
    epoch: Numbers

    @property
    def longer(self) -> Numbers:
        return np.maximum(self.source, self.target)


def measure_padding(base: BaseCorpus, texts: dict[str, TextCorpus], recipe: Path, work: Path) -> Section:
    section = Section()
    waste = Table(
        f"Padding, % of the positions in batches of {BATCH_TOKENS:,} tokens",
        ["lengths", "order", "batches", "longer", "both", "source", "target"],
    )
    order = Table(
        "Lengths of batches along an epoch",
        ["lengths", "epochs", "rank correlation with position", "lag-1 autocorrelation", "range of random orders"],
    )
    for name, text in texts.items():
        served, read, epochs = _serve_epochs(base, text, recipe, work)
        section.figures[name] = figures = _figures(served, epochs)
        if figures["pairs"] != read * epochs:
            section.notes.append(f"{name}: {figures['pairs']:,} pairs served in {epochs} epochs of {read:,}: some are missing")
        rng = np.random.default_rng(1)
        for order_name, permutation in (("random", rng.permutation(len(served.longer) // epochs)), ("sorted", None)):
            figures["padding"][order_name] = compute_padding(_fill_batches(served, epochs, permutation))
        for order_name, shares in figures["padding"].items():
            waste.rows.append(
                [name, order_name, f"{shares['batches']:,}", *(f"{100 * shares[kind]:.2f}" for kind in list(shares)[1:])]
            )
        order.rows.append(
            [
                name,
                str(epochs),
                f"{figures['rank_correlation']:+.3f}",
                f"{figures['autocorrelation']:+.3f}",
                f"±{figures['random_bound']:.3f}",
            ]
        )
        section.notes.append(f"{name}, mean length of the batches of epoch 0: {figures['bars']}")
        ratio = _used_fraction(figures["padding"]["dragoman"]["both"]) / _used_fraction(figures["padding"]["sorted"]["both"])
        section.ratios.append(Ratio(f"positions_used_{name}", ratio))
    section.tables += [waste, order]
    return section


def _used_fraction(share: float) -> float:
    return 1.0 - share


def _serve_epochs(base: BaseCorpus, text: TextCorpus, recipe: Path, work: Path) -> tuple[ServedPairs, int, int]:
    """Prepare the text and serve enough epochs to give about 300 batches."""
    folder = work / "out" / "padding"
    changes = build_settings(base, text, folder, f"training.batch_tokens={BATCH_TOKENS}")
    counts = read_pair_counts(run_commands(build_command("prepare", recipe, changes)).output)
    batches = max(counts["source_tokens"], counts["target_tokens"]) / BATCH_TOKENS
    epochs = max(1, round(TARGET_BATCHES / max(batches, 1.0)))
    path = folder / "lengths.npz"
    run_commands(build_dataloader_command("lengths", recipe, changes, epochs, path))
    with np.load(path) as arrays:
        columns = {name: arrays[name].astype(np.int64) for name in ("source", "target", "batch", "epoch")}
    path.unlink()
    return ServedPairs(**columns), counts["kept"], epochs


def compute_padding(served: ServedPairs) -> dict[str, float]:
    """Return the number of batches and the padding fraction of each kind."""
    fresh = np.flatnonzero(np.r_[True, np.diff(served.batch) != 0])
    rows = np.diff(np.r_[fresh, len(served.batch)])
    source, target, longer = (np.maximum.reduceat(side, fresh) for side in (served.source, served.target, served.longer))

    def share(tokens: int, longest: Numbers) -> float:
        return 1.0 - tokens / int((rows * longest).sum())

    return {
        "batches": len(fresh),
        "longer": share(int(served.longer.sum()), longer),
        "both": share(int(served.source.sum() + served.target.sum()), source + target),
        "source": share(int(served.source.sum()), source),
        "target": share(int(served.target.sum()), target),
    }


def _fill_batches(served: ServedPairs, epochs: int, order: Numbers | None) -> ServedPairs:
    """Return the pairs of one epoch in another order, in full batches; sorted by length if no order is given."""
    source, target = (side[: len(side) // epochs] for side in (served.source, served.target))
    if order is None:
        order = np.lexsort((source - target, np.maximum(source, target)))
    source, target = source[order], target[order]
    numbers = []
    number = rows = longest = 0
    for length in np.maximum(source, target).tolist():
        longest = max(longest, length)
        rows += 1
        if rows > 1 and rows * longest > BATCH_TOKENS:
            number, rows, longest = number + 1, 1, length
        numbers.append(number)
    return ServedPairs(source, target, np.array(numbers), np.zeros(len(numbers), dtype=np.int64))


def _figures(served: ServedPairs, epochs: int) -> dict[str, Any]:
    lengths = [_batch_lengths(served, epoch) for epoch in range(epochs)]
    mean_batches = float(np.mean([len(epoch_lengths) for epoch_lengths in lengths]))
    return {
        "pairs": len(served.source),
        "epochs": epochs,
        "padding": {"dragoman": compute_padding(served)},
        "rank_correlation": float(np.mean([rank_correlation(epoch_lengths) for epoch_lengths in lengths])),
        "autocorrelation": float(np.mean([autocorrelation(epoch_lengths) for epoch_lengths in lengths])),
        # Both have a standard deviation of about 1/√n in an order drawn at random; twice that, of the mean of the epochs.
        "random_bound": 2.0 / float(np.sqrt(max(mean_batches, 2.0) * epochs)),
        "bars": draw_bars(lengths[0]),
    }


def _batch_lengths(served: ServedPairs, epoch: int) -> Floats:
    """Return the mean longer side of each batch of an epoch."""
    in_epoch = served.epoch == epoch
    batch, longer = served.batch[in_epoch], served.longer[in_epoch]
    fresh = np.flatnonzero(np.r_[True, np.diff(batch) != 0])
    means: Floats = np.add.reduceat(longer, fresh) / np.diff(np.r_[fresh, len(batch)])
    return means


def rank_correlation(lengths: Floats) -> float:
    """Return Spearman's correlation of batch length with batch position; equal lengths share their rank."""
    _, inverse, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) if len(counts) > 1 else 0.0


def autocorrelation(lengths: Floats) -> float:
    """Return the lag-1 autocorrelation of batch lengths, minus its expectation −1/n under a random order."""
    away = lengths - lengths.mean()
    total = float(away @ away)
    return float(away[:-1] @ away[1:]) / total + 1.0 / len(lengths) if total else 0.0


def draw_bars(lengths: Floats) -> str:
    """Return the batch lengths from first to last as a line of bars; each bar averages several batches if there are many."""
    means = np.array([part.mean() for part in np.array_split(lengths, min(WIDTH, len(lengths)))])
    low, high = float(lengths.min()), float(lengths.max())
    heights = (means - low) / max(high - low, 1e-9) * (len(BARS) - 1)
    return "".join(BARS[round(height)] for height in heights.tolist())
