"""Draft decoder: a decoder of one layer over the encoder of a trained model, which proposes tokens one after the other.

Leviathan et al. 2023 let a small model propose tokens that a large one verifies. This draft shares the encoder, the embeddings
and the output embedding with the large model. Its layer begins as a copy of the model's last decoder layer. A search verifies
the proposals, so a draft changes its speed and not its output.

    dimensions as in `dragoman.model`; W counts the tokens that are proposed
"""

from __future__ import annotations

import copy
from typing import Self, cast

from torch import Tensor, nn

from dragoman.model.layers import DecoderLayer
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
    def from_model(cls, model: Transformer, *, token_ids_W: Tensor, num_proposals: int) -> Self:
        """Return the untrained draft of a model, in evaluation mode: without dropout."""
        layer = copy.deepcopy(cast(DecoderLayer, model.decoder.layers[-1])).requires_grad_(True)
        norm = copy.deepcopy(model.decoder.norm).requires_grad_(True)
        return cls(layer=layer, norm=norm, token_ids_W=token_ids_W, num_proposals=num_proposals).eval()

    def to_decoder(self, embedding: Embedding) -> Decoder:
        """Return the draft as a decoder with these embeddings. Both have the same weights."""
        return Decoder(embedding=embedding, layers=[self.layer], norm=self.norm, window=None)


Proposer = PredictionHeads | DraftDecoder
"""Module that proposes the next tokens of greedy search."""
