"""Sequence-level training against more likelihood training, from one trained run of Multi30k (English to German).

Three runs start from the same bundle, with the same data, steps and learning rate, and without dropout: the likelihood alone,
minimum risk training, and expected GLEU. Their beam-search translations of the validation set are compared with those of the
start and of the likelihood run, with a paired bootstrap.

    PYTHONPATH=benchmarks .venv/bin/python -m quality.sequence_level BUNDLE --data ../shared/data/multi30k/tok --work FOLDER

BUNDLE is one of `dragoman train multi30k-ende`. Finished runs stay, interrupted runs resume.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.evaluation.bootstrap import paired_bootstrap

RISK = "training.sequence_loss={num_candidates=15, objective="
ROWS = {
    "likelihood": (),
    "minimum-risk": (f"{RISK}'minimum_risk'}}",),
    "minimum-risk-nbest": (f"{RISK}'minimum_risk', candidates='nbest', sharpness=1.0}}",),
    "expected-gleu": (f"{RISK}'expected_gleu'}}",),
}
NO_DROPOUT = [f"model.{kind}_dropout=0.0" for kind in ("residual", "embedding", "attention", "activation")]


def write_recipe(folder: Path, bundle: Path, data: Path, *, steps: int, lr: float, batch_tokens: int) -> Path:
    """Write the recipe that all rows share, and return its path."""
    files = {name: f'{{ source = "{name}.en.gz", target = "{name}.de.gz" }}' for name in ("train", "val")}
    path = folder / "sequence_level.toml"
    path.write_text(
        f'preset = "modern"\n[data]\nroot = "{data}"\ntrain = {files["train"]}\nvalid = {files["val"]}\n'
        f'[training]\ninit_from = "{bundle}"\nbatch_tokens = {batch_tokens}\nmax_steps = {steps}\nschedule = "constant"\n'
        f"peak_lr = {lr}\nwarmup_steps = {max(steps // 10, 1)}\nlr_decay_ratio = 0.5\nlabel_smoothing = 0.1\n"
        f"num_validation_translations = 0\nvalidate_every_steps = {steps}\ncheckpoint_every_steps = {max(steps // 10, 1)}\n"
        'checkpoint_averaging = "none"\n',
        encoding="utf-8",
    )
    return path


def read_lines(path: Path) -> list[str]:
    """Return the lines of a gzipped file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


def run_dragoman(*arguments: str) -> None:
    """Run the command, and end with its exit status if it fails. Status 3, for some incomplete lines, is no failure."""
    finished = subprocess.run([sys.executable, "-m", "dragoman", *arguments], check=False)
    if finished.returncode not in (0, 3):
        sys.exit(finished.returncode)


def measure(row: str, bundle: Path, data: Path, folder: Path) -> list[str]:
    """Return the beam-search translations of the validation set, which stay in a file."""
    output = folder / f"{row}.de"
    if not output.exists():
        source = folder / "val.en"
        source.write_text("\n".join(read_lines(data / "val.en.gz")) + "\n", encoding="utf-8")
        run_dragoman("translate", str(bundle), str(source), "-o", str(output))
    return output.read_text(encoding="utf-8").splitlines()


def compare(translations: dict[str, list[str]], references: Sequence[str]) -> list[dict[str, Any]]:
    """Return BLEU and chrF of each row, and its differences from the start and from the likelihood run."""
    rows = []
    for metric in ("bleu", "chrf"):
        for name, outputs in translations.items():
            row: dict[str, Any] = {"row": name, "metric": metric}
            for baseline in ("start", "likelihood"):
                result = paired_bootstrap(outputs, translations[baseline], [references], metric=metric, tokenize="none")
                row["score"] = round(result.a.value, 2)
                row[f"against {baseline}"] = {
                    "difference": round(result.difference, 2),
                    "interval": [round(limit, 2) for limit in result.interval],
                    "p_value": round(result.p_value, 3),
                }
            rows.append(row)
    return rows


def main() -> None:
    """Train the rows, translate the validation set, and print the table as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    options = parser.parse_args()
    folder: Path = options.work
    folder.mkdir(parents=True, exist_ok=True)
    data = options.data.resolve()
    recipe = write_recipe(
        folder, options.bundle.resolve(), data, steps=options.steps, lr=options.lr, batch_tokens=options.batch_tokens
    )
    translations = {"start": measure("start", options.bundle, data, folder)}
    for row in dict.fromkeys(["likelihood", *options.rows]):
        run = folder / "runs" / row
        if not (run / "report.json").exists():
            run_dragoman("train", str(recipe), f"run={run}", *NO_DROPOUT, *ROWS[row])
        translations[row] = measure(row, run / "bundle", data, folder)
    for line in compare(translations, read_lines(data / "val.de.gz")):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
