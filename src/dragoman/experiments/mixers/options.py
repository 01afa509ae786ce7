"""Keys of layers without self-attention in the section `model`."""

from __future__ import annotations

from typing import Annotated, Literal

from dragoman.config import ModelConfig, ModelExtension
from dragoman.config.section import Limits

MixerName = Literal["attention", "recurrent", "convolution", "dilated"]


class MixerOptions(ModelExtension):
    """Layers in the place of self-attention, and how the decoder reads the source."""

    encoder_mixer: MixerName = "attention"
    """Layer that combines positions in the encoder: self-attention, LSTMs (GNMT, Deep-Att), gated convolutions (ConvS2S), or
    dilated convolutions (ByteNet)."""
    decoder_mixer: MixerName = "attention"
    """Layer that combines positions in the decoder, with the choices of encoder_mixer."""
    cross_attention: Literal["every", "multi_step", "first", "unfold"] = "every"
    """How the decoder reads the source: by attention in every layer, with the input's embedding in its query (`multi_step`), in
    the `first` layer, or position by position (`unfold`)."""
    kernel_size: Annotated[int, Limits(ge=1, le=63)] = 3
    """Positions that a convolution reads, k; odd in an encoder."""
    max_dilation: Annotated[int, Limits(ge=1, le=1_024)] = 16
    """Largest dilation; it doubles from layer to layer, and begins again with 1 after this one (ByteNet)."""
    recurrent_directions: Literal["forward", "bidirectional", "first", "interleaved"] = "first"
    """Directions of a recurrent encoder: left to right, both in each layer, both in the `first` layer (GNMT), or two columns
    with alternating directions (Deep-Att)."""
    fast_forward: bool = False
    """Whether each LSTM also reads half of the gates' inputs of the LSTM below (Deep-Att)."""

    def count_cross_attentions(self, config: ModelConfig) -> int | None:
        """Return the number of decoder layers with an attention to the source."""
        return {"first": 1, "unfold": 0}.get(self.cross_attention)

    def has_two_directions(self, layer: int) -> bool:
        """Return whether this layer of a recurrent encoder reads in both directions."""
        directions = self.recurrent_directions
        return directions != "forward" and not (directions == "first" and layer > 0)

    def check_section(self, section: ModelConfig) -> None:
        """Raise ValueError if the layers do not fit together."""
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
        if self.cross_attention == "first" and section.decoder_layers < 2:
            raise ValueError("cross_attention = 'first': no layer follows the first one; set decoder_layers = 2 or more")
        if self.cross_attention == "unfold" and section.pointer:
            raise ValueError(
                "pointer = true needs cross-attention, which cross_attention = 'unfold' has not: drop one of the two"
            )
        if self.kernel_size % 2 == 0 and self.encoder_mixer in ("convolution", "dilated"):
            raise ValueError(
                f"kernel_size = {self.kernel_size} has no middle: give an odd number, such as {self.kernel_size + 1}"
            )
        if self.fast_forward and "recurrent" not in mixers:
            raise ValueError("fast_forward = true is for LSTMs: set encoder_mixer or decoder_mixer = 'recurrent', or drop it")
        if section.attention_window is not None and "attention" not in mixers:
            raise ValueError(
                f"attention_window = {section.attention_window} is for self-attention, which no layer has: drop it"
            )
        is_halved = mixers & {"dilated"} or (self.encoder_mixer == "recurrent" and self.recurrent_directions != "forward")
        if section.d_model % 2 and is_halved:
            raise ValueError(f"d_model = {section.d_model} is odd, but its layers have parts of half the width; make it even")
