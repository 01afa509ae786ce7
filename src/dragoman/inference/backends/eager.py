"""Back end of last resort: the training model itself, called by PyTorch layer by layer."""

from __future__ import annotations

from dragoman.inference.backends.protocol import SUPPORTED, BackendRequest, Support, refuse, refuse_shortlist
from dragoman.inference.backends.shared import Precision


class EagerBackend:
    """Training model in float32, for models that the CUDA back end does not run."""

    name = "eager"

    def supports(self, request: BackendRequest) -> Support:
        if request.has_shortlist:
            return refuse_shortlist("the training model computes all words")
        return SUPPORTED if request.precision == "float32" else refuse("the training model computes in float32")

    def check_machine(self, precision: Precision) -> Support:
        return SUPPORTED
