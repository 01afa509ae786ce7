"""Log-sum-exp and top-k over the vocabulary by compiled functions, for a search in Python.

N rows    B sentences of R hypotheses    V vocabulary    X best tokens
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.inference.backends.compiled import entry_points


class CompiledTopK:
    """Compiled counterpart of `dragoman.decoding.topk.BlockTopK`, in float32 on a processor."""

    def logsumexp(self, logits_NV: Tensor) -> Tensor:
        """Return log Σ exp over the vocabulary of each row (N,), in double precision."""
        logits_NV = logits_NV.float().contiguous()
        logsumexp_N = torch.empty(logits_NV.shape[0], dtype=torch.float64, device="cpu")
        entry_points.logsumexp(logits_NV.data_ptr(), *logits_NV.shape, logsumexp_N.data_ptr())
        return logsumexp_N

    def topk(self, logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
        """Return the indices (B, count) in (R · V) of each sentence's greatest logits plus their row's shift, best first."""
        logits_BRV, num_sentences = logits_BRV.float().contiguous(), logits_BRV.shape[0]
        index_BX = torch.empty(num_sentences, count, dtype=torch.long, device="cpu")
        value_BX = torch.empty(num_sentences, count, dtype=torch.float32, device="cpu")
        shift_BR = torch.zeros_like(logits_BRV[:, :, 0]) if shift_BR is None else shift_BR.float()
        shift_BR = shift_BR.contiguous()
        entry_points.topk(
            logits_BRV.data_ptr(), *logits_BRV.shape, shift_BR.data_ptr(), index_BX.data_ptr(), value_BX.data_ptr(), count
        )
        return index_BX
