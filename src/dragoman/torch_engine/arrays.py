"""Arrays of PyTorch on one device, for the searches of models that PyTorch computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dragoman.decoding.arrays import SMALL_VOCABULARY, LogSumExpFn, Reduction

# Number of values that fit into a processor's cache; it limits the rows that are normalized at a time.
CACHED_VALUES = 1 << 20
SCATTER_REDUCTIONS = {"add": "sum", "minimum": "amin", "maximum": "amax"}


@dataclass(frozen=True)
class TorchArrays:
    """Tensors on one device, with the functions of `dragoman.decoding.arrays.Arrays`."""

    device: torch.device
    xp: ClassVar[Any] = torch

    @property
    def is_on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def asarray(self, values: Any, dtype: Any = None) -> Tensor:
        return torch.asarray(values, dtype=dtype, device=self.device)

    def arange(self, stop: int) -> Tensor:
        return torch.arange(stop, device=self.device)

    def full(self, shape: Sequence[int], value: float, dtype: Any) -> Tensor:
        return torch.full(tuple(shape), value, dtype=dtype, device=self.device)

    def cast(self, array: Tensor, dtype: Any) -> Tensor:
        return array.to(dtype)

    def to_numpy(self, array: Tensor) -> Any:
        return array.cpu().numpy()

    def take(self, array: Tensor, index: Tensor, axis: int = -1) -> Tensor:
        return torch.take_along_dim(array, index, axis)

    def reduce_at(self, array: Tensor, index: Tensor, values: Tensor, reduction: Reduction) -> None:
        array.scatter_reduce_(-1, index, values, SCATTER_REDUCTIONS[reduction])

    def repeat(self, array: Tensor, count: int) -> Tensor:
        return array.repeat_interleave(count, dim=0)

    def windows(self, array_NT: Tensor, size: int) -> Tensor:
        return array_NT.unfold(1, size, 1)

    def cumsum(self, array: Tensor) -> Tensor:
        return array.cumsum(-1)

    def topk(self, array_BX: Tensor, count: int) -> Tensor:
        if count == array_BX.shape[1]:
            return array_BX.argsort(dim=1, descending=True)
        return array_BX.argmax(1, keepdim=True) if count == 1 else array_BX.topk(count, dim=1).indices

    def log_softmax(self, logits_NV: Tensor) -> Tensor:
        return logits_NV.log_softmax(-1)

    def logsumexp(self, array: Tensor, axis: int) -> Tensor:
        return array.logsumexp(axis)

    def make_logsumexp(self) -> LogSumExpFn:
        return _LogSumExp()


class _LogSumExp:
    """Log-sum-exp over the vocabulary for each row; keeps its workspace between steps."""

    def __init__(self) -> None:
        self.workspace_CV: Tensor | None = None

    def __call__(self, logits_NV: Tensor) -> Tensor:
        """Return log Σ exp from the softmax, PyTorch's fastest pass: its value at the largest logit m is 1 / Σ exp(x − m).

        → (N,) in double precision, so that the rounding of a logit does not shift every token log-probability
        """
        rows, vocabulary = logits_NV.shape
        if vocabulary < SMALL_VOCABULARY:
            return logits_NV.double().logsumexp(-1)
        if logits_NV.device.type != "cpu":
            return logits_NV.amax(-1) - logits_NV.softmax(-1).amax(-1).double().log()
        chunk_size = max(1, CACHED_VALUES // vocabulary)
        if (
            self.workspace_CV is None
            or len(self.workspace_CV) < min(chunk_size, rows)
            or self.workspace_CV.shape[1] != vocabulary
        ):
            self.workspace_CV = torch.empty(min(chunk_size, rows), vocabulary)
        sums = []
        for start in range(0, rows, chunk_size):
            chunk_CV = logits_NV[start : start + chunk_size]
            probs_CV = torch.softmax(chunk_CV, -1, out=self.workspace_CV[: len(chunk_CV)])
            sums.append(chunk_CV.amax(-1) - probs_CV.amax(-1).double().log())
        return sums[0] if len(sums) == 1 else torch.cat(sums)
