"""Training step: gradients of the batches, their norm, the gradient guard, and Adam.

The loss of a step is divided by its target tokens over all batches and ranks. A batch that does not fit into memory is split,
and the step starts again: the sum over two halves is the sum over the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dragoman.config import TrainingConfig
from dragoman.data.collate import Batch, split_in_half
from dragoman.errors import OutOfMemoryError, is_out_of_memory
from dragoman.training.compute_plan import ComputePlan
from dragoman.training.distributed.parallelize import defer_gradient_sync, get_gradient_norm
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.gradient_guard import GradientGuard
from dragoman.training.monitoring.events import Callback, RunEvent

# Factor between the dropout indices of the parts of a batch. It exceeds the number of batches in a step.
_BATCH_INDEX_STRIDE = 2**20


@dataclass(frozen=True)
class MicroBatch:
    """Rows that pass through the model together, and the index that seeds their dropout."""

    batch: Batch
    dropout_index: int

    @property
    def num_padded_tokens(self) -> int:
        """Padded tokens on both sides."""
        return self.batch.source_BS.numel() + self.batch.inputs_BT.numel()


class TrainStep:
    """Training step of a model's loss, which may be parallel over ranks, and an optimizer."""

    def __init__(
        self,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        config: TrainingConfig,
        plan: ComputePlan,
        distributed: DistributedContext,
        guard: GradientGuard,
        callback: Callback,
    ) -> None:
        self.loss = loss
        self.optimizer = optimizer
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.config = config
        self.plan = plan
        self.distributed = distributed
        self.guard = guard
        self.callback = callback
        self._oom_size = math.inf

    def __call__(
        self, step: int, batches: Sequence[tuple[int, Sequence[Batch]]], *, tokens: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Update the weights once.

        batches: batches of this rank, each with its index among those of all ranks, in parts
        tokens: target tokens of the step over all ranks

        Returns the gradient norm before clipping, whether the guard applied the update, and the summed negative
        log-likelihood. All are over all ranks and on the device.
        """
        micro_batches = [
            MicroBatch(batch, batch_index + _BATCH_INDEX_STRIDE * number)
            for batch_index, group in batches
            for number, batch in enumerate(group)
        ]
        nll = self.distributed.all_reduce_tensor(self._accumulate_gradients(step, micro_batches, tokens))
        norm = get_gradient_norm(self.parameters, self.distributed)
        if self.config.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.config.clip_norm, norm)
        applied = self.guard.should_apply(norm, nll)
        # Fused Adam changes neither weights nor moments nor its step count if `found_inf` is set.
        self.optimizer.found_inf = (~applied).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm, applied, nll

    def _accumulate_gradients(self, step: int, micro_batches: list[MicroBatch], tokens: int) -> Tensor:
        """Accumulate the gradient of the step's mean loss in the parameters, and return the negative log-likelihood."""
        micro_batches = [small for part in micro_batches for small in self._split_to_fit(part)]
        while True:
            num_done = 0
            nll = torch.zeros((), device=self.plan.device)
            try:
                for part in micro_batches:
                    nll = nll + self._backward(step, part, tokens, is_last=part is micro_batches[-1])
                    num_done += 1
                return nll
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
            self._oom_size = min(self._oom_size, micro_batches[num_done].num_padded_tokens)
            self._recover_from_oom(step, micro_batches[num_done])
            micro_batches = [
                *micro_batches[:num_done],
                *self._split_to_fit(micro_batches[num_done]),
                *micro_batches[num_done + 1 :],
            ]

    def _backward(self, step: int, micro_batch: MicroBatch, tokens: int, *, is_last: bool) -> Tensor:
        seed_device(derive_seed(self.config.seed, step, micro_batch.dropout_index), self.plan.device)
        with nullcontext() if is_last else defer_gradient_sync(self.loss):
            with self.plan.autocast():
                loss, nll = self.loss(micro_batch.batch.to(self.plan.device))
            # The gradients are averaged over the ranks, so each loss is multiplied by their number.
            (loss * (self.distributed.world_size / tokens)).backward()
        likelihood: Tensor = nll.detach()
        return likelihood

    def _split_to_fit(self, micro_batch: MicroBatch) -> list[MicroBatch]:
        """Split a micro-batch in halves until each part is smaller than the smallest one that did not fit into memory."""
        if micro_batch.num_padded_tokens < self._oom_size or len(micro_batch.batch.source_BS) == 1:
            return [micro_batch]
        dropout_indices = (
            micro_batch.dropout_index * 2 + _BATCH_INDEX_STRIDE * _BATCH_INDEX_STRIDE,
            micro_batch.dropout_index * 2 + 1 + _BATCH_INDEX_STRIDE * _BATCH_INDEX_STRIDE,
        )
        pieces = [
            replace(micro_batch, batch=half, dropout_index=dropout_index)
            for half, dropout_index in zip(split_in_half(micro_batch.batch), dropout_indices, strict=True)
        ]
        return [small for piece in pieces for small in self._split_to_fit(piece)]

    def _recover_from_oom(self, step: int, micro_batch: MicroBatch) -> None:
        """Reset the gradients of a step that starts again. Raise OutOfMemoryError if a split cannot help."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.plan.device.type == "cuda":
            torch.cuda.empty_cache()
        rows, source, target = (*micro_batch.batch.source_BS.shape, micro_batch.batch.inputs_BT.shape[1])
        message = f"step {step}: out of memory with {rows} pairs of {source} source and {target} target tokens"
        remedy = f"lower training.batch_tokens = {self.config.batch_tokens}"
        if rows == 1:
            raise OutOfMemoryError(f"{message}; lower data.max_length or the sizes of the model")
        if self.distributed.world_size > 1:  # the other ranks already wait for this rank's gradients
            raise OutOfMemoryError(f"{message} on rank {self.distributed.rank}; {remedy}")
        self.callback(RunEvent("oom_split", step, f"{message}; it is split, with the same loss; {remedy} to save time"))


def seed_device(seed: int, device: torch.device) -> None:
    """Seed the random numbers of a device. `torch.manual_seed` seeds all devices and is slower."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def derive_seed(seed: int, step: int, dropout_index: int) -> int:
    """Return the dropout seed of a micro-batch in update `step`: 64 bits, different for each, and equal on any rank."""
    value = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + dropout_index * 0x94D049BB133111EB) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    return value ^ value >> 31
