"""Models made ready to be searched: for a processor compiled or packed, for a GPU in fixed shapes; also with a shortlist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from dragoman.decoding.interface import StepFn
from dragoman.decoding.native_search import NativeSearch
from dragoman.errors import DeviceError
from dragoman.inference.backends.cuda.model import build_cuda_inference_model
from dragoman.inference.backends.device import supports_compiled
from dragoman.inference.backends.packed.matmul import Precision, pack_matmul
from dragoman.inference.backends.packed.model import PackedTransformer
from dragoman.inference.backends.packed.pack import pack_model
from dragoman.inference.shortlist import Shortlist
from dragoman.model.transformer import Transformer
from dragoman.runtime.malloc import tune_malloc
from dragoman.tasks.inference_model import InferenceModel, as_inference_model, ensemble, get_max_positions

if TYPE_CHECKING:
    from dragoman.inference.backends.compiled.model import CompiledTransformer

CpuModel: TypeAlias = "PackedTransformer | CompiledTransformer"


def build_inference_model(
    models: Sequence[Transformer],
    device: torch.device,
    precision: Precision,
    shortlist: Shortlist | None,
    *,
    release: Callable[[], None] = lambda: None,
) -> InferenceModel:
    """One speaker of these models, which stay what they are. Raises DeviceError for a shortlist on a GPU.

    forget: see `Bundle.forget`; told whenever weights were read
    """
    if device.type == "cpu":
        tune_malloc()
        cpu_models = [_build_cpu_model(model, precision, release) for model in models]
        inference_model = ensemble(
            [
                InferenceModel(
                    cpu_model.start,
                    cpu_model.step,
                    device,
                    get_max_positions(models),
                    cpu_model.make_topk,
                    _build_native_search(cpu_model),
                )
                for cpu_model in cpu_models
            ]
        )
        if shortlist is None:
            return inference_model
        return replace(inference_model, restrict_vocabulary=_ShortlistRestriction(tuple(models), tuple(cpu_models), precision, shortlist))
    if shortlist is not None:
        raise DeviceError("a shortlist saves time on a processor only: leave it out, or give device = 'cpu'")
    if uses_pointer_on_gpu(models, device):
        return as_inference_model(models)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    return ensemble([build_cuda_inference_model(deepcopy(model).to(dtype)) for model in models])


def _build_cpu_model(model: Transformer, precision: Precision, release: Callable[[], None]) -> CpuModel:
    """Compiled in int8 where that can be, else packed."""
    if precision != "int8" or not supports_compiled(model):
        return pack_model(model, precision, release=release)
    from dragoman.inference.backends.compiled.pack import (
        compile_model,  # only here, since Numba is an extra, and takes its time to come
    )

    return compile_model(model, release=release)


def _build_native_search(cpu_model: CpuModel, vocab_ids_W: Tensor | None = None) -> NativeSearch | None:
    """What it searches with by itself, if it can; words_W: the only ones that it says."""
    return None if isinstance(cpu_model, PackedTransformer) else cpu_model.build_native_search(vocab_ids_W)


def uses_pointer_on_gpu(models: Sequence[Transformer], device: torch.device) -> bool:
    """Whether these are computed as they were trained, in float32: fixed shapes know of no pointers yet."""
    return device.type != "cpu" and any(model.decoder.pointer is not None for model in models)


@dataclass(frozen=True)
class _ShortlistRestriction:
    """Gives a batch its own speaker, which computes likely words alone."""

    models: tuple[Transformer, ...]
    cpu_models: tuple[CpuModel, ...]
    precision: Precision
    shortlist: Shortlist

    def __call__(self, source_BS: Tensor, required_ids: Sequence[int]) -> tuple[InferenceModel, Tensor]:
        vocab_ids_W = torch.tensor(sorted({*self.shortlist.select_tokens(source_BS).tolist(), *required_ids}))
        restricted_models = [
            self._restrict_output(vocab_ids_W, cpu_model, model)
            for cpu_model, model in zip(self.cpu_models, self.models, strict=True)
        ]

        def map_token_ids(step: StepFn) -> StepFn:
            return lambda tokens_N, state: step(vocab_ids_W[tokens_N], state)

        inference_models = [
            InferenceModel(
                restricted_model.start,
                map_token_ids(restricted_model.step),
                torch.device("cpu"),
                None,
                restricted_model.make_topk,
                _build_native_search(restricted_model, vocab_ids_W),
            )
            for restricted_model in restricted_models
        ]
        return ensemble(inference_models), vocab_ids_W

    def _restrict_output(self, vocab_ids_W: Tensor, cpu_model: CpuModel, model: Transformer) -> CpuModel:
        if isinstance(cpu_model, PackedTransformer):
            return replace(cpu_model, output=pack_matmul(model.output.detach()[vocab_ids_W], None, self.precision))
        from dragoman.inference.backends.compiled.pack import restrict_output

        return restrict_output(cpu_model, model, vocab_ids_W)
