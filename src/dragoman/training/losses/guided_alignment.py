"""Guided alignment: one cross-attention head learns the word alignment of the pairs.

The cross-entropy of the head's weights against the links of a pair is added to the loss (Chen et al. 2016, equation 8), for one
head of one layer (Garg et al. 2019, section 3.2). The links of a decoder position are those of its output token, not of its
input token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from dragoman.config import TrainingConfig
from dragoman.data.collate import AlignmentTargets
from dragoman.model.attention import KeyValue, mask_scores, observe_attention
from dragoman.model.layers import DecoderLayer
from dragoman.model.local_attention import Mask
from dragoman.model.transformer import Transformer
from dragoman.tasks.attention_alignment import get_guided_head


@dataclass(frozen=True)
class AlignmentLossConfig:
    """Guided head, with layer and head counted from 0, and the weight of its loss against the loss of a token."""

    weight: float
    layer: int
    head: int

    @classmethod
    def from_training(cls, training: TrainingConfig, alignment_layer: int) -> AlignmentLossConfig | None:
        """Return the configuration; None if the recipe guides no head. alignment_layer: counted from 1"""
        head = get_guided_head(training, alignment_layer)
        return None if head is None else cls(training.guided_alignment_weight, head.layer, head.head or 0)


def alignment_layer(model: Transformer, alignment_config: AlignmentLossConfig) -> DecoderLayer:
    """Return the decoder layer with the guided head."""
    return cast(DecoderLayer, model.decoder.layers[alignment_config.layer])


@contextmanager
def record_head_weights(model: Transformer, alignment_config: AlignmentLossConfig) -> Iterator[list[Tensor]]:
    """Record the log weights (B, T, S) of the head, before dropout, while the model runs. Its outputs stay the same.

    They are computed separately in float32, since fast attention kernels return no weights.
    """
    module, recorded = alignment_layer(model, alignment_config).cross_attention, list[Tensor]()

    def record(query_BHTK: Tensor, key_value: KeyValue, mask: Mask | None) -> None:
        heads = slice(alignment_config.head, alignment_config.head + 1)
        with torch.autocast(query_BHTK.device.type, enabled=False):
            scores_BHTS = mask_scores(module.compute_scores(query_BHTK.float(), key_value.key.float(), heads), mask)
            recorded.append(scores_BHTS.log_softmax(dim=-1)[:, 0])

    with observe_attention({module: record}):
        yield recorded


def alignment_loss(log_weights_BTS: Tensor, targets: AlignmentTargets) -> Tensor:
    """Return −Σ link weight · log attention weight over all links, in nats."""
    rows_G, targets_G, sources_G = targets.positions_3G
    return -log_weights_BTS[rows_G, targets_G, sources_G] @ targets.weights_G
