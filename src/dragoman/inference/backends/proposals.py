"""Parts that all back ends need for prediction heads: proposals, and inputs at positions that differ between sentences."""

from __future__ import annotations

from torch import Tensor

from dragoman.inference.backends.protocol import has_unusual_layers
from dragoman.inference.backends.shared import InferenceEmbedding
from dragoman.model.ctc import is_ctc
from dragoman.model.positional_encoding import LearnedPositionalEmbedding
from dragoman.model.prediction_heads import PredictionHeads, Proposer
from dragoman.model.transformer import Embedding, Transformer


def find_unsupported_part(model: Transformer) -> str | None:
    """Return the part of a model that excludes prediction heads, or None."""
    for is_present, part in (
        (is_ctc(model), "a CTC decoder"),
        (model.decoder.pointer is not None, "a pointer"),
        (model.decoder.window is not None, "an attention window"),
        (has_unusual_layers(model), "layers other than the paper's"),
    ):
        if is_present:
            return part
    return None


def build_proposer(embedding: InferenceEmbedding, model: Transformer, heads: PredictionHeads) -> Proposer:
    """Return the proposer of a model's heads. embedding: that of its decoder"""
    return Proposer(
        heads.to(model.output.device),
        embedding_VD=embedding.weight_VD,
        scale_V=embedding.scale_V,
        output_VD=model.output,
        output_bias_V=model.output_bias,
    )


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
