"""Bundles on disk whose models write capital letters, for replicas on a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capital_letters import CapitalTranslator, make_models
from dragoman.inference.translation_result import Translation
from dragoman.io.storage import atomic_dir
from dragoman.serving.model_set import ModelSet

FILE = "capitals.json"


class SlowCapitalTranslator(CapitalTranslator):
    """Stand-in for a translator that takes some time for each line."""

    def __init__(self, suffix: str, seconds: float) -> None:
        super().__init__(suffix)
        self.seconds = seconds

    def translate(self, lines: Sequence[str], *, attention: bool = False, **decoding: Any) -> list[Translation]:
        time.sleep(self.seconds * len(lines))
        return super().translate(lines, attention=attention, **decoding)


def write_capital_bundle(path: Path, source: str, target: str, *, suffix: str = "", seconds: float = 0.0) -> Path:
    """Write a bundle, or replace it. seconds: time for each line"""
    content = {"pair": [source, target], "suffix": suffix, "seconds": seconds}
    with atomic_dir(path, overwrite=True) as folder:
        (folder / FILE).write_text(json.dumps(content), encoding="utf-8")
    return path


def load_capital_bundle(bundle: str) -> ModelSet:
    """Load a bundle of `write_capital_bundle`, in a replica."""
    content = json.loads((Path(bundle) / FILE).read_text(encoding="utf-8"))
    source, target = content["pair"]
    return make_models((SlowCapitalTranslator(content["suffix"], content["seconds"]), (source, target)))
