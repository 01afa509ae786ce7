"""Speed and quality of typical acceptance beside greedy search with and without heads, in one precision.

    PYTHONPATH=benchmarks python -m inference.typical_acceptance BUNDLE SOURCE REFERENCE [--precision int8]

BUNDLE comes from `dragoman accelerate`. One line at a time, one thread; the first lines run once before the clock starts.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from dragoman import load
from dragoman.evaluation.metrics import bleu, chrf

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"speculative": "off"},
    "block heads, lossless": {"speculative": "on"},
    **{
        f"typical acceptance, threshold {threshold}": {"speculative": "typical", "typical_threshold": threshold}
        for threshold in (0.5, 0.3, 0.1, 0.03)
    },
}
NUM_WARM_UP_LINES = 3


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.argument("reference", type=click.Path(path_type=Path, exists=True))
@click.option("--lines", type=click.IntRange(min=1), default=1000, show_default=True, help="Lines to translate.")
@click.option("--precision", type=click.Choice(["int8", "float32"]), default="float32", show_default=True)
def main(bundle: Path, source: Path, reference: Path, lines: int, precision: str) -> None:
    """Translate SOURCE with each setting, and print a row of a table for it."""
    texts, references = (path.read_text(encoding="utf-8").splitlines()[:lines] for path in (source, reference))
    translator = load(bundle, task="translation", device="cpu", precision=precision, intra_threads=1, inter_threads=1)
    print("| search | lines that differ from greedy | tokens per step | BLEU | chrF | lines per second |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    expected: list[str] = []
    for name, options in SETTINGS.items():
        translator.translate(texts[:NUM_WARM_UP_LINES], method="greedy", **options)
        start = time.perf_counter()
        results = [translator.translate([text], method="greedy", **options)[0] for text in texts]
        seconds = time.perf_counter() - start
        outputs = [result.text for result in results]
        expected = expected or outputs
        num_different = sum(output != greedy_output for output, greedy_output in zip(outputs, expected, strict=True))
        num_tokens = sum(len(result.token_log_probs) for result in results)
        rate = num_tokens / sum(len(result.step_lengths or result.token_log_probs) for result in results)
        scores = f"{bleu(outputs, [references]).value:.2f} | {chrf(outputs, [references]).value:.2f}"
        print(f"| {name} | {num_different} | {rate:.2f} | {scores} | {len(texts) / seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
