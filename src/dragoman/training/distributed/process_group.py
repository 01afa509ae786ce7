"""Process group of a run: one process, or several ranks that train one model.

Ranks agree by reductions of a few numbers in CPU memory, which wait for no device. Rank 0 alone prepares data, validates,
writes files and reports.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.config import DataConfig, TokenizerConfig, TrainingConfig
from dragoman.errors import DragomanError, RankError, RankZeroError, RecipeError, RunError, WorkerLostError

# Rank 0 may prepare a corpus for hours while the other ranks wait. Steps have their own time-out.
_COLLECTIVE_TIMEOUT = timedelta(days=7)
_DEFAULT_PORT = "29500"
# Time-out for the end of a process after its last message.
_EXIT_TIMEOUT_SECONDS = 10


@dataclass(frozen=True)
class DistributedContext:
    """Rank of this process and number of ranks."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Number of this rank on its machine, which selects its device."""
    timeout_seconds: float = 1800.0
    """Time-out of a step in which this rank waits for others."""

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        """Return each number summed over all ranks."""
        if self.world_size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def all_reduce_tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the training device summed over all ranks, without waiting for the result."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast_object(self, document: Any = None) -> Any:
        """Return the document of rank 0 on all ranks. It must be serializable as JSON. All ranks wait for rank 0."""
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
        """Let rank 0 run the block while the others wait. If it fails, the others raise RankZeroError."""
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
        """Print all stacks and end this process after the time-out, unless the watchdog is started again or stopped."""
        if self.world_size > 1:
            faulthandler.dump_traceback_later(self.timeout_seconds, exit=True, file=sys.__stderr__ or sys.stderr)

    def stop_watchdog(self) -> None:
        """Stop the watchdog."""
        if self.world_size > 1:
            faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def exit_cleanly_on_disconnect(self, describe_loss: Callable[[], str] | None = None) -> Iterator[None]:
        """Ignore SIGTERM after the loss of a connection, so that this rank can report its error before it ends.

        describe_loss: returns the end of this report: what is lost, and how the run goes on

        A launcher sends SIGTERM to the remaining ranks, perhaps when this rank's handlers are removed and nothing is reported.
        """
        try:
            yield
        except RuntimeError as error:
            if self.world_size > 1 and _is_connection_error(error):
                with suppress(ValueError):  # only the main thread may set handlers
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if describe_loss is not None:
                    error.add_note(describe_loss())
                if hasattr(signal, "alarm"):  # the exit itself may hang on an open connection
                    atexit.register(signal.alarm, _EXIT_TIMEOUT_SECONDS)
            raise


def context_from_environment(environment: Mapping[str, str], *, timeout_minutes: float) -> DistributedContext:
    """Return the context that a launcher sets: torchrun and Kubernetes' PyTorchJob by RANK, Slurm's srun by SLURM_PROCID.

    Raises RunError if the variables contradict each other.
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
        raise RunError(
            f"{settings}: a rank must be from 0 to the number of ranks − 1; unset them to train with one process",
            code="distributed-setup",
        ) from None
    if world_size > 1 and "MASTER_ADDR" not in environment:
        raise RunError(
            f"{names[1]}={world_size}: MASTER_ADDR is not set; export the host name of rank 0, for example "
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            code="distributed-setup",
        )
    return DistributedContext(rank, world_size, local_rank, timeout_minutes * 60.0)


@contextmanager
def init_process_group(distributed: DistributedContext) -> Iterator[DistributedContext]:
    """Join the other ranks. If the connection to one is lost, print the traceback and raise WorkerLostError."""
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
        # A thread of gloo that still releases a tensor needs the interpreter, and would crash the process without it (PyTorch's
        # issue 190489). On a busy machine it takes long until the thread goes on.
        atexit.register(time.sleep, 1.0)
        yield distributed
    except DragomanError:
        dist.destroy_process_group()
        raise
    except RuntimeError as error:
        if not _is_connection_error(error):
            raise
        traceback.print_exc()
        consequence = "; ".join(getattr(error, "__notes__", ["the same command resumes from the last checkpoint"]))
        raise WorkerLostError(
            f"rank {distributed.rank}: the connection to another rank broke ({_extract_reason(error)}); {consequence}"
        ) from None
    else:
        dist.destroy_process_group()
    finally:
        distributed.stop_watchdog()


def _select_gpu(distributed: DistributedContext, num_gpus: int) -> int:
    """Return the number of this rank's GPU; 0 if the launcher shows each rank one GPU. Raise RankError if there is none."""
    if distributed.local_rank < num_gpus:
        return distributed.local_rank
    if num_gpus == 1 and os.environ.get("LOCAL_WORLD_SIZE", "1") == "1":
        return 0
    raise RankError(
        f"rank {distributed.rank}: local rank {distributed.local_rank} has no GPU, since the machine has {num_gpus}; "
        "start fewer ranks there"
    )


def _extract_reason(error: RuntimeError) -> str:
    """Return the first sentence of the error, without its location in PyTorch's sources."""
    return re.sub(r"^\[[^]]*\] ", "", str(error)).splitlines()[0].split(". ")[0]


def _is_connection_error(error: RuntimeError) -> bool:
    """Return whether torch, gloo or NCCL report with this error that a rank is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def check_even_split(
    data: DataConfig, tokenizer: TokenizerConfig, training: TrainingConfig, distributed: DistributedContext
) -> None:
    """Raise RecipeError if the ranks cannot share the batches of a step evenly."""
    batches, tokens = training.batches_per_update, training.batch_tokens
    has_noise = any(data.noise.model_dump().values())
    varying_setting = "tokenizer.sampling_alpha" if tokenizer.sampling_alpha else "data.noise" if has_noise else None
    if distributed.world_size > 1 and training.parallel == "fsdp" and varying_setting:
        raise RecipeError(
            f"{varying_setting} with training.parallel = 'fsdp': a longer batch is split on its own rank alone, and FSDP2 "
            "needs the same number of parts on all ranks; set training.parallel=ddp",
            code="key-conflict",
        )
    if batches % distributed.world_size:
        smaller_batch_tokens = max(tokens * batches // distributed.world_size, 1)
        raise RecipeError(
            f"training.batches_per_update = {batches}: {distributed.world_size} devices cannot share the batches of a step; "
            f"set training.batches_per_update={distributed.world_size} for a batch of {tokens} tokens on each, or "
            f"training.batches_per_update={distributed.world_size} training.batch_tokens={smaller_batch_tokens} for a step of "
            "the same size"
        )
