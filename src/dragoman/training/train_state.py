"""Training state: the model with its loss, the optimizer, and the moving average, on one device or sharded over several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig, Recipe, TaskConfig, TrainingConfig
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.errors import is_out_of_memory
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.model.weights import collect_weights, load_weights
from dragoman.parsing.sentence_parser import fill_word_tables, parser_options
from dragoman.training.checkpoints.checkpoint import Checkpoint, StateTensors, flatten_optimizer, restore_optimizer
from dragoman.training.compute_plan import ComputePlan, compile_layers
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
from dragoman.training.initial_model import (
    add_recipe_adapters,
    freeze_parameters,
    load_initial_weights,
    read_initial_optimizer,
)
from dragoman.training.losses.function import LossContext, build_training_loss
from dragoman.training.losses.guided_alignment import AlignmentLossConfig, alignment_layer


@dataclass(eq=False)
class TrainState:
    """Model, loss, optimizer and moving average of a run. Each rank may hold a shard of them."""

    recipe: Recipe
    tokenizer: PairTokenizer
    plan: ComputePlan
    distributed: DistributedContext
    model: Transformer
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    ema: MovingAverage | None
    _full_model: Transformer | None = None

    @cached_property
    def parameter_names(self) -> dict[int, str]:
        """Names of the parameters by their number in the optimizer."""
        return dict(enumerate(name for name, _ in self.model.named_parameters()))

    def gather_state(self) -> StateTensors:
        """Return all tensors, gathered on rank 0 and empty on other ranks. All ranks must call it."""
        return StateTensors(
            self._gather(collect_weights(self.model)),
            self._gather(flatten_optimizer(self.optimizer, self.parameter_names)),
            self._gather(self.ema.ema_weights) if self.ema is not None else None,
        )

    def get_whole_state(self) -> StateTensors | None:
        """Return all tensors as this rank has them, or None if it has shards of them."""
        if is_sharded(self.loss):
            return None
        optimizer_state = flatten_optimizer(self.optimizer, self.parameter_names)
        return StateTensors(
            collect_weights(self.model), optimizer_state, self.ema.ema_weights if self.ema is not None else None
        )

    def _gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather one tensor after the other, so that no device holds more than one whole tensor beside its shards."""
        gathered = {}
        for name, tensor in tensors.items():
            full_tensor = gather_full_tensor(tensor, self.distributed)
            if full_tensor is not None:
                gathered[name] = full_tensor.cpu() if is_sharded(self.loss) else full_tensor
        return gathered

    def restore(self, checkpoint: Checkpoint) -> None:
        """Load all tensors of a checkpoint."""
        load_full_weights(self.model, checkpoint.weights())
        self.restore_optimizer_and_ema(checkpoint)

    def restore_optimizer_and_ema(self, checkpoint: Checkpoint) -> None:
        """Load the tensors of a checkpoint except the weights."""
        self.restore_optimizer(checkpoint.optimizer_state())
        ema_weights = checkpoint.ema_weights()
        if self.ema is not None and ema_weights is not None:
            self.ema.load(ema_weights)

    def restore_optimizer(self, state: Mapping[str, Tensor]) -> None:
        """Load the optimizer's state, as `flatten_optimizer` returns it, from whole tensors."""
        parameters = dict(self.model.named_parameters())
        moments = {key: value for key, value in state.items() if not key.endswith("/step")}
        shards = {key: shard_like(value, parameters[key.rpartition("/")[0]]) for key, value in moments.items()}
        restore_optimizer(self.optimizer, {**state, **shards}, self.parameter_names)

    def gather_full_model(self) -> Transformer | None:
        """Return a model with whole weights on rank 0: the trained model, or a copy of it if the weights are sharded.

        All ranks must call it. It returns None if rank 0 has too little memory for the copy. By then all ranks have done their
        part of the gathering, so they can continue together.
        """
        if not is_sharded(self.loss):
            return self.model
        weights = self._gather(collect_weights(self.model))
        if not self.distributed.is_rank_zero:
            return self.model
        try:
            if self._full_model is None:
                self._full_model = build_seeded_model(
                    self.recipe.model, self.recipe.task, self.recipe.training, self.tokenizer
                ).to(self.plan.device)
                self.plan.apply_to(self._full_model)
            load_full_weights(self._full_model, weights)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._full_model = None
        return self._full_model


