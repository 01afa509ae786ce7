"""The choice of a back end for each model, and the construction of the inference model that a search steps.

PyTorch is imported when it prepares a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ModelConfig
from dragoman.errors import DeviceError
from dragoman.inference.backends.compiled import backend
from dragoman.inference.backends.protocol import Precision, PreparedModel
from dragoman.inference.backends.torch_backend import TorchModel
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.runtime.malloc import tune_malloc
from dragoman.tasks.inference_model import InferenceModel, ensemble

if TYPE_CHECKING:
    from dragoman.shortlist import Shortlist


def choose_backend(
    config: ModelConfig, device_type: str, precision: Precision, *, has_shortlist: bool = False
) -> Callable[[TrainedModel, Precision], PreparedModel]:
    """Return the function that prepares models with this configuration: that of the kernels if they run here, or of PyTorch.

    Raises DeviceError for kernels that cannot be loaded, and for what PyTorch does not compute.
    """
    if device_type == "cpu" and not config.find_torch_layers():
        obstacle = backend.find_kernel_obstacle()
        if obstacle is None:
            return backend.prepare_compiled
        if obstacle.code:
            raise DeviceError(f"cpu, {precision}: {obstacle.reason}; {obstacle.remedy}", code=obstacle.code)
    if config.encoder_input.other_engines:
        raise DeviceError(
            f"{device_type}, {precision}: PyTorch computes models that read tokens; use a CPU with AVX2 or NEON",
            code="frontend-unsupported",
        )
    if has_shortlist:
        raise DeviceError(
            f"{device_type}, {precision}: PyTorch computes all words; leave the shortlist out", code="shortlist-unsupported"
        )
    return TorchModel


def supports_compiled(config: ModelConfig) -> bool:
    """Return whether the compiled back end runs models with this configuration on this machine."""
    return not config.find_torch_layers() and backend.find_kernel_obstacle() is None


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
    has_shortlist = shortlist is not None
    prepare = [choose_backend(config, device_type, precision, has_shortlist=has_shortlist) for config in configs]
    if len(set(prepare)) > 1:  # members of an ensemble have arrays of one library
        prepare = [TorchModel] * len(prepare)
    if device_type == "cpu":
        tune_malloc()
    prepared_models = [prepare_model(model, precision) for prepare_model, model in zip(prepare, models, strict=True)]
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
