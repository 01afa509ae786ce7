"""Inputs of an encoder by the names of `model.frontend`: what each needs of a recipe, and the weights before the encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KERNEL_SIZE = 3
"""Frames of one product of a convolution over a spectrogram."""


@dataclass(frozen=True)
class EncoderInput:
    """Input of an encoder. Functions take the `ModelConfig`, which this module does not import.

    tasks: values of `task.kind` whose models read it
    count_positions: returns the number of learned positions of the encoder
    list_convolution_inputs: returns the numbers that each convolution before the encoder reads at once
    has_embedding: whether the encoder reads rows of an embedding matrix
    required_keys: keys of the section `model`, and their only values
    other_engines: what other engines and PyTorch's searches compute in its place; "" if they compute it
    """

    tasks: tuple[str, ...]
    count_positions: Callable[[Any], int]
    list_convolution_inputs: Callable[[Any], tuple[int, ...]] = lambda config: ()
    has_embedding: bool = True
    required_keys: Mapping[str, Any] = field(default_factory=dict)
    other_engines: str = ""


ENCODER_INPUTS: Mapping[str, EncoderInput] = {
    "tokens": EncoderInput(tasks=("translation", "parsing"), count_positions=lambda config: config.max_positions),
    "log-mel": EncoderInput(
        tasks=("transcription",),
        count_positions=lambda config: config.max_source_positions,
        list_convolution_inputs=lambda config: (KERNEL_SIZE * config.num_mel_bins, KERNEL_SIZE * config.d_model),
        has_embedding=False,
        required_keys={
            "position_encoding": "learned",
            "tie_embeddings": "decoder",
            "embedding_norm": False,
            "pointer": False,
        },
        other_engines="models of text only",
    ),
}
