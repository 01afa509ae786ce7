"""What a step costs: floating-point operations of its matrix products, padding, memory.

A multiplication and an addition are two operations. Counted is what the equations ask for: real tokens only, and of attention
only the pairs of places that its mask lets see each other. Sums, softmax, dropout and norms are left out, as everyone does.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dragoman.config import ModelConfig
from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import PADDING_ID

# The gradient with respect to either factor of a product costs as much as the product.
TRAINING = 3

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """What one or more batches hold and cost."""

    flops: float = 0.0
    """Of a training step: forward and backward."""
    tokens: int = 0
    """Real tokens, on both sides."""
    places: int = 0
    """Tokens and padding, on both sides."""

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.tokens + other.tokens, self.places + other.places)

    @property
    def padding(self) -> float:
        """Share of the places that hold no token."""
        return 1.0 - self.tokens / self.places if self.places else 0.0


def batch_work(model: ModelConfig, target_vocabulary: int, batch: Batch) -> Work:
    """The work of training on a batch, which is still in the processor's memory. Some 30 µs; never waits for a device."""
    sources = np.count_nonzero(batch.source_BS.numpy() != PADDING_ID, axis=1)
    targets = np.count_nonzero(batch.targets_BT.numpy() != PADDING_ID, axis=1)
    flops = TRAINING * forward_flops(model, target_vocabulary, sources, targets)
    return Work(float(flops), int(sources.sum() + targets.sum()), batch.source_BS.numel() + batch.targets_BT.numel())


def forward_flops(model: ModelConfig, target_vocabulary: int, sources: Lengths, targets: Lengths) -> int:
    """Operations of one forward pass over sentences of these lengths, with end and begin tokens, and the output layer."""
    source, target = int(sources.sum()), int(targets.sum())
    keys, values = model.num_heads * model.key_width, model.num_heads * model.value_width
    # Multiplications: of a token with the weights, then of a query with a key and of a weight with a value.
    asking, asked = model.d_model * (keys + values), model.d_model * (keys + values)  # W^Q and W^O, W^K and W^V
    feed_forward = 2 * model.d_model * model.d_ff
    pair = keys + values
    encoder = source * (asking + asked + feed_forward) + _pairs(sources, model.attention_window, both=True) * pair
    decoder = target * (2 * asking + asked + feed_forward) + source * asked
    decoder += (_pairs(targets, model.attention_window, both=False) + int((sources * targets).sum())) * pair
    output = target * model.d_model * target_vocabulary
    return 2 * (model.encoder_layers * encoder + model.decoder_layers * decoder + output)


def _pairs(lengths: Lengths, window: int | None, *, both: bool) -> int:
    """Pairs of places of a sentence that see each other: each itself and `window` before it, and as many after if `both`."""
    last = lengths - 1
    reach = last if window is None else np.minimum(last, window)
    before = reach * (reach + 1) // 2 + (last - reach) * reach
    return int((lengths + (2 if both else 1) * before).sum())


def memory_mib(device: torch.device) -> float:
    """What this process has resident on a processor; the peak that it allocated on a GPU. In MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resident_mib()


def resident_mib(statm: Path = Path("/proc/self/statm")) -> float:
    """Resident memory of this process in MiB; its peak where the system does not tell the present."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)
