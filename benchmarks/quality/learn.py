"""Trains the rows, some at a time with a thread each. What is done stays done, and what was interrupted goes on."""

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

from .corpus import Corpus, Pairs
from .rows import MADE, Row

# What runs now: `dragoman` that was started by a thread here.
_started: set[subprocess.Popen[str]] = set()
# Shares of the steps: a rate that grows, then falls to zero in the end; a checkpoint, of which the last five are averaged.
WARMUP, COOLDOWN, CHECKPOINT = 0.3, 0.3, 0.02


@dataclass(frozen=True)
class School:
    """Where all models of one budget stand: `FOLDER/plain-seed1`, …

    steps: of each, times what its row says
    settings: of all of them, "KEY=VALUE"
    """

    corpus: Corpus
    folder: Path
    steps: int
    say: Callable[[str], None]
    settings: tuple[str, ...] = ()

    def run_of(self, name: str, seed: int) -> Path:
        return self.folder / f"{name}-seed{seed}"

    def report(self, row: Row, seed: int) -> dict[str, Any] | None:
        """What was written at the end of a run; none before. Raises CommandError where it was begun with another recipe."""
        run = self.run_of(row.name, seed)
        if not (run / "recipe.json").is_file():
            return None
        recipe, settings = self._settings(row, seed)
        if read_run_status(run).recipe != read_recipe(Path(recipe), settings):
            told = f"{run}: begun with another recipe than row {row.name} has now; remove it, or give another --work"
            raise CommandError(told)
        if not (run / "report.json").is_file():
            return None
        found: dict[str, Any] = json.loads((run / "report.json").read_bytes())
        return found

    def train(self, rows: Sequence[Row], seeds: int, processes: int) -> None:
        """Raises CommandError where one fails; those that were begun come to their end."""
        keys = [(row, seed) for seed in range(1, seeds + 1) for row in rows]
        missing = [(row, seed) for row, seed in keys if self.report(row, seed) is None]
        makings = dict.fromkeys((made, seed) for row, seed in missing for made in row.beside)
        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(lambda key: self._train(*key), [key for key in missing if not key[0].beside]))
            list(pool.map(lambda key: self._make(*key), makings))
            list(pool.map(lambda key: self._train(*key), [key for key in missing if key[0].beside]))

    def _train(self, row: Row, seed: int) -> None:
        recipe, settings = self._settings(row, seed)
        self.say(f"{row.name}, seed {seed}: training")
        _dragoman("train", recipe, *settings)
        report = self.report(row, seed)
        assert report is not None
        self.say(f"{row.name}, seed {seed}: {report['bleu']:.2f} BLEU after {report['seconds'] / 60:.1f} minutes")

    def _settings(self, row: Row, seed: int) -> tuple[str, list[str]]:
        """The recipe, and what is set in it. All are judged on the validation set: the test set is nobody's to tune on."""
        steps = max(2, round(row.steps * self.steps))
        every = max(1, round(CHECKPOINT * steps))
        told = {
            "run": self.run_of(row.name, seed),
            "data.root": self.corpus.tok,
            "data.test.source": "val.en.gz",
            "data.test.target": "val.de.gz",
            "training.seed": seed,
            "training.precision": "float32",  # `auto` would time both, and take one for this row and one for that
            "training.max_steps": steps,
            "training.warmup_steps": max(1, round(WARMUP * steps)),
            "training.lr_decay_ratio": COOLDOWN,
            "training.validate_every_steps": steps,
            "training.num_validation_translations": 0,
            "training.checkpoint_every_steps": every,
        }
        train = "data.corpora.real" if row.beside else "data.train"
        source, target = ("de", "en") if row.pairs == "half-reversed" else ("en", "de")
        pairs: Pairs = "all" if row.pairs == "all" else "first"
        told[f"{train}.source"], told[f"{train}.target"] = (self.corpus.train(pairs, one) for one in (source, target))
        if row.pairs == "half-reversed":
            told |= {"task.source_language": "de", "task.target_language": "en", "data.test.source": "val.de.gz"}
            told |= {"data.test.target": "val.en.gz", "data.valid.source": "val.de.gz", "data.valid.target": "val.en.gz"}
        if row.beside:
            told["tokenizer.model_file"] = self._pieces(row, seed)
        for name, made in zip(("distilled", "more"), row.beside, strict=False):  # the first is there in the recipe
            told |= {f"data.corpora.{name}.file": self._pairs(made, seed), f"data.corpora.{name}.weight": "1.0"}
        recipe = "multi30k-ende-distilled" if row.beside else "multi30k-ende"
        return recipe, [*(f"{key}={value}" for key, value in told.items()), *self.settings, *row.settings]

    def _pieces(self, row: Row, seed: int) -> Path:
        """Those of the row that it is compared with."""
        return self.run_of(row.over, seed) / "bundle" / "source.model"

    def _pairs(self, name: str, seed: int) -> Path:
        """In the run of the model that makes them: who removes it, or has it trained anew, has them made anew."""
        return self.run_of(MADE[name].by, seed) / f"{name}.tsv"

    def _make(self, name: str, seed: int) -> None:
        making, path = MADE[name], self._pairs(name, seed)
        if path.is_file() and path.stat().st_size:
            return
        path.unlink(missing_ok=True)  # of a model that nothing could be made by
        self.say(f"{name}, seed {seed}: translating")
        text = [self.corpus.train(making.pairs, language) for language in making.languages]
        _dragoman("augment", making.how, self.run_of(making.by, seed) / "bundle", *text, "-o", path, *making.options)


def end_all() -> NoReturn:
    """End with everything that was started, which keeps what it has done: for a signal that this process alone was sent."""
    for process in list(_started):
        process.terminate()
    os._exit(143)  # threads that wait for them would be waited for


def _dragoman(*words: str | Path) -> None:
    """By one thread. Ctrl-C goes to it as well, and it keeps what it has done."""
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
            told = "".join(process.communicate())
        finally:
            _started.discard(process)
    if process.returncode:
        last = (told.strip() or "it said nothing").splitlines()[-1]
        raise CommandError(f"dragoman {words[0]} ended with {process.returncode}: {last}")
