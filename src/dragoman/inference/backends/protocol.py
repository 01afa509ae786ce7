"""Requests for a back end, the answers to them, and the protocol of the back ends that answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, cast

from torch import nn

from dragoman.inference.backends.shared import Precision
from dragoman.model.attention import Attention
from dragoman.model.dropout import Dropout
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm
from dragoman.model.linear import Linear
from dragoman.model.lora import LoraLinear
from dragoman.model.positional_encoding import NoPositionalEmbedding
from dragoman.model.transformer import Decoder, Encoder, Transformer

PAPER_MODULES = frozenset(
    [Attention, DecoderLayer, Dropout, EncoderLayer, FeedForward, Linear, LoraLinear, PostNorm, PreNorm, nn.LayerNorm]
)
"""Types of the modules in the paper's layers."""


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
    return Support(SupportStatus.REFUSED, reason, "shortlist-unsupported", "choose device cpu or leave the shortlist out")


@dataclass(frozen=True)
class ModelTraits:
    """Properties of a model on which the choice of a back end depends.

    has_pointer: the decoder reads the source's next word, as a parser's does
    has_window: a stack attends to nearby positions only
    widths: d_model, and the d_ff of each layer
    activation: activation of the feed-forward networks
    has_output_bias: the logits have a bias
    has_unusual_layers: layers differ from the paper's, such as recurrent ones; all other traits but `has_pointer` are unknown
    """

    has_pointer: bool
    has_window: bool
    num_heads: int
    widths: tuple[int, ...]
    activation: str = "relu"
    has_output_bias: bool = False
    has_unusual_layers: bool = False

    @classmethod
    def from_model(cls, model: Transformer) -> ModelTraits:
        """Return the traits of a trained model."""
        has_pointer = model.decoder.pointer is not None
        if has_unusual_layers(model):
            return cls(has_pointer, has_window=False, num_heads=0, widths=(), has_unusual_layers=True)
        stacks = (model.encoder, model.decoder)
        layers = [cast(EncoderLayer | DecoderLayer, layer) for stack in stacks for layer in stack.layers]
        return cls(
            has_pointer=has_pointer,
            has_window=any(stack.window is not None for stack in stacks),
            num_heads=layers[0].attention.num_heads,
            widths=(model.output.shape[1], *(layer.feed_forward.inner.out_features for layer in layers)),
            activation=layers[0].feed_forward.activation,
            has_output_bias=model.output_bias is not None,
        )


def has_unusual_layers(model: Transformer) -> bool:
    """Return whether a layer differs from the paper's, which no back end but the eager one computes."""
    positions = (model.encoder.embedding.positions, model.decoder.embedding.positions)
    if type(model.encoder) is not Encoder or type(model.decoder) is not Decoder:
        return True
    if any(isinstance(table, NoPositionalEmbedding) for table in positions):
        return True
    modules = [module for stack in (model.encoder, model.decoder) for layer in stack.layers for module in layer.modules()]
    return any(type(module) not in PAPER_MODULES for module in modules)


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
