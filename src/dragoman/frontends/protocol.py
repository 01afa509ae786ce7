"""First part of an encoder: a function from an array of sources to vectors. Text, as token ids, is the first of three.

NumPy and PyTorch have front ends of their own. The rest of a model asks a front end, and never what its sources are.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

Array = TypeVar("Array")


class Frontend(Protocol[Array]):
    """Front end of sources in arrays of NumPy or PyTorch: B sources with up to S vectors of the model's width D.

    numbers_per_vector: numbers of a source that become one vector; 1 for text
    """

    @property
    def numbers_per_vector(self) -> int: ...

    def embed(self, source: Array) -> Array:
        """Return the vectors of the sources, to which the encoder adds its positions. → (B, S, D)"""
        ...

    def find_inputs(self, source: Array) -> Array:
        """Return which vectors are no padding. → (B, S)"""
        ...
