"""Draft decoder: a decoder of one layer over the encoder of a trained model, which proposes tokens one after the other.

Leviathan et al. 2023 let a small model propose tokens that a large one verifies. This draft shares the encoder, the embeddings
and the output embedding with the large model. Its layer begins as a copy of the model's last decoder layer, with the largest
units of the feed-forward network only. A search verifies the proposals, so a draft changes its speed and not its output.

    dimensions as in `dragoman.model`; W counts the tokens that are proposed
"""

from __future__ import annotations

import copy
from typing import Self, cast

import torch
from torch import Tensor, nn

from dragoman.model.layers import DecoderLayer, FeedForward
from dragoman.model.prediction_heads import PredictionHeads
from dragoman.model.transformer import Decoder, Embedding, Transformer


class DraftDecoder(nn.Module):
    """Layer and final norm of a draft.

    num_proposals: most tokens that it proposes for one step
    token_ids_W: tokens that it proposes
    """

    token_ids_W: Tensor

    def __init__(self, *, layer: DecoderLayer, norm: nn.Module, token_ids_W: Tensor, num_proposals: int) -> None:
        super().__init__()
        self.layer, self.norm, self.num_proposals = layer, norm, num_proposals
        self.register_buffer("token_ids_W", token_ids_W)

    @classmethod
    def from_model(cls, model: Transformer, *, token_ids_W: Tensor, num_proposals: int, d_ff: int | None = None) -> Self:
        """Return the untrained draft of a model, in evaluation mode: without dropout.

        d_ff: inner units of the feed-forward network; by default d_model, at most those of the model
        """
        layer = copy.deepcopy(cast(DecoderLayer, model.decoder.layers[-1])).requires_grad_(True)
        keep_largest_units(layer.feed_forward, model.output.shape[1] if d_ff is None else d_ff)
        norm = copy.deepcopy(model.decoder.norm).requires_grad_(True)
        return cls(layer=layer, norm=norm, token_ids_W=token_ids_W, num_proposals=num_proposals).eval()

    def to_decoder(self, embedding: Embedding) -> Decoder:
        """Return the draft as a decoder with these embeddings. Both have the same weights."""
        return Decoder(embedding=embedding, layers=[self.layer], norm=self.norm, window=None)


def keep_largest_units(feed_forward: FeedForward, count: int) -> None:
    """Remove all inner units but those with the largest weights, by the product of the norms of their inputs and outputs."""
    inner, outer = feed_forward.inner, feed_forward.outer
    if count >= inner.out_features:
        return
    with torch.no_grad():
        norm_F = inner.weight.norm(dim=1) * outer.weight.norm(dim=0)
        kept_F = norm_F.topk(count).indices.sort().values
        inner.weight = nn.Parameter(inner.weight[kept_F])
        outer.weight = nn.Parameter(outer.weight[:, kept_F].contiguous())
        if inner.bias is not None:
            inner.bias = nn.Parameter(inner.bias[kept_F])
    inner.out_features = outer.in_features = count


Proposer = PredictionHeads | DraftDecoder
"""Module that proposes the next tokens of greedy search."""
