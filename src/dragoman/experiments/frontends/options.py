"""Keys of front ends in the section `model`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from dragoman.config import ModelConfig, ModelExtension, Recipe
from dragoman.config.section import Limits

if TYPE_CHECKING:
    from dragoman.model.transformer import Transformer
    from dragoman.training.monitoring.layer_macs import LayerMacs

LIMITS = {"sound": 4.0, "picture": 1.0}
"""Largest magnitude of the numbers of each front end: standard deviations of log-mel features, and the darkness of a pixel."""
INPUT_STDS = {"sound": None, "picture": 0.25}
"""Standard deviation of the numbers for which the first weights are drawn. Those of sounds follow `initialization`."""


class FrontendOptions(ModelExtension):
    """Front end of the encoder other than the embedding of text."""

    array_frontend: Literal["none", "sound", "picture"] = "none"
    """Arrays that the encoder reads in the place of text: those of sounds or pictures that `dragoman read-arrays` writes."""
    frame_width: Annotated[int, Limits(ge=4, le=200)] = 80
    """Numbers of a frame: bands of a sound, or height of a picture in pixels."""
    max_masked_frames: Annotated[float, Limits(ge=0.0, le=0.5)] = 0.0
    """Largest share of the frames that each of two masks covers in training (SpecAugment)."""
    max_masked_bands: Annotated[int, Limits(ge=0, le=100)] = 0
    """Most neighboring bands that each of two masks covers in training (SpecAugment)."""

    def check_section(self, section: ModelConfig) -> None:
        """Raise ValueError if another key does not fit to an array."""
        if self.array_frontend == "none":
            key = next(iter(self.get_changes()))
            raise ValueError(f"{key} is for array_frontend = 'sound' or 'picture': set it, or drop {key}")
        for is_invalid, message in (
            (section.append_source_eos, "append_source_eos = true: an array has no end token; set it to false"),
            (section.pointer, "pointer = true: an array has no words; drop it"),
            (
                self.max_masked_bands > self.frame_width // 2,
                "max_masked_bands: is more than half of frame_width; lower it",
            ),
        ):
            if is_invalid:
                raise ValueError(f"array_frontend = {self.array_frontend!r} with {message}")

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise ValueError if another section does not fit to an array."""
        tokenizer = recipe.tokenizer
        for is_invalid, message in (
            (tokenizer.model_type != "byte", f"tokenizer.model_type = {tokenizer.model_type!r}: set it to 'byte'"),
            (tokenizer.lowercase, "tokenizer.lowercase = true: the case of a character is part of its number; drop it"),
            (tokenizer.language_token is not None, "tokenizer.language_token: an array has none; drop it"),
            (bool(tokenizer.source_prefix) or tokenizer.prepend_bos, "tokenizer.source_prefix or prepend_bos: drop it"),
        ):
            if is_invalid:
                raise ValueError(f"model.array_frontend = {self.array_frontend!r} with {message}")

    def count_cross_attentions(self, config: ModelConfig) -> int:
        """Return 0, because output tokens attend to vectors of the front end and not to source tokens."""
        return 0

    def change_macs(self, macs: LayerMacs, config: ModelConfig) -> LayerMacs:
        """Return the operations of each number of an array: those of the front end, and a share of those of a vector.

        The products of queries and keys are left out, because there are few vectors.
        """
        from dragoman.experiments.frontends.model import NUM_CHANNELS

        numbers_per_vector = 4 * self.frame_width
        convolutions = NUM_CHANNELS * 9 // 4 + NUM_CHANNELS**2 * 9 // 16 + NUM_CHANNELS * config.d_model // 16
        excess = config.encoder_layers * (macs.feed_forward - macs.feed_forward // numbers_per_vector)
        return replace(
            macs,
            encoder=tuple(layer // numbers_per_vector for layer in macs.encoder),
            encoder_attentions=0,
            cross_attentions=0,
            source=macs.source // numbers_per_vector + convolutions - excess,
            positions_per_source=macs.positions_per_source and macs.positions_per_source / numbers_per_vector,
        )

    def change_model(self, model: Transformer) -> None:
        """Set the front end of the encoder."""
        from dragoman.experiments.frontends.model import ConvolutionFrontend

        model.encoder.frontend = ConvolutionFrontend(
            d_model=model.output.shape[1],
            width=self.frame_width,
            limit=LIMITS[self.array_frontend],
            input_std=INPUT_STDS[self.array_frontend],
            max_masked_frames=self.max_masked_frames,
            max_masked_bands=self.max_masked_bands,
        )
