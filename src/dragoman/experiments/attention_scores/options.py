"""Key of the score of attention in the section `model`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from dragoman.config import ModelConfig, ModelExtension

if TYPE_CHECKING:
    from dragoman.experiments.attention_scores.scores import AttentionScore
    from dragoman.model.parts import ModelParts
    from dragoman.training.monitoring.layer_macs import LayerMacs


class AttentionScoreOptions(ModelExtension):
    """Score of a query and a key."""

    attention_score: Literal["scaled-dot", "dot", "additive", "multiplicative"] = "scaled-dot"
    """Score of a query and a key: q·k / √d_k (section 3.2.1); q·k; v·tanh(q + k) (Bahdanau); or q·W·k (Luong)."""

    def change_parts(self, parts: ModelParts, config: ModelConfig) -> ModelParts:
        from dragoman.experiments.attention_scores.scores import ScoredAttention

        def build_attention(config: ModelConfig) -> ScoredAttention:
            return ScoredAttention(
                d_model=config.d_model,
                num_heads=config.num_heads,
                d_k=config.key_width,
                d_v=config.value_width,
                bias=config.attention_bias,
                dropout=config.attention_dropout,
                num_key_value_heads=config.num_key_value_heads,
                score=self.build_score(config),
            )

        return replace(parts, attention=build_attention)

    def build_score(self, config: ModelConfig) -> AttentionScore:
        from dragoman.experiments.attention_scores.scores import AdditiveScore, DotScore, MultiplicativeScore

        match self.attention_score:
            case "additive":
                return AdditiveScore(num_heads=config.num_heads, d_k=config.key_width)
            case "multiplicative":
                return MultiplicativeScore(num_heads=config.num_heads, d_k=config.key_width)
            case _:
                return DotScore()

    def change_macs(self, macs: LayerMacs, config: ModelConfig) -> LayerMacs:
        keys = config.num_heads * config.key_width
        return replace(macs, query=keys * config.key_width) if self.attention_score == "multiplicative" else macs

    def describe_attention(self) -> str | None:
        """Return a note on the attention weights that a page shows."""
        return f"The weights are those of attention_score = {self.attention_score!r}, not of q · k ÷ √d_k inside one head."
