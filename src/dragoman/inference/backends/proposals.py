"""Parts that all back ends need for proposals: the models without them, and inputs at positions that differ."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.inference.backends.protocol import has_unusual_layers
from dragoman.inference.backends.shared import InferenceEmbedding
from dragoman.model.ctc import is_ctc
from dragoman.model.positional_encoding import LearnedPositionalEmbedding
from dragoman.model.prediction_heads import PredictionHeads
from dragoman.model.proposal_output import ProposalOutput
from dragoman.model.transformer import Embedding, Transformer


def find_unsupported_part(model: Transformer) -> str | None:
    """Return the part of a model that excludes prediction heads and a draft decoder, or None."""
    for is_present, part in (
        (is_ctc(model), "a CTC decoder"),
        (model.decoder.pointer is not None, "a pointer"),
        (model.decoder.window is not None, "an attention window"),
        (has_unusual_layers(model), "layers other than the paper's"),
    ):
        if is_present:
            return part
    return None


class HeadProposer:
    """Prediction heads with the embedding and the output embedding of their model, for inference."""

    def __init__(self, heads: PredictionHeads, model: Transformer, embedding: InferenceEmbedding) -> None:
        """Take the heads of a model. embedding: that of its decoder"""
        self.heads, self.embedding = heads.to(model.output.device), embedding
        self.output = ProposalOutput.from_model(model, heads.token_ids_W)

    @torch.no_grad()
    def __call__(self, h_XD: Tensor, tokens_X: Tensor) -> Tensor:
        """Return the most probable proposal of each head. → (X, heads)

        h_XD: outputs of the decoder
        tokens_X: tokens that it predicts there
        """
        y_XD = self.embedding.weight_VD[tokens_X] * self.embedding.scale_V[tokens_X, None]
        return self.output.choose(self.heads(h_XD, y_XD))


def get_num_positions(embedding: Embedding) -> int | None:
    """Return the number of positions of a learned table; None if positions never end."""
    positions = embedding.positions
    return len(positions.weight) if isinstance(positions, LearnedPositionalEmbedding) else None


def embed_at_positions(
    embedding: InferenceEmbedding, tokens_BK: Tensor, position_BK: Tensor, max_positions: int | None
) -> Tensor:
    """Return the decoder's inputs for tokens at their positions. → (B, k, D)

    Proposals behind the last position of a learned table have that position, because no output is so long.
    """
    num_positions = int(position_BK.max()) + 1
    if max_positions is not None:
        num_positions = min(num_positions, max_positions)
    positions_TD = embedding.compute_positions(0, num_positions)
    vectors_BKD = embedding.weight_VD[tokens_BK] * embedding.scale_V[tokens_BK, None]
    return vectors_BKD + positions_TD[position_BK.clamp(max=num_positions - 1)]
