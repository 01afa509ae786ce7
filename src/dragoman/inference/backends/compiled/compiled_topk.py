"""Log-sum-exp and top-k over the vocabulary by compiled functions, for a search in Python.

N rows    B sentences of R hypotheses    V vocabulary    X best tokens
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dragoman.inference.backends.compiled import entry_points
from dragoman.inference.backends.compiled.arena import get_address


class CompiledTopK:
    """Compiled counterpart of `dragoman.decoding.topk.BlockTopK`, in float32 on a processor."""

    def logsumexp(self, logits_NV: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return log Σ exp over the vocabulary of each row (N,), in double precision."""
        logits_NV = np.ascontiguousarray(logits_NV, np.float32)
        logsumexp_N = np.empty(len(logits_NV), np.float64)
        entry_points.logsumexp(get_address(logits_NV), *logits_NV.shape, get_address(logsumexp_N))
        return logsumexp_N

    def topk(self, logits_BRV: NDArray[np.float32], shift_BR: NDArray[np.floating] | None, count: int) -> NDArray[np.int64]:
        """Return the indices (B, count) in (R · V) of each sentence's greatest logits plus their row's shift, best first."""
        logits_BRV, num_sentences = np.ascontiguousarray(logits_BRV, np.float32), len(logits_BRV)
        index_BX, value_BX = np.empty((num_sentences, count), np.int64), np.empty((num_sentences, count), np.float32)
        shift_BR = (
            np.zeros(logits_BRV.shape[:2], np.float32) if shift_BR is None else np.ascontiguousarray(shift_BR, np.float32)
        )
        addresses = (get_address(array) for array in (shift_BR, index_BX, value_BX))
        entry_points.topk(get_address(logits_BRV), *logits_BRV.shape, *addresses, count)
        return index_BX
