"""The choice of a back end for each model, and the construction of the inference model that a search steps.

A back end that computes in PyTorch imports it when it is asked about the machine or prepares a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ModelConfig
from dragoman.errors import DeviceError
from dragoman.inference.backends.compiled.backend import CompiledBackend
from dragoman.inference.backends.protocol import (
    Backend,
    BackendRequest,
    ModelTraits,
    Precision,
    PreparedModel,
    Support,
    SupportStatus,
)
from dragoman.inference.backends.torch_backend import TorchBackend
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.runtime.malloc import tune_malloc
from dragoman.tasks.inference_model import InferenceModel, ensemble

if TYPE_CHECKING:
    from dragoman.shortlist import Shortlist

# Each request goes to the first back end that supports it. `support_table` prints the same table for the documentation.
COMPILED, TORCH = CompiledBackend(), TorchBackend()
BACKENDS: tuple[Backend, ...] = (COMPILED, TORCH)


def choose_backend(request: BackendRequest) -> Backend:
    """Return the first back end that runs the request on this machine. Raises DeviceError if a back end refuses it."""
    for backend in BACKENDS:
        for support in (backend.supports(request), backend.check_machine(request.precision)):
            if support.status is SupportStatus.REFUSED:
                raise DeviceError(
                    f"{request.device_type}, {request.precision}: {support.reason}; {support.remedy}",
                    code=support.code,
                )
            if not support.is_supported:
                break
        else:
            return backend
    raise AssertionError("the back end of PyTorch runs or refuses every request")


def check_compiled(config: ModelConfig, precision: Precision) -> Support:
    """Return whether the compiled back end runs models with this configuration on this machine."""
    support = COMPILED.supports(BackendRequest("cpu", precision, ModelTraits.from_config(config)))
    return COMPILED.check_machine(precision) if support.is_supported else support


def supports_compiled(config: ModelConfig, precision: Precision) -> bool:
    """Return whether the compiled back end runs models with this configuration on this machine."""
    return check_compiled(config, precision).is_supported


def find_float32_reason(configs: Sequence[ModelConfig], device_type: str) -> str | None:
    """Return what makes the models compute in float32 on this device, such as recurrent layers; None if nothing does."""
    if device_type != "cpu" and any(config.pointer for config in configs):  # static buffers have no pointer
        return "model.pointer"
    if device_type != "cpu" and any(config.has_ssru for config in configs):
        return "model.decoder_autoregression = 'ssru'"
    is_unusual = any(config.find_torch_layers() if device_type == "cpu" else config.find_unusual_layers() for config in configs)
    return "a layer that the paper's Transformer has not" if is_unusual else None


def build_inference_model(
    models: Sequence[TrainedModel], device_type: str, precision: Precision, shortlist: Shortlist | None
) -> InferenceModel:
    """Return one inference model of these trained models, which must not change afterwards.

    device_type: "cpu" or "cuda"

    Raises DeviceError for a shortlist on a GPU.
    """
    configs = [model.config for model in models]
    if find_float32_reason(configs, device_type) is not None:
        precision = "float32"
    backends = [
        choose_backend(BackendRequest(device_type, precision, ModelTraits.from_config(config), shortlist is not None))
        for config in configs
    ]
    if len(set(backends)) > 1:  # members of an ensemble have arrays of one library
        backends = [TORCH] * len(backends)
    if device_type == "cpu":
        tune_malloc()
    prepared_models = [backend.prepare(model, precision) for backend, model in zip(backends, models, strict=True)]
    inference_model = ensemble([model.build_inference_model() for model in prepared_models])
    if shortlist is None:
        return inference_model
    return replace(inference_model, restrict_vocabulary=_ShortlistRestriction(tuple(prepared_models), shortlist))


@dataclass(frozen=True)
class _ShortlistRestriction:
    """Function that gives a batch an inference model of its likely words only."""

    prepared_models: tuple[PreparedModel, ...]
    shortlist: Shortlist

    def __call__(self, source_BS: NDArray[np.int64], required_ids: Sequence[int]) -> tuple[InferenceModel, NDArray[np.int64]]:
        vocab_ids_W = np.array(sorted({*self.shortlist.select_tokens(source_BS).tolist(), *required_ids}))
        restricted_models = [model.restrict_output(vocab_ids_W) for model in self.prepared_models]
        return ensemble([model.build_inference_model(vocab_ids_W) for model in restricted_models]), vocab_ids_W
