"""The loss of a run as a function of the model and a batch, which entries of the hooks change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from torch import Tensor

from dragoman.config import ModelConfig, Recipe, TaskConfig, TrainingConfig
from dragoman.data.collate import Batch
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.model.transformer import Transformer
from dragoman.training.losses.label_smoothing import batch_loss

LossFunction = Callable[[Transformer, Batch], tuple[Tensor, Tensor]]
"""(model, batch) → the loss, which has a gradient, and the negative log-likelihood; both are summed over the target tokens."""


@dataclass(frozen=True)
class LossContext:
    """Context of a loss: what an entry of the hook `losses` may need beside the model and the batch.

    build_initial_model: builds the model of `training.init_from`, without gradients and dropout
    """

    recipe: Recipe
    tokenizer: PairTokenizer
    build_initial_model: Callable[[], Transformer]


def build_validation_loss(task: TaskConfig, model: ModelConfig, training: TrainingConfig) -> LossFunction:
    """Return the smoothed loss, or the loss of the recipe's architecture."""
    return _change_for_architecture(_build_smoothed_loss(task, training), model, training)


def build_training_loss(context: LossContext) -> LossFunction:
    """Return the loss that the steps of a run minimize, apart from guided alignment."""
    training = context.recipe.training
    loss = _build_smoothed_loss(context.recipe.task, training)
    for extension in training.loss_extensions:
        loss = extension.change_loss(loss, context)
    return _change_for_architecture(loss, context.recipe.model, training)


def _build_smoothed_loss(task: TaskConfig, training: TrainingConfig) -> LossFunction:
    return partial(
        batch_loss,
        epsilon=training.label_smoothing,
        smoothing_mode=training.label_smoothing_mode,
        pos_loss_weight=task.pos_loss_weight if task.has_tagging_head else 0.0,
    )


def _change_for_architecture(loss: LossFunction, model: ModelConfig, training: TrainingConfig) -> LossFunction:
    for extension in model.model_extensions:
        loss = extension.change_loss(loss, training)
    return loss


class DecodesAllAtOnce(Protocol):
    """Decoder that predicts all tokens at once, and may have no loss for a target that is too long."""

    def count_learned(self, model: Transformer, batch: Batch) -> tuple[int, int]:
        """Return the target tokens that the loss of a batch is over, and the pairs without a loss."""
        ...


def count_learned(model: Transformer, batch: Batch) -> tuple[int, int]:
    """Return the target tokens that the loss of a batch is over, and the pairs without a loss.

    A decoder that predicts all tokens at once may have no loss for a target that is too long. Other decoders learn all pairs.
    """
    if model.is_autoregressive:
        return batch.num_target_tokens, 0
    return cast(DecodesAllAtOnce, model.decoder).count_learned(model, batch)
