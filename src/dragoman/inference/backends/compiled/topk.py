"""What may be said next, by compiled functions, for a search in Python.

N rows    B sentences of R hypotheses    V vocabulary    X best ones
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.inference.backends.compiled import jit_cache


class CompiledTopK:
    """As `dragoman.decoding.topk.PlainRanking`, in float32 and on a processor."""

    def logsumexp(self, logits_NV: Tensor) -> Tensor:
        """log Σ exp over the vocabulary, row by row. → (N,) in double precision"""
        logits_NV = logits_NV.float().contiguous()
        logsumexp_N = torch.empty(logits_NV.shape[0], dtype=torch.float64, device="cpu")
        jit_cache.logsumexp(logits_NV.data_ptr(), *logits_NV.shape, logsumexp_N.data_ptr())
        return logsumexp_N

    def topk(self, logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
        """The `count` best of each sentence's logits, each raised by its row's shift, best first.

        → (B, count) places in (R · V)
        """
        logits_BRV, num_sentences = logits_BRV.float().contiguous(), logits_BRV.shape[0]
        index_BX = torch.empty(num_sentences, count, dtype=torch.long, device="cpu")
        value_BX = torch.empty(num_sentences, count, dtype=torch.float32, device="cpu")
        shift_BR = torch.zeros_like(logits_BRV[:, :, 0]) if shift_BR is None else shift_BR.float()
        shift_BR = shift_BR.contiguous()
        jit_cache.topk(
            logits_BRV.data_ptr(), *logits_BRV.shape, shift_BR.data_ptr(), index_BX.data_ptr(), value_BX.data_ptr(), count
        )
        return index_BX
