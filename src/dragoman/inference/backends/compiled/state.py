"""State of a compiled search: the KV cache, and the workspace of the kernels.

B sentences    N rows, R for each sentence    P stored rows    others as in `kernels.structs`
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.compiled.arena import F16_BYTES, F32_BYTES, I32_BYTES, I64_BYTES, Arena
from dragoman.inference.backends.compiled.cpu_features import build_tile_config, can_use_amx
from dragoman.inference.backends.compiled.kernels.structs import (
    ACCUMULATOR_STRIDE,
    LANES,
    TILE_ROWS,
    VECTOR_BYTES,
    CrossKVCache,
    HeadLayout,
    SelfKVCache,
    Workspace,
)
from dragoman.inference.backends.compiled.threads import StepGroup, WorkerThread
from dragoman.model.pointer import PointerState


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
        tile_config = _load_tile_config().data_ptr() if can_use_amx() else 0
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
        "scores": num_positions * LANES * F32_BYTES,
        "keys": num_rows * head_layout.key_width * kv_bytes,
        "values": num_rows * head_layout.value_width * kv_bytes,
        "quantized_inputs": padded_rows * input_stride,
    }


@cache
def _load_tile_config() -> Tensor:
    """Return the description of the tiles, which stays in memory until the process ends."""
    return torch.from_numpy(build_tile_config())


class CompiledState(NamedTuple):
    """State of a batch of searches. A step writes into the state's memory, so each state serves one step.

    keys_LBSK, values_LBSU: keys and values of the source
    length_B: number of tokens of each source
    cross_kv: addresses of these three
    num_active: number of active sentences
    length: number of target tokens read
    self_keys, self_values: keys and values of the output (L, P, T, K or U); empty before the first step
    ancestors_NT: stored row whose slot each row descends from, at each position
    slot_row_N: stored row that each row writes
    sentence_N: source of each row, or of each active sentence before the first step
    logits_NV: logits, which each step overwrites
    pointer: state of a parser's pointer; None in other models
    """

    keys_LBSK: Tensor
    values_LBSU: Tensor
    length_B: Tensor
    cross_kv: CrossKVCache
    workspace: WorkspaceMemory
    num_active: int
    length: int = 0
    self_keys: Tensor = torch.empty(0)
    self_values: Tensor = torch.empty(0)
    ancestors_NT: Tensor = torch.empty(0)
    slot_row_N: Tensor = torch.empty(0)
    sentence_N: Tensor = torch.empty(0)
    logits_NV: Tensor = torch.empty(0)
    pointer: PointerState | None = None

    def reorder(self, rows_N: Tensor) -> CompiledState:
        """Return the state whose row i is row rows_N[i] of this one. No row leaves its sentence."""
        if self.length == 0 or self.ancestors_NT.shape[0] == self.num_active:
            return self
        pointer = self.pointer and self.pointer.reorder(rows_N)
        return self._replace(ancestors_NT=self.ancestors_NT.index_select(0, rows_N), pointer=pointer)

    def select_sentences(self, sentences_B: Tensor) -> CompiledState:
        """Return the state of these sentences only. Keys and values stay in place."""
        num_active = sentences_B.shape[0]
        if num_active == self.num_active:
            return self
        pointer = self.pointer and self.pointer.select_sentences(sentences_B)
        if self.length == 0:
            sentence_N = self.sentence_N.index_select(0, sentences_B)
            return self._replace(num_active=num_active, sentence_N=sentence_N, pointer=pointer)
        beam_size = self.ancestors_NT.shape[0] // self.num_active
        rows_N = (sentences_B[:, None] * beam_size + torch.arange(beam_size, device="cpu")).flatten()
        return self._replace(
            num_active=num_active,
            ancestors_NT=self.ancestors_NT.index_select(0, rows_N),
            slot_row_N=self.slot_row_N.index_select(0, rows_N),
            sentence_N=self.sentence_N.index_select(0, rows_N),
            logits_NV=self.logits_NV[: num_active * beam_size],
            pointer=pointer,
        )

    def self_kv_cache(self) -> SelfKVCache:
        """Return the addresses of the output's keys and values."""
        return SelfKVCache(
            keys=self.self_keys.data_ptr(),
            values=self.self_values.data_ptr(),
            ancestors=self.ancestors_NT.data_ptr(),
            slot_rows=self.slot_row_N.data_ptr(),
            sentence_ids=self.sentence_N.data_ptr(),
            num_rows=self.self_keys.shape[1],
            capacity=self.ancestors_NT.shape[1],
        )

    def double_capacity(self) -> CompiledState:
        """Return the state with slots for twice as many positions."""
        ancestors_NT = F.pad(self.ancestors_NT, (0, self.ancestors_NT.shape[1]))
        keys, values = (_extend_positions(kv_LPTK, ancestors_NT.shape[1]) for kv_LPTK in (self.self_keys, self.self_values))
        return self._replace(self_keys=keys, self_values=values, ancestors_NT=ancestors_NT)


def _extend_positions(kv_LPTK: Tensor, num_positions: int) -> Tensor:
    """Return a copy with this many positions; the new ones are uninitialized."""
    extended_LPTK = kv_LPTK.new_empty(*kv_LPTK.shape[:2], num_positions, kv_LPTK.shape[3])
    extended_LPTK[:, :, : kv_LPTK.shape[2]] = kv_LPTK
    return extended_LPTK
