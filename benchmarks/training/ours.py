"""dragoman as these measurements call it: a recipe written here, and the command that any user has."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from common.usage import run

from .sizes import TINY, Size
from .text import Corpus
from .timed import Contestant

PROGRAM = Path(sys.executable).parent / "dragoman"

# Post-norm with biases, as the peers' models are; the rest of the choices is the same in all, or costs no time.
RECIPE = """\
name = "bench-training"
preset = "t2t-2017"

[task]
source_language = "en"
target_language = "de"
tokenised = true

[data]
train = { source = "train.en", target = "train.de" }
valid = { source = "valid.en", target = "valid.de" }

[subword]
vocab_size = 10_000
normalisation = "identity"
byte_fallback = false

[model]
decoder_start_token = "bos"

[training]
batches_per_update = 1
schedule = "inverse_sqrt"
peak_lr = 1e-3
warmup_steps = 100
validate_every_steps = 1_000_000
num_validation_translations = 0
checkpoint_every_steps = 1_000_000
average = "none"
"""


def write_recipe(work: Path) -> Path:
    work.mkdir(parents=True, exist_ok=True)
    path = work / "bench-training.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def changes(corpus: Corpus, size: Size, folder: Path, *more: str) -> list[str]:
    """`key=value` for this text and size; `more` comes last and so wins."""
    return [
        f"size={size.name}",
        f"data.root={json.dumps(str(corpus.folder))}",
        f"tokenizer.model_file={json.dumps(str(corpus.pieces))}",
        f"training.batch_tokens={size.batch_tokens}",
        f"training.log_every_steps={size.report_steps}",
        f"run={json.dumps(str(folder))}",
        *more,
    ]


def train(recipe: Path, settings: list[str], *options: str) -> list[str | Path]:
    return [PROGRAM, "train", recipe, *settings, *options, "--json"]


def prepare(corpus: Corpus, recipe: Path, folder: Path) -> Path:
    """The corpus as `dragoman prepare` leaves it, for `begin` to copy; made anew, since dragoman may have changed."""
    shutil.rmtree(folder, ignore_errors=True)
    run([PROGRAM, "prepare", recipe, *changes(corpus, TINY, folder)])
    return folder / "data"


def begin(prepared: Path, folder: Path) -> None:
    """An empty run folder with the prepared corpus in it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(prepared, folder / "data")


def contestant(
    corpus: Corpus, size: Size, recipe: Path, prepared: Path, folder: Path, precision: str, *more: str
) -> Contestant:
    """`dragoman train`, told when to stop."""
    settings = changes(corpus, size, folder, f"training.precision={precision}", *more)
    return Contestant(
        name=f"dragoman, {precision}",
        key=f"ours_{precision}",
        command=train(recipe, settings),
        journal=folder / "metrics.jsonl",
        rates=rates,
        ready=lambda: begin(prepared, folder),
        outputs=folder,
    )


def entries(journal: str) -> list[dict[str, Any]]:
    """The lines of a journal that are whole."""
    return [json.loads(line) for line in journal.splitlines() if line.startswith("{") and line.endswith("}")]


def trained(journal: str) -> list[dict[str, Any]]:
    return [entry for entry in entries(journal) if entry["type"] == "train"]


def rates(journal: str) -> list[float]:
    """Target tokens a second, padding not counted, of each interval."""
    return [float(entry["tokens_per_second"]) for entry in trained(journal)]
