"""Entry points of the kernels: functions of machine code that Python calls with numbers and addresses, without its lock."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints

from dragoman.inference.backends.compiled.cpu_features import get_instruction_set
from dragoman.inference.backends.compiled.kernel_files import load_library

KERNEL_TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


class EntryPoint:
    """One exported kernel of this processor's instruction set, loaded by its first call.

    It takes numbers, the tuples of `structs` and words of `flatten`, and returns an integer.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._function: Callable[[int], int] | None = None

    def __call__(self, *arguments: Any) -> int:
        words = flatten(arguments)  # the variable keeps the words alive during the call
        return self.load()(words.buffer_info()[0])

    def load(self) -> Callable[[int], int]:
        """Return the function, which takes the address of its arguments. Raises KernelFileError if it cannot be loaded."""
        if self._function is None:
            instruction_set = get_instruction_set()
            assert instruction_set is not None
            self._function = KERNEL_TYPE((self.name, load_library(instruction_set.name)))
        return self._function


pack_weights, encode, step = EntryPoint("pack_weights"), EntryPoint("encode"), EntryPoint("step")
predict_frames = EntryPoint("predict_frames")
greedy_search, beam_search = EntryPoint("greedy_search"), EntryPoint("beam_search")
logsumexp, topk = EntryPoint("logsumexp"), EntryPoint("topk")


def flatten(values: Any) -> array[int]:
    """Return the 64-bit words in which kernels read arguments: numbers, tuples of them, and words of this function."""
    words = array("q")
    _append_words(values, words)
    return words


def _append_words(values: Any, words: array[int]) -> None:
    for value in values:
        if type(value) is int:  # nearly all are addresses, and this test is the cheapest
            words.append(value)
        elif type(value) is array:
            words.extend(value)
        elif isinstance(value, tuple):
            if _holds_only_integers(type(value)):
                words.extend(value)
            else:
                _append_words(value, words)
        elif isinstance(value, float):
            words.frombytes(struct.pack("d", value))
        else:
            words.append(value)


@cache
def _holds_only_integers(tuple_type: type[tuple[Any, ...]]) -> bool:
    """Return whether all fields of a named tuple are integers, addresses or booleans."""
    hints = get_type_hints(tuple_type)
    return bool(hints) and all(isinstance(kind, type) and issubclass(kind, int) for kind in hints.values())
