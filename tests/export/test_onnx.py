"""Exports to ONNX, checked with onnxruntime: logits of each step, and the search of the guide."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.bundle import Bundle, load_bundle
from dragoman.config import make_recipe
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.special_tokens import BEGIN_ID, PADDING_ID
from dragoman.errors import BundleError
from dragoman.export.onnx import export_onnx
from dragoman.io.storage import verify_checksums
from dragoman.model.factory import build_model
from expected_errors import raises_code

pytestmark = pytest.mark.usefixtures("one_core")

SMALL = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("paper", {}),
    "modern": ("modern", {}),
    "t2t-2017": ("t2t-2017", {"target_space_embedding": True}),
    "narrow heads": ("paper", {"d_k": 5, "d_v": 3, "activation": "silu", "output_bias": True}),
    "learned positions": ("modern", {"position_encoding": "learned", "max_positions": 40, "activation": "gelu"}),
    "BART": ("paper", {"position_encoding": "learned", "max_positions": 40, "embedding_norm": True}),
    "untied": ("paper", {"tie_embeddings": "none", "scale_embeddings": False, "position_offset": 2}),
}


@pytest.fixture(scope="module")
def trained_bundle(bundle: Path) -> Bundle:
    return load_bundle(bundle)


def random_bundle(base: Bundle, preset: str, **settings: Any) -> Bundle:
    """Return a model with random weights: none is zero or one, which could hide an error."""
    joint = settings.get("tie_embeddings", "all") == "all"
    recipe = make_recipe(
        {"preset": preset, "model": SMALL | settings, "data": {"max_length": 30}, "tokenizer": {"joint": joint}}
    )
    tokenizer = base.tokenizer
    model = build_model(recipe.model, source_vocab_size=len(tokenizer.source), target_vocab_size=len(tokenizer.target))
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=rng) * 0.3 + (1.0 if name.endswith("norm.weight") else 0.0))
    return Bundle.from_model(
        recipe,
        PairTokenizer(tokenizer.source, tokenizer.target, append_source_eos=recipe.model.append_source_eos),
        model.eval(),
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_each_step_are_equal(variant: str, trained_bundle: Bundle, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="runs the graphs with onnxruntime: dragoman[onnx]")
    pytest.importorskip("onnx", reason="writes the graphs with onnx: dragoman[onnx]")
    preset, settings = VARIANTS[variant]
    bundle = random_bundle(trained_bundle, preset, **settings)
    export_onnx(bundle, tmp_path / "out")
    verify_checksums(tmp_path / "out", BundleError)
    decoder_info = json.loads((tmp_path / "out" / "dragoman.json").read_bytes())["decoder"]
    encoder, decoder = (onnxruntime.InferenceSession(tmp_path / "out" / f"{name}.onnx") for name in ("encoder", "decoder"))
    rng = torch.Generator().manual_seed(1)
    source = torch.randint(4, len(bundle.tokenizer.source), (3, 9), generator=rng)
    source[1, 6:] = PADDING_ID
    inputs = torch.randint(4, len(bundle.tokenizer.target), (3, 8), generator=rng)
    inputs[:, 0] = decoder_info["start_id"]
    with torch.no_grad():
        expected = bundle.model(source, inputs).numpy()
    cross_keys, cross_values = encoder.run(None, {"source": source.numpy()})
    keys, values = (
        np.zeros([shape[0], 3, *shape[2:]], np.float32)
        for shape in (decoder_info["key_cache_shape"], decoder_info["value_cache_shape"])
    )
    is_allowed = np.ones(expected.shape[-1], dtype=bool)
    is_allowed[[PADDING_ID, BEGIN_ID]] = False
    for position in range(8):
        feed = {"tokens": inputs[:, position].numpy(), "source": source.numpy(), "self_keys": keys, "self_values": values}
        logits, keys, values = decoder.run(None, feed | {"cross_keys": cross_keys, "cross_values": cross_values})
        np.testing.assert_allclose(logits[:, is_allowed], expected[:, position, is_allowed], rtol=1e-5, atol=1e-5)
        assert logits[:, ~is_allowed].max() < -1e4


def test_window_cannot_be_exported(trained_bundle: Bundle, tmp_path: Path) -> None:
    with raises_code("export-unsupported", "model.attention_window = 3"):
        export_onnx(random_bundle(trained_bundle, "paper", attention_window=3), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_library_names_the_extra(trained_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with raises_code("missing-dependency", "dragoman[onnx]"):
        export_onnx(trained_bundle, tmp_path / "out")


def test_language_tokens_are_refused(trained_bundle: Bundle, tmp_path: Path) -> None:
    tokenizer = trained_bundle.recipe.tokenizer.model_copy(update={"language_token": ">>{}<<"})
    recipe = trained_bundle.recipe.model_copy(update={"tokenizer": tokenizer})
    with raises_code("export-unsupported", "tokenizer.language_token"):
        export_onnx(replace(trained_bundle, recipe=recipe), tmp_path / "out")
