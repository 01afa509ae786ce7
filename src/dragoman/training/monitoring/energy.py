"""Energy, where the machine tells: of the processor packages by Linux's powercap, of a GPU by NVIDIA's library.

Both count the whole of their chip, with all that others do on it. Most machines let nobody but root read the packages, and
virtual ones have none.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Joules since it was made. Ask often enough: a package's counter begins anew after some tens of minutes."""

    def __init__(self, device: torch.device, *, processor: bool = True, powercap: Path = POWERCAP) -> None:
        """processor: whether to count the packages, which several ranks of one machine would count several times"""
        self._packages = [Package(folder) for folder in sorted(powercap.glob("intel-rapl:*"))] if processor else []
        self._packages = [package for package in self._packages if package.is_whole and package.joules() is not None]
        self._gpu = Gpu(device) if device.type == "cuda" else None

    def joules(self) -> float | None:
        """None where nothing on this machine tells, or where something stopped telling."""
        told = [package.joules() for package in self._packages]
        told += [self._gpu.joules()] if self._gpu is not None else []
        known = [joules for joules in told if joules is not None]
        return sum(known) if known and len(known) == len(told) else None


class Package:
    """One processor package: a counter in microjoules that begins anew after its largest value."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._microjoules = 0
        self._last = self._read("energy_uj")

    @property
    def is_whole(self) -> bool:
        """Parts of a package (cores, memory) stand beside it with a second number, and the platform holds packages."""
        with suppress(OSError):
            return self.folder.name.count(":") == 1 and (self.folder / "name").read_text().startswith("package")
        return False

    def joules(self) -> float | None:
        now, largest = self._read("energy_uj"), self._read("max_energy_range_uj")
        if now is None or self._last is None or (now < self._last and largest is None):
            return None
        self._microjoules += now - self._last + ((largest or 0) if now < self._last else 0)
        self._last = now
        return self._microjoules / 1e6

    def _read(self, name: str) -> int | None:
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return None


class Gpu:
    """One NVIDIA GPU, by the driver's own library: a counter in millijoules since the driver was loaded."""

    def __init__(self, device: torch.device) -> None:
        self._handle = ctypes.c_void_p()
        self._library: ctypes.CDLL | None = None
        with suppress(OSError, AttributeError, RuntimeError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self._handle)) == 0:
                self._library = library
        self._first = self._millijoules()

    def joules(self) -> float | None:
        now = self._millijoules()
        return None if now is None or self._first is None else (now - self._first) / 1e3

    def _millijoules(self) -> int | None:
        total = ctypes.c_ulonglong()
        if self._library is None or self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(total)):
            return None
        return total.value
