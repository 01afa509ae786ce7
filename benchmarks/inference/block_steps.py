"""Time of a step over blocks of tokens in units of a step of greedy search, in the compiled back end.

    cd benchmarks && OMP_NUM_THREADS=1 python -m inference.block_steps [--precision float32] [--isa avx2]

The models have random weights, which do not change the time of a step. Three tables belong together:

    heads           a step that verifies a block of k tokens, and proposes the next block with prediction heads
    draft           the same with a draft decoder
    verification    a step that reads k tokens of each sentence, without proposing any
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import torch
from common.instruction_set import describe_instruction_set, limit_to

from dragoman.config import ModelConfig
from dragoman.decoding.hypothesis import NO_LENGTH_PENALTY, Hypothesis
from dragoman.decoding.native_search import SearchRequest
from dragoman.inference.backends.block_decoding import BlockDecoding
from dragoman.inference.backends.select import build_inference_model
from dragoman.inference.backends.shared import Precision
from dragoman.model.draft_decoder import DraftDecoder, Proposer
from dragoman.model.factory import build_model
from dragoman.model.prediction_heads import PredictionHeads

# Keys of the model, tokens of the vocabulary, and tokens that heads propose.
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "base": ({"encoder_layers": 6, "decoder_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8}, 32_000, 2_000),
    "tiny": ({"encoder_layers": 4, "decoder_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4}, 10_000, 600),
}
BLOCK_SIZES, NUM_SENTENCES, ROUNDS = (2, 3, 4, 5), (1, 4, 16), 7
SOURCE_TOKENS, NUM_STEPS = 16, 48


def time_step(search: Callable[[torch.Tensor, SearchRequest], list[Hypothesis]], num_sentences: int) -> float:
    """Return the seconds of a step, without the encoder and the first step; the least of some rounds."""
    source_BS = torch.randint(4, 500, (num_sentences, SOURCE_TOKENS), generator=torch.Generator().manual_seed(0))
    request = SearchRequest(
        max_lengths=[NUM_STEPS] * num_sentences,
        allow_repetition=[True] * num_sentences,
        start_id=1,
        prompt=(),
        end_id=3,
        suppress_tokens=(0, 1),
        min_length=NUM_STEPS,  # so that no output ends early
        no_repeat_ngram_size=0,
        repetition_window=0,
        length_penalty=NO_LENGTH_PENALTY,
    )
    first = replace(request, max_lengths=[1] * num_sentences, min_length=0)
    times: dict[str, float] = {}
    num_steps = NUM_STEPS
    for _ in range(ROUNDS):
        for name, measured in (("all", request), ("first", first)):
            start = time.perf_counter()
            outputs = search(source_BS, measured)
            elapsed = time.perf_counter() - start
            times[name] = min(times.get(name, elapsed), elapsed)
            if name == "all" and outputs[0].step_lengths:
                num_steps = max(len(output.step_lengths or ()) for output in outputs)
    return (times["all"] - times["first"]) / (num_steps - 1)


def build_decoding(
    keys: dict[str, Any], vocabulary: int, num_proposed: int, precision: Precision, *, has_draft: bool
) -> BlockDecoding:
    """Return the searches with and without proposals of a compiled model with random weights."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(**keys), source_vocab_size=vocabulary, target_vocab_size=vocabulary, padding_id=0).eval()
    d_model, token_ids_W = keys["d_model"], torch.arange(4, 4 + num_proposed)
    proposer: Proposer = PredictionHeads(num_heads=len(BLOCK_SIZES), d_model=d_model, d_inner=d_model, token_ids_W=token_ids_W)
    if has_draft:
        proposer = DraftDecoder.from_model(model, token_ids_W=token_ids_W, num_proposals=len(BLOCK_SIZES))
    acceptance = dict.fromkeys(BLOCK_SIZES, 1.0)
    inference_model = build_inference_model(
        [model], torch.device("cpu"), precision, None, proposer=proposer.eval(), acceptance=acceptance
    )
    decoding = inference_model.block_search
    assert isinstance(decoding, BlockDecoding), "the compiled back end does not run here"
    return decoding


def make_block_search(decoding: BlockDecoding, size: int) -> Callable[[torch.Tensor, SearchRequest], list[Hypothesis]]:
    """Return the search for blocks of one size."""
    return lambda source_BS, request: decoding.greedy(source_BS, request, block_size=size)


@click.command()
@click.option("--precision", type=click.Choice(["int8", "float32"]), default="int8", show_default=True)
@click.option("--isa", "instruction_set", type=click.Choice(["avx2"]), help="Limit the kernels to this instruction set.")
def main(precision: Precision, instruction_set: str | None) -> None:
    """Print a row for each model and number of sentences."""
    limit_to(instruction_set)
    print(describe_instruction_set())
    print("| model | sentences | greedy step | heads, k = 2, 3, 4, 5 | draft, k = 2, 3, 4, 5 | verification, k = 2, 3, 4, 5 |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for name, (keys, vocabulary, num_proposed) in MODELS.items():
        decoding = build_decoding(keys, vocabulary, num_proposed, precision, has_draft=False)
        draft = build_decoding(keys, vocabulary, num_proposed, precision, has_draft=True)
        for num_sentences in NUM_SENTENCES:
            plain = time_step(decoding.search_plainly, num_sentences)
            with_heads = [time_step(make_block_search(decoding, size), num_sentences) / plain for size in BLOCK_SIZES]
            rows = [time_step(decoding.search_plainly, size * num_sentences) / plain for size in BLOCK_SIZES]
            with_draft = [time_step(make_block_search(draft, size), num_sentences) / plain for size in BLOCK_SIZES]
            columns = [", ".join(f"{ratio:.2f}" for ratio in ratios) for ratios in (with_heads, with_draft, rows)]
            print(f"| {name} | {num_sentences} | {1000 * plain:.3f} ms | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
