"""Guided alignment: one head of the decoder learns to look at the word that a word came from.

The cross-entropy of the head's weights against the links of a pair joins the loss (Chen et al. 2016, equation 8), for one head
of one layer (Garg et al. 2019, section 3.2). A place is guided by the piece that it says, and not by the one that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from dragoman.config import Recipe
from dragoman.data.collate import Guide
from dragoman.model.layers import DecoderLayer
from dragoman.model.local_attention import Mask
from dragoman.model.transformer import Transformer
from dragoman.tasks.attention_alignment import guided_head


@dataclass(frozen=True)
class Guidance:
    """Which head is guided, layer and head counted from 0, and what that weighs against the loss of a token."""

    weight: float
    layer: int
    head: int

    @classmethod
    def of(cls, recipe: Recipe) -> Guidance | None:
        """None where the recipe guides no head."""
        head = guided_head(recipe)
        return None if head is None else cls(recipe.training.guided_alignment_weight, head.layer, head.head or 0)


def alignment_layer(model: Transformer, guidance: Guidance) -> DecoderLayer:
    """The layer that has the guided head."""
    return cast(DecoderLayer, model.decoder.layers[guidance.layer])


@contextmanager
def watched_head(model: Transformer, guidance: Guidance) -> Iterator[list[Tensor]]:
    """Collect the logarithms (B, T, S) of the head's weights, before dropout, while the model runs; its outputs stay the same.

    They are computed apart, in float32, since the ways of attention that are fast keep no weights.
    """
    module, seen = alignment_layer(model, guidance).cross_attention, list[Tensor]()
    before = module.attend

    def attend_and_keep(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, dropout_p: float) -> Tensor:
        one = slice(guidance.head, guidance.head + 1)
        seen.append(log_weights(query[:, one], key[:, one], cast(Tensor, mask))[:, 0])
        return before(query, key, value, mask, dropout_p)

    module.attend = attend_and_keep
    try:
        yield seen
    finally:
        module.attend = before


def log_weights(query_BHTK: Tensor, key_BHSK: Tensor, mask: Tensor) -> Tensor:
    """log softmax(Q·Kᵀ/√d_k), −∞ where the mask hides. → (B, H, T, S)"""
    with torch.autocast(query_BHTK.device.type, enabled=False):
        query_BHTK, key_BHSK = query_BHTK.float() / math.sqrt(query_BHTK.shape[-1]), key_BHSK.float()
        scores_BHTS = torch.matmul(query_BHTK, key_BHSK.transpose(-2, -1))
        return scores_BHTS.masked_fill(~mask, float("-inf")).log_softmax(dim=-1)


def guided_loss(log_weights_BTS: Tensor, guide: Guide) -> Tensor:
    """−Σ share · log weight over all links of pieces, in nats; the mean where the batch went through more than once."""
    rows_G, targets_G, sources_G = guide.places_3G
    passes_PBTS = log_weights_BTS.view(-1, guide.rows, *log_weights_BTS.shape[1:])
    found_PG = passes_PBTS[:, rows_G, targets_G, sources_G]
    return torch.matmul(found_PG, -guide.share_G).mean()
