"""Training of the rows, several at a time with one thread each. Finished runs stay, interrupted runs resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from common.usage import CommandError

from dragoman.config import read_recipe
from dragoman.training.monitoring.run_status import read_run_status

from .corpus import Multi30kCorpus, Pairs
from .rows import SYNTHETIC, ExperimentRow

# Processes of `dragoman` that run now.
_started: set[subprocess.Popen[str]] = set()
# Fractions of the steps: warmup, decay of the learning rate to zero, and the interval of checkpoints.
WARMUP_RATIO, LR_DECAY_RATIO, CHECKPOINT_RATIO = 0.3, 0.3, 0.02


@dataclass(frozen=True)
class Experiment:
    """All models of one budget in a folder: `FOLDER/plain-seed1`, …

    steps: training steps of each model, times the factor of its row
    settings: `KEY=VALUE` settings of all models
    """

    corpus: Multi30kCorpus
    folder: Path
    steps: int
    on_progress: Callable[[str], None]
    settings: tuple[str, ...] = ()

    def get_run_path(self, name: str, seed: int) -> Path:
        return self.folder / f"{name}-seed{seed}"

    def read_report(self, row: ExperimentRow, seed: int) -> dict[str, Any] | None:
        """Return the report of a finished run, or None. Raises CommandError if the run began with another recipe."""
        run = self.get_run_path(row.name, seed)
        if not (run / "recipe.json").is_file():
            return None
        recipe, settings = self._settings(row, seed)
        if read_run_status(run).recipe != read_recipe(Path(recipe), settings):
            raise CommandError(f"{run}: was started with another recipe of row {row.name}; remove it, or give another --work")
        if not (run / "report.json").is_file():
            return None
        report: dict[str, Any] = json.loads((run / "report.json").read_bytes())
        return report

    def train(self, rows: Sequence[ExperimentRow], seeds: int, processes: int) -> None:
        """Train all rows. Raises CommandError if one fails, after the other runs have ended."""
        keys = [(row, seed) for seed in range(1, seeds + 1) for row in rows]
        untrained = [(row, seed) for row, seed in keys if self.read_report(row, seed) is None]
        synthetic_keys = dict.fromkeys((name, seed) for row, seed in untrained for name in row.synthetic)
        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(lambda key: self._train(*key), [key for key in untrained if not key[0].synthetic]))
            list(pool.map(lambda key: self._make_pairs(*key), synthetic_keys))
            list(pool.map(lambda key: self._train(*key), [key for key in untrained if key[0].synthetic]))

    def _train(self, row: ExperimentRow, seed: int) -> None:
        recipe, settings = self._settings(row, seed)
        self.on_progress(f"{row.name}, seed {seed}: training")
        _run_dragoman("train", recipe, *settings)
        report = self.read_report(row, seed)
        assert report is not None
        self.on_progress(f"{row.name}, seed {seed}: {report['bleu']:.2f} BLEU after {report['seconds'] / 60:.1f} minutes")

    def _settings(self, row: ExperimentRow, seed: int) -> tuple[str, list[str]]:
        """Return the recipe and its settings. The validation set is scored, because nothing may be tuned on the test set."""
        steps = max(2, round(row.steps * self.steps))
        checkpoint_steps = max(1, round(CHECKPOINT_RATIO * steps))
        settings_by_key = {
            "run": self.get_run_path(row.name, seed),
            "data.root": self.corpus.tokenized_path,
            "data.test.source": "val.en.gz",
            "data.test.target": "val.de.gz",
            "training.seed": seed,
            "training.precision": "float32",  # `auto` may choose another precision for each row
            "training.max_steps": steps,
            "training.warmup_steps": max(1, round(WARMUP_RATIO * steps)),
            "training.lr_decay_ratio": LR_DECAY_RATIO,
            "training.validate_every_steps": steps,
            "training.num_validation_translations": 0,
            "training.checkpoint_every_steps": checkpoint_steps,
        }
        train = "data.corpora.real" if row.synthetic else "data.train"
        source, target = ("de", "en") if row.pairs == "half-reversed" else ("en", "de")
        pairs: Pairs = "all" if row.pairs == "all" else "first"
        settings_by_key[f"{train}.source"], settings_by_key[f"{train}.target"] = (
            self.corpus.train(pairs, language) for language in (source, target)
        )
        if row.pairs == "half-reversed":
            settings_by_key |= {"task.source_language": "de", "task.target_language": "en", "data.test.source": "val.de.gz"}
            settings_by_key |= {
                "data.test.target": "val.en.gz",
                "data.valid.source": "val.de.gz",
                "data.valid.target": "val.en.gz",
            }
        if row.synthetic:
            settings_by_key["tokenizer.model_file"] = self._get_model_path(row, seed)
        for corpus_name, pairs_name in zip(("distilled", "more"), row.synthetic, strict=False):
            settings_by_key |= {
                f"data.corpora.{corpus_name}.file": self._get_pairs_path(pairs_name, seed),
                f"data.corpora.{corpus_name}.weight": "1.0",
            }
        recipe = "multi30k-ende-distilled" if row.synthetic else "multi30k-ende"
        return recipe, [*(f"{key}={value}" for key, value in settings_by_key.items()), *self.settings, *row.settings]

    def _get_model_path(self, row: ExperimentRow, seed: int) -> Path:
        """Return the SentencePiece model of the baseline row."""
        return self.get_run_path(row.baseline, seed) / "bundle" / "source.model"

    def _get_pairs_path(self, name: str, seed: int) -> Path:
        """Return the path of synthetic pairs, in the run of the model that makes them."""
        return self.get_run_path(SYNTHETIC[name].model_row, seed) / f"{name}.tsv"

    def _make_pairs(self, name: str, seed: int) -> None:
        synthetic, path = SYNTHETIC[name], self._get_pairs_path(name, seed)
        if path.is_file() and path.stat().st_size:
            return
        path.unlink(missing_ok=True)  # an empty file is left by a model without usable output
        self.on_progress(f"{name}, seed {seed}: translating")
        text = [self.corpus.train(synthetic.pairs, language) for language in synthetic.languages]
        _run_dragoman(
            "augment",
            synthetic.method,
            self.get_run_path(synthetic.model_row, seed) / "bundle",
            *text,
            "-o",
            path,
            *synthetic.options,
        )


def terminate_all() -> NoReturn:
    """Terminate all child processes, which save their work, and exit. A signal handler calls it."""
    for process in list(_started):
        process.terminate()
    os._exit(143)  # a normal exit would wait for the threads


def _run_dragoman(*words: str | Path) -> None:
    """Run a dragoman command with one thread. Raises CommandError if it fails."""
    command = [Path(sys.executable).with_name("dragoman"), *words]
    with subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        _started.add(process)
        try:
            output = "".join(process.communicate())
        finally:
            _started.discard(process)
    if process.returncode:
        last_line = (output.strip() or "no output").splitlines()[-1]
        raise CommandError(f"dragoman {words[0]}: exit code {process.returncode}: {last_line}")
