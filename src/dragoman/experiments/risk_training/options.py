"""Key of the training on whole outputs in the section `training`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.config import LossExtension, Recipe, TrainingConfig
from dragoman.experiments.risk_training.config import SequenceLossConfig

if TYPE_CHECKING:
    from dragoman.training.losses.function import LossContext, LossFunction


class RiskTrainingOptions(LossExtension):
    """Training on the risk of whole outputs."""

    sequence_loss: SequenceLossConfig | None = None
    """Training on the risk of whole outputs, which starts from init_from; none by default."""

    @property
    def num_candidates(self) -> int:
        """Return the number of outputs of each sentence that a step decodes and trains on."""
        return self.sequence_loss.num_candidates if self.sequence_loss is not None and self.sequence_loss.weight else 0

    def check_section(self, section: TrainingConfig) -> None:
        """Raise ValueError without an initial model, or if another option does not fit to a loss of whole outputs."""
        if section.init_from is None:
            raise ValueError("sequence_loss needs a bundle to start from: give init_from, or drop it")
        for is_used, option, reason in (
            (section.has_teacher, "kl_to_init", "kl_to_init is a loss of the tokens of the reference"),
            (section.guided_alignment_weight, "guided_alignment_weight", "only references have a word alignment"),
            (section.compile, "compile = true", "each step decodes outputs of other lengths"),
            (section.parallel == "fsdp", "parallel = 'fsdp'", "a search needs the whole model on each device"),
        ):
            if is_used:
                raise ValueError(f"sequence_loss and {option} are given, but {reason}: drop one of the two")

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise ValueError if the outputs cannot be compared piece by piece."""
        tokenizer = recipe.tokenizer
        for is_invalid, message in (
            (not recipe.task.has_text_target, " is for translation; drop it"),
            (
                not recipe.model.is_autoregressive,
                " scores outputs token by token, which this decoder does not predict; drop it",
            ),
            (
                tokenizer.sampling_alpha,
                f" compares pieces, but tokenizer.sampling_alpha = {tokenizer.sampling_alpha:g} changes them: set "
                "tokenizer.sampling_alpha = 0",
            ),
            (
                tokenizer.language_token is not None and tokenizer.language_token_placement == "both",
                ": its outputs begin without a language token, but tokenizer.language_token_placement = 'both'; drop one of "
                "the two",
            ),
        ):
            if is_invalid:
                raise ValueError(f"training.sequence_loss{message}")

    def change_loss(self, loss: LossFunction, context: LossContext) -> LossFunction:
        from functools import partial

        from dragoman.experiments.risk_training.candidates import SequenceLossSettings
        from dragoman.experiments.risk_training.loss import sequence_level_loss
        from dragoman.tasks.inference_model import get_decoder_start_id

        assert self.sequence_loss is not None, "an active extension has a key that differs from its default"
        recipe = context.recipe
        return partial(
            sequence_level_loss,
            settings=SequenceLossSettings(
                self.sequence_loss, get_decoder_start_id(recipe.model), recipe.data.max_length, recipe.decoding
            ),
            epsilon=recipe.training.label_smoothing,
            smoothing_mode=recipe.training.label_smoothing_mode,
        )
