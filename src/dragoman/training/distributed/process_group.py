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
from dragoman.errors import DragomanError, FollowedError, LostProcessError, RankError, RecipeError, RunError

# Preparing a corpus may take hours while the others wait for rank 0; steps have a time-out of their own.
_PATIENCE = timedelta(days=7)
_PORT = "29500"
# What the end of a process may take that has said its last word.
_LAST_SECONDS = 10


@dataclass(frozen=True)
class World:
    """Who this process is among those that train together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Its number on this machine, which is that of its device."""
    seconds: float = 1800.0
    """How long the others may keep it waiting in a step."""

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def total(self, *numbers: float) -> list[float]:
        """Each number, summed over all ranks."""
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def total_on_device(self, tensor: Tensor) -> Tensor:
        """A tensor on the training device, summed over all ranks; nothing waits for it."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def from_leader(self, document: Any = None) -> Any:
        """What rank 0 gives, on all ranks: anything that JSON can hold. Until rank 0 comes here, all wait."""
        if self.size == 1:
            return document
        text = torch.tensor(list(json.dumps(document).encode()) if self.leads else [], dtype=torch.uint8)
        length = torch.tensor([len(text)])
        dist.broadcast(length, src=0)
        text = text if self.leads else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(text, src=0)
        return json.loads(bytes(text.tolist()))

    @contextmanager
    def led(self) -> Iterator[None]:
        """What rank 0 does while the others wait. Where it fails they end with it: they raise FollowedError."""
        if self.leads:
            try:
                yield
            except DragomanError as error:
                self.from_leader(error.exit_code)
                raise
            self.from_leader(None)
            return
        code = self.from_leader()
        if code is not None:
            raise FollowedError(code)
        yield

    def watch(self) -> None:
        """From now on until it is called again, end this process, with every thread's stack, when it is kept too long."""
        if self.size > 1:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.__stderr__ or sys.stderr)

    def rest(self) -> None:
        """End the watch."""
        if self.size > 1:
            faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def heard_out(self) -> Iterator[None]:
        """Where the connection to another rank is lost, pass over SIGTERM, so that this one can say so before it ends.

        A launcher sends it to all that are left, and might find this rank with its own handlers gone and nothing said yet.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size > 1 and _is_of_connection(error):
                with suppress(ValueError):  # another thread than the first may not
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if hasattr(signal, "alarm"):  # and should the end itself hang, on what is left of a connection
                    atexit.register(signal.alarm, _LAST_SECONDS)
            raise


def world_of(environment: Mapping[str, str], *, minutes: float) -> World:
    """The place that a launcher gave this process: torchrun and Kubernetes' PyTorchJob by RANK, Slurm's srun by SLURM_PROCID.

    Raises RunError where what they say makes no sense.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if "RANK" not in environment and environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    told = {name: environment.get(name, default) for name, default in zip(names, ("0", "1", "0"), strict=True)}
    try:
        rank, size, local_rank = (int(value) for value in told.values())
        if not 0 <= rank < size or local_rank < 0:
            raise ValueError
    except ValueError:
        given = ", ".join(f"{name}={value}" for name, value in told.items())
        raise RunError(f"{given}: ranks count from 0 to their number less one; unset them to train alone") from None
    if size > 1 and "MASTER_ADDR" not in environment:
        raise RunError(
            f"{names[1]}={size}, but MASTER_ADDR is not set: export the name of the machine of rank 0, such as "
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        )
    return World(rank, size, local_rank, minutes * 60.0)


@contextmanager
def joined(world: World) -> Iterator[World]:
    """Join the other ranks. Where the connection to one is lost, say where this one stood and raise LostProcessError."""
    if world.size == 1:
        yield world
        return
    os.environ.setdefault("MASTER_PORT", _PORT)
    if torch.cuda.is_available():
        torch.cuda.set_device(_own_gpu(world, torch.cuda.device_count()))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        world.watch()
        dist.init_process_group(backend, rank=world.rank, world_size=world.size, timeout=_PATIENCE)
        world.rest()
        # At its end a thread of gloo's needs the interpreter once more, and ends the process where that is gone.
        atexit.register(time.sleep, 0.1)
        yield world
    except DragomanError:
        dist.destroy_process_group()
        raise
    except RuntimeError as error:
        if not _is_of_connection(error):
            raise
        traceback.print_exc()
        raise LostProcessError(
            f"rank {world.rank}: the connection to another rank is lost ({_reason(error)}); the same command goes on from the "
            "last checkpoint"
        ) from None
    else:
        dist.destroy_process_group()
    finally:
        world.rest()


def _own_gpu(world: World, count: int) -> int:
    """Its number on this machine; 0 where a launcher shows each process its own alone. Raises RankError where there is none."""
    if world.local_rank < count:
        return world.local_rank
    if count == 1 and os.environ.get("LOCAL_WORLD_SIZE", "1") == "1":
        return 0
    raise RankError(
        f"rank {world.rank}: is number {world.local_rank} on its machine, which has {count} GPUs; start fewer there"
    )


def _reason(error: RuntimeError) -> str:
    """What went wrong, without where in PyTorch's sources, and its advice."""
    return re.sub(r"^\[[^]]*\] ", "", str(error)).splitlines()[0].split(". ")[0]


def _is_of_connection(error: RuntimeError) -> bool:
    """Whether this is how torch, gloo or NCCL tell that a rank is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def refuse_uneven(recipe: Recipe, world: World) -> None:
    """Raise RecipeError where the batches of a step cannot be shared out evenly."""
    config = recipe.training
    batches, tokens = config.batches_per_update, config.batch_tokens
    modified = any(recipe.data.noise.model_dump().values())
    varied = "tokenizer.sampling_alpha" if recipe.tokenizer.sampling_alpha else "data.noise" if modified else None
    if world.size > 1 and config.parallel == "fsdp" and varied:
        raise RecipeError(
            f"{varied} with training.parallel = 'fsdp': a batch that it makes longer is split on its own rank alone, and FSDP2 "
            "wants as many parts on all; set training.parallel=ddp"
        )
    if batches % world.size:
        smaller = max(tokens * batches // world.size, 1)
        raise RecipeError(
            f"training.batches_per_update = {batches}: {world.size} devices cannot share the batches of a step; set "
            f"training.batches_per_update={world.size} for a batch of {tokens} tokens on each, or training.batches_per_update={world.size} "
            f"training.batch_tokens={smaller} for a step as large as before"
        )
