"""Cache of measurements on this machine: a small JSON file in the user's cache folder.

The cache is optional. If it cannot be read or written, the next run measures again.
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from pathlib import Path

import torch

from dragoman.errors import OutputError
from dragoman.io.storage import write_json


def get_cache_path() -> Path:
    """Return `$XDG_CACHE_HOME/dragoman/autotune.json`, with ~/.cache if the variable is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dragoman" / "autotune.json"


def get_machine_key() -> str:
    """Return what a measured speed depends on apart from the model: processor, cores and version of torch."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    name = capabilities.get("cpu_name", platform.processor())
    return f"{name}, {platform.machine()}, {count_threads()} cores, torch {torch.__version__}"


def count_threads() -> int:
    """Return torch's default number of threads."""
    return torch.get_num_threads()


def get_measurement(key: str) -> str | None:
    """Return the measurement of this machine with the key, or None."""
    with suppress(OSError, RuntimeError, ValueError, AttributeError):
        value = json.loads(get_cache_path().read_text(encoding="utf-8")).get(get_machine_key(), {}).get(key)
        return value if isinstance(value, str) else None
    return None


def put_measurement(key: str, value: str) -> None:
    """Store a measurement of this machine for later runs."""
    entries: dict[str, dict[str, str]] = {}
    with suppress(OSError, RuntimeError, ValueError):
        document = json.loads(get_cache_path().read_text(encoding="utf-8"))
        entries = document if isinstance(document, dict) else {}
    machine_entries = entries.get(get_machine_key())
    entries[get_machine_key()] = {**(machine_entries if isinstance(machine_entries, dict) else {}), key: value}
    with suppress(OSError, RuntimeError, OutputError):
        get_cache_path().parent.mkdir(parents=True, exist_ok=True)
        write_json(get_cache_path(), entries, overwrite=True)
