"""Models made ready to be searched: for a processor compiled or packed, for a GPU in fixed shapes; also with a shortlist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from dragoman.decoding.interface import Step
from dragoman.decoding.native_search import Searcher
from dragoman.errors import DeviceError
from dragoman.inference.backends.cuda.model import fixed_speaker
from dragoman.inference.backends.device import compiles
from dragoman.inference.backends.packed.matmul import Precision, pack_product
from dragoman.inference.backends.packed.model import PackedTransformer
from dragoman.inference.backends.packed.pack import pack
from dragoman.inference.shortlist import Shortlist
from dragoman.model.transformer import Transformer
from dragoman.runtime.malloc import keep_freed_memory
from dragoman.tasks.inference_model import Speaker, most_positions, speaker_of, vote

if TYPE_CHECKING:
    from dragoman.inference.backends.compiled.model import CompiledTransformer

Ready: TypeAlias = "PackedTransformer | CompiledTransformer"


def ready_speaker(
    models: Sequence[Transformer],
    device: torch.device,
    precision: Precision,
    shortlist: Shortlist | None,
    *,
    forget: Callable[[], None] = lambda: None,
) -> Speaker:
    """One speaker of these models, which stay what they are. Raises DeviceError for a shortlist on a GPU.

    forget: see `Bundle.forget`; told whenever weights were read
    """
    if device.type == "cpu":
        keep_freed_memory()
        ready = [_ready(model, precision, forget) for model in models]
        speaker = vote(
            [Speaker(one.start, one.step, device, most_positions(models), one.ranking, _searcher(one)) for one in ready]
        )
        if shortlist is None:
            return speaker
        return replace(speaker, narrowed=_Narrowed(tuple(models), tuple(ready), precision, shortlist))
    if shortlist is not None:
        raise DeviceError("a shortlist saves time on a processor only: leave it out, or give device = 'cpu'")
    if points_on(models, device):
        return speaker_of(models)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    return vote([fixed_speaker(deepcopy(model).to(dtype)) for model in models])


def _ready(model: Transformer, precision: Precision, forget: Callable[[], None]) -> Ready:
    """Compiled in int8 where that can be, else packed."""
    if precision != "int8" or not compiles(model):
        return pack(model, precision, forget=forget)
    from dragoman.inference.backends.compiled.pack import (
        compile_model,  # only here, since Numba is an extra, and takes its time to come
    )

    return compile_model(model, forget=forget)


def _searcher(ready: Ready, words_W: Tensor | None = None) -> Searcher | None:
    """What it searches with by itself, if it can; words_W: the only ones that it says."""
    return None if isinstance(ready, PackedTransformer) else ready.searcher(words_W)


def points_on(models: Sequence[Transformer], device: torch.device) -> bool:
    """Whether these are computed as they were trained, in float32: fixed shapes know of no pointers yet."""
    return device.type != "cpu" and any(model.decoder.pointer is not None for model in models)


@dataclass(frozen=True)
class _Narrowed:
    """Gives a batch its own speaker, which computes likely words alone."""

    models: tuple[Transformer, ...]
    ready: tuple[Ready, ...]
    precision: Precision
    shortlist: Shortlist

    def __call__(self, source_BS: Tensor, needed: Sequence[int]) -> tuple[Speaker, Tensor]:
        words_W = torch.tensor(sorted({*self.shortlist.words(source_BS).tolist(), *needed}))
        some = [self._with(words_W, one, model) for one, model in zip(self.ready, self.models, strict=True)]

        def naming(step: Step) -> Step:
            return lambda tokens_N, state: step(words_W[tokens_N], state)

        speakers = [
            Speaker(one.start, naming(one.step), torch.device("cpu"), None, one.ranking, _searcher(one, words_W))
            for one in some
        ]
        return vote(speakers), words_W

    def _with(self, words_W: Tensor, ready: Ready, model: Transformer) -> Ready:
        if isinstance(ready, PackedTransformer):
            return replace(ready, output=pack_product(model.output.detach()[words_W], None, self.precision))
        from dragoman.inference.backends.compiled.pack import with_words

        return with_words(ready, model, words_W)
