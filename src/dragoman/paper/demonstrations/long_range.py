"""Section 4: "the shorter these paths, the easier it is to learn long-range dependencies".

The task: read one of eight symbols, then n − 1 symbols of another alphabet, and name the first symbol at the last position.
All models train with the same number of operations of matrix products, so that a cheaper layer has more steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.attention import Attention, explicit_attention
from dragoman.model.layers import FeedForward
from dragoman.paper.demonstrations.demonstration import Demonstration
from dragoman.paper.demonstrations.toy_training import SEEDS, SeedScores, train_steps
from dragoman.paper.flop_counter import count_operations
from dragoman.paper.table1 import single_thread
from dragoman.paper.table1_layers import ConvolutionLayer, RecurrentLayer
from dragoman.positions import interleaved_sinusoids
from dragoman.viz.charts import Panel, Series, render_learning_curve

NUM_SYMBOLS, D_MODEL, BATCH_SIZE = 8, 32, 16
DISTANCES = (8, 16, 32, 64)
RECURRENT_STEPS = 200
"""Steps of the recurrent model, whose operations all models have."""
NUM_LAYERS = {"self-attention": 2, "recurrent (LSTM)": 2, "convolution": 5, "dilated convolution": 5}
_KERNEL_SIZE, _PEAK_LR, _NUM_TESTS = 3, 3e-3, 256


class SelfAttention(nn.Module):
    """Multi-head self-attention over all positions."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(d_model=D_MODEL, num_heads=4, d_k=8, d_v=8, bias=False, dropout=0.0)
        self.attention.attention_impl = explicit_attention

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return the attention of each position. → (B, N, D)"""
        query_BHNK, key_value = self.attention.project_qkv(x_BND)
        return self.attention.attend(query_BHNK, key_value, None)


class FusedLstm(nn.Module):
    """PyTorch's LSTM, equal to `RecurrentLayer` and faster, but without a count of its operations."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(D_MODEL, D_MODEL, batch_first=True)

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return the outputs of all positions. → (B, N, D)"""
        output_BND: Tensor = self.lstm(x_BND)[0]
        return output_BND


class RecallModel(nn.Module):
    """Layers of one kind, each with a feed-forward network, and a classifier at the last position."""

    def __init__(self, kind: str, *, countable: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * NUM_SYMBOLS, D_MODEL)
        self.mixers = nn.ModuleList(_build_mixer(kind, depth, countable=countable) for depth in range(NUM_LAYERS[kind]))
        self.networks = nn.ModuleList(
            FeedForward(d_model=D_MODEL, d_ff=2 * D_MODEL, dropout=0.0) for _ in range(NUM_LAYERS[kind])
        )
        self.norms = nn.ModuleList(nn.LayerNorm(D_MODEL) for _ in range(2 * NUM_LAYERS[kind]))
        self.output = nn.Linear(D_MODEL, NUM_SYMBOLS)

    def forward(self, symbols_BN: Tensor) -> Tensor:
        """Return the logits of the first symbol. → (B, V)"""
        positions_ND = torch.from_numpy(interleaved_sinusoids(symbols_BN.shape[1], D_MODEL))
        return self.classify(self.embedding(symbols_BN) + positions_ND)

    def classify(self, x_BND: Tensor) -> Tensor:
        """Return the logits for embedded symbols. → (B, V)"""
        for index, (mixer, network) in enumerate(zip(self.mixers, self.networks, strict=True)):
            x_BND = x_BND + mixer(self.norms[2 * index](x_BND))
            x_BND = x_BND + network(self.norms[2 * index + 1](x_BND))
        logits_BV: Tensor = self.output(x_BND[:, -1])
        return logits_BV


def _build_mixer(kind: str, depth: int, *, countable: bool) -> nn.Module:
    match kind:
        case "self-attention":
            return SelfAttention()
        case "recurrent (LSTM)":
            return RecurrentLayer(D_MODEL) if countable else FusedLstm()
        case "convolution":
            return ConvolutionLayer(D_MODEL, _KERNEL_SIZE)
        case _:
            return ConvolutionLayer(D_MODEL, _KERNEL_SIZE, dilation=_KERNEL_SIZE**depth)


@dataclass(frozen=True)
class RecallResult:
    """Accuracy of one kind of layer at one distance, over the seeds. Chance is 1 / `NUM_SYMBOLS`."""

    kind: str
    distance: int
    steps: int
    accuracy: SeedScores


def measure_recall(distances: Sequence[int] = DISTANCES, recurrent_steps: int = RECURRENT_STEPS) -> list[RecallResult]:
    """Train each kind of layer for each distance with equal operations, and return the accuracies on new sequences."""
    results = []
    with single_thread():
        for distance in distances:
            operations = {kind: count_step_operations(kind, distance) for kind in NUM_LAYERS}
            for kind, count in operations.items():
                steps = round(recurrent_steps * operations["recurrent (LSTM)"] / count)
                accuracy = SeedScores([_train_recall(kind, distance, steps, seed) for seed in SEEDS])
                results.append(RecallResult(kind, distance, steps, accuracy))
    return results


def count_step_operations(kind: str, distance: int) -> int:
    """Return the operations of the layers for one sequence, forward and backward."""
    model = RecallModel(kind, countable=True)
    return count_operations(model.classify, torch.randn(1, distance, D_MODEL, requires_grad=True)).operations


def _train_recall(kind: str, distance: int, steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    model = RecallModel(kind)
    generator = torch.Generator().manual_seed(seed)

    def draw_symbols(batch_size: int) -> Tensor:
        symbols_BN = torch.randint(NUM_SYMBOLS, (batch_size, distance), generator=generator)
        symbols_BN[:, 1:] += NUM_SYMBOLS
        return symbols_BN

    def compute_loss() -> Tensor:
        symbols_BN = draw_symbols(BATCH_SIZE)
        return F.cross_entropy(model(symbols_BN), symbols_BN[:, 0])

    train_steps(model, compute_loss, steps=steps, peak_lr=_PEAK_LR)
    with torch.no_grad():
        symbols_BN = draw_symbols(_NUM_TESTS)
        return float((model(symbols_BN).argmax(dim=-1) == symbols_BN[:, 0]).double().mean())


def show_recall() -> Demonstration:
    """Train attention, recurrence and convolutions to remember a symbol over growing distances (section 4)."""
    results = measure_recall()
    title = "Naming the first of n symbols, after equal operations"
    lesson = (
        f"See which lines fall to chance, {1 / NUM_SYMBOLS:g}, as the distance grows: a signal passes one layer of attention, "
        f"but n steps of an LSTM, and a stack of five convolutions only reaches {1 + 5 * (_KERNEL_SIZE - 1)} symbols, unless "
        "they are dilated."
    )
    rows = [
        (result.kind, result.distance, result.steps, result.accuracy.mean, result.accuracy.half_width) for result in results
    ]
    series = [
        Series(kind, [(math.log2(result.distance), result.accuracy.mean) for result in results if result.kind == kind])
        for kind in NUM_LAYERS
    ]
    header = ["layers", "n", "steps", f"accuracy, mean of {len(SEEDS)} seeds", "± (95 %)"]
    return Demonstration(
        title,
        lesson,
        header,
        rows,
        lambda: render_learning_curve(
            [Panel("accuracy", series, include_zero=True)], title=title, x_label="log₂ n", panel_height=300, caption=lesson
        ),
    )
