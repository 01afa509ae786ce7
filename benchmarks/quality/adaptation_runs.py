"""Training runs of the adaptation benchmark. Finished runs stay, and interrupted runs resume.

The base is recipe `general-ende` without the LibreOffice help. It is adapted to that help with a few pairs, in several ways.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import sqrt
from pathlib import Path

from common.usage import CommandError

from .adaptation_data import ADAPTATION_SIZES

BASE_STEPS = 1_400
BATCH_TOKENS = 2_048
ADAPTED_LR = 5e-4
"""A fifth of the highest learning rate of the base, as in `dragoman adapt`."""
STEPS_PER_SQRT_PAIR = 5.0
"""As in `dragoman adapt`: 50, 158 and 500 steps."""
REHEARSAL = ("data.corpora.old.file={data}/old-train.tsv", "data.corpora.old.weight=1", "data.corpora.new.weight=1")


INCOMPLETE_EXIT_CODE = 3
"""Exit code of `dragoman translate` if some outputs may be incomplete; they are scored as they are."""


@dataclass(frozen=True)
class Way:
    """Way to adapt. settings: changes of the recipe; sizes: numbers of pairs; step_factor: steps relative to the other ways."""

    name: str
    settings: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ADAPTATION_SIZES
    step_factor: float = 1.0


FULL, INTERPOLATED = "full", "interpolated"
WAYS = (
    Way(FULL),
    Way("rehearsal", REHEARSAL),
    Way("kl", ("training.kl_to_init=0.3",)),
    Way("lora", ("training.lora.rank=16", "training.lora.alpha=32", "training.peak_lr=2.5e-3")),
    Way("rehearsal-kl", (*REHEARSAL, "training.kl_to_init=0.3"), sizes=(10_000,)),
    Way("recommended", (*REHEARSAL, "training.peak_lr=1.25e-3"), sizes=(10_000,), step_factor=1.6),
)
"""Ways that train. `interpolated` is the mean of the base and of the result of `full`."""


@dataclass(frozen=True)
class AdaptationRuns:
    """Runs of the benchmark in a folder.

    corpora: folder of the open corpora
    folder: folder of the data and the runs
    step_scale: steps relative to those of the benchmark; a small one checks that it works
    """

    corpora: Path
    folder: Path
    step_scale: float = 1.0

    @property
    def data(self) -> Path:
        return self.folder / "adaptation"

    @property
    def base_bundle(self) -> Path:
        return self.folder / "runs" / "base" / "bundle"

    def get_bundle(self, way: str, size: int) -> Path:
        if way == INTERPOLATED:
            return self.folder / "runs" / f"{way}-{size}"
        return self.folder / "runs" / f"{way}-{size}" / "bundle"

    def read_seconds(self, way: str, size: int) -> float | None:
        """Return the seconds of training, or None for a way that does not train."""
        path = self.get_bundle(way, size).parent / "report.json"
        return None if way == INTERPOLATED else float(json.loads(path.read_bytes())["seconds"])

    def train_base(self) -> None:
        steps = self._scale(BASE_STEPS)
        recipe = self.folder / "base.toml"
        general = files("dragoman").joinpath("recipes/general-ende.toml").read_text(encoding="utf-8")
        recipe.write_text(make_base_recipe(general), encoding="utf-8")
        settings = {
            "data.root": self.corpora,
            "run": self.base_bundle.parent,
            "training.max_steps": steps,
            "training.warmup_steps": max(1, steps * 2 // 7),
            "training.validate_every_steps": max(1, steps // 2),
            "training.checkpoint_every_steps": max(1, steps // 6),
            "training.num_validation_translations": 200,
            "training.checkpoint_averaging": "none",
        }
        self._train(recipe, self.base_bundle, [f"{key}={value}" for key, value in settings.items()])

    def adapt(self, way: Way, size: int) -> None:
        """Fine-tune the base on `size` pairs. Raises CommandError."""
        steps = self._scale(way.step_factor * STEPS_PER_SQRT_PAIR * sqrt(size))
        settings = {
            "run": self.get_bundle(way.name, size).parent,
            "data.corpora.new.file": self.data / f"new-{size}.tsv",
            "training.init_from": self.base_bundle,
            "training.precision": "bfloat16",
            "training.batch_tokens": BATCH_TOKENS,
            "training.max_steps": steps,
            "training.schedule": "constant",
            "training.peak_lr": ADAPTED_LR,
            "training.warmup_steps": max(1, steps // 10),
            "training.lr_decay_ratio": 0.9,
            "training.clip_norm": 1.0,
            "training.log_every_steps": max(1, steps // 10),
            "training.checkpoint_every_steps": max(1, steps // 4),
            "training.checkpoint_averaging": "none",
        }
        recipe = self.folder / "adapt.toml"
        recipe.write_text('name = "adaptation"\npreset = "modern"\n', encoding="utf-8")
        changes = [setting.format(data=self.data) for setting in way.settings]
        self._train(recipe, self.get_bundle(way.name, size), [*(f"{key}={value}" for key, value in settings.items()), *changes])

    def interpolate(self, size: int, weights: tuple[str, str] = ("0.5", "0.5")) -> None:
        """Write the weighted mean of the base and of the fully adapted model."""
        bundle = self.get_bundle(INTERPOLATED, size)
        if not bundle.exists():
            run_dragoman("average", self.base_bundle, self.get_bundle(FULL, size), "--weights", *weights, "-o", bundle)

    def _train(self, recipe: Path, bundle: Path, settings: Sequence[str]) -> None:
        if not (bundle.parent / "report.json").exists():
            run_dragoman("train", recipe, *settings)

    def _scale(self, steps: float) -> int:
        return max(2, round(self.step_scale * steps))


def make_base_recipe(general: str) -> str:
    """Return recipe general-ende without the LibreOffice help."""
    lines = []
    is_dropped = False
    for line in general.splitlines():
        if line.startswith("["):
            is_dropped = line == "[data.corpora.libreoffice]"
        if is_dropped:
            continue
        for split in ("dev", "test"):
            line = line.replace(f'"libreoffice-help/en-de/{split}.tsv.gz", ', "")
        lines.append(line.replace('name = "general-ende"', 'name = "general-ende-without-libreoffice"'))
    return "\n".join(lines) + "\n"


def run_dragoman(*words: str | Path) -> str:
    """Run a dragoman command with one thread, and return its output. Raises CommandError if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode not in (0, INCOMPLETE_EXIT_CODE):
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise CommandError(f"dragoman {words[0]}: exit code {done.returncode}: {lines[-1]}")
    return done.stdout
