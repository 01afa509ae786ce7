"""Cost of a step: floating-point operations of its matrix products, padding, memory.

A multiplication and an addition are two operations. Only real tokens count, and in attention only the pairs of positions that
the mask allows. Sums, softmax, dropout and layer norm do not count, as is usual.
"""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dragoman.config import ModelConfig
from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.platform_features import resource

# The gradient with respect to either factor of a product costs as much as the product. Frozen layers count as if they were
# trained, and the product of low-rank adapters does not count: it takes one operation in a few hundred.
TRAINING_FLOPS_FACTOR = 3

Lengths = npt.NDArray[np.int64]


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
    model: ModelConfig, target_vocab_size: int, batch: Batch, *, num_forward_passes: int = 1, has_teacher: bool = False
) -> BatchCost:
    """Return the cost of training on a batch in CPU memory. It takes about 30 µs and never waits for a device.

    num_forward_passes: passes of the trained model, each with a backward pass
    has_teacher: whether a model of equal size makes one forward pass as well, as for `training.kl_to_init`
    """
    sources = np.count_nonzero(batch.source_BS.numpy() != PADDING_ID, axis=1)
    targets = np.count_nonzero(batch.targets_BT.numpy() != PADDING_ID, axis=1)
    num_passes = TRAINING_FLOPS_FACTOR * num_forward_passes + has_teacher
    flops = num_passes * count_forward_flops(model, target_vocab_size, sources, targets)
    return BatchCost(float(flops), int(sources.sum() + targets.sum()), batch.source_BS.numel() + batch.targets_BT.numel())


def count_forward_flops(model: ModelConfig, target_vocab_size: int, sources: Lengths, targets: Lengths) -> int:
    """Return the operations of one forward pass, with the output layer. Lengths count the start and end tokens."""
    source, target = int(sources.sum()), int(targets.sum())
    keys, values = model.num_heads * model.key_width, model.num_heads * model.value_width
    # Multiply-accumulate operations: of a token with the weights, then of a query with a key and of a weight with a value.
    query_output_macs = key_value_macs = model.d_model * (keys + values)  # W^Q and W^O; W^K and W^V
    feed_forward_macs = 2 * model.d_model * model.d_ff
    pair_macs = keys + values
    encoder_macs = (
        source * (query_output_macs + key_value_macs + feed_forward_macs)
        + _count_visible_pairs(sources, model.attention_window, bidirectional=True) * pair_macs
    )
    decoder_macs = target * (2 * query_output_macs + key_value_macs + feed_forward_macs) + source * key_value_macs
    decoder_macs += (
        _count_visible_pairs(targets, model.attention_window, bidirectional=False) + int((sources * targets).sum())
    ) * pair_macs
    output_macs = target * model.d_model * target_vocab_size
    return 2 * (model.encoder_layers * encoder_macs + model.decoder_layers * decoder_macs + output_macs)


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


def read_resident_mib(statm_path: Path = Path("/proc/self/statm")) -> float | None:
    """Return the resident memory of this process in MiB, its peak if the system has no /proc, or None without both."""
    try:
        return int(statm_path.read_text().split()[1]) * mmap.PAGESIZE / 2**20
    except (OSError, ValueError, IndexError):
        if resource is None:
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak) / (2**20 if sys.platform == "darwin" else 2**10)
