"""Models made ready to be searched: packed for a processor, in fixed shapes for a GPU, with a shortlist where there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dragoman.decoding.step import Step
from dragoman.engine.fixed import fixed_speaker
from dragoman.engine.packed import PackedTransformer
from dragoman.engine.packer import pack
from dragoman.engine.products import Precision, pack_product
from dragoman.engine.shortlist import Shortlist
from dragoman.errors import DeviceError
from dragoman.memory import keep_freed_memory
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import Speaker, most_positions, speaker_of, vote


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
        packed = [pack(model, precision, forget=forget) for model in models]
        speaker = vote([Speaker(one.start, one.step, device, most_positions(models)) for one in packed])
        if shortlist is None:
            return speaker
        return replace(speaker, narrowed=_Narrowed(tuple(models), tuple(packed), precision, shortlist))
    if shortlist is not None:
        raise DeviceError("a shortlist saves time on a processor only: leave it out, or give device = 'cpu'")
    if points_on(models, device):
        return speaker_of(models)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    return vote([fixed_speaker(deepcopy(model).to(dtype)) for model in models])


def points_on(models: Sequence[Transformer], device: torch.device) -> bool:
    """Whether these are computed as they were trained, in float32: fixed shapes know of no pointers yet."""
    return device.type != "cpu" and any(model.decoder.pointer is not None for model in models)


@dataclass(frozen=True)
class _Narrowed:
    """Gives a batch its own speaker, which computes likely words alone."""

    models: tuple[Transformer, ...]
    packed: tuple[PackedTransformer, ...]
    precision: Precision
    shortlist: Shortlist

    def __call__(self, source_BS: Tensor, needed: Sequence[int]) -> tuple[Speaker, Tensor]:
        words_W = torch.tensor(sorted({*self.shortlist.words(source_BS).tolist(), *needed}))
        outputs = [pack_product(model.output.detach()[words_W], None, self.precision) for model in self.models]
        packed = [replace(one, output=output) for one, output in zip(self.packed, outputs, strict=True)]

        def naming(step: Step) -> Step:
            return lambda tokens_N, state: step(words_W[tokens_N], state)

        return vote([Speaker(one.start, naming(one.step), torch.device("cpu"), None) for one in packed]), words_W
