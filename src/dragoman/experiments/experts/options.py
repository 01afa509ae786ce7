"""Keys of mixtures of experts in the sections `model` and `training`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, cast

from dragoman.config import LossExtension, ModelConfig, ModelExtension, TrainingConfig
from dragoman.config.section import Limits

if TYPE_CHECKING:
    from dragoman.model.parts import ModelParts
    from dragoman.model.transformer import Transformer
    from dragoman.training.losses.function import LossFunction
    from dragoman.training.monitoring.layer_macs import LayerMacs


class ExpertsOptions(ModelExtension):
    """Feed-forward networks other than the paper's."""

    feed_forward: Literal["dense", "moe", "none"] = "dense"
    """Feed-forward network of each layer: the paper's, a mixture of experts with noisy top-k gating, or none."""
    num_experts: Annotated[int, Limits(ge=2, le=1_024)] = 8
    """Experts of each mixture, each with width d_ff."""
    experts_per_token: Annotated[int, Limits(ge=1, le=64)] = 2
    """Experts that compute each token, k of noisy top-k gating."""

    def check_section(self, section: ModelConfig) -> None:
        """Raise ValueError if a token needs more experts than there are."""
        if self.feed_forward == "moe" and self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token = {self.experts_per_token} is more than num_experts = {self.num_experts}: lower it"
            )

    def change_parts(self, parts: ModelParts, config: ModelConfig) -> ModelParts:
        """Return the parts with a mixture, or without feed-forward networks."""
        from torch import nn

        from dragoman.experiments.experts.layer import Experts, Skip
        from dragoman.model.layers import FeedForward, PostNorm

        def build_mixture(config: ModelConfig) -> FeedForward:
            experts = [parts.feed_forward(config) for _ in range(self.num_experts)]
            mixture = Experts(d_model=config.d_model, experts=experts, num_active=self.experts_per_token)
            return cast(FeedForward, mixture)

        match self.feed_forward:
            case "moe":
                return replace(parts, feed_forward=build_mixture)
            case "none":
                return replace(
                    parts,
                    feed_forward=lambda config: cast(FeedForward, nn.Identity()),
                    feed_forward_residual=lambda parts, config: cast(PostNorm, Skip()),
                )
            case "dense":
                return parts

    def change_model(self, model: Transformer) -> None:
        """Pass the mixtures which positions are padding."""
        from dragoman.experiments.token_masks import pass_token_masks

        if self.feed_forward == "moe":
            pass_token_masks(model.encoder)
            pass_token_masks(model.decoder)

    def change_loss(self, loss: LossFunction, training: TrainingConfig) -> LossFunction:
        from dragoman.experiments.experts.loss import add_load_balancing

        weight = training.get_extension(LoadBalancingOptions).load_balancing_weight
        return add_load_balancing(loss, weight) if self.feed_forward == "moe" and weight else loss

    def change_macs(self, macs: LayerMacs, config: ModelConfig) -> LayerMacs:
        match self.feed_forward:
            case "moe":
                active_macs = self.experts_per_token * macs.feed_forward
                return replace(macs, feed_forward=active_macs + 2 * config.d_model * self.num_experts)
            case "none":
                return replace(macs, feed_forward=0)
            case "dense":
                return macs


class LoadBalancingOptions(LossExtension):
    """Loss that spreads the tokens over the experts. `ExpertsOptions` adds it for models with mixtures."""

    load_balancing_weight: Annotated[float, Limits(ge=0.0, le=1e3)] = 0.01
    """Weight of the load-balancing loss of mixtures of experts, for importance and load alike."""
