"""Helpers that run a function as several ranks, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from dragoman.config import Recipe
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.run import train


def find_free_port() -> int:
    """Return a TCP port that no process listens on, below those that Linux gives to programs that ask for any port."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as listening_socket, suppress(OSError):
            listening_socket.bind(("127.0.0.1", port))
            return port


def _run_rank(rank: int, world_size: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    variables = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})
    torch.set_num_threads(1)
    work(*arguments)


def run_ranks(world_size: int, work: Callable[..., None], *arguments: Any, timeout_seconds: float = 600.0) -> None:
    """Run `work(*arguments)` as each rank. All ranks must end with exit status 0."""
    spawn = multiprocessing.get_context("spawn")
    port = find_free_port()
    ranks = [spawn.Process(target=_run_rank, args=(rank, world_size, port, work, arguments)) for rank in range(world_size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout_seconds)
    exit_codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
    assert exit_codes == [0] * world_size


def train_all(recipes: dict[int, Recipe]) -> None:
    """Train recipes one after the other, each with a port of its own, since rank 0 ends later than the other ranks."""
    for port, recipe in recipes.items():
        os.environ["MASTER_PORT"] = str(port)
        train(recipe)


def read_losses(run: Path) -> dict[tuple[str, int], float]:
    """Return the losses in a metrics log by line type and step."""
    entries = [entry for entry in read_metrics_log(run / "metrics.jsonl") if entry["type"] in ("train", "valid")]
    return {(entry["type"], entry["step"]): entry["loss"] for entry in entries}
