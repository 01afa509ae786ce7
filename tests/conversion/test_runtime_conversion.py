"""Tests that a process without PyTorch converts the models of all formats, with the weights of a process that has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.bundle import load_bundle
from dragoman.export.huggingface import export_huggingface

SCRIPT = """
import sys
for name in ("torch", "pyarrow", "sacrebleu", "numba", "transformers", "ctranslate2"):
    sys.modules[name] = None  # an import raises ImportError
import dragoman
sources, bundles, *names = sys.argv[1:]
for name in names:
    languages = {"nllb": ("eng_Latn", "deu_Latn"), "mbart50": ("en_XX", "de_DE")}.get(name, ("en", "de"))
    dragoman.convert(f"{sources}/{name}", f"{bundles}/{name}", source_language=languages[0], target_language=languages[1])
"""
NAMES = (
    *("marian", "marian-bfloat16", "m2m100", "nllb", "mbart50", "bart", "fsmt", "t5", "fairseq", "opennmt", "eole", "joeynmt"),
    *("marian-npz", "ctranslate2", "argos.argosmodel"),
)


@pytest.fixture(scope="module")
def sources(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a source of each format. An environment without PyTorch has it from `tests/tiny_runs.py`."""
    if folder := os.environ.get("DRAGOMAN_TEST_RUN"):
        return Path(folder) / "sources"
    from conversion_sources import write_sources

    return write_sources(tmp_path_factory.mktemp("conversion") / "sources", lambda: bundle)


@pytest.fixture(scope="module")
def converted(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the bundles that one process without PyTorch makes."""
    folder = tmp_path_factory.mktemp("converted")
    subprocess.run([sys.executable, "-c", SCRIPT, sources, folder, *NAMES], check=True)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_format_is_converted(name: str, sources: Path, converted: Path) -> None:
    digests = json.loads((sources / "digests.json").read_text(encoding="utf-8"))
    assert set(NAMES) == digests.keys()
    manifest = json.loads((converted / name / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["files"]["weights.safetensors"]["sha256"] == digests[name]
    [translation] = dragoman.load(converted / name, task="translation", device="cpu").translate(["ab"], max_extra_tokens=4)
    assert len(translation.token_log_probs) >= len(translation.tokens)


def test_exported_model_is_converted_back(sources: Path, converted: Path, tmp_path: Path) -> None:
    export_huggingface(load_bundle(converted / "marian"), tmp_path / "exported")
    dragoman.convert(tmp_path / "exported", tmp_path / "bundle")
    digests = json.loads((sources / "digests.json").read_text(encoding="utf-8"))
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["files"]["weights.safetensors"]["sha256"] == digests["marian"]
