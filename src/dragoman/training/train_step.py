"""One update of the weights from the batches of a step: gradients, their norm, the guard, Adam.

The loss of a step is divided by its target tokens over all batches and ranks. A batch that memory does not hold is split, and
the step begun again: sums over two halves are the sum over the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dragoman.config import TrainingConfig
from dragoman.data.collate import Batch, halves
from dragoman.errors import MemoryShortError, out_of_memory
from dragoman.training.device import Machine
from dragoman.training.distributed.parallelize import gradients_stay, whole
from dragoman.training.distributed.process_group import World
from dragoman.training.gradient_guard import Guard

# What distinguishes the parts of one batch, whatever the number of batches in a step.
_PARTS = 2**20


@dataclass(frozen=True)
class Part:
    """Padded rows that go through the model together, and what their dropout is drawn by."""

    batch: Batch
    place: int

    @property
    def size(self) -> int:
        """Padded tokens on both sides."""
        return self.batch.source_BS.numel() + self.batch.inputs_BT.numel()


class Stepper:
    """Takes steps with a model's loss, which may be spread over ranks, and an optimiser."""

    def __init__(
        self,
        loss: nn.Module,
        optimiser: torch.optim.Optimizer,
        *,
        config: TrainingConfig,
        machine: Machine,
        world: World,
        guard: Guard,
        split: Callable[[str], None],
    ) -> None:
        """`split` hears of each batch that was split for want of memory."""
        self.loss = loss
        self.optimiser = optimiser
        self.parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        self.config = config
        self.machine = machine
        self.world = world
        self.guard = guard
        self.split = split
        self._too_large = math.inf

    def take(self, step: int, batches: Sequence[tuple[int, Sequence[Batch]]], *, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """One update. Returns the norm of the gradient before clipping, whether the guard admitted it, and the summed negative
        log-likelihood, over all ranks, on the device.

        batches: this rank's, each with its place among those of all ranks, in parts
        tokens: target tokens of the step over all ranks
        """
        parts = [Part(batch, place + _PARTS * number) for place, many in batches for number, batch in enumerate(many)]
        nll = self.world.total_on_device(self._gradients(step, parts, tokens))
        norm = torch.nn.utils.get_total_norm([one.grad for one in self.parameters if one.grad is not None])
        if self.config.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.config.clip_norm, norm)
        norm = whole(norm)
        good = self.guard.admit(norm, nll)
        # Fused Adam leaves weights, moments and its count of steps alone where it is told that a number was infinite.
        self.optimiser.found_inf = (~good).float()  # type: ignore[attr-defined]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return norm, good, nll

    def _gradients(self, step: int, parts: list[Part], tokens: int) -> Tensor:
        """Leave the gradient of the step's mean loss in the parameters; returns the negative log-likelihood."""
        parts = [small for part in parts for small in self._small_enough(part)]
        while True:
            done = 0
            nll = torch.zeros((), device=self.machine.device)
            try:
                for part in parts:
                    nll = nll + self._backward(step, part, tokens, last=part is parts[-1])
                    done += 1
                return nll
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
            self._too_large = min(self._too_large, parts[done].size)
            self._make_room(step, parts[done])
            parts = [*parts[:done], *self._small_enough(parts[done]), *parts[done + 1 :]]

    def _backward(self, step: int, part: Part, tokens: int, *, last: bool) -> Tensor:
        draw_by(random_stream(self.config.seed, step, part.place), self.machine.device)
        with nullcontext() if last else gradients_stay(self.loss):
            with self.machine.autocast():
                loss, nll = self.loss(part.batch.to(self.machine.device))
            # Ranks take the mean of their gradients, so each gives as many times its own as they are.
            (loss * (self.world.size / tokens)).backward()
        likelihood: Tensor = nll.detach()
        return likelihood

    def _small_enough(self, part: Part) -> list[Part]:
        """The part, or halves of it, of halves of it, until each is smaller than what memory did not hold."""
        if part.size < self._too_large or len(part.batch.source_BS) == 1:
            return [part]
        places = (part.place * 2 + _PARTS * _PARTS, part.place * 2 + 1 + _PARTS * _PARTS)
        pieces = [replace(part, batch=half, place=place) for half, place in zip(halves(part.batch), places, strict=True)]
        return [small for piece in pieces for small in self._small_enough(piece)]

    def _make_room(self, step: int, part: Part) -> None:
        """Forget the gradients of a step that is begun again. Raises MemoryShortError where that is no way out."""
        self.optimiser.zero_grad(set_to_none=True)
        if self.machine.device.type == "cuda":
            torch.cuda.empty_cache()
        rows, source, target = (*part.batch.source_BS.shape, part.batch.inputs_BT.shape[1])
        told = f"step {step}: out of memory with {rows} pairs of {source} source and {target} target tokens"
        lower = f"lower training.batch_tokens = {self.config.batch_tokens}"
        if rows == 1:
            raise MemoryShortError(f"{told}; lower data.max_length or the sizes of the model")
        if self.world.size > 1:  # the others are already waiting for this rank's gradients
            raise MemoryShortError(f"{told} on rank {self.world.rank}; {lower}")
        self.split(f"{told}; it is split, with the same loss; {lower} to save time")


def draw_by(seed: int, device: torch.device) -> None:
    """Begin the random numbers of a device anew. `torch.manual_seed` does so for all there may be, and takes its time."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def random_stream(seed: int, step: int, place: int) -> int:
    """The seed of the dropout of the batch at `place` in update `step`, whichever rank has it: 64 bits, another for each."""
    value = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + place * 0x94D049BB133111EB) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    return value ^ value >> 31
