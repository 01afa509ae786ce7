"""Tests that a compiled model is chosen, built and searched in a process that cannot import PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dragoman.inference.backends.compiled.cpu_features import get_instruction_set

SCRIPT = """
import sys
sys.modules["torch"] = None  # an import raises ImportError

import numpy as np
import dragoman.inference.backends.support_table, dragoman.inference.parallel.scheduler
from dragoman.config import DecodingConfig, ModelConfig
from dragoman.inference.backends.device import choose_fastest_precision, resolve_device
from dragoman.inference.backends.select import build_inference_model
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.model_weights import ModelWeights, list_shapes
from dragoman.tasks.generation import BatchSearch, generate

config = ModelConfig(d_model=32, d_ff=64, num_heads=2, encoder_layers=1, decoder_layers=1)
numbers = np.random.default_rng(1)
shapes = list_shapes(config, source_vocab_size=50, target_vocab_size=50)
weights = ModelWeights(config, {name: numbers.standard_normal(shape, np.float32) for name, shape in shapes.items()})

def refuse():
    raise AssertionError("the PyTorch model is not needed")

model = TrainedModel(config, lambda: weights, refuse)
assert resolve_device("auto", "int8").device == "cpu"
single, several = (
    build_inference_model([model] * count, "cpu", choose_fastest_precision(config), None) for count in (1, 2)
)
for inference_model, options in (
    (single, {"method": "greedy"}),
    (single, {"method": "beam", "nbest": 2}),
    (single, {"method": "beam", "num_beam_groups": 2}),
    (single, {"method": "sample"}),
    (several, {"method": "beam"}),
):
    search = BatchSearch(inference_model, DecodingConfig(max_extra_tokens=5, **options), start_id=2)
    assert all(hypotheses[0].tokens for hypotheses in generate(search, [[5, 6, 3], [7, 3]]))
"""


@pytest.mark.skipif(get_instruction_set() is None, reason="the kernels have no instruction set of this processor")
def test_compiled_search_needs_no_torch() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
