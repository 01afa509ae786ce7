"""dragoman's recipe and commands for the data benchmark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .corpora import BaseCorpus, TextCorpus

PROGRAM = Path(sys.executable).parent / "dragoman"
BATCH_TOKENS = 2048

# The lengths of the corpora are as they are: nothing is dropped, and every peer encodes the same pairs.
RECIPE = """\
name = "bench-data"
preset = "modern"
size = "tiny"

[task]
source_language = "en"
target_language = "de"

[data]
max_length = 1024

[training]
batch_tokens = {batch_tokens}
log_every_steps = 3
checkpoint_averaging = "none"
"""


def write_recipe(work: Path) -> Path:
    work.mkdir(parents=True, exist_ok=True)
    path = work / "bench-data.toml"
    path.write_text(RECIPE.format(batch_tokens=BATCH_TOKENS), encoding="utf-8")
    return path


def build_settings(base: BaseCorpus, text: TextCorpus, run: Path, *more: str) -> list[str]:
    """Return `key=value` settings for this text and SentencePiece model; `more` comes last and wins."""
    sides = [json.dumps(str(path)) for path in text.files]
    return [
        f"data.train.source={sides[0]}",
        f"data.train.target={sides[1]}",
        f"tokenizer.vocab_size={base.vocab_size}",
        f"tokenizer.model_file={json.dumps(str(base.model))}",
        f"run={json.dumps(str(run))}",
        *more,
    ]


def build_command(name: str, recipe: Path, changes: list[str], *options: str | Path) -> list[str | Path]:
    return [PROGRAM, name, recipe, *changes, *options, "--json"]


def read_pair_counts(output: str) -> dict[str, Any]:
    """Return the counts of the training corpus from the output of `dragoman prepare --json`."""
    counts: dict[str, Any] = json.loads(output)["corpora"]["train"]
    return counts


def used_configured_model(base: BaseCorpus, run: Path) -> bool:
    """Return whether the prepared folder holds the configured SentencePiece model, not a newly trained one."""
    return (run / "data" / "source.model").read_bytes() == base.model.read_bytes()
