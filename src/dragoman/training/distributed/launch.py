"""Several processes of one command on this machine, started and watched over by torch's own launcher (torchrun)."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dragoman.errors import InterruptedRun, RunError
from dragoman.runtime.processes import count_cores
from dragoman.training.distributed.exit_status import EXIT_STATUS_FILE_VARIABLE, LAUNCHER_PID_VARIABLE
from dragoman.training.distributed.signals import is_hangup_ignored

HANDLED_SIGNALS = "SIGTERM,SIGINT,SIGUSR1"


def _ignore_timer_errors(unraised: Any) -> None:
    """As Python tells of what nobody can catch, but for torch's timer, which may be the last to let go of itself."""
    if "cannot join current thread" not in str(unraised.exc_value):
        sys.__unraisablehook__(unraised)


def launch(arguments: Sequence[str], *, devices: int, max_restarts: int, timeout_minutes: float) -> int:
    """Run `dragoman` with these arguments once a device, and return its exit code.

    A process that dies ends the others; all are then started again, `max_restarts` times at most, unless one ended of its own
    accord. A signal to this process is passed on to them, and they have so many minutes to keep what they did. Raises RunError
    where there are fewer GPUs, and Interrupted where a signal comes before they can answer it.
    """
    num_gpus = torch.cuda.device_count()
    if 0 < num_gpus < devices:
        raise RunError(f"--devices {devices}: there are {num_gpus} GPUs; hide them with CUDA_VISIBLE_DEVICES= to use the cores")
    sys.unraisablehook = _ignore_timer_errors
    logging.disable(logging.CRITICAL)  # each process tells for itself why it ended
    with TemporaryDirectory() as folder:
        status_file = Path(folder, "verdict")
        os.environ[EXIT_STATUS_FILE_VARIABLE], os.environ[LAUNCHER_PID_VARIABLE] = str(status_file), str(os.getpid())
        os.environ.setdefault("OMP_NUM_THREADS", str(max(count_cores() // devices, 1)))
        # Or a restart reads where the processes before it listened, and waits for them.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=devices,
            run_id="dragoman",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=max_restarts,
            signals_to_handle=HANDLED_SIGNALS if is_hangup_ignored() else f"{HANDLED_SIGNALS},SIGHUP",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        if hasattr(config, "shutdown_timeout"):  # torch 2.11 knows 30 seconds alone
            config.shutdown_timeout = math.ceil(timeout_minutes * 60.0)
        try:
            elastic_launch(config, sys.executable)("-m", "dragoman", *arguments)
        except (ChildFailedError, SignalException) as error:
            if status_file.exists():
                return int(status_file.read_text())
            if isinstance(error, SignalException):
                resume_hint = "the same command goes on from the newest checkpoint, if there is one"
                raise InterruptedRun(f"{error.sigval.name}: stopped; {resume_hint}") from None
            return 1
        return 0
