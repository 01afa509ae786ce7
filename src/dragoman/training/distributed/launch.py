"""Launcher of several ranks on this machine, by torch's elastic launcher (torchrun)."""

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
from dragoman.platform_features import get_signals
from dragoman.runtime.processes import count_cores
from dragoman.training.distributed.exit_status import EXIT_STATUS_FILE_VARIABLE, LAUNCHER_PID_VARIABLE
from dragoman.training.distributed.signals import is_hangup_ignored

HANDLED_SIGNALS = get_signals("SIGTERM", "SIGINT", "SIGUSR1")


def _ignore_timer_errors(unraised: Any) -> None:
    """Report an exception that cannot be raised, as Python does, but not the one of torch's timer at exit."""
    if "cannot join current thread" not in str(unraised.exc_value):
        sys.__unraisablehook__(unraised)


def launch(arguments: Sequence[str], *, devices: int, max_restarts: int, timeout_minutes: float) -> int:
    """Run `dragoman` with these arguments in one process per device, and return its exit status.

    If a rank dies, the others end and all are started again, at most `max_restarts` times. They are not started again if a rank
    raised an error. Signals to this process are sent to the ranks, which have `timeout_minutes` to save a checkpoint. Raises
    RunError if there are fewer GPUs, and InterruptedRun if a signal comes before the ranks handle it.
    """
    num_gpus = torch.cuda.device_count()
    if 0 < num_gpus < devices:
        raise RunError(
            f"--devices {devices}: this machine has {num_gpus} GPUs; set CUDA_VISIBLE_DEVICES= to use the CPU",
            code="distributed-setup",
        )
    sys.unraisablehook = _ignore_timer_errors
    logging.disable(logging.CRITICAL)  # each rank reports its own error
    handled_signals = HANDLED_SIGNALS if is_hangup_ignored() else (*HANDLED_SIGNALS, *get_signals("SIGHUP"))
    with TemporaryDirectory() as folder:
        status_file = Path(folder, "exit_status")
        os.environ[EXIT_STATUS_FILE_VARIABLE], os.environ[LAUNCHER_PID_VARIABLE] = str(status_file), str(os.getpid())
        os.environ.setdefault("OMP_NUM_THREADS", str(max(count_cores() // devices, 1)))
        # Without this, a restart reads the address of the previous ranks and waits for them.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=devices,
            run_id="dragoman",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=max_restarts,
            signals_to_handle=",".join(number.name for number in handled_signals),
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        if hasattr(config, "shutdown_timeout"):  # torch 2.11 always waits 30 seconds
            config.shutdown_timeout = math.ceil(timeout_minutes * 60.0)
        try:
            elastic_launch(config, sys.executable)("-m", "dragoman", *arguments)
        except (ChildFailedError, SignalException) as error:
            if status_file.exists():
                return int(status_file.read_text())
            if isinstance(error, SignalException):
                resume_hint = "the same command resumes from the newest checkpoint, if there is one"
                raise InterruptedRun(f"{error.sigval.name}: stopped; {resume_hint}") from None
            return 1
        return 0
