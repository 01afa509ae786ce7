"""Padding in the batches of an epoch, and whether their order hides one of lengths.

Padding is the share of a batch's places that hold no token, counted three ways, since toolkits differ in what they quote:

    longer            a pair counts as its longer side, its batch as rows × the longest side in it: what the budget is spent on
    both              both sides together: rows × (longest source + longest target)
    source, target    each side by itself
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common.results import Ratio, Section, Table
from common.usage import run

from .corpora import Base, Text
from .ours import command, fate, loader, settings

BATCH_TOKENS = 25_000
BATCHES_WANTED = 300
WIDTH = 60
BARS = "▁▂▃▄▅▆▇█"

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Served:
    """Pairs in the order of serving: lengths with their end tokens, and their batches, numbered on from epoch to epoch."""

    source: Numbers
    target: Numbers
    batch: Numbers
    epoch: Numbers

    @property
    def longer(self) -> Numbers:
        return np.maximum(self.source, self.target)


def measure_padding(base: Base, texts: dict[str, Text], recipe: Path, work: Path) -> Section:
    section = Section()
    waste = Table(
        f"Padding, % of the places in batches of {BATCH_TOKENS:,} tokens",
        ["lengths", "order", "batches", "longer", "both", "source", "target"],
    )
    order = Table(
        "Lengths of batches along an epoch",
        ["lengths", "epochs", "rank correlation with place", "lag-1 autocorrelation", "chance alone stays within"],
    )
    for name, text in texts.items():
        served, read, epochs = _serve(base, text, recipe, work)
        section.figures[name] = figures = _figures(served, epochs)
        if figures["pairs"] != read * epochs:
            section.remarks.append(f"{name}: {figures['pairs']:,} pairs served in {epochs} epochs of {read:,}: some are lost")
        chance = np.random.default_rng(1)
        for other, kept in (("drawn", chance.permutation(len(served.longer) // epochs)), ("sorted", None)):
            figures["padding"][other] = padding(_filled(served, epochs, kept))
        for which, shares in figures["padding"].items():
            waste.rows.append(
                [name, which, f"{shares['batches']:,}", *(f"{100 * shares[how]:.2f}" for how in list(shares)[1:])]
            )
        order.rows.append(
            [
                name,
                str(epochs),
                f"{figures['rank_correlation']:+.3f}",
                f"{figures['autocorrelation']:+.3f}",
                f"±{figures['chance']:.3f}",
            ]
        )
        section.remarks.append(f"{name}, mean length of the batches of epoch 0: {figures['picture']}")
        ratio = _used(figures["padding"]["dragoman"]["both"]) / _used(figures["padding"]["sorted"]["both"])
        section.ratios.append(Ratio(f"places_used_{name}", ratio))
    section.tables += [waste, order]
    return section


def _used(share: float) -> float:
    return 1.0 - share


def _serve(base: Base, text: Text, recipe: Path, work: Path) -> tuple[Served, int, int]:
    """Prepare the text and serve as many epochs as give enough batches to judge an order by."""
    folder = work / "out" / "padding"
    changes = settings(base, text, folder, f"training.batch_tokens={BATCH_TOKENS}")
    told = fate(run(command("prepare", recipe, changes)).output)
    batches = max(told["source_tokens"], told["target_tokens"]) / BATCH_TOKENS
    epochs = max(1, round(BATCHES_WANTED / max(batches, 1.0)))
    path = folder / "lengths.npz"
    run(loader("lengths", recipe, changes, epochs, path))
    with np.load(path) as found:
        columns = {name: found[name].astype(np.int64) for name in ("source", "target", "batch", "epoch")}
    path.unlink()
    return Served(**columns), told["kept"], epochs


def padding(served: Served) -> dict[str, float]:
    """How many batches, and the share of padding each way."""
    fresh = np.flatnonzero(np.r_[True, np.diff(served.batch) != 0])
    rows = np.diff(np.r_[fresh, len(served.batch)])
    source, target, longer = (np.maximum.reduceat(side, fresh) for side in (served.source, served.target, served.longer))

    def share(tokens: int, widest: Numbers) -> float:
        return 1.0 - tokens / int((rows * widest).sum())

    return {
        "batches": len(fresh),
        "longer": share(int(served.longer.sum()), longer),
        "both": share(int(served.source.sum() + served.target.sum()), source + target),
        "source": share(int(served.source.sum()), source),
        "target": share(int(served.target.sum()), target),
    }


def _filled(served: Served, epochs: int, order: Numbers | None) -> Served:
    """The pairs of one epoch in another order, in batches filled to the budget as they come: by length where none is given."""
    source, target = (side[: len(side) // epochs] for side in (served.source, served.target))
    if order is None:
        order = np.lexsort((source - target, np.maximum(source, target)))
    source, target = source[order], target[order]
    numbers = []
    number = rows = widest = 0
    for length in np.maximum(source, target).tolist():
        widest = max(widest, length)
        rows += 1
        if rows > 1 and rows * widest > BATCH_TOKENS:
            number, rows, widest = number + 1, 1, length
        numbers.append(number)
    return Served(source, target, np.array(numbers), np.zeros(len(numbers), dtype=np.int64))


def _figures(served: Served, epochs: int) -> dict[str, Any]:
    lengths = [_batch_lengths(served, epoch) for epoch in range(epochs)]
    mean_batches = float(np.mean([len(one) for one in lengths]))
    return {
        "pairs": len(served.source),
        "epochs": epochs,
        "padding": {"dragoman": padding(served)},
        "rank_correlation": float(np.mean([rank_correlation(one) for one in lengths])),
        "autocorrelation": float(np.mean([autocorrelation(one) for one in lengths])),
        # Both have a standard deviation of about 1/√n in an order drawn at random; twice that, of the mean of the epochs.
        "chance": 2.0 / float(np.sqrt(max(mean_batches, 2.0) * epochs)),
        "picture": picture(lengths[0]),
    }


def _batch_lengths(served: Served, epoch: int) -> Floats:
    """The mean longer side of each batch of an epoch."""
    here = served.epoch == epoch
    batch, longer = served.batch[here], served.longer[here]
    fresh = np.flatnonzero(np.r_[True, np.diff(batch) != 0])
    means: Floats = np.add.reduceat(longer, fresh) / np.diff(np.r_[fresh, len(batch)])
    return means


def rank_correlation(lengths: Floats) -> float:
    """Spearman's, of length with place; equal lengths share their rank."""
    _, inverse, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) if len(counts) > 1 else 0.0


def autocorrelation(lengths: Floats) -> float:
    """Of each batch's length with the next one's, its expectation −1/n under a random order taken out."""
    away = lengths - lengths.mean()
    total = float(away @ away)
    return float(away[:-1] @ away[1:]) / total + 1.0 / len(lengths) if total else 0.0


def picture(lengths: Floats) -> str:
    """The lengths from the first batch to the last, as bars; many batches to a bar where there are many."""
    means = np.array([part.mean() for part in np.array_split(lengths, min(WIDTH, len(lengths)))])
    low, high = float(lengths.min()), float(lengths.max())
    heights = (means - low) / max(high - low, 1e-9) * (len(BARS) - 1)
    return "".join(BARS[round(height)] for height in heights.tolist())
