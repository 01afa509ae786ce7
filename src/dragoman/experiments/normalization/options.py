"""Keys of normalization and residual connections in the section `model`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

from dragoman.config import ModelConfig, ModelExtension, Recipe
from dragoman.config.fields import PositiveFloat

if TYPE_CHECKING:
    from torch import nn

    from dragoman.model.layers import Residual
    from dragoman.model.parts import ModelParts
    from dragoman.model.transformer import Transformer


class NormalizationOptions(ModelExtension):
    """Normalization and residual connections other than the paper's."""

    residual: bool = True
    """Whether each sub-layer has a residual connection (section 3.1)."""
    residual_scale: PositiveFloat = 1.0
    """Factor of each residual sum; ConvS2S has √0.5."""
    normalization: Literal["layer", "batch", "weight", "none"] = "layer"
    """Normalization: of each position (section 3.1), over the tokens of a batch, of the weights (ConvS2S), or none."""

    def check_section(self, section: ModelConfig) -> None:
        """Raise ValueError for a final norm that would normalize nothing."""
        if section.final_norm and self.normalization in ("weight", "none"):
            raise ValueError(f"final_norm = true has no effect with normalization = {self.normalization!r}: drop it")

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise ValueError if the training cannot train these layers."""
        if recipe.training.lora is not None and self.normalization == "weight":
            raise ValueError("training.lora is not for model.normalization = 'weight': drop it, and train all weights")
        if recipe.training.parallel == "fsdp" and self.normalization == "batch":
            raise ValueError("training.parallel = 'fsdp' is not for model.normalization = 'batch': set parallel = 'ddp'")

    def change_parts(self, parts: ModelParts, config: ModelConfig) -> ModelParts:
        from torch import nn

        from dragoman.experiments.normalization.layers import (
            ScaledPostNorm,
            ScaledPreNorm,
            build_norm,
        )
        from dragoman.model.layers import PostNorm

        def build_residual(config: ModelConfig) -> Residual:
            residual_type = ScaledPreNorm if config.norm == "pre" else ScaledPostNorm
            residual = residual_type(
                norm=build_norm(self.normalization, config.d_model, config.norm_epsilon),
                dropout=config.residual_dropout,
                residual=self.residual,
                scale=self.residual_scale,
            )
            return cast(PostNorm, residual)

        def build_final_norm(config: ModelConfig) -> nn.Module:
            if not config.has_final_norm:
                return nn.Identity()
            return build_norm(self.normalization, config.d_model, config.norm_epsilon)

        return replace(parts, residual=build_residual, final_norm=build_final_norm)

    def change_model(self, model: Transformer) -> None:
        """Normalize the weights of all layers, or pass batch normalization which positions are padding."""
        from dragoman.experiments.normalization.layers import add_weight_normalization
        from dragoman.experiments.token_masks import pass_token_masks

        for stack in (model.encoder, model.decoder):
            if self.normalization == "weight":
                add_weight_normalization(stack.layers)
            elif self.normalization == "batch":
                pass_token_masks(stack)