def build_train_state(
    recipe: Recipe,
    tokenizer: PairTokenizer,
    plan: ComputePlan,
    distributed: DistributedContext,
    checkpoint: Checkpoint | None = None,
) -> TrainState:
    """Build the training state of a new run, or load it from a checkpoint."""
    config = recipe.training
    model = build_seeded_model(recipe.model, recipe.task, config, tokenizer)
    if checkpoint is not None:
        load_weights(model, checkpoint.weights(), location=checkpoint.path)
    elif config.init_from is not None:
        load_initial_weights(model, recipe.run, recipe.training)
    freeze_parameters(model, recipe.training)
    model = model.to(plan.device)
    plan.apply_to(model)
    alignment_config = AlignmentLossConfig.from_training(config, recipe.alignment_layer)
    if config.compile:
        compile_layers(model, exclude=None if alignment_config is None else alignment_layer(model, alignment_config))

    def build_initial_model() -> Transformer:
        """Build the initial model of a fine-tuning run, without gradients and dropout."""
        initial_model = build_base_model(recipe.model, recipe.task, config, tokenizer)
        load_initial_weights(initial_model, recipe.run, config)
        initial_model = initial_model.to(plan.device).eval().requires_grad_(False)
        plan.apply_to(initial_model)
        return initial_model

    context = LossContext(recipe, tokenizer, build_initial_model)
    loss = ModelLoss(model, build_training_loss(context), alignment_config=alignment_config)
    parallel_loss = parallelize_loss(loss, distributed, plan.device, config.parallel)
    train_state = TrainState(
        recipe,
        tokenizer,
        plan,
        distributed,
        model=model,
        loss=parallel_loss,
        optimizer=build_optimizer(recipe.training, model),
        ema=MovingAverage(model, config.ema_decay) if config.ema_decay is not None else None,
    )
    if checkpoint is not None:
        train_state.restore_optimizer_and_ema(checkpoint)
    elif config.init_optimizer == "keep":
        train_state.restore_optimizer(read_initial_optimizer(model, recipe.run))
    return train_state


def build_seeded_model(
    config: ModelConfig, task: TaskConfig, training: TrainingConfig, tokenizer: PairTokenizer
) -> Transformer:
    """Build the recipe's model on the CPU, with initial weights and low-rank adapters drawn by the recipe's seed."""
    model = build_base_model(config, task, training, tokenizer)
    add_recipe_adapters(model, training)
    return model


def build_base_model(config: ModelConfig, task: TaskConfig, training: TrainingConfig, tokenizer: PairTokenizer) -> Transformer:
    """Build the recipe's model on the CPU without low-rank adapters, with initial weights drawn by the recipe's seed."""
    torch.manual_seed(training.seed)
    model = build_model(
        config,
        source_vocab_size=len(tokenizer.source),
        target_vocab_size=len(tokenizer.target),
        **parser_options(task),
    )
    fill_word_tables(model, tokenizer)
    return model


def build_optimizer(training: TrainingConfig, model: Transformer) -> torch.optim.Optimizer:
    """Build Adam, or AdamW if the recipe has weight decay. The learning rate is set before each step."""
    optimizer_class = torch.optim.AdamW if training.weight_decay else torch.optim.Adam
    betas = (training.adam_beta1, training.adam_beta2)
    return optimizer_class(
        model.parameters(), lr=0.0, betas=betas, eps=training.adam_epsilon, weight_decay=training.weight_decay, fused=True
    )
