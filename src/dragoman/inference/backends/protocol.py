"""Requests for a back end, the answers to them, and the protocol of the back ends that answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ModelConfig
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.tasks.inference_model import InferenceModel

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class SupportStatus(Enum):
    """Answer of a back end to a request."""

    SUPPORTED = "supported"
    FALLS_BACK = "falls back"
    REFUSED = "refused"


@dataclass(frozen=True)
class Support:
    """Answer of a back end to a request, with the reason unless it runs the request itself.

    `FALLS_BACK` leaves the request to the next back end. `REFUSED` means that no back end of the device runs it.

    code, remedy: code and last part of the error that a refusal raises
    """

    status: SupportStatus
    reason: str = ""
    code: str = "precision-unsupported"
    remedy: str = "choose another precision"

    @property
    def is_supported(self) -> bool:
        return self.status is SupportStatus.SUPPORTED


SUPPORTED = Support(SupportStatus.SUPPORTED)


def fall_back(reason: str) -> Support:
    """Return the answer that leaves the request to the next back end."""
    return Support(SupportStatus.FALLS_BACK, reason)


UNUSUAL_LAYERS = fall_back("it has the paper's layers only; the training model runs the others in float32")
"""Answer of a back end that computes the layers of the Transformer only."""


def refuse(reason: str) -> Support:
    """Return the answer that refuses the precision on this device."""
    return Support(SupportStatus.REFUSED, reason)


def refuse_instruction_set(reason: str) -> Support:
    """Return the answer that refuses an instruction set that the processor lacks."""
    return Support(SupportStatus.REFUSED, reason, "cpu-isa-unsupported", "choose another set, or leave the variable out")


def refuse_kernels(reason: str, remedy: str) -> Support:
    """Return the answer that refuses kernels that cannot be loaded."""
    return Support(SupportStatus.REFUSED, reason, "kernels-unusable", remedy)


def refuse_shortlist(reason: str) -> Support:
    """Return the answer that refuses a shortlist on this device."""
    return Support(SupportStatus.REFUSED, reason, "shortlist-unsupported", "leave the shortlist out")


def refuse_frontend(reason: str) -> Support:
    """Return the answer that refuses another input of the encoder than token ids."""
    return Support(SupportStatus.REFUSED, reason, "frontend-unsupported", "use a CPU with AVX2 or NEON")


@dataclass(frozen=True)
class ModelTraits:
    """Properties of a model on which the choice of a back end depends.

    has_pointer: the decoder reads the source's next word, as a parser's does
    has_unusual_layers: layers differ from the paper's, such as recurrent ones
    is_compiled: these layers are those of a hook that the compiled back end computes
    has_ssru: decoder layers have an SSRU in the place of self-attention
    is_compiled_only: PyTorch does not search with the input of the encoder
    """

    has_pointer: bool = False
    has_unusual_layers: bool = False
    is_compiled: bool = False
    has_ssru: bool = False
    is_compiled_only: bool = False

    @property
    def needs_float32(self) -> bool:
        """Return whether PyTorch computes the model in float32 alone, because no CUDA graph has its pointer, SSRU or layers."""
        return self.has_pointer or self.has_ssru or self.has_unusual_layers

    @classmethod
    def from_config(cls, config: ModelConfig) -> ModelTraits:
        """Return the traits of models with this configuration."""
        return cls(
            has_pointer=config.pointer,
            has_unusual_layers=bool(config.find_unusual_layers()),
            is_compiled=config.compiled_extension is not None,
            has_ssru=config.has_ssru,
            is_compiled_only=bool(config.encoder_input.other_engines),
        )


@dataclass(frozen=True)
class BackendRequest:
    """One model, and the device, precision and output vocabulary that the caller asks for.

    device_type: "cpu" or "cuda"
    has_shortlist: each batch computes only the likely words of its sources
    """

    device_type: str
    precision: Precision
    traits: ModelTraits
    has_shortlist: bool = False


class Backend(Protocol):
    """Implementation of a model's forward pass for decoding."""

    @property
    def name(self) -> str: ...

    def supports(self, request: BackendRequest) -> Support:
        """Return whether this back end runs the request. The answer does not depend on the machine."""
        ...

    def check_machine(self, precision: Precision) -> Support:
        """Return whether this machine has what the back end needs in this precision."""
        ...

    def prepare(self, model: TrainedModel, precision: Precision) -> PreparedModel:
        """Return the model in the form that this back end computes with. The trained model must not change afterwards."""
        ...


class PreparedModel(Protocol):
    """Model that a back end has prepared for its device."""

    def build_inference_model(self, vocab_ids_W: NDArray[np.int64] | None = None) -> InferenceModel:
        """Return the model as a search steps it.

        vocab_ids_W: token ids of a restricted output vocabulary, whose numbers the steps read
        """
        ...

    def restrict_output(self, vocab_ids_W: NDArray[np.int64]) -> PreparedModel:
        """Return the prepared model with these output words only."""
        ...
