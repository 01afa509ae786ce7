"""Options of a device, which commands and `dragoman.load` take."""

from __future__ import annotations

from typing import TypedDict


class DeviceOptions(TypedDict, total=False):
    """Device, precision and threads of the models; see `dragoman.load`."""

    device: str
    precision: str
    intra_threads: int | None
    inter_threads: int | None
