"""What was measured on this machine, kept from one run to the next: a small JSON file in the user's cache folder.

Nothing depends on it: where it cannot be read, things are measured again, and where it cannot be written, next time.
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


def cache_file() -> Path:
    """`$XDG_CACHE_HOME/dragoman/engine.json`, the cache being ~/.cache where the variable is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dragoman" / "engine.json"


def machine_key() -> str:
    """What a measurement of speed hangs on besides the model: processor, cores, torch."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    name = capabilities.get("cpu_name", platform.processor())
    return f"{name}, {platform.machine()}, {cores()} cores, torch {torch.__version__}"


def cores() -> int:
    """How many threads torch computes with when nobody says otherwise."""
    return torch.get_num_threads()


def recall(question: str) -> str | None:
    """What was measured here, if it was."""
    with suppress(OSError, RuntimeError, ValueError, AttributeError):
        found = json.loads(cache_file().read_text(encoding="utf-8")).get(machine_key(), {}).get(question)
        return found if isinstance(found, str) else None
    return None


def remember(question: str, answer: str) -> None:
    """Keep it for the next run."""
    known: dict[str, dict[str, str]] = {}
    with suppress(OSError, RuntimeError, ValueError):
        found = json.loads(cache_file().read_text(encoding="utf-8"))
        known = found if isinstance(found, dict) else {}
    here = known.get(machine_key())
    known[machine_key()] = {**(here if isinstance(here, dict) else {}), question: answer}
    with suppress(OSError, RuntimeError, OutputError):
        cache_file().parent.mkdir(parents=True, exist_ok=True)
        write_json(cache_file(), known, overwrite=True)
