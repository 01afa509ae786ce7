"""Time of a step over blocks of tokens in units of a step of greedy search, in the compiled back end.

    cd benchmarks && OMP_NUM_THREADS=1 python -m inference.block_steps

The models have random weights, which do not change the time of a step.
"""

from __future__ import annotations

from typing import Any

import torch

from dragoman.config import ModelConfig
from dragoman.decoding.hypothesis import NO_LENGTH_PENALTY
from dragoman.decoding.native_search import SearchRequest
from dragoman.inference.backends.block_decoding import PROBE_LENGTH, BlockDecoding
from dragoman.inference.backends.select import build_inference_model
from dragoman.model.factory import build_model
from dragoman.model.prediction_heads import PredictionHeads

# Keys of the model, tokens of the vocabulary, and tokens that heads propose.
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "base": ({"encoder_layers": 6, "decoder_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8}, 32_000, 6_000),
    "tiny": ({"encoder_layers": 6, "decoder_layers": 3, "d_model": 128, "d_ff": 512, "num_heads": 4}, 8_000, 2_000),
}
BLOCK_SIZES, NUM_SENTENCES, ROUNDS = (1, 2, 3, 4, 5), (1, 4, 16), 7


def main() -> None:
    """Print a row for each model and number of sentences."""
    for name, (keys, vocabulary, num_proposed) in MODELS.items():
        torch.manual_seed(0)
        model = build_model(
            ModelConfig(**keys), source_vocab_size=vocabulary, target_vocab_size=vocabulary, padding_id=0
        ).eval()
        d_model = keys["d_model"]
        heads = PredictionHeads(
            num_heads=len(BLOCK_SIZES) - 1, d_model=d_model, d_inner=d_model, token_ids_W=torch.arange(4, 4 + num_proposed)
        )
        acceptance = dict.fromkeys(BLOCK_SIZES[1:], 1.0)
        inference_model = build_inference_model(
            [model], torch.device("cpu"), "int8", None, heads=heads.eval(), acceptance=acceptance
        )
        decoding = inference_model.block_search
        assert isinstance(decoding, BlockDecoding), "the compiled back end does not run here"
        for num_sentences in NUM_SENTENCES:
            source_BS = torch.randint(4, vocabulary, (num_sentences, PROBE_LENGTH))
            request = SearchRequest(
                max_lengths=[PROBE_LENGTH] * num_sentences,
                allow_repetition=[True] * num_sentences,
                start_id=1,
                prompt=(),
                end_id=3,
                suppress_tokens=(0, 1),
                min_length=PROBE_LENGTH,
                no_repeat_ngram_size=0,
                repetition_window=0,
                length_penalty=NO_LENGTH_PENALTY,
            )
            seconds = {size: min(decoding._time_step(source_BS, request, size) for _ in range(ROUNDS)) for size in BLOCK_SIZES}
            ratios = " | ".join(f"{seconds[size] / seconds[1]:.2f}" for size in BLOCK_SIZES[1:])
            print(f"| {name} | {num_sentences} | {1000 * seconds[1]:.3f} ms | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
