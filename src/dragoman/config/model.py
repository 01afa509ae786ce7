"""The model's dimensions, and every place where the paper's text and its code part."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from dragoman.config.fields import Dimension, PositiveFloat, PositiveInt, Probability, RecipeSection, SmallPositiveInt


class ModelConfig(RecipeSection):
    encoder_layers: SmallPositiveInt = 6
    """N of the encoder."""
    decoder_layers: SmallPositiveInt = 6
    """N of the decoder."""
    d_model: Dimension = 512
    """Width of the residual stream."""
    d_ff: Dimension = 2048
    """Inner width of the feed-forward sub-layer."""
    num_heads: Dimension = 8
    """h, the heads of each attention."""
    d_k: Dimension | None = None
    """Width of a head's queries and keys; d_model / num_heads when not given."""
    d_v: Dimension | None = None
    """Width of a head's values; d_model / num_heads when not given."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after the residual sum (the text) or before the sub-layer."""
    final_norm: bool | None = None
    """One more normalisation at the end of each stack; on with pre and off with post when not given."""
    norm_epsilon: PositiveFloat = 1e-6
    """ε of layer normalisation."""
    attention_bias: bool = False
    """Biases on the four attention projections; the feed-forward sub-layer always has its own."""
    position_encoding: Literal["interleaved", "concatenated", "learned"] = "interleaved"
    """Sinusoids as printed (sin, cos, sin, cos, …), as tensor2tensor coded them ([sin …, cos …]), or learned (row E)."""
    max_positions: Dimension = 1024
    """Rows of the learned positions; sinusoids have no limit."""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """Which of source embedding, target embedding and output matrix are one: all, the last two, or none."""
    scale_embeddings: bool = True
    """Multiply embeddings by √d_model."""
    initialization: Literal["glorot", "torch", "normal"] = "glorot"
    """Matrices from Glorot's uniform, PyTorch's own rule, or N(0, 0.02); embeddings are N(0, 1/√d_model) save with normal."""
    residual_dropout: Probability = 0.1
    """On each sub-layer's output, before the residual sum: the paper's P_drop."""
    embedding_dropout: Probability = 0.1
    """On the sum of embedding and position, in both stacks: the paper's P_drop."""
    attention_dropout: Probability = 0.0
    """On the attention weights."""
    activation_dropout: Probability = 0.0
    """After the ReLU."""
    decoder_start_token: Literal["bos", "eos", "zero"] = "bos"
    """What the decoder reads first: a begin token, the end token, or a zero vector."""
    append_source_eos: bool = True
    """End the source with an end-of-sentence token as well."""
    target_space_embedding: bool = False
    """Add one learned vector to the encoder's input, as tensor2tensor's target-space embedding did."""
    pointer: bool = False
    """Parsing: add to each decoder input what the encoder made of the word that comes next (deterministic attention)."""
    attention_window: PositiveInt | None = None
    """r of restricted self-attention (section 4): each position sees r neighbours on each side; all when not given."""

    @property
    def key_width(self) -> int:
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        return self.d_v or self.d_model // self.num_heads

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            raise ValueError(
                f"d_model = {self.d_model} does not divide by num_heads = {self.num_heads}; change one, or give d_k and d_v"
            )
        if self.position_encoding != "learned" and self.d_model % 2:
            raise ValueError(f"d_model = {self.d_model} is odd; sinusoids come in pairs, so make it even or learn positions")
        return self
