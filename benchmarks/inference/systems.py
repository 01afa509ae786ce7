"""The systems, their processes, and all settings that are tried of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from common.environments import Absent, make_environment, versions

from .contest import Entry, Worker
from .models import Forms

CORES = 2
ALL = OURS, CT2, HF = ("dragoman", "CTranslate2", "transformers")
PROBE = ["python", "-c", "import ctranslate2, sentencepiece; from transformers import MarianMTModel"]
# Its own choice of instructions, the widest, and, in full runs, Intel's library for its products, with and without packing.
ROUTES = {
    "default": {},
    "AVX512": {"CT2_FORCE_CPU_ISA": "AVX512"},
    "AVX512, MKL": {"CT2_FORCE_CPU_ISA": "AVX512", "CT2_USE_MKL": "1"},
    "AVX512, MKL, packed": {"CT2_FORCE_CPU_ISA": "AVX512", "CT2_USE_MKL": "1", "CT2_USE_EXPERIMENTAL_PACKED_GEMM": "1"},
}
QUICK_ROUTES = ("default", "AVX512")
COMPUTE_TYPES = ("int8_float32", "float32")  # all that a processor takes here; "int8" is the first by another name
PRECISIONS = ("int8", "bfloat16", "float32")
THREADS = {"1 x 2 threads": (1, 2), "1 x 1 thread": (1, 1), "2 x 1 thread": (2, 1)}
"""Batches at once, threads of each."""


@dataclass
class Systems:
    """The processes that are there, started when they are first asked."""

    programs: Path | None
    absent: str
    named: Sequence[str]
    workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def described(self) -> str:
        if self.programs is None:
            return f"no peers: {self.absent}"
        return versions(self.programs, "ctranslate2", "transformers", "torch")

    def _worker(self, key: str, programs: Path, module: str, environment: dict[str, str]) -> Worker:
        if key not in self.workers:
            own = {"OMP_NUM_THREADS": str(CORES), "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}
            self.workers[key] = Worker([programs / "python", "-m", f"inference.{module}"], {**own, **environment})
        return self.workers[key]

    def ours(self, threads: str, settings: list[dict[str, Any]]) -> list[Entry]:
        if OURS not in self.named:
            return []
        replicas, each = THREADS[threads]
        worker = self._worker(OURS, Path(sys.executable).parent, "serve_dragoman", {})
        return [
            Entry(OURS, f"{_said(setting)}, {threads}", worker, {**setting, "replicas": replicas, "threads": each})
            for setting in settings
        ]

    def ctranslate2(
        self, threads: str, settings: list[dict[str, Any]], *, quick: bool, types: Sequence[str] = COMPUTE_TYPES
    ) -> list[Entry]:
        inter, intra = THREADS[threads]
        found = []
        if self.programs is None or CT2 not in self.named:
            return []
        for route in QUICK_ROUTES if quick else ROUTES:
            worker = self._worker(f"{CT2} {route}", self.programs, "serve_ctranslate2", ROUTES[route])
            for compute_type, setting in product(types, settings):
                whole = {"compute_type": compute_type, **setting, "inter": inter, "intra": intra}
                label = ", ".join([compute_type, route, *([_said(setting)] if setting else []), threads])
                found.append(Entry(CT2, label, worker, whole))
        return found

    def transformers(self, settings: list[dict[str, Any]], forms: Forms) -> list[Entry]:
        if self.programs is None or forms.marian is None or HF not in self.named:
            return []
        worker = self._worker(HF, self.programs, "serve_transformers", {})
        both = product(("bfloat16", "float32"), settings)
        return [
            Entry(
                HF, ", ".join([precision, *([_said(setting)] if setting else [])]), worker, {"precision": precision, **setting}
            )
            for precision, setting in both
        ]

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()


def _said(setting: dict[str, Any]) -> str:
    return " ".join(str(value) for value in setting.values() if value is not None)


@contextmanager
def open_systems(work: Path, named: Sequence[str]) -> Iterator[Systems]:
    """The peers' environment is made on the first run. Where it cannot be, we run alone."""
    programs, absent = None, ""
    try:
        wanted = Path(__file__).with_name("peers.txt")
        programs = make_environment(wanted, work / "environments" / "peers", install=True, probe=PROBE)
    except Absent as error:
        absent = str(error)
    os.environ.pop("CT2_FORCE_CPU_ISA", None)
    systems = Systems(programs, absent, named)
    try:
        yield systems
    finally:
        systems.close()


def folder_for(entry: Entry, forms: Forms) -> str:
    """Where the form of the model is that this system reads."""
    return str({OURS: forms.bundle, CT2: forms.ctranslate2, HF: forms.marian}[entry.system])
