"""The ranks of a run: one process by itself, or several that train one model together.

Ranks agree on what they do by summing a few numbers in the processors' memory, so that no device is waited for. Rank 0 leads:
it alone prepares data, judges, writes and tells.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.config import Recipe
from dragoman.errors import DragomanError, RankError, RankZeroError, RecipeError, RunError, WorkerLostError

# Preparing a corpus may take hours while the others wait for rank 0; steps have a time-out of their own.
_COLLECTIVE_TIMEOUT = timedelta(days=7)
_DEFAULT_PORT = "29500"
# What the end of a process may take that has said its last word.
_EXIT_TIMEOUT_SECONDS = 10


@dataclass(frozen=True)
class DistributedContext:
    """Who this process is among those that train together."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Its number on this machine, which is that of its device."""
    timeout_seconds: float = 1800.0
    """How long the others may keep it waiting in a step."""

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        """Each number, summed over all ranks."""
        if self.world_size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def all_reduce_tensor(self, tensor: Tensor) -> Tensor:
        """A tensor on the training device, summed over all ranks; nothing waits for it."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast_object(self, document: Any = None) -> Any:
        """What rank 0 gives, on all ranks: anything that JSON can hold. Until rank 0 comes here, all wait."""
        if self.world_size == 1:
            return document
        encoded = torch.tensor(list(json.dumps(document).encode()) if self.is_rank_zero else [], dtype=torch.uint8)
        length = torch.tensor([len(encoded)])
        dist.broadcast(length, src=0)
        encoded = encoded if self.is_rank_zero else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(encoded, src=0)
        return json.loads(bytes(encoded.tolist()))

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """What rank 0 does while the others wait. Where it fails they end with it: they raise FollowedError."""
        if self.is_rank_zero:
            try:
                yield
            except DragomanError as error:
                self.broadcast_object(error.exit_code)
                raise
            self.broadcast_object(None)
            return
        exit_code = self.broadcast_object()
        if exit_code is not None:
            raise RankZeroError(exit_code)
        yield

    def start_watchdog(self) -> None:
        """From now on until it is called again, end this process, with every thread's stack, when it is kept too long."""
        if self.world_size > 1:
            faulthandler.dump_traceback_later(self.timeout_seconds, exit=True, file=sys.__stderr__ or sys.stderr)

    def stop_watchdog(self) -> None:
        """End the watch."""
        if self.world_size > 1:
            faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def exit_cleanly_on_disconnect(self) -> Iterator[None]:
        """Where the connection to another rank is lost, pass over SIGTERM, so that this one can say so before it ends.

        A launcher sends it to all that are left, and might find this rank with its own handlers gone and nothing said yet.
        """
        try:
            yield
        except RuntimeError as error:
            if self.world_size > 1 and _is_connection_error(error):
                with suppress(ValueError):  # another thread than the first may not
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if hasattr(signal, "alarm"):  # and should the end itself hang, on what is left of a connection
                    atexit.register(signal.alarm, _EXIT_TIMEOUT_SECONDS)
            raise


def context_from_environment(environment: Mapping[str, str], *, timeout_minutes: float) -> DistributedContext:
    """The place that a launcher gave this process: torchrun and Kubernetes' PyTorchJob by RANK, Slurm's srun by SLURM_PROCID.

    Raises RunError where what they say makes no sense.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if "RANK" not in environment and environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    values = {name: environment.get(name, default) for name, default in zip(names, ("0", "1", "0"), strict=True)}
    try:
        rank, world_size, local_rank = (int(value) for value in values.values())
        if not 0 <= rank < world_size or local_rank < 0:
            raise ValueError
    except ValueError:
        settings = ", ".join(f"{name}={value}" for name, value in values.items())
        raise RunError(f"{settings}: ranks count from 0 to their number less one; unset them to train alone") from None
    if world_size > 1 and "MASTER_ADDR" not in environment:
        raise RunError(
            f"{names[1]}={world_size}, but MASTER_ADDR is not set: export the name of the machine of rank 0, such as "
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        )
    return DistributedContext(rank, world_size, local_rank, timeout_minutes * 60.0)


@contextmanager
def init_process_group(distributed: DistributedContext) -> Iterator[DistributedContext]:
    """Join the other ranks. Where the connection to one is lost, say where this one stood and raise LostProcessError."""
    if distributed.world_size == 1:
        yield distributed
        return
    os.environ.setdefault("MASTER_PORT", _DEFAULT_PORT)
    if torch.cuda.is_available():
        torch.cuda.set_device(_select_gpu(distributed, torch.cuda.device_count()))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        distributed.start_watchdog()
        dist.init_process_group(backend, rank=distributed.rank, world_size=distributed.world_size, timeout=_COLLECTIVE_TIMEOUT)
        distributed.stop_watchdog()
        # At its end a thread of gloo's needs the interpreter once more, and ends the process where that is gone.
        atexit.register(time.sleep, 0.1)
        yield distributed
    except DragomanError:
        dist.destroy_process_group()
        raise
    except RuntimeError as error:
        if not _is_connection_error(error):
            raise
        traceback.print_exc()
        raise WorkerLostError(
            f"rank {distributed.rank}: the connection to another rank is lost ({_extract_reason(error)}); the same command goes on from the "
            "last checkpoint"
        ) from None
    else:
        dist.destroy_process_group()
    finally:
        distributed.stop_watchdog()


def _select_gpu(distributed: DistributedContext, num_gpus: int) -> int:
    """Its number on this machine; 0 where a launcher shows each process its own alone. Raises RankError where there is none."""
    if distributed.local_rank < num_gpus:
        return distributed.local_rank
    if num_gpus == 1 and os.environ.get("LOCAL_WORLD_SIZE", "1") == "1":
        return 0
    raise RankError(
        f"rank {distributed.rank}: is number {distributed.local_rank} on its machine, which has {num_gpus} GPUs; start fewer there"
    )


def _extract_reason(error: RuntimeError) -> str:
    """What went wrong, without where in PyTorch's sources, and its advice."""
    return re.sub(r"^\[[^]]*\] ", "", str(error)).splitlines()[0].split(". ")[0]


def _is_connection_error(error: RuntimeError) -> bool:
    """Whether this is how torch, gloo or NCCL tell that a rank is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def check_even_split(recipe: Recipe, distributed: DistributedContext) -> None:
    """Raise RecipeError where the batches of a step cannot be shared out evenly."""
    config = recipe.training
    batches, tokens = config.batches_per_update, config.batch_tokens
    has_noise = any(recipe.data.noise.model_dump().values())
    varying_setting = "tokenizer.sampling_alpha" if recipe.tokenizer.sampling_alpha else "data.noise" if has_noise else None
    if distributed.world_size > 1 and config.parallel == "fsdp" and varying_setting:
        raise RecipeError(
            f"{varying_setting} with training.parallel = 'fsdp': a batch that it makes longer is split on its own rank alone, and FSDP2 "
            "wants as many parts on all; set training.parallel=ddp"
        )
    if batches % distributed.world_size:
        smaller_batch_tokens = max(tokens * batches // distributed.world_size, 1)
        raise RecipeError(
            f"training.batches_per_update = {batches}: {distributed.world_size} devices cannot share the batches of a step; set "
            f"training.batches_per_update={distributed.world_size} for a batch of {tokens} tokens on each, or training.batches_per_update={distributed.world_size} "
            f"training.batch_tokens={smaller_batch_tokens} for a step as large as before"
        )
