"""Back end of last resort: the training model itself, called by PyTorch layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dragoman.decoding.interface import SearchState
from dragoman.decoding.native_search import NativeSearch
from dragoman.inference.backends.protocol import SUPPORTED, BackendRequest, Support, refuse, refuse_shortlist
from dragoman.inference.backends.shared import Precision
from dragoman.model.transformer import Transformer


class EagerBackend:
    """Training model in float32, for models that no other back end runs."""

    name = "eager"

    def supports(self, request: BackendRequest) -> Support:
        if request.has_shortlist:
            return refuse_shortlist("the training model computes all words")
        return SUPPORTED if request.precision == "float32" else refuse("the training model computes in float32")

    def check_machine(self, precision: Precision) -> Support:
        return SUPPORTED


@dataclass(frozen=True)
class EagerModel:
    """Training model as it is, with the interface of the models that are prepared for a processor."""

    model: Transformer
    make_topk: None = None

    def start(self, source_BS: Tensor) -> SearchState:
        return self.model.start(source_BS)

    def step(self, tokens_N: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.model.step(tokens_N, state)

    def build_native_search(self, vocab_ids_W: Tensor | None = None) -> NativeSearch | None:
        """Return None, because Python does every search."""
        return None

    def restrict_output(self, model: Transformer, vocab_ids_W: Tensor) -> EagerModel:
        """Raise an error, because the back end refuses a shortlist before."""
        raise NotImplementedError
