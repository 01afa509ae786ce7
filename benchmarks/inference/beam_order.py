"""Share of the steps of beam search after which each hypothesis of the beam continues the one of the same rank.

    PYTHONPATH=benchmarks python -m inference.beam_order BUNDLE SOURCE

A proposal of k tokens for a beam would hold for several steps only if all of them keep this order.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import click
import torch

from dragoman.bundle import load_bundle
from dragoman.data.collate import pad_sequences
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.decoding.beam_search import BeamSearchOptions, BeamStep, beam_search
from dragoman.decoding.interface import SearchSettings
from dragoman.tasks.inference_model import as_inference_model, get_decoder_start_id

MAX_EXTRA_TOKENS = 50


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.option("--lines", type=click.IntRange(min=1), default=200, show_default=True, help="Lines to translate.")
@click.option("--beam-size", type=click.IntRange(min=2), default=5, show_default=True)
@torch.no_grad()
def main(bundle: Path, source: Path, lines: int, beam_size: int) -> None:
    """Search the first lines of SOURCE with a beam, and print the share of steps that keep its order."""
    opened = load_bundle(bundle)
    inference_model = as_inference_model([opened.model])
    kept: list[list[bool]] = []

    def record(step: BeamStep) -> None:
        parents_R = step.candidates.parent_BX.gather(1, step.alive_BR)[0]
        if step.length > 1:  # the first step has one hypothesis
            kept[-1].append(parents_R.tolist() == list(range(beam_size)))

    for text in source.read_text(encoding="utf-8").splitlines()[:lines]:
        ids = opened.tokenizer.encode_source(text)
        kept.append([])
        beam_search(
            inference_model.step,
            inference_model.start(pad_sequences([ids])),
            max_lengths=[len(ids) + MAX_EXTRA_TOKENS],
            settings=SearchSettings(
                start_id=get_decoder_start_id(opened.recipe.model), end_id=END_ID, forbidden_ids=(PADDING_ID, BEGIN_ID)
            ),
            options=BeamSearchOptions(beam_size=beam_size, early_stopping="best"),
            device=inference_model.device,
            on_step=record,
        )
    steps = [is_kept for line in kept for is_kept in line]
    pairs = [first and second for line in kept for first, second in pairwise(line)]
    print(f"{len(steps):,} steps, {sum(steps) / len(steps):.3f} keep the order; of two in a row {sum(pairs) / len(pairs):.3f}")


if __name__ == "__main__":
    main()
