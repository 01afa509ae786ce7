"""Recipe section `model`: dimensions, and every point on which the paper's text and its code differ."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

from dragoman.config.decoding_config import DecodingConfig
from dragoman.config.encoder_input import ENCODER_INPUTS, EncoderInput
from dragoman.config.extension import ExtensibleSection, Extension
from dragoman.config.fields import Dimension, PositiveFloat, PositiveInt, Probability, SmallPositiveInt
from dragoman.config.section import Limits, model_validator


class ModelExtension(Extension):
    """Keys that an architecture adds to the section `model`, and the changes that it makes to a model.

    Parts, models and operations are those of `dragoman.model.parts`, `dragoman.model.transformer` and
    `dragoman.training.monitoring.layer_macs`, which this module does not import.
    """

    takes_later_layers: ClassVar[bool] = False
    """Whether the layers of `ModelConfig.find_later_layers`, such as rotary positions, fit to this architecture."""

    def change_parts(self, parts: Any, config: "ModelConfig") -> Any:
        """Return the `ModelParts` with those of this architecture, as `dataclasses.replace` makes them."""
        return parts

    def change_model(self, model: Any) -> None:
        """Change a model that is built from the parts, in place and before its weights are initialized."""

    def change_loss(self, loss: Any, training: Any) -> Any:
        """Return the `LossFunction` of this architecture, in training and in validation, for the function without it.

        training: the section `training` of the recipe
        """
        return loss

    @property
    def is_autoregressive(self) -> bool:
        """Return whether the model predicts token by token."""
        return True

    def check_decoding(self, decoding: DecodingConfig) -> None:
        """Raise ValueError if the model does not have such a search."""

    def describe_attention(self) -> str | None:
        """Return a note for the page that shows the attention, or None."""
        return None

    def read_source(self, source: str) -> str:
        """Return the text that the model reads, for a line or, with another front end than that of text, the path of a file.

        Raises DataError for a file that cannot be used.
        """
        return source

    def draw_source(self, source: Any) -> Any:
        """Return the `dragoman.viz.explanation.SourceImage` of source ids, or None for text."""
        return None

    @property
    def is_compiled(self) -> bool:
        """Return whether the compiled back end computes the model; `list_shapes` and `compile` are then there."""
        return False

    def list_shapes(self, config: "ModelConfig", shapes: Any) -> Any:
        """Return the names and shapes of the weights of a compiled model, for those of a Transformer with the same config."""
        raise NotImplementedError

    def compile(self, weights: Any, precision: Any) -> Any:
        """Return the `PreparedModel` of the compiled back end for `ModelWeights`, in "int8" or "float32", without PyTorch."""
        raise NotImplementedError

    def change_macs(self, macs: Any, config: "ModelConfig") -> Any:
        """Return the `LayerMacs` of this architecture, for reports and budgets."""
        return macs

    def count_cross_attentions(self, config: "ModelConfig") -> int | None:
        """Return the number of decoder layers in which output tokens attend to the source; None for the Transformer's."""
        return None


