"""Several processes of one command on this machine, started and watched over by torch's own launcher (torchrun)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dragoman.errors import Interrupted, RunError
from dragoman.processes import cores

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGUSR1"


def launch(arguments: Sequence[str], *, devices: int, max_restarts: int) -> int:
    """Run `dragoman` with these arguments once a device, and return its exit code.

    A process that dies ends the others; all are then started again, `max_restarts` times at most. A signal to this process is
    passed on to them. Raises RunError where there are fewer GPUs.
    """
    gpus = torch.cuda.device_count()
    if 0 < gpus < devices:
        raise RunError(f"--devices {devices}: there are {gpus} GPUs; hide them with CUDA_VISIBLE_DEVICES= to use the cores")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores() // devices, 1)))
    logging.disable(logging.INFO if max_restarts else logging.CRITICAL)  # each process tells for itself why it ended
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id="dragoman",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        signals_to_handle=SIGNALS,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "dragoman", *arguments)
    except ChildFailedError as error:
        return exit_code(list(error.failures.values()))
    except SignalException:
        return Interrupted.exit_code
    return 0


def exit_code(failures: Sequence[ProcessFailure]) -> int:
    """That of the process that failed first by itself; those that were then ended by a signal say nothing."""
    told = sorted(failures, key=lambda one: one.timestamp)
    codes = [failure.exitcode for failure in told]
    return next((code for code in codes if code > 0), 1)
