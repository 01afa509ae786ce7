"""Where a model runs and in which numbers: what the caller asked for, checked against what is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from dragoman.errors import DeviceError

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


@dataclass(frozen=True)
class Placement:
    """precision: none where the fastest is to be found out."""

    device: torch.device
    precision: Precision | None


def place(device: str, precision: str) -> Placement:
    """Raises DeviceError for a device that is not here, or numbers that it does not compute with."""
    if precision not in ("auto", *PRECISIONS):
        raise DeviceError(f"precision = {precision!r}: auto, {', '.join(PRECISIONS)} are allowed")
    found = _device(device)
    if found.type == "cuda" and precision == "int8":
        raise DeviceError(f"precision = 'int8' on {device}: a GPU computes in bfloat16 or float32; int8 is a processor's")
    chosen: Precision | None = next((one for one in get_args(Precision) if one == precision), None)
    if found.type == "cuda" and chosen is None:
        chosen = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return Placement(found, chosen)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise DeviceError(f"device = {name!r}: auto, cpu, cuda and cuda:0, cuda:1, … are allowed")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(number or 0) >= count:
        raise DeviceError(f"device = {name!r}: the number of GPUs here is {count}")
    return torch.device(name)


def checked_count(name: str, value: int | None) -> int | None:
    """Raises DeviceError for less than one thread or replica, or more than any machine has."""
    if value is not None and not 1 <= value <= 1024:
        raise DeviceError(f"{name} = {value}: 1 to 1024 are allowed")
    return value
