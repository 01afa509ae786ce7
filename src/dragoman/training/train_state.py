"""What learns: the model with its loss, the optimiser, and the moving average, on one device or divided over several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.bundle import collect_weights, load_weights
from dragoman.config import Recipe
from dragoman.data.tokenization.tokenizer import PairTokenizer
from dragoman.errors import is_out_of_memory
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.tasks.parsing import fill_word_tables, parser_options
from dragoman.training.checkpoints.checkpoint import Checkpoint, flatten_optimizer, restore_optimizer
from dragoman.training.device import ComputePlan, compile_layers
from dragoman.training.distributed.parallelize import (
    ModelLoss,
    gather_full_tensor,
    is_sharded,
    load_full_weights,
    parallelize_loss,
    shard_like,
)
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.ema import MovingAverage
from dragoman.training.losses.guided_alignment import AlignmentLossConfig, alignment_layer


@dataclass(frozen=True)
class StateTensors:
    """Everything that learning changes, as whole tensors by name."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    ema_weights: dict[str, Tensor] | None


class TrainState:
    """Model, optimiser and moving average of a run; each rank may hold a share of them."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PairTokenizer,
        plan: ComputePlan,
        distributed: DistributedContext,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """As the recipe begins, or as a checkpoint left it."""
        self.recipe = recipe
        self.tokenizer = tokenizer
        self.plan = plan
        self.distributed = distributed
        config = recipe.training
        self.model = self._build_model()
        if checkpoint is not None:
            load_weights(self.model, checkpoint.weights(), location=checkpoint.path)
        self.model = self.model.to(plan.device)
        plan.apply_to(self.model)
        alignment_config = AlignmentLossConfig.from_recipe(recipe)
        if config.compile:
            compile_layers(
                self.model, exclude=None if alignment_config is None else alignment_layer(self.model, alignment_config)
            )
        loss = ModelLoss(
            self.model,
            epsilon=config.label_smoothing,
            smoothing_mode=config.label_smoothing_mode,
            r_drop_alpha=config.r_drop_alpha,
            pos_loss_weight=recipe.task.pos_loss_weight if recipe.task.has_tagging_head else 0.0,
            alignment_config=alignment_config,
        )
        self.loss = parallelize_loss(loss, distributed, plan.device, config.parallel)
        self.parameter_names = dict(enumerate(name for name, _ in self.model.named_parameters()))
        self.optimizer = self._build_optimizer()
        self.ema = MovingAverage(self.model, config.ema_decay) if config.ema_decay is not None else None
        self._full_model: Transformer | None = None
        if checkpoint is not None:
            self._restore_optimizer_and_ema(checkpoint)

    def _build_model(self) -> Transformer:
        torch.manual_seed(self.recipe.training.seed)
        sizes = {"source_vocabulary": len(self.tokenizer.source), "target_vocabulary": len(self.tokenizer.target)}
        model = build_model(self.recipe.model, **sizes | parser_options(self.recipe))
        fill_word_tables(model, self.tokenizer)
        return model

    def _build_optimizer(self) -> torch.optim.Optimizer:
        config = self.recipe.training
        optimizer_class = torch.optim.AdamW if config.weight_decay else torch.optim.Adam
        betas = (config.adam_beta1, config.adam_beta2)
        return optimizer_class(
            self.model.parameters(), lr=0.0, betas=betas, eps=config.adam_epsilon, weight_decay=config.weight_decay, fused=True
        )

    def gather_state(self) -> StateTensors:
        """All of it, put together from the shares on rank 0; on the others it is nothing. All ranks must ask."""
        return StateTensors(
            self._gather(collect_weights(self.model)),
            self._gather(flatten_optimizer(self.optimizer, self.parameter_names)),
            self._gather(self.ema.ema_weights) if self.ema is not None else None,
        )

    def _gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One after the other, so that no device holds more than one whole tensor beside its shares."""
        gathered = {}
        for name, tensor in tensors.items():
            full_tensor = gather_full_tensor(tensor)
            if self.distributed.is_rank_zero:
                gathered[name] = full_tensor.cpu() if is_sharded(self.loss) else full_tensor
        return gathered

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint."""
        load_full_weights(self.model, checkpoint.weights())
        self._restore_optimizer_and_ema(checkpoint)

    def _restore_optimizer_and_ema(self, checkpoint: Checkpoint) -> None:
        parameters = dict(self.model.named_parameters())
        state = checkpoint.optimizer_state()
        moments = {key: value for key, value in state.items() if not key.endswith("/step")}
        shards = {key: shard_like(value, parameters[key.rpartition("/")[0]]) for key, value in moments.items()}
        restore_optimizer(self.optimizer, {**state, **shards}, self.parameter_names)
        ema_weights = checkpoint.ema_weights()
        if self.ema is not None and ema_weights is not None:
            self.ema.load(ema_weights)

    def gather_full_model(self) -> Transformer | None:
        """For rank 0 a model with whole weights: the one that learns, or a twin where ranks have shares. All ranks must ask.

        None where rank 0 has not the memory for a twin; by then all have done their part, and can go on together.
        """
        if not is_sharded(self.loss):
            return self.model
        weights = self._gather(collect_weights(self.model))
        if not self.distributed.is_rank_zero:
            return self.model
        try:
            if self._full_model is None:
                self._full_model = self._build_model().to(self.plan.device)
                self.plan.apply_to(self._full_model)
            load_full_weights(self._full_model, weights)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._full_model = None
        return self._full_model
