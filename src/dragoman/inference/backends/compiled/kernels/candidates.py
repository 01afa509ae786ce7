"""Candidates for the next token of each row: the output projection, and the highest logits of allowed tokens.

Both handle a block of tokens for all rows at a time, so that logits stay in the cache and weights are read once.
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.barrier import barrier, thread_range
from dragoman.inference.backends.compiled.kernels.gemm import multiply_prepared, prepare_inputs
from dragoman.inference.backends.compiled.kernels.logits import (
    NEG_INF,
    compute_exp_sum,
    compute_max,
    insert_candidate,
    merge_exp_sums,
)
from dragoman.inference.backends.compiled.kernels.memory import (
    load_f32,
    load_f32x16,
    load_f64,
    load_i32,
    load_i64,
    store_f32,
    store_f64,
    store_i64,
)
from dragoman.inference.backends.compiled.kernels.simd import find_greater, find_lowest_bit, kernel, splat
from dragoman.inference.backends.compiled.kernels.structs import LANES, LOGIT_BLOCK

F32_BYTES = 4


@kernel
def multiply_logit_block(x, output, block, logits, num_rows, workspace):
    """Write the logits (N, LOGIT_BLOCK) of a block of tokens, and return the number of its tokens.

    x: (N, D), which `prepare_inputs` has read
    """
    column = block * LOGIT_BLOCK
    end_column = min(column + LOGIT_BLOCK, output.padded_outputs)
    first_logits, width = logits - F32_BYTES * column, workspace.width  # address of token 0 if it were in this block
    multiply_prepared(x, output, np.int64(0), first_logits, LOGIT_BLOCK, column, end_column, num_rows, width, workspace)
    return min(LOGIT_BLOCK, output.num_outputs - column)


@kernel
def select_candidates(num_rows, length, decoder, workspace, row_buffers, options, row_ids):
    """Find the best tokens of each row, and log Σ exp over all tokens. row_ids: (N, M), the outputs of the rows

    Afterwards thread 0 holds the merged candidates of all threads.
    """
    output, logits, group = decoder.output, row_buffers.logits, workspace.group
    num_blocks, first_list = -(-output.num_outputs // LOGIT_BLOCK), group.thread_index * row_buffers.num_rows
    for row in range(num_rows):
        store_i64(row_buffers.num_filled, first_list + row, 0)
    prepare_inputs(workspace.x, output, np.int64(0), num_rows, workspace.width, workspace)
    first_block, end_block = thread_range(num_blocks, group)
    first_suppressed = np.int64(0)
    for block in range(first_block, end_block):
        column, count = block * LOGIT_BLOCK, multiply_logit_block(workspace.x, output, block, logits, num_rows, workspace)
        first_suppressed = find_suppressed(column, first_suppressed, options)
        end_suppressed = find_suppressed(column + count, first_suppressed, options)
        for row in range(num_rows):
            start = row * LOGIT_BLOCK
            block_max = compute_max(logits, start, count)
            store_f32(row_buffers.block_max, row * num_blocks + block, block_max)
            store_f64(row_buffers.block_sum, row * num_blocks + block, compute_exp_sum(logits, start, count, block_max))
            for index in range(first_suppressed, end_suppressed):
                store_f32(logits, start + load_i64(options.suppressed_ids, index) - column, np.float32(NEG_INF))
            update_candidates(row, first_list, column, start, count, block_max, length, row_buffers, options, row_ids)
    barrier(group)
    if group.thread_index == 0:
        for row in range(num_rows):
            reduce_logsumexp(row, num_blocks, row_buffers)
            for thread_index in range(1, group.num_threads):
                merge_candidates(row, thread_index * row_buffers.num_rows + row, row_buffers)


@kernel
def find_suppressed(token, index, options):
    """Return the index of the first suppressed token, from this index on, that is not below a token."""
    while index < options.num_suppressed and load_i64(options.suppressed_ids, index) < token:
        index += 1
    return index


@kernel
def reduce_logsumexp(row, num_blocks, row_buffers):
    """Compute log Σ exp of all logits of a row."""
    row_max, row_sum = np.float32(NEG_INF), 0.0
    for block in range(row * num_blocks, (row + 1) * num_blocks):
        row_max, row_sum = merge_exp_sums(
            row_max, row_sum, load_f32(row_buffers.block_max, block), load_f64(row_buffers.block_sum, block)
        )
    store_f64(row_buffers.logsumexp, row, np.float64(row_max) + np.log(row_sum))


@kernel
def merge_candidates(row, other_list, row_buffers):
    """Merge the candidates of another thread, whose tokens have higher ids, into those of a row."""
    first, num_filled = row * row_buffers.num_candidates, load_i64(row_buffers.num_filled, row)
    for index in range(
        other_list * row_buffers.num_candidates,
        other_list * row_buffers.num_candidates + load_i64(row_buffers.num_filled, other_list),
    ):
        value = load_f32(row_buffers.candidate_logits, index)
        if num_filled == row_buffers.num_candidates and not value > load_f32(
            row_buffers.candidate_logits, first + num_filled - 1
        ):
            break
        insert_candidate(
            value,
            load_i64(row_buffers.candidate_ids, index),
            first,
            num_filled,
            row_buffers.num_candidates,
            row_buffers.candidate_logits,
            row_buffers.candidate_ids,
        )
        num_filled = min(num_filled + 1, row_buffers.num_candidates)
    store_i64(row_buffers.num_filled, row, num_filled)


@kernel
def update_candidates(row, first_list, column, start, count, block_max, length, row_buffers, options, row_ids):
    """Insert the allowed tokens of a block into a row's candidates. Suppressed tokens have the logit -∞.

    first_list: index of this thread's first list
    """
    list_index = first_list + row
    first, num_filled = list_index * row_buffers.num_candidates, load_i64(row_buffers.num_filled, list_index)
    last = first + row_buffers.num_candidates - 1
    if num_filled == row_buffers.num_candidates and block_max <= load_f32(row_buffers.candidate_logits, last):
        return
    for lane_start in range(0, count, LANES):
        is_full = num_filled == row_buffers.num_candidates
        least_logit = splat(load_f32(row_buffers.candidate_logits, last) if is_full else np.float32(NEG_INF))
        lanes = (1 << min(LANES, count - lane_start)) - 1
        lanes &= find_greater(load_f32x16(row_buffers.logits, start + lane_start), least_logit)
        while lanes:
            offset = lane_start + find_lowest_bit(lanes)
            lanes &= lanes - 1
            value = load_f32(row_buffers.logits, start + offset)
            if num_filled == row_buffers.num_candidates and not value > load_f32(row_buffers.candidate_logits, last):
                continue
            if is_token_allowed(column + offset, row, length, options, row_ids):
                insert_candidate(
                    value,
                    column + offset,
                    first,
                    num_filled,
                    row_buffers.num_candidates,
                    row_buffers.candidate_logits,
                    row_buffers.candidate_ids,
                )
                num_filled = min(num_filled + 1, row_buffers.num_candidates)
    store_i64(row_buffers.num_filled, list_index, num_filled)


@kernel
def is_token_allowed(token, row, length, options, row_ids):
    """Return whether this may be token number `length`, from 1, of the row's output."""
    if token == options.end_id and length <= options.min_length:
        return False
    ngram_size, start = options.no_repeat_ngram_size, row * options.max_length
    # Each start is that of an earlier n-gram, which the token would repeat.
    for ngram_start in range(length - ngram_size if ngram_size else 0):
        num_equal = np.int64(0)
        while num_equal < ngram_size - 1 and load_i32(row_ids, start + ngram_start + num_equal) == load_i32(
            row_ids, start + length - ngram_size + num_equal
        ):
            num_equal += 1
        if num_equal == ngram_size - 1 and load_i32(row_ids, start + ngram_start + num_equal) == token:
            return False
    return True
