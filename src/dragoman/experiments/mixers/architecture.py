"""Entry of the hook `architectures`: stacks of layers without self-attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dragoman.config import ModelConfig
from dragoman.experiments.mixers.options import MixerOptions

if TYPE_CHECKING:
    from dragoman.model.parts import ModelParts
    from dragoman.training.monitoring.layer_macs import LayerMacs


class MixerArchitecture(MixerOptions):
    """Layers in the place of self-attention, by the keys of `MixerOptions`."""

    def change_parts(self, parts: ModelParts, config: ModelConfig) -> ModelParts:
        from dragoman.experiments.mixers.build import build_decoder, build_encoder

        if self.encoder_mixer != "attention":
            parts = replace(parts, encoder=build_encoder)
        return replace(parts, decoder=build_decoder) if self.decoder_mixer != "attention" else parts

    def change_macs(self, macs: LayerMacs, config: ModelConfig) -> LayerMacs:
        from dragoman.experiments.mixers.macs import count_layer_macs

        return count_layer_macs(macs, self, config)
