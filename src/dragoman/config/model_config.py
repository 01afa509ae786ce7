"""Recipe section `model`: dimensions, and every point on which the paper's text and its code differ."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dragoman.config.fields import Dimension, Integer, PositiveFloat, PositiveInt, Probability, RecipeSection, SmallPositiveInt


class ModelConfig(RecipeSection):
    """Architecture of the Transformer. Section numbers are those of "Attention Is All You Need"."""

    encoder_layers: SmallPositiveInt = 6
    """Number of encoder layers, N (section 3.1)."""
    decoder_layers: SmallPositiveInt = 6
    """Number of decoder layers, N (section 3.1)."""
    d_model: Dimension = 512
    """Width of embeddings and sub-layer outputs (section 3.1)."""
    d_ff: Dimension = 2048
    """Inner width of the feed-forward networks (section 3.3)."""
    num_heads: Dimension = 8
    """Number of heads of each attention, h (section 3.2.2)."""
    d_k: Dimension | None = None
    """Width of queries and keys of one head, by default d_model / num_heads."""
    d_v: Dimension | None = None
    """Width of values of one head, by default d_model / num_heads."""
    norm: Literal["post", "pre"] = "post"
    """Position of layer normalization: after the residual sum, as in the paper's text, or before the sub-layer."""
    final_norm: bool | None = None
    """Whether each stack ends with one more layer normalization, by default if norm = 'pre'."""
    norm_epsilon: PositiveFloat = 1e-6
    """ε of layer normalization."""
    attention_bias: bool = False
    """Whether the four projections of an attention have biases; the feed-forward networks always have them."""
    activation: Literal["relu", "silu", "gelu"] = "relu"
    """Activation of the feed-forward networks: the paper's ReLU, SiLU (also called swish), or GELU."""
    position_encoding: Literal["interleaved", "concatenated", "halves", "learned"] = "interleaved"
    """Sinusoids as printed (sin, cos, sin, …), in tensor2tensor's form (sin …, cos …), in halves with the printed wavelengths
    (MarianMT), or learned positions (Table 3, E)."""
    position_offset: Annotated[Integer, Field(ge=0, le=1_000)] = 0
    """Number of the first position of sinusoids; fairseq begins with 2."""
    max_positions: Dimension = 1024
    """Number of learned positions; sinusoids have no limit."""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """Matrices that share weights: source, target and output embedding; target and output embedding; or none."""
    output_bias: bool = False
    """Whether the output matrix before the softmax has a bias; the paper's has none."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by √d_model (section 3.4)."""
    initialization: Literal["glorot", "torch", "normal"] = "glorot"
    """Initial weights: Glorot uniform, PyTorch's default, or N(0, 0.02); only `normal` includes the embeddings."""
    residual_dropout: Probability = 0.1
    """Dropout on each sub-layer's output before the residual sum, P_drop (section 5.4)."""
    embedding_dropout: Probability = 0.1
    """Dropout on the sum of embedding and position encoding, P_drop (section 5.4)."""
    attention_dropout: Probability = 0.0
    """Dropout on the attention weights."""
    activation_dropout: Probability = 0.0
    """Dropout after the activation of the feed-forward networks."""
    decoder_start_token: Literal["bos", "eos", "zero"] = "bos"
    """First input of the decoder: the begin token, the end token, or a zero vector."""
    append_source_eos: bool = True
    """Whether the source ends with an end-of-sentence token."""
    target_space_embedding: bool = False
    """Whether one learned vector is added to the encoder's input, as in tensor2tensor."""
    pointer: bool = False
    """Parsing: whether each decoder input includes the encoder output of the next word (deterministic attention)."""
    attention_window: PositiveInt | None = None
    """Neighbors on each side that a position attends to, r of restricted self-attention (section 4), by default all."""

    @property
    def key_width(self) -> int:
        """Return the width of queries and keys of one head."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """Return the width of values of one head."""
        return self.d_v or self.d_model // self.num_heads

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            raise ValueError(
                f"d_model = {self.d_model} is not divisible by num_heads = {self.num_heads}; change one, or give d_k and d_v"
            )
        if self.position_encoding != "learned" and self.d_model % 2:
            raise ValueError(f"d_model = {self.d_model} is odd, but sinusoids come in pairs; make it even, or learn positions")
        if self.position_encoding == "learned" and self.position_offset:
            raise ValueError(f"position_offset = {self.position_offset} is for sinusoids; learned positions need none: drop it")
        return self
