"""The choice of a back end for each model, and the construction of the inference model that a search steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.decoding.interface import SearchState, StepFn
from dragoman.decoding.native_search import NativeSearch
from dragoman.decoding.topk import TopK
from dragoman.errors import DeviceError
from dragoman.inference.backends.compiled.backend import CompiledBackend
from dragoman.inference.backends.compiled.pack import compile_model
from dragoman.inference.backends.cuda.backend import CudaBackend
from dragoman.inference.backends.cuda.model import build_cuda_inference_model
from dragoman.inference.backends.eager import EagerBackend, EagerModel
from dragoman.inference.backends.packed.backend import PackedBackend
from dragoman.inference.backends.packed.pack import pack_model
from dragoman.inference.backends.protocol import (
    Backend,
    BackendRequest,
    ModelTraits,
    Support,
    SupportStatus,
    has_unusual_layers,
)
from dragoman.inference.backends.shared import Precision
from dragoman.inference.lexical_shortlist import Shortlist
from dragoman.model.transformer import Transformer
from dragoman.runtime.malloc import tune_malloc
from dragoman.tasks.inference_model import InferenceModel, ensemble
from dragoman.tasks.torch_models import as_inference_model, build_torch_inference_model, get_max_positions

# Each request goes to the first back end that supports it. `support_table` prints the same table for the documentation.
BACKENDS: tuple[Backend, ...] = (CompiledBackend(), PackedBackend(), CudaBackend(), EagerBackend())


class CpuModel(Protocol):
    """Model that is prepared for a processor, by the packed or the compiled back end."""

    @property
    def make_topk(self) -> Callable[[], TopK] | None: ...

    def start(self, source_BS: Tensor) -> SearchState: ...

    def step(self, tokens_N: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def build_native_search(self, vocab_ids_W: Tensor | None = None) -> NativeSearch | None:
        """Return the model's own search, if it has one.

        vocab_ids_W: token ids of a restricted output vocabulary
        """
        ...

    def restrict_output(self, model: Transformer, vocab_ids_W: Tensor) -> CpuModel:
        """Return the prepared model with these output words only.

        model: the trained model that this one was prepared from
        """
        ...


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
    raise AssertionError("the packed back end or the eager one runs every request")


def check_compiled(model: Transformer, precision: Precision) -> Support:
    """Return whether the compiled back end runs this model on this machine."""
    backend = BACKENDS[0]
    support = backend.supports(BackendRequest("cpu", precision, ModelTraits.from_model(model)))
    return backend.check_machine(precision) if support.is_supported else support


def supports_compiled(model: Transformer, precision: Precision) -> bool:
    """Return whether the compiled back end runs this model on this machine."""
    return check_compiled(model, precision).is_supported


def find_float32_reason(models: Sequence[Transformer], device: torch.device) -> str | None:
    """Return what makes the models compute in float32 on this device, such as recurrent layers; None if nothing does."""
    if uses_pointer_on_gpu(models, device):
        return "model.pointer"
    return "a layer that the paper's Transformer has not" if any(map(has_unusual_layers, models)) else None


def uses_pointer_on_gpu(models: Sequence[Transformer], device: torch.device) -> bool:
    """Return whether the models run unchanged in float32, because static CUDA buffers have no pointer."""
    return device.type != "cpu" and any(model.decoder.pointer is not None for model in models)


def build_inference_model(
    models: Sequence[Transformer],
    device: torch.device,
    precision: Precision,
    shortlist: Shortlist | None,
    *,
    release: Callable[[], None] = lambda: None,
) -> InferenceModel:
    """Return one inference model of these trained models, which must not change afterwards.

    release: is called whenever weights were read, so that mapped memory can be released

    Raises DeviceError for a shortlist on a GPU.
    """
    requests = [
        BackendRequest(device.type, precision, ModelTraits.from_model(model), shortlist is not None) for model in models
    ]
    if find_float32_reason(models, device) is not None:
        requests = [replace(request, precision="float32") for request in requests]
    names = [choose_backend(request).name for request in requests]
    if device.type == "cpu":
        tune_malloc()
    if not models[0].is_autoregressive:
        return as_inference_model(models)
    if device.type == "cpu":
        if "eager" in names:
            precision = "float32"
        cpu_models = [_prepare_cpu_model(name, model, precision, release) for name, model in zip(names, models, strict=True)]
        max_positions = get_max_positions(models)
        inference_model = ensemble([to_inference_model(cpu_model, max_positions) for cpu_model in cpu_models])
        if shortlist is None:
            return inference_model
        restriction = _ShortlistRestriction(tuple(models), tuple(cpu_models), shortlist)
        return replace(inference_model, restrict_vocabulary=restriction)
    if "eager" in names:
        return as_inference_model(models)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    return ensemble([build_cuda_inference_model(deepcopy(model).to(dtype)) for model in models])


def _prepare_cpu_model(name: str, model: Transformer, precision: Precision, release: Callable[[], None]) -> CpuModel:
    if name == "compiled":
        assert precision != "bfloat16"
        # The compiled search reads its sources as lists, which NumPy arrays and tensors both have.
        return cast(CpuModel, compile_model(model, precision, release=release))
    if name == "eager":
        return EagerModel(model)
    return pack_model(model, precision, release=release)


def to_inference_model(cpu_model: CpuModel, max_positions: int | None, vocab_ids_W: Tensor | None = None) -> InferenceModel:
    step = cpu_model.step if vocab_ids_W is None else _map_token_ids(cpu_model.step, vocab_ids_W)
    inference_model = build_torch_inference_model(cpu_model.start, step, torch.device("cpu"), max_positions)
    return replace(inference_model, make_topk=cpu_model.make_topk, native_search=cpu_model.build_native_search(vocab_ids_W))


def _map_token_ids(step: StepFn, vocab_ids_W: Tensor) -> StepFn:
    """Return a step that reads token numbers of the restricted vocabulary."""
    return lambda tokens_N, state: step(vocab_ids_W[tokens_N], state)


@dataclass(frozen=True)
class _ShortlistRestriction:
    """Function that gives a batch an inference model of its likely words only."""

    models: tuple[Transformer, ...]
    cpu_models: tuple[CpuModel, ...]
    shortlist: Shortlist

    def __call__(self, source_BS: NDArray[np.int64], required_ids: Sequence[int]) -> tuple[InferenceModel, NDArray[np.int64]]:
        vocab_ids_W = torch.tensor(sorted({*self.shortlist.select_tokens(source_BS).tolist(), *required_ids}))
        restricted_models = [
            cpu_model.restrict_output(model, vocab_ids_W) for cpu_model, model in zip(self.cpu_models, self.models, strict=True)
        ]
        members = [to_inference_model(restricted_model, None, vocab_ids_W) for restricted_model in restricted_models]
        return ensemble(members), vocab_ids_W.numpy()
