"""Speed of decoders with one encoder: autoregressive ones beside CTC, which writes all tokens at once.

The models have random weights, so the figures are of speed alone. They run in a process of their own:

    PYTHONPATH=benchmarks python -m inference.decoders [--rounds 5] [--seconds 60]

It reads and writes ids, in int8 on one thread, and prints the seconds of the processor of each turn as JSON. All outputs count
as `TARGET_TOKENS`: that many are searched token by token, and CTC does the same work for each output.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from common.benchmark import print_progress
from common.results import Ratio, Section, Table
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import CommandError

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, SPECIAL_IDS
from dragoman.decoding.constraints import DecodingConstraints
from dragoman.inference.backends.select import build_inference_model
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.model_weights import ModelWeights
from dragoman.runtime.thread_count import set_num_threads
from dragoman.tasks.generation import BatchSearch, generate

from .models import draw_weights

VOCABULARIES, BATCHES = (37_000, 8_000), (1, 32)
SOURCE_TOKENS, TARGET_TOKENS = 27, 30
DECODERS: dict[str, dict[str, Any]] = {
    "6+6": {"decoder_layers": 6},
    "6+1": {"decoder_layers": 1},
    "SSRU 6+2": {"decoder_layers": 2, "decoder_autoregression": "ssru"},
    "CTC 6+2": {"decoder_layers": 2, "decoder": "ctc"},
    "CTC 6+1": {"decoder_layers": 1, "decoder": "ctc"},
}
CTC = "CTC 6+1"
"""The faster one, whose ratios are reported."""
RIVALS = [name for name in DECODERS if not name.startswith("CTC")]
TARGET_RATIOS = {1: 5.0, 32: 2.0}
"""Least ratios of CTC over 6+6 that the project aims at, by batch size."""


def measure_decoders(*, rounds: int, budget: TimeBudget = UNBOUNDED) -> Section:
    """Run this module as a process, and report the medians as target tokens per second of the processor."""
    seconds = budget.seconds_left
    limit = [] if seconds == math.inf else ["--seconds", str(round(seconds))]
    process = subprocess.run(
        [sys.executable, "-m", "inference.decoders", "--rounds", str(rounds), *limit],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise CommandError(process.stderr.strip().splitlines()[-1])
    section = Section()
    section.figures["seconds"] = turns = json.loads(process.stdout)
    table = Table(
        "Random weights, base encoder, int8, one thread: target tokens per second of the processor",
        ["batch x words", *DECODERS, *(f"{CTC} over {name}" for name in RIVALS), "rounds"],
    )
    for cell, seconds_by_name in turns.items():
        batch = int(cell.split("x")[0])
        medians = {name: statistics.median(seconds) for name, seconds in seconds_by_name.items()}
        ratios = {name: medians[name] / medians[CTC] for name in RIVALS}
        rates = [f"{batch * TARGET_TOKENS / median:,.0f}" for median in medians.values()]
        table.rows.append([cell, *rates, *(f"{ratio:.2f}" for ratio in ratios.values()), str(len(seconds_by_name[CTC]))])
        for name, ratio in ratios.items():
            target = TARGET_RATIOS[batch] if name == "6+6" else None
            section.ratios.append(Ratio(f"ctc_over_{name.replace(' ', '_')}_{cell}", ratio, target))
        print_progress(f"decoders {cell}: {', '.join(f'{ratio:.2f} over {name}' for name, ratio in ratios.items())}")
    section.tables.append(table)
    section.notes.append(
        f"{SOURCE_TOKENS} tokens in; {TARGET_TOKENS} out, also for CTC, whose random outputs have other lengths"
    )
    return section


def build_search(decoder: Mapping[str, Any], vocabulary: int) -> BatchSearch:
    """Return greedy search with a model of random weights. Outputs token by token have `TARGET_TOKENS`."""
    config = ModelConfig.model_validate({"encoder_layers": 6, **decoder})
    weights = ModelWeights(config, draw_weights(config, vocabulary))

    def refuse() -> NoReturn:
        raise AssertionError("the compiled engine needs no model of PyTorch")

    model = build_inference_model([TrainedModel(config, lambda: weights, refuse)], "cpu", "int8", None)
    constraints = DecodingConstraints(min_length=TARGET_TOKENS if config.is_autoregressive else 0)
    decoding = DecodingConfig(method="greedy", max_extra_tokens=TARGET_TOKENS - SOURCE_TOKENS)
    return BatchSearch(model, decoding, BEGIN_ID, constraints)


def measure_turns(rounds: int, budget: TimeBudget) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of the processor of each turn, by batch size and words, and by decoder. One round is always done."""
    generator = random.Random(1)
    turns: dict[str, dict[str, list[float]]] = {}
    for vocabulary in VOCABULARIES:
        searches = {name: build_search(decoder, vocabulary) for name, decoder in DECODERS.items()}
        for batch in BATCHES:
            cell: dict[str, list[float]] = {name: [] for name in searches}
            for number in range(rounds + 1):
                if number > 1 and budget.is_spent:
                    break
                sources = [draw_source(generator, vocabulary) for _ in range(batch)]
                for name, search in searches.items():
                    began = time.process_time()
                    generate(search, sources)
                    if number:  # the first turn reads the weights from memory for the first time
                        cell[name].append(time.process_time() - began)
            turns[f"{batch}x{vocabulary}"] = cell
    return turns


def draw_source(generator: random.Random, vocabulary: int) -> list[int]:
    """Return the ids of a random sentence."""
    return [*(generator.randrange(len(SPECIAL_IDS), vocabulary) for _ in range(SOURCE_TOKENS - 1)), END_ID]


def main() -> None:
    """Print the seconds of each turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf)
    args = parser.parse_args()
    set_num_threads(1)
    print(json.dumps(measure_turns(args.rounds, TimeBudget.from_seconds(args.seconds))))


if __name__ == "__main__":
    main()
