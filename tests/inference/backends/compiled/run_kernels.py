"""Main program that runs all kernels on small models, for comparisons of processors and instruction sets.

    python run_kernels.py OUTPUT.npz

The output has the results by name. Standard output gets the instruction set.

No weight and no input depends on the rounding of a library: all are integers over a power of two.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.inference.backends.compiled.compiled_topk import CompiledTopK
from dragoman.inference.backends.compiled.cpu_features import get_instruction_set
from dragoman.inference.backends.compiled.pack import compile_model
from dragoman.inference.backends.compiled.weights import CompiledPrecision
from dragoman.inference.backends.select import build_inference_model
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.model.factory import build_model
from dragoman.runtime.thread_count import set_num_threads
from dragoman.tasks.generation import BatchSearch, generate
from torch_models import wrap_model

VOCABULARY, PADDING_ID = 90, 0
NUM_STEPS = 20  # more than the first capacity of the cache of keys and values
MODEL_KEYS: dict[str, dict[str, Any]] = {
    "post-norm": {"num_heads": 3},
    "pre-norm": {"norm": "pre", "num_heads": 3, "d_model": 42, "d_ff": 77, "activation": "silu", "attention_bias": True},
    "window": {"attention_window": 3, "num_heads": 20, "d_k": 3, "d_v": 5, "activation": "gelu", "output_bias": True},
    "long source": {"num_heads": 4, "d_k": 8, "d_v": 32},
}
LONG_SOURCE = 260  # tokens, of which the cache holds keys and values head by head


def make_numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return numbers from -1 to 1 in steps of 1/64."""
    return torch.randint(-64, 65, shape, generator=torch.Generator().manual_seed(seed)).float() / 64


def make_model(keys: dict[str, Any]) -> TrainedModel:
    shape: dict[str, Any] = {
        "encoder_layers": 1,
        "decoder_layers": 2,
        "d_model": 48,
        "d_ff": 80,
        "position_encoding": "learned",
    } | keys
    config = ModelConfig(**shape)
    model = build_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, padding_id=PADDING_ID).eval()
    for seed, parameter in enumerate(model.parameters()):
        parameter.copy_(make_numbers(tuple(parameter.shape), seed) / 2)
    return wrap_model(model, config)


def make_sources(longest: int) -> NDArray[np.int64]:
    """Return sources of this many, 9, 4 and 1 tokens, padded on the right."""
    source_BS = torch.randint(1, VOCABULARY, (4, longest), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate((longest, 9, 4, 1)):
        source_BS[row, length:] = PADDING_ID
    return source_BS.numpy()


def compute_logits(
    model: TrainedModel, source_BS: NDArray[np.int64], precision: CompiledPrecision
) -> Iterator[NDArray[np.float32]]:
    """Yield the logits of steps over three hypotheses of each source, which are reordered."""
    compiled = compile_model(model.get_weights(), precision)
    state, num_rows = compiled.start(source_BS), 3 * len(source_BS)
    for step in range(NUM_STEPS):
        logits_NV, state = compiled.step((np.arange(num_rows) * 7 + step * 5) % (VOCABULARY - 1) + 1, state)
        yield logits_NV.copy()
        state = state.reorder((np.arange(num_rows) // 3) * 3 + (np.arange(num_rows) * 2 + step) % 3)


def run_searches(model: TrainedModel, source_BS: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the tokens and the scores of greedy search and of beam search."""
    inference_model = build_inference_model([model], "cpu", "int8", None)
    assert inference_model.native_search is not None
    sources = [row_S[row_S != PADDING_ID].tolist() for row_S in source_BS]
    for name, config in (
        ("greedy", DecodingConfig(method="greedy", max_extra_tokens=8)),
        ("beam", DecodingConfig(method="beam", beam_size=4, nbest=4, max_extra_tokens=8)),
    ):
        hypotheses = list(chain.from_iterable(generate(BatchSearch(inference_model, config, start_id=2), sources)))
        yield f"{name} tokens", np.array([token for hypothesis in hypotheses for token in (*hypothesis.tokens, -1)])
        yield f"{name} scores", np.array([hypothesis.score for hypothesis in hypotheses])


def run_all_kernels() -> dict[str, np.ndarray]:
    results: dict[str, NDArray[Any]] = {}
    for name, keys in MODEL_KEYS.items():
        model, source_BS = make_model(keys), make_sources(LONG_SOURCE if name == "long source" else 14)
        precisions: tuple[CompiledPrecision, ...] = ("int8", "float32")
        for precision in precisions:
            for step, logits_NV in enumerate(compute_logits(model, source_BS, precision)):
                results[f"{name} {precision} logits {step}"] = logits_NV
        results |= {f"{name} {key}": value for key, value in run_searches(model, source_BS)}
    logits_NV, topk = 8 * make_numbers((4, 1001), 1).numpy(), CompiledTopK()
    results["logsumexp"], results["topk"] = topk.logsumexp(logits_NV), topk.topk(logits_NV[:, None], None, 8)
    return results


if __name__ == "__main__":
    set_num_threads(1)
    with torch.no_grad():
        np.savez(sys.argv[1], **run_all_kernels())  # type: ignore[arg-type]
    instruction_set = get_instruction_set()
    assert instruction_set is not None
    print(json.dumps({"instruction_set": instruction_set.name}))
