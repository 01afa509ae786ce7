"""What learns: the model with its loss, the optimiser, and the moving average, on one device or divided over several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.bundle import put_weights, weights_of
from dragoman.config import Recipe
from dragoman.data.tokenization.tokenizer import Tokeniser
from dragoman.errors import out_of_memory
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.tasks.parsing import parser_parts, teach_words
from dragoman.training.checkpoints.checkpoint import Checkpoint, flatten_optimiser, restore_optimiser
from dragoman.training.device import Machine, compile_layers
from dragoman.training.distributed.parallelize import ModelLoss, is_divided, put_whole_weights, share_like, spread, whole
from dragoman.training.distributed.process_group import World
from dragoman.training.ema import MovingAverage
from dragoman.training.losses.guided_alignment import Guidance, alignment_layer


@dataclass(frozen=True)
class State:
    """Everything that learning changes, as whole tensors by name."""

    weights: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    averages: dict[str, Tensor] | None


class Learner:
    """Model, optimiser and moving average of a run; each rank may hold a share of them."""

    def __init__(
        self, recipe: Recipe, tokeniser: Tokeniser, machine: Machine, world: World, found: Checkpoint | None = None
    ) -> None:
        """As the recipe begins, or as a checkpoint left it."""
        self.recipe = recipe
        self.tokeniser = tokeniser
        self.machine = machine
        self.world = world
        config = recipe.training
        self.model = self._new_model()
        if found is not None:
            put_weights(self.model, found.weights(), where=found.path)
        self.model = self.model.to(machine.device)
        machine.settle(self.model)
        guidance = Guidance.of(recipe)
        if config.compile:
            compile_layers(self.model, besides=None if guidance is None else alignment_layer(self.model, guidance))
        loss = ModelLoss(
            self.model,
            epsilon=config.label_smoothing,
            form=config.label_smoothing_mode,
            r_drop=config.r_drop_alpha,
            pos_loss_weight=recipe.task.pos_loss_weight if recipe.task.tagging else 0.0,
            guidance=guidance,
        )
        self.loss = spread(loss, world, machine.device, config.parallel)
        self.names = dict(enumerate(name for name, _ in self.model.named_parameters()))
        self.optimiser = self._optimiser()
        self.averages = MovingAverage(self.model, config.ema_decay) if config.ema_decay is not None else None
        self._twin: Transformer | None = None
        if found is not None:
            self._restore_beside_weights(found)

    def _new_model(self) -> Transformer:
        torch.manual_seed(self.recipe.training.seed)
        sizes = {"source_vocabulary": len(self.tokeniser.source), "target_vocabulary": len(self.tokeniser.target)}
        model = build_model(self.recipe.model, **sizes | parser_parts(self.recipe))
        teach_words(model, self.tokeniser)
        return model

    def _optimiser(self) -> torch.optim.Optimizer:
        config = self.recipe.training
        kind = torch.optim.AdamW if config.weight_decay else torch.optim.Adam
        betas = (config.adam_beta1, config.adam_beta2)
        return kind(
            self.model.parameters(), lr=0.0, betas=betas, eps=config.adam_epsilon, weight_decay=config.weight_decay, fused=True
        )

    def state(self) -> State:
        """All of it, put together from the shares on rank 0; on the others it is nothing. All ranks must ask."""
        return State(
            self._gathered(weights_of(self.model)),
            self._gathered(flatten_optimiser(self.optimiser, self.names)),
            self._gathered(self.averages.averages) if self.averages is not None else None,
        )

    def _gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One after the other, so that no device holds more than one whole tensor beside its shares."""
        gathered = {}
        for name, tensor in tensors.items():
            full = whole(tensor)
            if self.world.leads:
                gathered[name] = full.cpu() if is_divided(self.loss) else full
        return gathered

    def restore(self, found: Checkpoint) -> None:
        """Go back to a checkpoint."""
        put_whole_weights(self.model, found.weights())
        self._restore_beside_weights(found)

    def _restore_beside_weights(self, found: Checkpoint) -> None:
        parameters = dict(self.model.named_parameters())
        state = found.optimiser_state()
        moments = {key: value for key, value in state.items() if not key.endswith("/step")}
        shares = {key: share_like(value, parameters[key.rpartition("/")[0]]) for key, value in moments.items()}
        restore_optimiser(self.optimiser, {**state, **shares}, self.names)
        averages = found.averages()
        if self.averages is not None and averages is not None:
            self.averages.restore(averages)

    def whole_model(self) -> Transformer | None:
        """For rank 0 a model with whole weights: the one that learns, or a twin where ranks have shares. All ranks must ask.

        None where rank 0 has not the memory for a twin; by then all have done their part, and can go on together.
        """
        if not is_divided(self.loss):
            return self.model
        weights = self._gathered(weights_of(self.model))
        if not self.world.leads:
            return self.model
        try:
            if self._twin is None:
                self._twin = self._new_model().to(self.machine.device)
                self.machine.settle(self._twin)
            put_whole_weights(self._twin, weights)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            self._twin = None
        return self._twin
