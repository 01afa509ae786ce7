"""Energy, where the machine tells: of the processor packages by Linux's powercap, of a GPU by NVIDIA's library.

Both count the whole of their chip, with all that others do on it. Most machines let nobody but root read the packages, and
virtual ones have none.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

POWERCAP_DIR = Path("/sys/class/powercap")


class EnergyMeter:
    """Joules since it was made. Ask often enough: a package's counter begins anew after some tens of minutes."""

    def __init__(self, device: torch.device, *, count_cpu: bool = True, powercap: Path = POWERCAP_DIR) -> None:
        """processor: whether to count the packages, which several ranks of one machine would count several times"""
        self._packages = [CpuEnergyCounter(folder) for folder in sorted(powercap.glob("intel-rapl:*"))] if count_cpu else []
        self._packages = [package for package in self._packages if package.is_cpu_package and package.read_joules() is not None]
        self._gpu_counter = GpuEnergyCounter(device) if device.type == "cuda" else None

    def read_joules(self) -> float | None:
        """None where nothing on this machine tells, or where something stopped telling."""
        readings = [package.read_joules() for package in self._packages]
        readings += [self._gpu_counter.read_joules()] if self._gpu_counter is not None else []
        known_readings = [joules for joules in readings if joules is not None]
        return sum(known_readings) if known_readings and len(known_readings) == len(readings) else None


class CpuEnergyCounter:
    """One processor package: a counter in microjoules that begins anew after its largest value."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._microjoules = 0
        self._last = self._read_counter("energy_uj")

    @property
    def is_cpu_package(self) -> bool:
        """Parts of a package (cores, memory) stand beside it with a second number, and the platform holds packages."""
        with suppress(OSError):
            return self.folder.name.count(":") == 1 and (self.folder / "name").read_text().startswith("package")
        return False

    def read_joules(self) -> float | None:
        current, max_value = self._read_counter("energy_uj"), self._read_counter("max_energy_range_uj")
        if current is None or self._last is None or (current < self._last and max_value is None):
            return None
        self._microjoules += current - self._last + ((max_value or 0) if current < self._last else 0)
        self._last = current
        return self._microjoules / 1e6

    def _read_counter(self, name: str) -> int | None:
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return None


class GpuEnergyCounter:
    """One NVIDIA GPU, by the driver's own library: a counter in millijoules since the driver was loaded."""

    def __init__(self, device: torch.device) -> None:
        self._handle = ctypes.c_void_p()
        self._library: ctypes.CDLL | None = None
        with suppress(OSError, AttributeError, RuntimeError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self._handle)) == 0:
                self._library = library
        self._first = self._read_millijoules()

    def read_joules(self) -> float | None:
        current = self._read_millijoules()
        return None if current is None or self._first is None else (current - self._first) / 1e3

    def _read_millijoules(self) -> int | None:
        total = ctypes.c_ulonglong()
        if self._library is None or self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(total)):
            return None
        return total.value
