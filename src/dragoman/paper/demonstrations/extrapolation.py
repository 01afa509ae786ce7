"""Section 3.5: sinusoids "may allow the model to extrapolate to sequence lengths longer than the ones encountered in training".

A Transformer of one layer in each stack learns to copy random symbols of up to `MAX_TRAINED` positions, once with sinusoids and
once with learned positions. The score is the share of target symbols that it predicts, given the ones before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.config import make_recipe
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.paper.demonstrations.demonstration import Demonstration
from dragoman.paper.demonstrations.toy_training import SEEDS, SeedScores, train_steps
from dragoman.paper.table1 import single_thread
from dragoman.viz.charts import Panel, Series, VerticalMarker, render_learning_curve

MAX_TRAINED = 12
LENGTHS = (6, 12, 14, 16, 20, 24)
STEPS, BATCH_SIZE = 300, 32
_START, _FIRST_SYMBOL, _VOCAB_SIZE = 1, 2, 18
_PEAK_LR, _NUM_TESTS = 3e-3, 64
Encoding = Literal["interleaved", "learned"]
ENCODINGS: dict[Encoding, str] = {"interleaved": "sinusoids", "learned": "learned positions"}


@dataclass(frozen=True)
class CopyResult:
    """Share of target symbols that a model predicts at one length.

    accuracy: of all symbols
    new_accuracy: of symbols at positions beyond those of training; None within them
    """

    encoding: Encoding
    length: int
    accuracy: SeedScores
    new_accuracy: SeedScores | None


def measure_copying(lengths: Sequence[int] = LENGTHS, steps: int = STEPS) -> list[CopyResult]:
    """Train a model of each encoding with each seed, and return its accuracy at each length."""
    results = []
    for encoding in ENCODINGS:
        with single_thread():
            by_seed = [_train_copying(encoding, seed, lengths, steps) for seed in SEEDS]
        for index, length in enumerate(lengths):
            correct = [scores[index] for scores in by_seed]
            new = SeedScores([float(hits_T[MAX_TRAINED:].mean()) for hits_T in correct]) if length > MAX_TRAINED else None
            results.append(CopyResult(encoding, length, SeedScores([float(hits_T.mean()) for hits_T in correct]), new))
    return results


def build_copier(encoding: Encoding) -> Transformer:
    """Return a Transformer of one layer in each stack with random weights."""
    settings = {
        "position_encoding": encoding,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "d_model": 64,
        "d_ff": 128,
        "num_heads": 4,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
    }
    config = make_recipe({"preset": "modern", "size": "tiny", "model": settings}).model
    return build_model(config, source_vocab_size=_VOCAB_SIZE, target_vocab_size=_VOCAB_SIZE)


def draw_copies(model: Transformer, batch_size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences of this length, and return the logits of the model for their copies (B, T, V), and the symbols (B, T)."""
    symbols_BT = torch.randint(_FIRST_SYMBOL, _VOCAB_SIZE, (batch_size, length), generator=generator)
    return model(symbols_BT, F.pad(symbols_BT[:, :-1], (1, 0), value=_START)), symbols_BT


def _train_copying(encoding: Encoding, seed: int, lengths: Sequence[int], steps: int) -> list[Tensor]:
    """Return for each length which share of the test sequences has the right symbol at each position. (T,)"""
    torch.manual_seed(seed)
    model = build_copier(encoding)
    generator = torch.Generator().manual_seed(seed)

    def compute_loss() -> Tensor:
        length = int(torch.randint(MAX_TRAINED // 2, MAX_TRAINED + 1, (1,), generator=generator))
        logits_BTV, symbols_BT = draw_copies(model, BATCH_SIZE, length, generator)
        return F.cross_entropy(logits_BTV.flatten(0, 1), symbols_BT.flatten())

    train_steps(model, compute_loss, steps=steps, peak_lr=_PEAK_LR)
    model.eval()
    correct = []
    with torch.no_grad():
        for length in lengths:
            logits_BTV, symbols_BT = draw_copies(model, _NUM_TESTS, length, generator)
            correct.append((logits_BTV.argmax(dim=-1) == symbols_BT).double().mean(dim=0))
    return correct


def show_extrapolation() -> Demonstration:
    """Copy sequences that are longer than those of training, with sinusoids and with learned positions (section 3.5)."""
    results = measure_copying()
    title = f"Copying n symbols after training with at most {MAX_TRAINED}"
    lesson = (
        "Compare both lines at the right of the dotted one, where the lengths are new: learned positions have no trained "
        "vector there, and sinusoids have one, but the model has not seen it."
    )
    rows = [
        (
            ENCODINGS[result.encoding],
            result.length,
            result.accuracy.mean,
            result.accuracy.half_width,
            "" if result.new_accuracy is None else str(result.new_accuracy),
        )
        for result in results
    ]
    panels = []
    for label, attribute in (("all positions", "accuracy"), ("new positions", "new_accuracy")):
        series = []
        for encoding, name in ENCODINGS.items():
            scores = {result.length: getattr(result, attribute) for result in results if result.encoding == encoding}
            series.append(Series(name, [(n, score.mean) for n, score in scores.items() if score is not None]))
        panels.append(Panel(label, series, include_zero=True))
    header = ["positions", "n", f"accuracy, mean of {len(SEEDS)} seeds", "± (95 %)", "at new positions alone"]
    return Demonstration(
        title,
        lesson,
        header,
        rows,
        lambda: render_learning_curve(
            panels,
            title=title,
            x_label="n; the scores are accuracies",
            markers=[VerticalMarker(MAX_TRAINED, "longest in training")],
            caption=lesson,
        ),
    )
