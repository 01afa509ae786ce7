"""State of a compiled search: the KV cache or the cells of an SSRU, and the workspace of the kernels.

B sentences    N rows, R for each sentence    P stored rows    others as in `kernels.structs`
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.inference.backends.compiled.arena import F16_BYTES, F32_BYTES, I32_BYTES, I64_BYTES, Arena, allocate, get_address
from dragoman.inference.backends.compiled.cpu_features import build_tile_config, can_use_amx
from dragoman.inference.backends.compiled.kernels.structs import (
    ACCUMULATOR_STRIDE,
    LANES,
    MAX_QUERIES_AT_ONCE,
    TILE_ROWS,
    VECTOR_BYTES,
    CrossKVCache,
    HeadLayout,
    SelfKVCache,
    Workspace,
)
from dragoman.inference.backends.compiled.threads import StepGroup, WorkerThread

if TYPE_CHECKING:
    from dragoman.inference.backends.compiled.pointer import CompiledPointerState


class WorkspaceMemory:
    """Memory of the workspace for a number of rows and of positions that each row attends to.

    shared_arena: arrays that all threads of a group write
    thread_arenas: arrays of each thread
    workspaces: addresses of these arrays, for each thread
    """

    def __init__(
        self,
        num_rows: int,
        num_positions: int,
        head_layout: HeadLayout,
        *,
        width: int,
        max_outputs: int,
        workers: Sequence[WorkerThread] = (),
    ) -> None:
        """Allocate the arrays.

        width: D
        max_outputs: O of the widest product, apart from the one before the softmax
        workers: threads that compute each step together with the caller's thread
        """
        self.width = width
        self.num_rows, self.num_positions, self.step_group = num_rows, num_positions, StepGroup(workers)
        shared_sizes = {"projections": num_rows * max_outputs * F32_BYTES}
        if workers:
            shared_sizes |= {
                "attention_output": num_rows * head_layout.value_width * F32_BYTES,
                "residual": num_rows * width * F32_BYTES,
            }
        input_stride = -(-max(width, head_layout.value_width, max_outputs) // VECTOR_BYTES) * VECTOR_BYTES
        thread_sizes = _compute_thread_sizes(num_rows, num_positions, head_layout, width, input_stride)
        self.shared_arena = Arena(shared_sizes)
        self.thread_arenas = [Arena(thread_sizes, ZEROED_ARRAYS) for _ in self.step_group.groups]
        tile_config = get_address(_load_tile_config()) if can_use_amx() else 0
        self.workspaces = []
        for arena, group in zip(self.thread_arenas, self.step_group.groups, strict=True):
            own_addresses = arena.addresses
            addresses = {"attention_output": own_addresses["y"], "residual": own_addresses["x"]}
            addresses |= own_addresses | self.shared_arena.addresses
            self.workspaces.append(
                Workspace(**addresses, tile_config=tile_config, width=width, input_stride=input_stride, group=group)
            )


# Quantized inputs have padding, which kernels read but do not write.
ZEROED_ARRAYS = ("quantized_inputs",)


def _compute_thread_sizes(
    num_rows: int, num_positions: int, head_layout: HeadLayout, width: int, input_stride: int
) -> dict[str, int]:
    """Return the bytes of the arrays of one thread, by the names of `Workspace`'s fields."""
    padded_rows = -(-num_rows // (2 * TILE_ROWS)) * 2 * TILE_ROWS
    kv_bytes = F32_BYTES if head_layout.has_float32_kv else F16_BYTES
    return {
        "x": num_rows * width * F32_BYTES,
        "y": num_rows * max(width, head_layout.value_width) * F32_BYTES,
        "row_scales": num_rows * F32_BYTES,
        "accumulators": 4 * ACCUMULATOR_STRIDE * I32_BYTES,
        "kv_rows": num_positions * I64_BYTES,
        "scores": num_positions * MAX_QUERIES_AT_ONCE * LANES * F32_BYTES,
        "keys": num_rows * head_layout.key_width * kv_bytes,
        "values": num_rows * head_layout.value_width * kv_bytes,
        "quantized_inputs": padded_rows * input_stride,
    }


@cache
def _load_tile_config() -> NDArray[np.uint8]:
    """Return the description of the tiles, which stays in memory until the process ends."""
    return build_tile_config()


NO_NUMBERS: NDArray[Any] = np.empty(0)
"""Array of a state that has not taken a step."""


class CompiledState(NamedTuple):
    """State of a batch of searches. A step writes into the state's memory, so each state serves one step.

    keys_LBSK, values_LBSU: keys and values of the source
    length_B: number of tokens of each source
    cross_kv: addresses of these three
    num_active: number of active sentences
    length: number of target tokens read
    self_keys, self_values: keys and values of the output (L, P, T, K or U); empty before the first step
    cells: cells of an SSRU, which has no keys and values (L, P, 2, D)
    ancestors_NT: stored row whose slot each row descends from, at each position
    slot_row_N: stored row that each row writes
    sentence_N: source of each row, or of each active sentence before the first step
    logits_NV: logits, which each step overwrites
    pointer: state of a parser's pointer; None in other models
    """

    keys_LBSK: NDArray[np.floating[Any]]
    values_LBSU: NDArray[np.floating[Any]]
    length_B: NDArray[np.int32]
    cross_kv: CrossKVCache
    workspace: WorkspaceMemory
    num_active: int
    length: int = 0
    self_keys: NDArray[Any] = NO_NUMBERS
    self_values: NDArray[Any] = NO_NUMBERS
    cells: NDArray[Any] = NO_NUMBERS
    ancestors_NT: NDArray[Any] = NO_NUMBERS
    slot_row_N: NDArray[Any] = NO_NUMBERS
    sentence_N: NDArray[Any] = NO_NUMBERS
    logits_NV: NDArray[Any] = NO_NUMBERS
    pointer: CompiledPointerState | None = None

    def reorder(self, rows_N: NDArray[np.int64]) -> CompiledState:
        """Return the state whose row i is row rows_N[i] of this one. No row leaves its sentence."""
        if self.length == 0 or self.ancestors_NT.shape[0] == self.num_active:
            return self
        pointer = self.pointer and self.pointer.reorder(rows_N)
        return self._replace(ancestors_NT=self.ancestors_NT[rows_N], pointer=pointer)

    def select_sentences(self, sentences_B: NDArray[np.int64]) -> CompiledState:
        """Return the state of these sentences only. Keys and values stay in place."""
        num_active = len(sentences_B)
        if num_active == self.num_active:
            return self
        pointer = self.pointer and self.pointer.select_sentences(sentences_B)
        if self.length == 0:
            return self._replace(num_active=num_active, sentence_N=self.sentence_N[sentences_B], pointer=pointer)
        beam_size = self.ancestors_NT.shape[0] // self.num_active
        rows_N = (sentences_B[:, None] * beam_size + np.arange(beam_size)).reshape(-1)
        return self._replace(
            num_active=num_active,
            ancestors_NT=self.ancestors_NT[rows_N],
            slot_row_N=self.slot_row_N[rows_N],
            sentence_N=self.sentence_N[rows_N],
            logits_NV=self.logits_NV[: num_active * beam_size],
            pointer=pointer,
        )

    def self_kv_cache(self) -> SelfKVCache:
        """Return the addresses of the output's keys and values."""
        return SelfKVCache(
            keys=get_address(self.self_keys),
            values=get_address(self.self_values),
            cells=get_address(self.cells),
            ancestors=get_address(self.ancestors_NT),
            slot_rows=get_address(self.slot_row_N),
            sentence_ids=get_address(self.sentence_N),
            num_rows=self.self_keys.shape[1],
            capacity=self.ancestors_NT.shape[1],
        )

    def double_capacity(self) -> CompiledState:
        """Return the state with slots for twice as many positions."""
        ancestors_NT = np.concatenate([self.ancestors_NT, np.zeros_like(self.ancestors_NT)], axis=1)
        keys, values = (_extend_positions(kv_LPTK, ancestors_NT.shape[1]) for kv_LPTK in (self.self_keys, self.self_values))
        return self._replace(self_keys=keys, self_values=values, ancestors_NT=ancestors_NT)


def _extend_positions(kv_LPTK: NDArray[Any], num_positions: int) -> NDArray[Any]:
    """Return a copy with this many positions; the new ones are uninitialized."""
    extended_LPTK = allocate((*kv_LPTK.shape[:2], num_positions, kv_LPTK.shape[3]), kv_LPTK.dtype)
    extended_LPTK[:, :, : kv_LPTK.shape[2]] = kv_LPTK
    return extended_LPTK
