"""dragoman as these measurements call it: a recipe written here, and the commands that any user has."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .corpora import Base, Text

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
average = "none"
"""

# Every rule of data.cleaning that needs no further library and no validation set.
CLEANING = (
    "max_words=200",
    "max_characters=2000",
    "max_ratio=4",
    "identical=true",
    "duplicate_pairs=true",
    "duplicate_sources=true",
    "control_characters=true",
    "markup=true",
    "numbers=true",
    "urls=true",
)


def write_recipe(work: Path) -> Path:
    work.mkdir(parents=True, exist_ok=True)
    path = work / "bench-data.toml"
    path.write_text(RECIPE.format(batch_tokens=BATCH_TOKENS), encoding="utf-8")
    return path


def settings(base: Base, text: Text, run: Path, *more: str) -> list[str]:
    """`key=value` for this text and the given subword model; `more` comes last and so wins."""
    sides = [json.dumps(str(path)) for path in text.files]
    return [
        f"data.train.source={sides[0]}",
        f"data.train.target={sides[1]}",
        f"tokenizer.vocab_size={base.vocab_size}",
        f"tokenizer.model_file={json.dumps(str(base.model))}",
        f"run={json.dumps(str(run))}",
        *more,
    ]


def command(name: str, recipe: Path, changes: list[str], *options: str | Path) -> list[str | Path]:
    return [PROGRAM, name, recipe, *changes, *options, "--json"]


def fate(output: str) -> dict[str, Any]:
    """What `dragoman prepare --json` told of the training corpus."""
    told: dict[str, Any] = json.loads(output)["corpora"]["train"]
    return told


def took_given_pieces(base: Base, run: Path) -> bool:
    """Whether the prepared folder holds the model that was given, not one that was learnt."""
    return (run / "data" / "source.model").read_bytes() == base.model.read_bytes()


def loader(what: str, recipe: Path, changes: list[str], *rest: object) -> list[str | Path]:
    """The command that runs `loader.py`; see there."""
    package = Path(__file__).parent
    start = f"import sys; sys.path.insert(0, {str(package.parent)!r}); from {package.name}.loader import main; main()"
    return [sys.executable, "-c", start, what, recipe, json.dumps(changes), *map(str, rest)]
