"""Keys of front ends in the section `model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from dragoman.config import ModelConfig, ModelExtension, Recipe
from dragoman.config.section import Limits
from dragoman.errors import BundleError

if TYPE_CHECKING:
    from dragoman.model.transformer import Transformer
    from dragoman.training.monitoring.layer_macs import LayerMacs
    from dragoman.viz.explanation import SourceImage

INPUT_STDS = {"sound": None, "picture": 0.25}
"""Standard deviation of the numbers for which the first weights are drawn. Those of sounds follow `initialization`."""


class FrontendOptions(ModelExtension):
    """Front end of the encoder other than the embedding of text."""

    takes_later_layers: ClassVar[bool] = True

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
            (not section.encoder_input.has_embedding, f"frontend = {section.frontend!r}: drop one of the two"),
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

    def read_source(self, source: str) -> str:
        return self.read_file(Path(source))

    def read_file(self, path: Path, *, speed: float = 1.0) -> str:
        """Return the array of a file as the text that the model reads.

        speed: factor of the speed of a sound, or of the inverse width of a picture

        Raises DataError for a file that cannot be used, and BundleError for a model of text.
        """
        from dragoman.experiments.frontends.read import read_array

        if self.array_frontend == "none":
            raise BundleError(
                "model.array_frontend = 'none': the model reads lines of text; use dragoman translate", code="wrong-task"
            )
        return read_array(path, self.array_frontend, self.frame_width, speed=speed)

    def draw_source(self, source: Sequence[int]) -> SourceImage:
        """Return the spectrogram, with low bands at its bottom, or the picture, as the front end reads them."""
        from dragoman.experiments.frontends.array_text import LIMITS, read_array_ids
        from dragoman.frontends.log_mel import LogMel
        from dragoman.frontends.sound_file import SAMPLE_RATE
        from dragoman.viz.explanation import SourceImage

        numbers_FT = read_array_ids(source, self.frame_width, LIMITS[self.array_frontend]).T
        if self.array_frontend == "picture":
            return SourceImage.from_numbers(numbers_FT, 0.0, 1.0, frames_per_vector=4, unit="px", units_per_frame=1)
        return SourceImage.from_numbers(
            numbers_FT[::-1],
            numbers_FT.min(),
            numbers_FT.max(),
            frames_per_vector=4,
            unit="s",
            units_per_frame=LogMel.hop / SAMPLE_RATE,
            top_label=f"{SAMPLE_RATE // 2000} kHz",
            bottom_label="0 kHz",
        )

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
        from dragoman.experiments.frontends.array_text import LIMITS
        from dragoman.experiments.frontends.model import ConvolutionFrontend

        model.encoder.frontend = ConvolutionFrontend(
            d_model=model.output.shape[1],
            width=self.frame_width,
            limit=LIMITS[self.array_frontend],
            input_std=INPUT_STDS[self.array_frontend],
            max_masked_frames=self.max_masked_frames,
            max_masked_bands=self.max_masked_bands,
        )
