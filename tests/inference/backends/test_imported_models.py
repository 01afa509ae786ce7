"""Tests that all back ends serve converted models: equal tokens in float32, and in int8 equal outputs alone and in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import dragoman
import m2m100_folders
import marian_folders
from dragoman.bundle import Bundle, load_bundle
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.inference.backends.select import build_inference_model, supports_compiled
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.tasks.forced_decoding import score_pairs
from dragoman.tasks.generation import BatchSearch, generate
from dragoman.tasks.inference_model import InferenceModel, get_decoder_start_id
from dragoman.torch_engine.forced_decoder import TorchForcedDecoder
from dragoman.torch_engine.inference_model import as_inference_model

pytestmark = pytest.mark.usefixtures("one_core")

LINES = marian_folders.make_lines(marian_folders.SOURCE_LETTERS, 8, 5)
# Small embeddings hide the last token, so that outputs do not repeat it.
SHRINK: Any = {"change_tensors": lambda tensors: tensors["model.shared.weight"].mul_(0.1)}
HEADS_16 = {"encoder_attention_heads": 16, "decoder_attention_heads": 16}
WRITERS: dict[str, Callable[[Path], Path]] = {
    "marian": marian_folders.write_folder,  # SiLU, a bias of the logits, padding as the first decoder input
    "m2m100 relu": m2m100_folders.write_folder,
    "m2m100 gelu": lambda folder: m2m100_folders.write_folder(folder, activation="gelu"),
    "12 layers": lambda folder: marian_folders.write_folder(folder, num_layers=12),
    "16 heads": lambda folder: marian_folders.write_folder(folder, d_model=64, num_layers=1, config=HEADS_16, **SHRINK),
    "d_model 1024": lambda folder: marian_folders.write_folder(
        folder,
        d_model=1024,
        d_ff=256,
        num_layers=1,
        config=HEADS_16,
        change_tensors=lambda tensors: [tensor.mul_(0.2) for name, tensor in tensors.items() if "norm" not in name],
    ),
}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * ("1024" in name or "12" in name)) for name in WRITERS]
)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("imported")
    dragoman.convert(WRITERS[request.param](folder / "source"), folder / "bundle")
    return load_bundle(folder / "bundle")


def search(bundle: Bundle, inference_model: InferenceModel, lines: Sequence[str], **options: Any) -> list[Hypothesis]:
    """Return the best output of each line by the search of the source's own options: a beam of 4."""
    tokenizer, config = bundle.tokenizer, bundle.recipe.decoding.model_copy(update={"max_extra_tokens": 8, **options})
    assert (config.method, config.early_stopping) == (options.get("method", "beam"), "heuristic")
    results = generate(
        BatchSearch(
            inference_model, config, start_id=get_decoder_start_id(bundle.recipe.model), prompt=tuple(tokenizer.decoder_prompt)
        ),
        [tokenizer.encode_source(line) for line in lines],
    )
    return [hypotheses[0] for hypotheses in results]


def build_int8_model(bundle: Bundle) -> InferenceModel:
    if not supports_compiled(bundle.recipe.model, "int8"):
        pytest.skip("this machine does not run the kernels")
    return build_inference_model([TrainedModel.from_bundle(bundle)], "cpu", "int8", None)


def test_float32_tokens_are_equal(subtests: pytest.Subtests, bundle: Bundle) -> None:
    """The first back end for float32 is the compiled one, if the machine runs its kernels."""
    for method in ["greedy", "beam"]:
        with subtests.test(method=method):
            first = build_inference_model([TrainedModel.from_bundle(bundle)], "cpu", "float32", None)
            expected, tokens = (
                [output.tokens for output in search(bundle, inference_model, LINES, method=method)]
                for inference_model in (as_inference_model([bundle.model]), first)
            )
            assert tokens == expected
            assert len(set(expected)) > 4


def test_int8_probabilities_are_those_of_float32(bundle: Bundle) -> None:
    """Compare with forced decoding by the training model, whose tolerance covers the rounding to int8."""
    outputs = search(bundle, build_int8_model(bundle), LINES)
    tokenizer, config = bundle.tokenizer, bundle.recipe.decoding
    scored = score_pairs(
        TorchForcedDecoder(bundle.model),
        [tokenizer.encode_source(line) for line in LINES],
        [output.tokens for output in outputs],
        config,
        start_id=get_decoder_start_id(bundle.recipe.model),
        prompt=tokenizer.decoder_prompt,
    )
    differences = [
        abs(log_prob - expected)
        for output, target in zip(outputs, scored, strict=True)
        for log_prob, expected in zip(output.token_log_probs, target.token_log_probs, strict=False)
    ]
    assert len(differences) > 100
    assert max(differences) < 0.25
    assert sum(differences) / len(differences) < 0.05
