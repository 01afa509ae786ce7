"""Exports to ONNX, checked with onnxruntime: logits of each step, and the search of the card."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman.bundle import Bundle, load_bundle
from dragoman.data.tokenization.special_tokens import BEGIN_ID, PADDING_ID
from dragoman.errors import BundleError
from dragoman.export.onnx import export_onnx
from dragoman.io.int8_tensors import dequantize_matrices, quantize_matrices
from dragoman.io.storage import verify_checksums
from dragoman.model_packages import resolve_model
from expected_errors import raises_code
from noisy_bundles import make_noisy_bundle

pytestmark = pytest.mark.usefixtures("one_core")

ROOT = Path(__file__).parents[2]
SMALL = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2}
T5 = {"norm_type": "rms", "position_encoding": "relative", "feed_forward_bias": False, "scale_embeddings": False}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("paper", {}),
    "modern": ("modern", {}),
    "t2t-2017": ("t2t-2017", {"target_space_embedding": True}),
    "narrow heads": ("paper", {"d_k": 5, "d_v": 3, "activation": "silu", "output_bias": True}),
    "grouped heads": ("paper", {"num_heads": 4, "num_key_value_heads": 2, "d_k": 5, "d_v": 3, "attention_bias": True}),
    "learned positions": ("modern", {"position_encoding": "learned", "max_positions": 40, "activation": "gelu"}),
    "BART": ("paper", {"position_encoding": "learned", "max_positions": 40, "embedding_norm": True}),
    "student": ("paper", {"decoder_autoregression": "ssru", "position_encoding": "halves", "output_bias": True}),
    "learned student": ("modern", {"decoder_autoregression": "ssru", "position_encoding": "learned", "max_positions": 40}),
    "T5": ("modern", T5 | {"activation": "geglu", "tie_embeddings": "inputs"}),
    "relative, swiglu": ("paper", {"norm_type": "rms", "position_encoding": "relative", "activation": "swiglu"}),
    "rotary": ("modern", {"position_encoding": "rotary", "num_heads": 4, "num_key_value_heads": 2, "d_k": 6}),
    "untied": ("paper", {"tie_embeddings": "none", "scale_embeddings": False, "position_offset": 2}),
}


def random_bundle(base: Bundle, preset: str, **settings: Any) -> Bundle:
    """Return a model with random weights."""
    joint = settings.get("tie_embeddings", "all") in ("all", "inputs")
    document = {"preset": preset, "model": SMALL | settings, "data": {"max_length": 30}, "tokenizer": {"joint": joint}}
    return make_noisy_bundle(base.tokenizer, document, get_scale=lambda name: 0.3)


def check_logits(bundle: Bundle, folder: Path) -> None:
    """Run three rows, one of them padded, through the graphs, and compare each step with the model of PyTorch."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="runs the graphs with onnxruntime: dragoman[onnx]")
    verify_checksums(folder, BundleError)
    decoder_info = json.loads((folder / "dragoman.json").read_bytes())["decoder"]
    encoder, decoder = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    rng = torch.Generator().manual_seed(1)
    source = torch.randint(4, len(bundle.tokenizer.source), (3, 9), generator=rng)
    source[1, 6:] = PADDING_ID
    inputs = torch.randint(4, len(bundle.tokenizer.target), (3, 8), generator=rng)
    inputs[:, 0] = decoder_info["start_id"]
    with torch.no_grad():
        expected = bundle.model(source, inputs).numpy()
    cross_keys, cross_values = encoder.run(None, {"source": source.numpy()})
    fixed = {"source": source.numpy(), "cross_keys": cross_keys, "cross_values": cross_values}
    state = {}
    for tensor in decoder_info["state"]:
        layers, *shape = tensor["shape"]  # the position has no rows
        state[tensor["input"]] = np.zeros([layers, 3, *shape[1:]] if shape else [layers], tensor["dtype"])
    outputs = ["logits", *(tensor["output"] for tensor in decoder_info["state"])]
    is_allowed = np.ones(expected.shape[-1], dtype=bool)
    is_allowed[[PADDING_ID, BEGIN_ID]] = False
    for position in range(8):
        logits, *new_state = decoder.run(outputs, fixed | state | {"tokens": inputs[:, position].numpy()})
        state = dict(zip(state, new_state, strict=True))
        np.testing.assert_allclose(logits[:, is_allowed], expected[:, position, is_allowed], rtol=1e-5, atol=1e-5)
        assert logits[:, ~is_allowed].max() < -1e4


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_each_step_are_equal(variant: str, trained_bundle: Bundle, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="writes the graphs with onnx: dragoman[onnx]")
    preset, settings = VARIANTS[variant]
    bundle = random_bundle(trained_bundle, preset, **settings)
    export_onnx(bundle, tmp_path / "out")
    check_logits(bundle, tmp_path / "out")


@pytest.mark.parametrize("variant", ["modern", pytest.param("student", marks=pytest.mark.slow)])
def test_int8_matrices_compute_in_float32(variant: str, trained_bundle: Bundle, tmp_path: Path) -> None:
    """The logits are those of the rounded matrices, from a bundle with float32 matrices and from one with int8 matrices."""
    pytest.importorskip("onnx", reason="writes the graphs with onnx: dragoman[onnx]")
    preset, settings = VARIANTS[variant]
    bundle = random_bundle(trained_bundle, preset, **settings)
    rounded = Bundle(bundle.recipe, bundle.tokenizer, dequantize_matrices(quantize_matrices(bundle.arrays)))
    for name, exported in (("float32", bundle), ("int8", rounded)):
        export_onnx(exported, tmp_path / name, is_int8=True)
        check_logits(rounded, tmp_path / name)
        with pytest.raises(AssertionError):  # which the matrices before rounding do not have
            check_logits(bundle, tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("is_int8", [False, True], ids=["float32", "int8"])
def test_model_of_repository_has_equal_tokens(is_int8: bool, tmp_path: Path) -> None:
    """The code of the card translates 200 sentences of the documentation as dragoman does in float32."""
    pytest.importorskip("onnxruntime", reason="runs the graphs with onnxruntime: dragoman[onnx]")
    pytest.importorskip("onnx", reason="writes the graphs with onnx: dragoman[onnx]")
    bundle = load_bundle(resolve_model("en-de"))
    export_onnx(bundle, tmp_path / "out", is_int8=is_int8)
    (code,) = re.findall(r"```python\n(.*?)\nprint", (tmp_path / "out/README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("PATH", str(tmp_path / "out")), names)
    text = " ".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    lines = [line for line in re.findall(r"(?<=\. )[A-Z][A-Za-z ,]+\.", text) if len(line) > 20][:200]
    assert len(lines) == 200
    translator = dragoman.load("en-de", task="translation", device="cpu", precision="float32")
    translations = translator.translate(lines, method="greedy", repetition_window=0, min_length_ratio=0)
    assert [names["translate"](line) for line in lines] == [translation.text for translation in translations]


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
