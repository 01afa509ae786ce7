"""Models of T5-base's and BART-base's shapes in int8, on one thread, beside CTranslate2: `make bench-families`.

Both engines have the same random weights, the same source ids and outputs of exactly 30 tokens. They take turns in one process,
and time is that of the processor. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from common.benchmark import Benchmark, print_progress, with_options
from common.instruction_set import describe_instruction_set
from common.results import Ratio, Section, Table

from dragoman.bundle import load_bundle, save_bundle
from dragoman.config import make_recipe
from dragoman.export.ctranslate2 import export_ctranslate2

from . import serve_ctranslate2, serve_dragoman
from .fixed import make_sources
from .models import ModelFormats, draw_weights, make_word_tokenizer
from .serve import SOURCE_TOKENS, TARGET_TOKENS

TARGET_RATIO = 1.3
"""Least ratio over CTranslate2 that the project aims at."""
CELLS = {"1x1": (1, 1), "1x4": (1, 4), "8x4": (8, 4), "32x1": (32, 1)}
"""Rows of a batch and size of the beam."""
QUICK_SECONDS = 200.0
BASE_SIZE: dict[str, Any] = {"d_model": 768, "d_ff": 3072, "num_heads": 12, "decoder_start_token": "bos"}
T5: dict[str, Any] = {
    "encoder_layers": 12, "decoder_layers": 12, "norm": "pre", "norm_type": "rms", "attention_bias": False,
    "feed_forward_bias": False, "position_encoding": "relative", "scale_embeddings": False,
}  # fmt: skip
FAMILIES: dict[str, tuple[int, dict[str, Any]]] = {
    "t5": (32_128, T5 | {"activation": "relu", "tie_embeddings": "all"}),
    "t5-v1.1": (32_128, T5 | {"activation": "geglu", "tie_embeddings": "inputs", "d_ff": 2048}),
    "bart": (
        50_265,
        {
            "encoder_layers": 6, "decoder_layers": 6, "norm": "post", "attention_bias": True, "feed_forward_bias": True,
            "activation": "gelu", "position_encoding": "learned", "embedding_norm": True, "output_bias": True,
            "scale_embeddings": False,
        },
    ),
}  # fmt: skip
"""Size of the vocabulary and section `model` of each family; T5 v1.1 has gated GELU and an output matrix of its own."""


def build_family(name: str, folder: Path) -> ModelFormats:
    """Return a model with random weights; it is made once."""
    forms = ModelFormats(folder)
    if not (folder / "done").exists():
        size, settings = FAMILIES[name]
        recipe = make_recipe(
            {"preset": "paper", "model": BASE_SIZE | settings, "tokenizer": {"vocab_size": size, "byte_fallback": False}}
        )
        weights = draw_weights(recipe.model, size)
        save_bundle(
            forms.bundle, recipe=recipe, tokenizer=make_word_tokenizer(size), weights=weights, metadata={}, overwrite=True
        )
        del weights
        export_ctranslate2(load_bundle(forms.bundle), forms.ctranslate2, overwrite=True)
        (folder / "done").touch()
    return forms


def measure_cell(
    forms: ModelFormats, size: int, cell: tuple[int, int], *, rounds: int, deadline: float
) -> tuple[list[float], list[float]]:
    """Return the target tokens a second of dragoman and of CTranslate2 by round; the deadline ends all but the first one."""
    rows, beam = cell
    threads = {"inter_threads": 1, "intra_threads": 1}
    arguments: dict[str, Any] = {"sources": make_sources(rows, size), "beam": beam, "clock": "processor"}
    runs: list[Callable[[], dict[str, Any]]] = [
        lambda: serve_dragoman.translate_fixed(
            str(forms.bundle), seconds=0.0, setting={"precision": "int8", **threads}, **arguments
        ),
        lambda: serve_ctranslate2.translate_fixed(
            str(forms.ctranslate2), seconds=0.0, setting={"compute_type": "int8", **threads}, **arguments
        ),
    ]
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        if number and time.monotonic() > deadline:
            break
        for index in (0, 1) if number % 2 else (1, 0):
            answer = runs[index]()
            rates[index].append(rows * TARGET_TOKENS / statistics.median(answer["seconds"]))
    return rates


@click.command()
@click.option("--quick", is_flag=True, help="Measure fewer rounds, in under four minutes once the models exist.")
@with_options("isa")
@click.option("--only", type=click.Choice([*FAMILIES]), multiple=True, help="Measure only these families.")
@click.option("--cell", "chosen", type=click.Choice([*CELLS]), multiple=True, help="Measure only these cells.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of each cell.  [default: 7; quick 3]")
@with_options("work", "json")
def main(
    quick: bool,
    only: tuple[str, ...],
    chosen: tuple[str, ...],
    rounds: int | None,
    work: Path | None,
    report: Path | None,
) -> None:
    """Measure the speed of T5's and BART's shapes in int8 on one thread beside CTranslate2."""
    os.environ["OMP_NUM_THREADS"] = "1"
    work = work or Path(__file__).resolve().parent / ".work" / "families"
    bench = Benchmark(__file__, quick=quick, cores=1, libraries=("dragoman", "ctranslate2", "numpy"), work=work, report=report)
    bench.console.print(describe_instruction_set(), markup=False)
    table = Table(
        f"int8, one thread, {SOURCE_TOKENS} tokens in, {TARGET_TOKENS} out: target tokens per second of the processor",
        ["family", "batch x beam", "dragoman", "CTranslate2", "ratio", "least to most"],
    )
    section = Section(tables=[table])
    families = [name for name in FAMILIES if name in (only or (["t5", "bart"] if quick else [*FAMILIES]))]
    cells = [name for name in CELLS if name in (chosen or CELLS)]
    forms = {name: build_family(name, bench.work / name) for name in families}
    began, count = time.monotonic(), 0
    for name in families:
        for cell in cells:
            count += 1
            print_progress(f"{name} {cell}")
            deadline = began + QUICK_SECONDS * count / (len(families) * len(cells)) if quick else float("inf")
            own, other = measure_cell(
                forms[name], FAMILIES[name][0], CELLS[cell], rounds=rounds or (3 if quick else 7), deadline=deadline
            )
            ratios = [first / second for first, second in zip(own, other, strict=True)]
            ratio = statistics.median(own) / statistics.median(other)
            table.rows.append(
                [name, cell, f"{statistics.median(own):,.0f}", f"{statistics.median(other):,.0f}", f"{ratio:.2f}",
                 f"{min(ratios):.2f} to {max(ratios):.2f}"]
            )  # fmt: skip
            section.ratios.append(Ratio(f"{name}_{cell}", ratio, TARGET_RATIO))
    bench.add("families", section)
    bench.finish()


if __name__ == "__main__":
    main()
