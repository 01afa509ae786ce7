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
    encoder_mixer: Literal["attention", "recurrent", "convolution", "dilated"] = "attention"
    """Layer that combines positions in the encoder: self-attention, LSTMs (GNMT, Deep-Att), gated convolutions (ConvS2S), or
    dilated convolutions (ByteNet)."""
    decoder: Literal["autoregressive", "ctc"] = "autoregressive"
    """Decoder: one token after the other, or `ctc`: all tokens at once, trained by connectionist temporal classification
    (Libovický and Helcl 2018)."""
    ctc_upsampling: Annotated[Integer, Field(ge=1, le=8)] = 2
    """Positions that a CTC decoder has for each source token; an output has at most as many tokens."""
    decoder_mixer: Literal["attention", "recurrent", "convolution", "dilated"] = "attention"
    """Layer that combines positions in the decoder, with the choices of encoder_mixer."""
    cross_attention: Literal["every", "multi_step", "first", "unfold"] = "every"
    """How the decoder reads the source: by attention in every layer, with the input's embedding in its query (`multi_step`), in
    the `first` layer, or position by position (`unfold`)."""
    kernel_size: Annotated[Integer, Field(ge=1, le=63)] = 3
    """Positions that a convolution reads, k; odd in an encoder."""
    max_dilation: Annotated[Integer, Field(ge=1, le=1_024)] = 16
    """Largest dilation; it doubles from layer to layer, and begins again with 1 after this one (ByteNet)."""
    recurrent_directions: Literal["forward", "bidirectional", "first", "interleaved"] = "first"
    """Directions of a recurrent encoder: left to right, both in each layer, both in the `first` layer (GNMT), or two columns
    with alternating directions (Deep-Att)."""
    fast_forward: bool = False
    """Whether each LSTM also reads half of the gates' inputs of the LSTM below (Deep-Att)."""
    feed_forward: Literal["dense", "moe", "none"] = "dense"
    """Feed-forward network of each layer: the paper's, a mixture of experts with noisy top-k gating, or none."""
    num_experts: Annotated[Integer, Field(ge=2, le=1_024)] = 8
    """Experts of each mixture, each with width d_ff."""
    experts_per_token: Annotated[Integer, Field(ge=1, le=64)] = 2
    """Experts that compute each token, k of noisy top-k gating."""
    attention_score: Literal["scaled-dot", "dot", "additive", "multiplicative"] = "scaled-dot"
    """Score of a query and a key: q·k / √d_k (section 3.2.1); q·k; v·tanh(q + k) (Bahdanau); or q·W·k (Luong)."""
    residual: bool = True
    """Whether each sub-layer has a residual connection (section 3.1)."""
    residual_scale: PositiveFloat = 1.0
    """Factor of each residual sum; ConvS2S has √0.5."""
    normalization: Literal["layer", "batch", "weight", "none"] = "layer"
    """Normalization: of each position (section 3.1), over the tokens of a batch, of the weights (ConvS2S), or none."""
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
    position_encoding: Literal["interleaved", "concatenated", "halves", "learned", "none"] = "interleaved"
    """Sinusoids as printed (sin, cos, sin, …), in tensor2tensor's form (sin …, cos …), in halves with the printed wavelengths
    (MarianMT), learned positions (Table 3, E), or none."""
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
    initialization: Literal["glorot", "torch", "normal", "gnmt", "convs2s"] = "glorot"
    """Initial weights: Glorot uniform, PyTorch's default, N(0, 0.02), uniform between ±0.04·√(1024/d_model) (GNMT), or by
    inputs and dropout of a layer (ConvS2S); only the last three include embeddings."""
    residual_dropout: Probability = 0.1
    """Dropout on each sub-layer's output before the residual sum, P_drop (section 5.4)."""
    embedding_dropout: Probability = 0.1
    """Dropout on the sum of embedding and position encoding, P_drop (section 5.4)."""
    attention_dropout: Probability = 0.0
    """Dropout on the attention weights."""
    activation_dropout: Probability = 0.0
    """Dropout after the activation of the feed-forward networks, and on the input of recurrent and convolutional layers."""
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

    @property
    def num_cross_attentions(self) -> int:
        """Return the number of decoder layers in which output tokens attend to the source; a CTC decoder has none."""
        if self.decoder == "ctc":
            return 0
        return {"first": 1, "unfold": 0}.get(self.cross_attention, self.decoder_layers)

    def find_unusual_layers(self) -> list[str]:
        """Return the keys that change the layers of the Transformer, with their values, such as "residual = False"."""
        names = [
            "decoder",
            "encoder_mixer",
            "decoder_mixer",
            "feed_forward",
            "attention_score",
            "residual",
            "residual_scale",
            "normalization",
        ]
        changed = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
        changed += ["position_encoding"] if self.position_encoding == "none" else []
        return [f"model.{name} = {getattr(self, name)!r}" for name in changed]

    @model_validator(mode="after")
    def _check_mixers(self) -> Self:
        mixers = {self.encoder_mixer, self.decoder_mixer}
        if self.decoder_mixer == "attention" and self.cross_attention != "every":
            raise ValueError(
                f"cross_attention = {self.cross_attention!r} is for a decoder without self-attention: set decoder_mixer, or "
                "drop it"
            )
        if self.cross_attention == "multi_step" and self.encoder_mixer == "attention":
            raise ValueError(
                "cross_attention = 'multi_step' is for an encoder without self-attention: set encoder_mixer, or drop it"
            )
        if self.cross_attention == "first" and self.decoder_layers < 2:
            raise ValueError("cross_attention = 'first': no layer follows the first one; set decoder_layers = 2 or more")
        if self.cross_attention == "unfold" and self.pointer:
            raise ValueError(
                "pointer = true needs cross-attention, which cross_attention = 'unfold' has not: drop one of the two"
            )
        if self.kernel_size % 2 == 0 and self.encoder_mixer in ("convolution", "dilated"):
            raise ValueError(
                f"kernel_size = {self.kernel_size} has no middle: give an odd number, such as {self.kernel_size + 1}"
            )
        if self.fast_forward and "recurrent" not in mixers:
            raise ValueError("fast_forward = true is for LSTMs: set encoder_mixer or decoder_mixer = 'recurrent', or drop it")
        if self.attention_window is not None and "attention" not in mixers:
            raise ValueError(f"attention_window = {self.attention_window} is for self-attention, which no layer has: drop it")
        if self.feed_forward == "moe" and self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token = {self.experts_per_token} is more than num_experts = {self.num_experts}: lower it"
            )
        is_halved = mixers & {"dilated"} or (self.encoder_mixer == "recurrent" and self.recurrent_directions != "forward")
        if self.d_model % 2 and is_halved:
            raise ValueError(f"d_model = {self.d_model} is odd, but its layers have parts of half the width; make it even")
        if self.final_norm and self.normalization in ("weight", "none"):
            raise ValueError(f"final_norm = true has no effect with normalization = {self.normalization!r}: drop it")
        return self

    @model_validator(mode="after")
    def _check_ctc(self) -> Self:
        if self.decoder != "ctc":
            if (
                "ctc_upsampling" in self.model_fields_set
                and self.ctc_upsampling != type(self).model_fields["ctc_upsampling"].default
            ):
                raise ValueError(
                    f"ctc_upsampling = {self.ctc_upsampling} is for decoder = 'ctc': set it, or drop ctc_upsampling"
                )
            return self
        for is_invalid, message in (
            (
                self.decoder_mixer != "attention",
                f"decoder_mixer = {self.decoder_mixer!r}: a CTC decoder has self-attention; drop it",
            ),
            (self.pointer, "pointer = true: a CTC decoder reads no words; drop one of the two"),
            (
                self.position_encoding == "learned",
                "position_encoding = 'learned': a CTC decoder has more positions than its source; choose sinusoids or none",
            ),
            (
                self.tie_embeddings == "none",
                "tie_embeddings = 'none': a CTC decoder reads no target tokens, so it has no embedding; set 'all' or 'decoder'",
            ),
        ):
            if is_invalid:
                raise ValueError(f"decoder = 'ctc' with {message}")
        return self

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            raise ValueError(
                f"d_model = {self.d_model} is not divisible by num_heads = {self.num_heads}; change one, or give d_k and d_v"
            )
        if self.position_encoding not in ("learned", "none") and self.d_model % 2:
            raise ValueError(f"d_model = {self.d_model} is odd, but sinusoids come in pairs; make it even, or learn positions")
        if self.position_encoding in ("learned", "none") and self.position_offset:
            raise ValueError(f"position_offset = {self.position_offset} is for sinusoids; learned positions need none: drop it")
        return self
