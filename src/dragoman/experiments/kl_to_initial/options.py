"""Key of the regularization towards the initial model in the section `training`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.config import LossExtension, Recipe, TrainingConfig
from dragoman.config.fields import Weight

if TYPE_CHECKING:
    from dragoman.training.losses.function import LossContext, LossFunction


class KlToInitialOptions(LossExtension):
    """Regularization towards the model of `training.init_from`."""

    kl_to_init: Weight = 0.0
    """Weight of KL(old‖new) in the loss of a token, which keeps outputs near those of init_from; 0 turns it off."""

    @property
    def has_teacher(self) -> bool:
        """Return True, because the initial model reads each pair, too."""
        return True

    def check_section(self, section: TrainingConfig) -> None:
        """Raise ValueError without an initial model."""
        if section.init_from is None:
            raise ValueError("kl_to_init needs a bundle to start from: give init_from, or drop it")

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise ValueError for a model without a distribution of the next word."""
        if not recipe.task.has_text_target:
            raise ValueError("training.kl_to_init is for translation; drop it")
        if not recipe.model.is_autoregressive:
            raise ValueError("training.kl_to_init compares next tokens, but the decoder predicts all at once; drop it")

    def change_loss(self, loss: LossFunction, context: LossContext) -> LossFunction:
        """Return the smoothed loss plus the divergence from the initial model."""
        from dragoman.experiments.kl_to_initial.loss import kl_regularized_loss

        training, initial_model = context.recipe.training, context.build_initial_model()
        return lambda model, batch: kl_regularized_loss(
            model,
            initial_model,
            batch,
            epsilon=training.label_smoothing,
            smoothing_mode=training.label_smoothing_mode,
            weight=self.kl_to_init,
        )
