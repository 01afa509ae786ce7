"""Systems of the benchmark, their processes, and the settings that are tried."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from common.environments import MissingPeerError, describe_versions, make_environment
from common.instruction_set import has_avx512, is_limited

from dragoman.runtime.cpu_support import has_bf16_matmul

from .harness import Candidate, SystemProcess
from .models import ModelFormats

CORES = 2
ALL = DRAGOMAN, CT2, HF = ("dragoman", "CTranslate2", "transformers")
PROBE = ["python", "-c", "import ctranslate2, sentencepiece; from transformers import MarianMTModel"]
MKL_ROUTES = {
    "MKL": {"CT2_USE_MKL": "1"},
    "MKL, packed": {"CT2_USE_MKL": "1", "CT2_USE_EXPERIMENTAL_PACKED_GEMM": "1"},
}
COMPUTE_TYPES = ("int8_float32", "float32")  # CTranslate2 has no other on a CPU; "int8" is an alias of the first
PRECISIONS = ("int8", "float32")
"""Precisions of dragoman on a processor."""
THREADS = {"1 x 2 threads": (1, 2), "1 x 1 thread": (1, 1), "2 x 1 thread": (2, 1)}
"""inter_threads and intra_threads by label."""


def list_routes(*, quick: bool) -> dict[str, dict[str, str]]:
    """Return environments of CTranslate2: its default, AVX-512 if the processor has it, and MKL in full runs.

    CTranslate2 takes AVX2 by default on some processors with AVX-512.
    """
    widest = {"CT2_FORCE_CPU_ISA": "AVX512" if has_avx512() else "AVX2"}
    routes = {widest["CT2_FORCE_CPU_ISA"]: widest} | ({"default": {}} if has_avx512() else {})
    return routes if quick else routes | {name: {**widest, **route} for name, route in MKL_ROUTES.items()}


@dataclass
class Systems:
    """Available systems; a process starts at its first request."""

    programs: Path | None
    missing_reason: str
    selected: Sequence[str]
    processes: dict[str, SystemProcess] = field(default_factory=dict)

    @property
    def description(self) -> str:
        if self.programs is None:
            return f"no peers: {self.missing_reason}"
        return describe_versions(self.programs, "ctranslate2", "transformers", "torch")

    def _get_process(self, key: str, programs: Path, module: str, environment: dict[str, str]) -> SystemProcess:
        if key not in self.processes:
            defaults = {"OMP_NUM_THREADS": str(CORES), "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}
            self.processes[key] = SystemProcess([programs / "python", "-m", f"inference.{module}"], {**defaults, **environment})
        return self.processes[key]

    def dragoman(self, threads: str, settings: list[dict[str, Any]]) -> list[Candidate]:
        if DRAGOMAN not in self.selected:
            return []
        inter_threads, intra_threads = THREADS[threads]
        worker = self._get_process(DRAGOMAN, Path(sys.executable).parent, "serve_dragoman", {})
        return [
            Candidate(
                DRAGOMAN,
                f"{_format_setting(setting)}, {threads}",
                worker,
                {**setting, "inter_threads": inter_threads, "intra_threads": intra_threads},
            )
            for setting in settings
        ]

    def ctranslate2(
        self, threads: str, settings: list[dict[str, Any]], *, quick: bool, types: Sequence[str] = COMPUTE_TYPES
    ) -> list[Candidate]:
        inter_threads, intra_threads = THREADS[threads]
        candidates = []
        if self.programs is None or CT2 not in self.selected:
            return []
        for route, environment in list_routes(quick=quick).items():
            worker = self._get_process(f"{CT2} {route}", self.programs, "serve_ctranslate2", environment)
            for compute_type, setting in product(types, settings):
                full_setting = {
                    "compute_type": compute_type,
                    **setting,
                    "inter_threads": inter_threads,
                    "intra_threads": intra_threads,
                }
                label = ", ".join([compute_type, route, *([_format_setting(setting)] if setting else []), threads])
                candidates.append(Candidate(CT2, label, worker, full_setting))
        return candidates

    def transformers(self, settings: list[dict[str, Any]], forms: ModelFormats) -> list[Candidate]:
        if self.programs is None or forms.marian is None or HF not in self.selected:
            return []
        worker = self._get_process(HF, self.programs, "serve_transformers", {})
        precisions = ("float32", "bfloat16") if has_bf16_matmul() else ("float32",)
        settings_by_precision = product(precisions, settings)
        return [
            Candidate(
                HF,
                ", ".join([precision, *([_format_setting(setting)] if setting else [])]),
                worker,
                {"precision": precision, **setting},
            )
            for precision, setting in settings_by_precision
        ]

    def close(self) -> None:
        for worker in self.processes.values():
            worker.close()
        self.processes.clear()


def _format_setting(setting: dict[str, Any]) -> str:
    return " ".join(str(value) for value in setting.values() if value is not None)


@contextmanager
def open_systems(work: Path, named: Sequence[str]) -> Iterator[Systems]:
    """Yield the systems; the first run makes the peers' environment. Without the environment, only dragoman runs."""
    programs, absent = None, ""
    try:
        requirements = Path(__file__).with_name("peers.txt")
        programs = make_environment(requirements, work / "environments" / "peers", install=True, probe=PROBE)
    except MissingPeerError as error:
        absent = str(error)
    if not is_limited():
        os.environ.pop("CT2_FORCE_CPU_ISA", None)
    systems = Systems(programs, absent, named)
    try:
        yield systems
    finally:
        systems.close()


def model_path(entry: Candidate, forms: ModelFormats) -> str:
    """Return the path of the model format that this system reads."""
    return str({DRAGOMAN: forms.bundle, CT2: forms.ctranslate2, HF: forms.marian}[entry.system])
