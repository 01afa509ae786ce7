"""dragoman's recipe and commands for the training benchmark."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from common.usage import run_commands

from .sizes import TINY, BenchmarkSize
from .text import TrainingText
from .timed_run import TimedRun

PROGRAM = Path(sys.executable).parent / "dragoman"

# Post-norm with biases, as the peers' models are; the rest of the choices is the same in all, or costs no time.
RECIPE = """\
name = "bench-training"
preset = "t2t-2017"

[task]
source_language = "en"
target_language = "de"
tokenized = true

[data]
train = { source = "train.en", target = "train.de" }
valid = { source = "valid.en", target = "valid.de" }

[tokenizer]
vocab_size = 10_000
normalization = "identity"
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
checkpoint_averaging = "none"
"""


def write_recipe(work: Path) -> Path:
    work.mkdir(parents=True, exist_ok=True)
    path = work / "bench-training.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def build_settings(corpus: TrainingText, size: BenchmarkSize, folder: Path, *more: str) -> list[str]:
    """Return `key=value` settings for this text and size; `more` comes last and wins."""
    return [
        f"size={size.name}",
        f"data.root={json.dumps(str(corpus.folder))}",
        f"tokenizer.model_file={json.dumps(str(corpus.pieces))}",
        f"training.batch_tokens={size.batch_tokens}",
        f"training.log_every_steps={size.report_steps}",
        f"run={json.dumps(str(folder))}",
        *more,
    ]


def build_train_command(recipe: Path, settings: list[str], *options: str) -> list[str | Path]:
    return [PROGRAM, "train", recipe, *settings, *options, "--json"]


def prepare(corpus: TrainingText, recipe: Path, folder: Path) -> Path:
    """Prepare the corpus again, because dragoman may have changed; return the prepared folder."""
    shutil.rmtree(folder, ignore_errors=True)
    run_commands([PROGRAM, "prepare", recipe, *build_settings(corpus, TINY, folder)])
    return folder / "data"


def reset_run(prepared: Path, folder: Path) -> None:
    """Create an empty run folder that holds the prepared corpus."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(prepared, folder / "data")


def make_run(
    corpus: TrainingText, size: BenchmarkSize, recipe: Path, prepared: Path, folder: Path, precision: str, *more: str
) -> TimedRun:
    """Return a run of `dragoman train`, which the benchmark stops."""
    settings = build_settings(corpus, size, folder, f"training.precision={precision}", *more)
    return TimedRun(
        name=f"dragoman, {precision}",
        key=f"dragoman_{precision}",
        command=build_train_command(recipe, settings),
        log_path=folder / "metrics.jsonl",
        read_rates=read_rates,
        prepare=lambda: reset_run(prepared, folder),
        outputs=folder,
    )


def read_entries(log_text: str) -> list[dict[str, Any]]:
    """Return the complete lines of a metrics log."""
    return [json.loads(line) for line in log_text.splitlines() if line.startswith("{") and line.endswith("}")]


def train_entries(log_text: str) -> list[dict[str, Any]]:
    return [entry for entry in read_entries(log_text) if entry["type"] == "train"]


def read_rates(log_text: str) -> list[float]:
    """Return target tokens per second of each interval, without padding."""
    return [float(entry["tokens_per_second"]) for entry in train_entries(log_text)]
