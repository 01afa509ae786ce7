"""A non-autoregressive model and a shallow decoder beside their teacher: quality, training cost and speed on Multi30k.

    export PYTHONPATH=benchmarks OMP_NUM_THREADS=1
    .venv/bin/python -m quality.non_autoregressive TEACHER --data ../shared/data/multi30k/raw --work FOLDER

TEACHER is a bundle of `dragoman train multi30k-ende` on the raw text. It translates the training captions. `ctc` predicts all
tokens at once (recipe `multi30k-ende-ctc`), and `shallow` has six encoder layers and one decoder layer. Both train on the
teacher's outputs with the same minutes of processor time, data and seed; with --rows also on the captions themselves. Then all
translate test_2016_flickr with greedy search in one thread: BLEU, chrF, and lines a second, one line and 32 lines at a time.
Finished parts stay and interrupted runs resume; `--only measure` trains nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import dragoman
from dragoman.evaluation.metrics import bleu, chrf
from dragoman.inference.translator import Translator
from quality.sequence_level import read_lines, run_dragoman

SHARED = (
    "task.tokenized=false",
    "tokenizer.vocab_size=4000",
    "model.residual_dropout=0.1",
    "model.embedding_dropout=0.1",
    "training.clock=processor",
    "training.batch_tokens=2048",
    "training.peak_lr=2e-3",
    "training.warmup_steps=400",
    "training.lr_decay_ratio=0.3",
    "training.checkpoint_averaging=none",
    "training.validate_every_steps=500",
    "training.num_validation_translations=0",
    "decoding.method=greedy",
)
SYSTEMS = {
    "ctc": ("multi30k-ende-ctc",),
    "shallow": ("multi30k-ende", "model.encoder_layers=6", "model.decoder_layers=1"),
}
CORPORA = ("distilled", "original")
ROWS = tuple(f"{system}-{corpus}" for corpus in CORPORA for system in SYSTEMS)
BATCH_SIZES = (1, 32)


def distill(teacher: Path, data: Path, folder: Path, max_pairs: int | None) -> Path:
    """Write the training captions with the teacher's beam-search outputs, unless they are there, and return the file."""
    output = folder / "distilled.tsv"
    sides = [folder / f"train.{language}" for language in ("en", "de")]
    for side in sides:
        side.write_text("".join(f"{line}\n" for line in read_lines(data / f"{side.name}.gz")[:max_pairs]), encoding="utf-8")
    if not output.exists():
        run_dragoman("augment", "distill", str(teacher), *map(str, sides), "-o", str(output))
    return output


def train(row: str, data: Path, folder: Path, distilled: Path, settings: Sequence[str]) -> Path:
    """Train a row unless it is finished, and return its run folder."""
    system, corpus = row.split("-")
    recipe, *keys = SYSTEMS[system]
    run = folder / "runs" / row
    source = f'file = "{distilled}"' if corpus == "distilled" else f'source = "{folder}/train.en", target = "{folder}/train.de"'
    if not (run / "report.json").exists():
        paths = (f"data.root={data}", f"data.train={{{source}}}", f"run={run}")
        run_dragoman("train", recipe, *SHARED, *keys, *settings, *paths)
    return run


def time_lines(translator: Translator, lines: Sequence[str], batch_size: int) -> float:
    """Return the lines a second of greedy search."""
    start = time.perf_counter()
    for first in range(0, len(lines), batch_size):
        translator.translate(lines[first : first + batch_size], method="greedy")
    return len(lines) / (time.perf_counter() - start)


def measure(bundles: dict[str, Path], data: Path, *, num_lines: int, rounds: int) -> None:
    """Print a JSON line with the scores and the speed of each bundle, in its usual precision and in float32.

    The rounds of all bundles alternate. The speed is the median over the rounds.
    """
    sources, references = (read_lines(data / f"test_2016_flickr.{language}.gz")[:num_lines] for language in ("en", "de"))
    translators: dict[tuple[str, str], Translator] = {}
    for name, bundle in bundles.items():
        for precision in ("auto", "float32"):
            translator = dragoman.load(
                bundle, task="translation", device="cpu", precision=precision, inter_threads=1, intra_threads=1
            )
            translators[name, translator.precision] = translator  # both are float32 for a CTC decoder
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for key, translator in translators.items():
        texts = [result.text for result in translator.translate(sources, method="greedy")]
        scores = [bleu(texts, [references]), chrf(texts, [references])]
        rows[key] = {"system": key[0], "precision": key[1]}
        rows[key] |= {score.name: round(score.value, 2) for score in scores}
        rows[key]["signatures"] = [score.signature for score in scores]
    speeds: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(rounds):
        for key, translator in translators.items():
            for batch_size in BATCH_SIZES:
                speeds.setdefault((*key, batch_size), []).append(time_lines(translator, sources[:320], batch_size))
    for key, row in rows.items():
        lines_per_second = {str(size): round(statistics.median(speeds[(*key, size)]), 1) for size in BATCH_SIZES}
        metadata = translators[key].metadata
        cost = {"steps": metadata.steps, "training_seconds": metadata.seconds, "training_flops": metadata.flops}
        print(json.dumps(row | {"lines_per_second": lines_per_second} | cost | {"parameters": metadata.parameters}))


def main() -> None:
    """Distill, train, and print the table as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=25.0, help="processor minutes of each training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", nargs="*", default=list(ROWS[:2]), choices=ROWS)
    parser.add_argument("--only", choices=("train", "measure"))
    parser.add_argument("--quick", action="store_true", help="ten steps on 500 captions and 40 lines, to check that it works")
    options = parser.parse_args()
    folder, data, teacher = (path.resolve() for path in (options.work, options.data, options.teacher))
    folder.mkdir(parents=True, exist_ok=True)
    settings = [f"training.max_minutes={options.minutes}", "training.max_steps=1000000"]
    if options.quick:
        settings = ["training.max_steps=10", "tokenizer.vocab_size=1000"]
    if options.only != "measure":
        distilled = distill(teacher, data, folder, 500 if options.quick else None)
        for row in options.rows:
            train(row, data, folder, distilled, [*settings, f"training.seed={options.seed}"])
    if options.only != "train":
        bundles = {"teacher": teacher} | {row: folder / "runs" / row / "bundle" for row in options.rows}
        measure(bundles, data, num_lines=40 if options.quick else 1000, rounds=1 if options.quick else 5)


if __name__ == "__main__":
    main()