class ModelConfig(ExtensibleSection):
    """Architecture of the Transformer. Section numbers are those of "Attention Is All You Need"."""

    hook: ClassVar[str] = "architectures"

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
    num_key_value_heads: Dimension | None = None
    """Heads of keys and values, each for a group of query heads (grouped-query attention), by default num_heads."""
    d_k: Dimension | None = None
    """Width of queries and keys of one head, by default d_model / num_heads."""
    d_v: Dimension | None = None
    """Width of values of one head, by default d_model / num_heads."""
    norm: Literal["post", "pre"] = "post"
    """Position of layer normalization: after the residual sum, as in the paper's text, or before the sub-layer."""
    final_norm: bool | None = None
    """Whether each stack ends with one more layer normalization, by default if norm = 'pre'."""
    norm_type: Literal["layer", "rms"] = "layer"
    """Normalization: layer normalization, or RMSNorm (T5), which subtracts no mean and adds no bias."""
    norm_epsilon: PositiveFloat = 1e-6
    """ε of the normalization."""
    attention_bias: bool = False
    """Whether the four projections of an attention have biases."""
    feed_forward_bias: bool = True
    """Whether the matrices of the feed-forward networks have biases; those of T5 have none."""
    activation: Literal["relu", "silu", "gelu", "geglu", "swiglu"] = "relu"
    """Activation of the feed-forward networks: the paper's ReLU, SiLU (or swish), GELU, or a gate, which multiplies one more
    product by its GELU (T5 v1.1) or SiLU."""
    position_encoding: Literal["interleaved", "concatenated", "halves", "learned", "relative", "rotary", "none"] = "interleaved"
    """Sinusoids as printed (sin, cos, …), in tensor2tensor's form (sin …, cos …), in halves with the printed wavelengths
    (MarianMT), learned (Table 3, E), T5's relative, rotary (RoFormer), or none."""
    relative_attention_num_buckets: Annotated[int, Limits(ge=4, le=4096)] = 32
    """Buckets of distances if position_encoding = 'relative'; the encoder has half of them for each direction."""
    relative_attention_max_distance: SmallPositiveInt = 128
    """Distance from which on all positions are in the last bucket if position_encoding = 'relative'."""
    position_offset: Annotated[int, Limits(ge=0, le=1_000)] = 0
    """Number of the first position of sinusoids; fairseq begins with 2."""
    max_positions: Dimension = 1024
    """Number of learned positions; sinusoids have no limit."""
    frontend: Literal["tokens", "log-mel"] = "tokens"
    """Input of the encoder: token ids, or a log-mel spectrogram, of which two convolutions make a vector for every two frames
    (Whisper)."""
    num_mel_bins: Annotated[int, Limits(ge=1, le=200)] = 80
    """Bands of the spectrogram if frontend = 'log-mel'."""
    max_source_positions: Dimension = 1500
    """Learned positions of the encoder if frontend = 'log-mel'."""
    tie_embeddings: Literal["all", "decoder", "inputs", "none"] = "all"
    """Matrices that share weights: source, target and output embedding; target and output embedding; source and target
    embedding (T5 v1.1); or none."""
    output_bias: bool = False
    """Whether the output matrix before the softmax has a bias; the paper's has none."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by √d_model (section 3.4)."""
    embedding_norm: bool = False
    """Whether the sum of embedding and position is normalized, as in BART."""
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
    """Dropout after the activation of the feed-forward networks, and on the input of layers in the place of self-attention."""
    decoder_start_token: Literal["bos", "eos", "zero"] = "bos"
    """First input of the decoder: the begin token, the end token, or a zero vector."""
    append_source_eos: bool = True
    """Whether the source ends with an end-of-sentence token."""
    target_space_embedding: bool = False
    """Whether one learned vector is added to the encoder's input, as in tensor2tensor."""
    pointer: bool = False
    """Parsing: whether each decoder input includes the encoder output of the next word (deterministic attention)."""
    decoder_autoregression: Literal["self-attention", "ssru"] = "self-attention"
    """First sub-layer of a decoder layer: self-attention, or the simpler simple recurrent unit (SSRU) of Marian's students,
    which keeps one vector instead of keys and values."""
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
    def key_value_heads(self) -> int:
        """Return the number of heads of keys and values."""
        return self.num_key_value_heads or self.num_heads

    @property
    def position_limit(self) -> int | None:
        """Return the number of tokens that the model has positions for; None if positions never end."""
        return self.max_positions if self.position_encoding == "learned" else None

    @property
    def has_final_norm(self) -> bool:
        """Return whether each stack ends with a normalization."""
        return self.final_norm if self.final_norm is not None else self.norm == "pre"

    @property
    def has_ssru(self) -> bool:
        """Return whether decoder layers have an SSRU in the place of self-attention."""
        return self.decoder_autoregression == "ssru"

    @property
    def is_gated(self) -> bool:
        """Return whether a gate multiplies the inner numbers of the feed-forward networks."""
        return self.activation in ("geglu", "swiglu")

    @property
    def shares_input_embeddings(self) -> bool:
        """Return whether source and target have one embedding matrix."""
        return self.tie_embeddings in ("all", "inputs")

    @property
    def num_cross_attentions(self) -> int:
        """Return the number of decoder layers in which output tokens attend to the source."""
        counts = (extension.count_cross_attentions(self) for extension in self.model_extensions)
        return min((count for count in counts if count is not None), default=self.decoder_layers)

    @property
    def is_autoregressive(self) -> bool:
        """Return whether the model predicts token by token."""
        return all(extension.is_autoregressive for extension in self.model_extensions)

    @property
    def model_extensions(self) -> tuple[ModelExtension, ...]:
        """Return the extensions of this section: the architectures that change its layers."""
        return cast(tuple[ModelExtension, ...], self.extensions)

    def find_unusual_layers(self) -> list[str]:
        """Return the keys that change the layers of the Transformer, with their values, such as "model.residual = False"."""
        return self._list_changes(self.model_extensions)

    def find_fixed_layers(self) -> list[str]:
        """Return those of `find_unusual_layers` to which no later layers fit."""
        return self._list_changes([extension for extension in self.model_extensions if not extension.takes_later_layers])

    def _list_changes(self, extensions: Sequence[ModelExtension]) -> list[str]:
        changes = {name: value for extension in extensions for name, value in extension.get_changes().items()}
        changes |= {"position_encoding": "none"} if self.position_encoding == "none" else {}
        return [f"model.{name} = {value!r}" for name, value in changes.items()]

    @property
    def compiled_extension(self) -> ModelExtension | None:
        """Return the architecture of a hook that changes the layers and that the compiled back end computes, or None."""
        is_alone = len(self.extensions) == 1 and self.position_encoding not in ("none", "rotary")
        return self.model_extensions[0] if is_alone and self.model_extensions[0].is_compiled else None

    def find_torch_layers(self) -> list[str]:
        """Return the keys that give the model layers which only PyTorch computes, with their values."""
        return [] if self.compiled_extension is not None else self.find_unusual_layers()

    def find_later_layers(self) -> dict[str, Any]:
        """Return the keys of layers that newer models have and other engines may not, with their values."""
        keys = {
            "decoder_autoregression": ("self-attention",),
            "norm_type": ("layer",),
            "feed_forward_bias": (True,),
            "activation": ("relu", "silu", "gelu"),
            "position_encoding": ("interleaved", "concatenated", "halves", "learned", "none"),
            "tie_embeddings": ("all", "decoder", "none"),
            "frontend": ("tokens",),
        }
        return {key: value for key, known in keys.items() if (value := getattr(self, key)) not in known}

    @property
    def encoder_input(self) -> EncoderInput:
        """Return what the encoder reads."""
        return ENCODER_INPUTS[self.frontend]

    @model_validator
    def _check_frontend(self) -> None:
        for key, value in self.encoder_input.required_keys.items():
            if getattr(self, key) != value:
                raise ValueError(
                    f"frontend = {self.frontend!r} needs {key} = {value!r}, but it is {getattr(self, key)!r}; change one"
                )

    @model_validator
    def _check_consistency(self) -> None:
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            raise ValueError(
                f"d_model = {self.d_model} is not divisible by num_heads = {self.num_heads}; change one, or give d_k and d_v"
            )
        if self.num_heads % self.key_value_heads:
            raise ValueError(
                f"num_key_value_heads = {self.num_key_value_heads} does not divide num_heads = {self.num_heads}; change one"
            )
        has_sinusoids = self.position_encoding in ("interleaved", "concatenated", "halves")
        if has_sinusoids and self.d_model % 2:
            raise ValueError(f"d_model = {self.d_model} is odd, but sinusoids come in pairs; make it even, or learn positions")
        if not has_sinusoids and self.position_offset:
            raise ValueError(f"position_offset = {self.position_offset} is for sinusoids; other positions need none: drop it")
        if self.position_encoding == "rotary" and self.key_width % 2:
            raise ValueError(f"d_k = {self.key_width} is odd, but rotary positions turn pairs; make it even")
        if self.position_encoding in ("relative", "rotary") and self.has_ssru:
            raise ValueError(
                f"position_encoding = {self.position_encoding!r} is for self-attention, but decoder_autoregression = 'ssru' "
                "replaces it; choose sinusoids or learned positions, or drop ssru"
            )
        if self.relative_attention_num_buckets % 4:
            raise ValueError(f"relative_attention_num_buckets = {self.relative_attention_num_buckets} is not a multiple of 4")
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            raise ValueError(
                f"relative_attention_max_distance = {self.relative_attention_max_distance} leaves no distances to the buckets "
                f"behind the first half; give more than {self.relative_attention_num_buckets // 2}"
            )
