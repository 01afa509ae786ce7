"""Tests that the printed table of features agrees with the back ends that are really chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from dragoman.config import ModelConfig
from dragoman.errors import DeviceError
from dragoman.inference.backends.protocol import SUPPORTED, Backend, BackendRequest, ModelTraits, SupportStatus
from dragoman.inference.backends.select import BACKENDS, build_inference_model, choose_backend
from dragoman.inference.backends.support_table import (
    BASE_REQUESTS,
    BASE_TRAITS,
    FEATURES,
    SEARCHES,
    compute_support,
    is_native_search,
)
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.model.factory import build_model
from expected_errors import raises_code
from torch_models import wrap_model

# Recipe keys that give a small model one feature of the table.
MODEL_KEYS: dict[str, dict[str, Any]] = {
    "parser's pointer": {"pointer": True, "tie_embeddings": "none"},
    "attention window": {"attention_window": 2},
    "more than 16 heads": {"num_heads": 17},
    "width that is not a multiple of 16": {"d_ff": 40},
    "RMSNorm, gates, relative and rotary positions": {
        "norm_type": "rms",
        "activation": "geglu",
        "position_encoding": "relative",
        "feed_forward_bias": False,
    },
    "recurrent, convolutional and other layers": {"decoder_mixer": "recurrent"},
}


def make_model(feature: str) -> TrainedModel:
    keys: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 48, "num_heads": 2}
    config = ModelConfig(**keys | MODEL_KEYS.get(feature, {}) | ({"d_k": 2, "d_v": 2} if "heads" in feature else {}))
    parser_options: dict[str, Any] = {"word_id": 4, "tagging": False} if config.pointer else {}
    model = build_model(config, source_vocab_size=20, target_vocab_size=20, **parser_options).eval()
    return wrap_model(model, config)


def find_chosen_name(model: TrainedModel, request: BackendRequest) -> str:
    """Return the back end of the inference model that is really built."""
    inference_model = build_inference_model([model], request.device_type, request.precision, None)
    step = cast(Any, inference_model.step)
    prepared = getattr(step, "__wrapped__", step).__self__
    return {"CompiledTransformer": "compiled", "Transformer": "torch"}.get(type(prepared).__name__, "other")


def find_row(feature: str, request: BackendRequest) -> Backend:
    """Return the first back end of the device whose cell says that it supports the feature, or the last one."""
    return next(
        (
            backend
            for backend in BACKENDS
            if BASE_REQUESTS[backend.name].device_type == request.device_type and compute_support(feature, backend) == SUPPORTED
        ),
        BACKENDS[-1],
    )


@pytest.mark.parametrize("feature", [feature for feature in FEATURES if feature != "shortlist"])
def test_table_agrees_with_chosen_cpu_backend(feature: str) -> None:
    request = replace(BASE_REQUESTS["compiled"], **{k: v for k, v in FEATURES[feature].items() if k == "precision"})
    model = make_model(feature)
    if compute_support(feature, BACKENDS[0]).status is SupportStatus.REFUSED:
        with pytest.raises(DeviceError, match="float32 or int8"):
            build_inference_model([model], "cpu", request.precision, None)
        return
    assert find_chosen_name(model, request) == find_row(feature, request).name


@pytest.mark.parametrize("feature", FEATURES)
def test_table_agrees_with_chosen_gpu_backend(feature: str) -> None:
    """The choice needs no GPU."""
    request = replace(BASE_REQUESTS["torch"], **FEATURES[feature])
    support = compute_support(feature, BACKENDS[1])
    if support.status is SupportStatus.REFUSED:
        with raises_code(support.code):
            choose_backend(request)
        if support.code == "frontend-unsupported":  # in each precision
            return
        request = replace(request, precision="float32", has_shortlist=False)
    assert choose_backend(request).name == "torch"


def test_traits_of_models_match_the_table() -> None:
    for feature in MODEL_KEYS:
        assert ModelTraits.from_config(make_model(feature).config) == FEATURES[feature].get("traits", BASE_TRAITS)


def test_searches_of_converted_models_are_native() -> None:
    assert all(is_native_search(search) for search in SEARCHES if "heuristic" in search or "language token" in search)
    assert not any(is_native_search(search) for search in SEARCHES if "sampling" in search or "mask" in search)
