"""Keys of a CTC decoder in the section `model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from dragoman.config import DecodingConfig, ModelConfig, ModelExtension, Recipe, TrainingConfig
from dragoman.config.section import Limits

if TYPE_CHECKING:
    from dragoman.experiments.ctc.compiled import CompiledCtc
    from dragoman.inference.backends.compiled.weights import CompiledPrecision
    from dragoman.model.parts import ModelParts
    from dragoman.model.pointer import Pointer
    from dragoman.model.transformer import Embedding
    from dragoman.model_weights import ModelWeights, Shape
    from dragoman.training.losses.function import LossFunction
    from dragoman.training.monitoring.layer_macs import LayerMacs

NO_TOKENS = "model.decoder = 'ctc' does not see its own output; drop it"


class CtcOptions(ModelExtension):
    """Decoder that predicts all tokens at once."""

    takes_later_layers: ClassVar[bool] = True

    decoder: Literal["autoregressive", "ctc"] = "autoregressive"
    """Decoder: one token after the other, or `ctc`: all tokens at once, trained by connectionist temporal classification
    (Libovický and Helcl 2018)."""
    ctc_upsampling: Annotated[int, Limits(ge=1, le=8)] = 2
    """Positions that a CTC decoder has for each source token; an output has at most as many tokens."""
    ctc_cross_attention: Literal["all", "window"] = "all"
    """Source that a position of a CTC decoder attends to: all, or that of the positions in its `attention_window`."""

    @property
    def is_autoregressive(self) -> bool:
        """Return whether the model predicts token by token."""
        return self.decoder != "ctc"

    def count_cross_attentions(self, config: ModelConfig) -> int | None:
        """Return 0 for a CTC decoder, because no output token attends to the source."""
        return None if self.is_autoregressive else 0

    def check_section(self, section: ModelConfig) -> None:
        """Raise ValueError if another key does not fit to a CTC decoder."""
        if self.decoder != "ctc":
            key, value = next(iter(self.get_changes().items()))
            raise ValueError(f"{key} = {value!r} is for decoder = 'ctc': set it, or drop {key}")
        mixer = section.model_dump().get("decoder_mixer", "attention")
        for is_invalid, message in (
            (mixer != "attention", f"decoder_mixer = {mixer!r}: a CTC decoder has self-attention; drop it"),
            (section.has_ssru, "decoder_autoregression = 'ssru': a CTC decoder has self-attention; drop it"),
            (
                section.position_encoding == "relative",
                "position_encoding = 'relative': a decoder has it for earlier positions only; choose sinusoids or none",
            ),
            (section.pointer, "pointer = true: a CTC decoder reads no words; drop one of the two"),
            (
                self.ctc_cross_attention == "window" and section.attention_window is None,
                "ctc_cross_attention = 'window': set attention_window, or drop it",
            ),
            (
                section.position_encoding == "learned",
                "position_encoding = 'learned': a CTC decoder has more positions than its source; choose sinusoids or none",
            ),
            (
                section.tie_embeddings == "none",
                "tie_embeddings = 'none': a CTC decoder reads no target tokens, so it has no embedding; set 'all' or 'decoder'",
            ),
        ):
            if is_invalid:
                raise ValueError(f"decoder = 'ctc' with {message}")

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise ValueError if another section does not fit to a CTC decoder."""
        self.check_decoding(recipe.decoding)
        training = recipe.training
        for is_invalid, message in (
            (not recipe.task.has_text_target, "task.kind = 'parsing': trees need a decoder that sees its own output"),
            (
                training.label_smoothing,
                f"training.label_smoothing = {training.label_smoothing:g}: the CTC loss has none; set label_smoothing = 0",
            ),
            (training.guided_alignment_weight, "training.guided_alignment_weight needs an attention of output tokens; drop it"),
            (
                training.lora is not None,
                "training.lora is for decoders that predict token by token; drop it, and train all weights",
            ),
            (recipe.data.noise.terminology, "data.noise.terminology needs searches with constraints; drop it"),
            (recipe.data.noise.placeholders, "data.noise.placeholders needs searches with constraints; drop it"),
            (
                recipe.tokenizer.language_token is not None and recipe.tokenizer.language_token_placement == "both",
                "tokenizer.language_token_placement = 'both': a CTC decoder reads no tokens; set 'source'",
            ),
        ):
            if is_invalid:
                raise ValueError(f"model.decoder = 'ctc' with {message}")

    def check_decoding(self, decoding: DecodingConfig) -> None:
        """Raise ValueError for any search but the best path and a beam of prefixes."""
        for is_invalid, message in (
            (
                decoding.method == "sample",
                "method = 'sample': model.decoder = 'ctc' predicts all tokens at once; set method = 'greedy' or 'beam'",
            ),
            (decoding.num_beam_groups > 1, "num_beam_groups: the beam of model.decoder = 'ctc' has no groups; drop it"),
            (decoding.coverage_penalty, "coverage_penalty: model.decoder = 'ctc' has no alignment; drop it"),
            (decoding.min_length, "min_length: model.decoder = 'ctc' has no end token to delay; drop it"),
            (decoding.no_repeat_ngram_size, f"no_repeat_ngram_size: {NO_TOKENS}"),
            (decoding.repetition_penalty != 1.0, f"repetition_penalty: {NO_TOKENS}"),
            (decoding.replace_unknowns, "replace_unknowns: model.decoder = 'ctc' has no alignment; drop it"),
        ):
            if is_invalid:
                raise ValueError(f"decoding.{message}")

    def change_parts(self, parts: ModelParts, config: ModelConfig) -> ModelParts:
        from dragoman.experiments.ctc.decoder import CtcDecoder
        from dragoman.model.parts import build_decoder_layers
        from dragoman.model.rotary_positions import build_rotary_positions

        def build_decoder(parts: ModelParts, config: ModelConfig, embedding: Embedding, pointer: Pointer | None) -> CtcDecoder:
            return CtcDecoder(
                embedding=embedding,
                layers=build_decoder_layers(parts, config),
                norm=parts.final_norm(config),
                window=config.attention_window,
                rotary_positions=build_rotary_positions(config),
                upsampling=self.ctc_upsampling,
                has_local_source=self.ctc_cross_attention == "window",
            )

        return replace(parts, decoder=build_decoder)

    def change_loss(self, loss: LossFunction, training: TrainingConfig) -> LossFunction:
        from dragoman.experiments.ctc.loss import ctc_loss

        return ctc_loss

    @property
    def is_compiled(self) -> bool:
        """Return whether the compiled back end computes the model."""
        return self.decoder == "ctc" and self.ctc_cross_attention == "all"

    def list_shapes(self, config: ModelConfig, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        from dragoman.experiments.ctc.compiled import list_ctc_shapes

        return list_ctc_shapes(config, self.ctc_upsampling, shapes)

    def compile(self, weights: ModelWeights, precision: CompiledPrecision) -> CompiledCtc:
        from dragoman.experiments.ctc.compiled import compile_ctc

        return compile_ctc(weights, self.ctc_upsampling, precision)

    def change_macs(self, macs: LayerMacs, config: ModelConfig) -> LayerMacs:
        """Return the operations with those of the upsampled positions, each of which attends to the source or a part of it."""
        return replace(
            macs,
            cross_attentions=config.decoder_layers,
            source=macs.source + self.ctc_upsampling * config.d_model**2,
            positions_per_source=self.ctc_upsampling,
            has_local_source=self.ctc_cross_attention == "window",
        )
