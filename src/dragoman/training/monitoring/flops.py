"""Cost of a step: floating-point operations of its matrix products, padding, memory.

A multiplication and an addition are two operations. Only real tokens count, and in attention only the pairs of positions that
the mask allows. Sums, softmax, dropout and layer norm do not count, as is usual. `training_macs` counts the backward pass of
models with frozen parameters.
"""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dragoman.config import ModelConfig
from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.platform_features import resource
from dragoman.training.monitoring.layer_macs import count_layer_macs

# The gradient with respect to either factor of a product costs as much as the product.
TRAINING_FLOPS_FACTOR = 3
STATM_FILE = Path("/proc/self/statm")

Lengths = npt.NDArray[np.int64]
Macs = npt.NDArray[np.float64]
"""Multiply-accumulate operations for each unit of the sizes of a batch, in the order of `Size`."""


class Size(IntEnum):
    """Size of a batch that its cost is proportional to. Pairs are those that the mask allows."""

    SOURCE_TOKENS = 0
    TARGET_TOKENS = 1
    ENCODER_PAIRS = 2
    DECODER_PAIRS = 3
    CROSS_PAIRS = 4
    BATCHES = 5


@dataclass(frozen=True)
class BatchCost:
    """Size and cost of one or more batches."""

    flops: float = 0.0
    """Floating-point operations of the forward and the backward pass."""
    tokens: int = 0
    """Real tokens, on both sides."""
    padded_tokens: int = 0
    """Tokens and padding, on both sides."""

    def __add__(self, other: BatchCost) -> BatchCost:
        return BatchCost(self.flops + other.flops, self.tokens + other.tokens, self.padded_tokens + other.padded_tokens)

    @property
    def padding_fraction(self) -> float:
        """Share of the positions that hold no token."""
        return 1.0 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0


def compute_batch_cost(
    model: ModelConfig,
    target_vocab_size: int,
    batch: Batch,
    *,
    has_teacher: bool = False,
    training_macs: Macs | None = None,
    num_candidates: int = 0,
) -> BatchCost:
    """Return the cost of training on a batch in CPU memory. It takes about 30 µs and never waits for a device.

    has_teacher: whether a model of equal size makes one forward pass as well, as for `training.kl_to_init`
    training_macs: operations of a forward and a backward pass, if some parameters are frozen or have adapters
    num_candidates: outputs of each sentence that are decoded and trained on, as for `training.sequence_loss`; each counts as
        long as the reference
    """
    sources = np.count_nonzero(batch.source_BS.numpy() != PADDING_ID, axis=1)
    targets = np.count_nonzero(batch.targets_BT.numpy() != PADDING_ID, axis=1)
    forward_macs = count_forward_macs(model, target_vocab_size)
    if training_macs is None:
        training_macs = TRAINING_FLOPS_FACTOR * forward_macs
    sizes = _measure_sizes(model, sources, targets)
    flops = 2 * float(sizes @ (training_macs + has_teacher * forward_macs))
    if num_candidates:
        sizes[[Size.TARGET_TOKENS, Size.DECODER_PAIRS, Size.CROSS_PAIRS]] *= num_candidates
        flops += 2 * float(sizes @ (forward_macs + training_macs))
    return BatchCost(flops, int(sources.sum() + targets.sum()), batch.source_BS.numel() + batch.targets_BT.numel())


def count_forward_flops(model: ModelConfig, target_vocab_size: int, sources: Lengths, targets: Lengths) -> int:
    """Return the operations of one forward pass, with the output layer. Lengths count the start and end tokens."""
    return 2 * int(_measure_sizes(model, sources, targets) @ count_forward_macs(model, target_vocab_size))


def count_forward_macs(model: ModelConfig, target_vocab_size: int) -> Macs:
    """Return the operations of one forward pass, with the output layer, for each unit of `Size`."""
    layer_macs = count_layer_macs(model)
    # One attention has the projections of its keys and values, and those of its queries and its output.
    query_macs, key_macs = (
        model.d_model * num_heads * (model.key_width + model.value_width)
        for num_heads in (model.num_heads, model.key_value_heads)
    )
    macs = np.zeros(len(Size))
    macs[Size.SOURCE_TOKENS] = (
        sum(layer_macs.encoder)
        + layer_macs.encoder_attentions * layer_macs.query
        + model.encoder_layers * layer_macs.feed_forward
        + layer_macs.cross_attentions * key_macs
        + layer_macs.source
    )
    macs[Size.TARGET_TOKENS] = (
        sum(layer_macs.decoder)
        + layer_macs.decoder_attentions * layer_macs.query
        + model.decoder_layers * layer_macs.feed_forward
        + layer_macs.cross_attentions * (query_macs + layer_macs.query)
        + model.d_model * target_vocab_size
        + layer_macs.target
    )
    macs[Size.ENCODER_PAIRS] = layer_macs.encoder_attentions * layer_macs.pair
    macs[Size.DECODER_PAIRS] = layer_macs.decoder_attentions * layer_macs.pair
    macs[Size.CROSS_PAIRS] = layer_macs.cross_attentions * layer_macs.pair
    return macs


def _measure_sizes(model: ModelConfig, sources: Lengths, targets: Lengths) -> npt.NDArray[np.float64]:
    """Return the sizes of a batch in the order of `Size`. Positions of a decoder that predicts all at once are its targets."""
    layer_macs = count_layer_macs(model)
    predicts_all_at_once = layer_macs.positions_per_source is not None
    if layer_macs.positions_per_source is not None:
        targets = np.ceil(layer_macs.positions_per_source * sources).astype(sources.dtype)
    target_pairs = _count_visible_pairs(targets, model.attention_window, bidirectional=predicts_all_at_once)
    return np.array(
        [
            sources.sum(),
            targets.sum(),
            _count_visible_pairs(sources, model.attention_window, bidirectional=True),
            target_pairs,
            target_pairs if layer_macs.has_local_source else (sources * targets).sum(),
            1.0,
        ]
    )


def _count_visible_pairs(lengths: Lengths, window: int | None, *, bidirectional: bool) -> int:
    """Return the pairs of positions that the mask allows: itself, `window` before it, and after it if bidirectional."""
    last_position = lengths - 1
    reach = last_position if window is None else np.minimum(last_position, window)
    before = reach * (reach + 1) // 2 + (last_position - reach) * reach
    return int((lengths + (2 if bidirectional else 1) * before).sum())


def measure_memory_mib(device: torch.device) -> float | None:
    """Return the resident memory on a CPU, or the peak allocated memory on a GPU, in MiB. None if the system reports none."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return read_resident_mib()


def read_resident_mib() -> float | None:
    """Return the resident memory of this process in MiB, its peak if the system has no /proc, or None without both."""
    try:
        return int(STATM_FILE.read_text().split()[1]) * mmap.PAGESIZE / 2**20
    except (OSError, ValueError, IndexError):
        if resource is None:
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak) / (2**20 if sys.platform == "darwin" else 2**10)
