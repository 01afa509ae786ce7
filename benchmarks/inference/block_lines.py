"""Greedy lines a second with blocks of each size: raw text in and out, one line at a time, in the compiled back end.

    PYTHONPATH=benchmarks python -m inference.block_lines BUNDLE ... [--block 2 --block 3] [--precision float32] [--isa avx2]

Each BUNDLE comes from `dragoman accelerate`. The first one is also measured without blocks, and the speeds are ratios to
that. All variants translate each line in turns, so that the load of the machine is the same for all. One thread.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import click
from common.instruction_set import describe_instruction_set, limit_to

from dragoman import load
from dragoman.inference.backends.block_decoding import BlockDecoding
from dragoman.inference.translation_result import Translation
from dragoman.inference.translator import Translator
from dragoman.tasks.inference_model import InferenceModel

from .block_identity import FixedBlocks
from .captions import TEST, read_gzip_lines


@dataclass
class Variant:
    """Greedy search of one bundle with one block size; 1 is search token by token.

    seconds: of each round
    num_steps, num_tokens: of all rounds
    num_equal: lines whose text is that of the first variant
    """

    name: str
    block_size: int
    translator: Translator
    model: InferenceModel
    seconds: list[float] = field(default_factory=list)
    num_steps: int = 0
    num_tokens: int = 0
    num_equal: int = 0

    def translate(self, line: str) -> Translation:
        """Return the translation of a line, and count its time for the present round."""
        self.translator.session.inference_model = self.model
        speculative: Literal["off", "on"] = "off" if self.block_size == 1 else "on"
        start = time.perf_counter()
        (translation,) = self.translator.translate([line], method="greedy", repetition_window=0, speculative=speculative)
        self.seconds[-1] += time.perf_counter() - start
        self.num_steps += len(translation.step_lengths or translation.token_log_probs)
        self.num_tokens += len(translation.token_log_probs)
        return translation


def open_variants(bundles: tuple[Path, ...], block_sizes: tuple[int, ...], precision: str) -> list[Variant]:
    """Return a variant for each bundle and block size, after one without blocks."""
    variants: list[Variant] = []
    for bundle in bundles:
        translator = load(bundle, task="translation", device="cpu", precision=precision, intra_threads=1, inter_threads=1)
        model = translator.inference_model
        if not isinstance(model.block_search, BlockDecoding):
            raise click.UsageError(f"{bundle}: has neither heads nor a draft; run dragoman accelerate")
        if not variants:
            variants.append(Variant("greedy", 1, translator, model))
        for size in block_sizes:
            blocks = replace(model, block_search=FixedBlocks(model.block_search, size))
            variants.append(Variant(bundle.name, size, translator, blocks))
    return variants


@click.command()
@click.argument("bundles", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--block", "block_sizes", type=click.IntRange(min=2), multiple=True, default=(2, 3, 4), show_default=True)
@click.option("--lines", "num_lines", type=click.IntRange(min=1), default=60, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
@click.option("--precision", type=click.Choice(["int8", "float32"]), default="int8", show_default=True)
@click.option("--isa", "instruction_set", type=click.Choice(["avx2"]), help="Limit the kernels to this instruction set.")
def main(
    bundles: tuple[Path, ...],
    block_sizes: tuple[int, ...],
    num_lines: int,
    rounds: int,
    shared: Path | None,
    precision: str,
    instruction_set: str | None,
) -> None:
    """Print a row for each bundle and block size."""
    limit_to(instruction_set)
    print(describe_instruction_set())
    shared = shared or Path(__file__).resolve().parents[3] / "shared" / "data"
    lines = read_gzip_lines(shared / "multi30k" / "raw" / f"{TEST}.en.gz")[:num_lines]
    variants = open_variants(bundles, block_sizes, precision)
    for round_number in range(-1, rounds):  # the first round warms up and does not count
        for variant in variants:
            variant.seconds.append(0.0)
        for index, line in enumerate(lines):
            order = variants if (index + round_number) % 2 else variants[::-1]
            texts = {id(variant): variant.translate(line).text for variant in order}
            for variant in variants:
                variant.num_equal += texts[id(variant)] == texts[id(variants[0])]
    print("| bundle | k | lines/s | over greedy | tokens per step | equal lines |")
    print("| --- | --- | --- | --- | --- | --- |")
    reference = variants[0].seconds[1:]
    for variant in variants:
        seconds = variant.seconds[1:]
        ratio = statistics.median(first / own for first, own in zip(reference, seconds, strict=True))
        rate = num_lines / statistics.median(seconds)
        acceptance, num_equal = variant.num_tokens / variant.num_steps, variant.num_equal
        cells = [variant.name, variant.block_size, f"{rate:,.1f}", f"{ratio:.2f}", f"{acceptance:.2f}"]
        print(f"| {' | '.join(map(str, cells))} | {num_equal:,} of {len(lines) * (rounds + 1):,} |")


if __name__ == "__main__":
    main()
