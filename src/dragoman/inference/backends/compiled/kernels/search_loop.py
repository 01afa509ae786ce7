"""Whole searches without Python: steps follow each other until all outputs end or the cache is full.

They equal `decoding.greedy` and `decoding.beam_search` for the commonest requests: no sentence constraints except for allowed
repetition, one beam group, and the settings of `SearchOptions`. A sentence leaves the batch as soon as it is done.

    R hypotheses of each sentence    X = 2R candidates    M longest output    others as in `structs`
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.barrier import barrier
from dragoman.inference.backends.compiled.kernels.candidates import select_candidates
from dragoman.inference.backends.compiled.kernels.encoder_decoder import run_decoder
from dragoman.inference.backends.compiled.kernels.gemm import configure_amx, release_amx
from dragoman.inference.backends.compiled.kernels.logits import NEG_INF
from dragoman.inference.backends.compiled.kernels.memory import (
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    store_f32,
    store_i32,
    store_i64,
)
from dragoman.inference.backends.compiled.kernels.simd import export, kernel
from dragoman.inference.backends.compiled.kernels.structs import (
    BeamBuffers,
    CrossKVCache,
    DecoderWeights,
    GreedyBuffers,
    RowBuffers,
    SearchOptions,
    SelfKVCache,
    Workspace,
)

# Result of a step in which no token is allowed.
NO_TOKEN = -1


@kernel
def read_prompt(num_rows, decoder, cross_kv, self_kv, workspace, row_buffers, options):
    """Run the decoder on the start token and the prompt, except for its last token, which the first step reads."""
    for index in range(options.num_prompt_tokens):
        decoder_step(num_rows, index, decoder, cross_kv, self_kv, workspace, row_buffers)
        for row in range(num_rows):  # all threads write the same token
            store_i64(row_buffers.last_ids, row, load_i64(options.prompt_ids, index))


@kernel
def decoder_step(num_rows, position, decoder, cross_kv, self_kv, workspace, row_buffers):
    """Run the decoder up to the output projection."""
    for row in range(num_rows):
        token = load_i64(row_buffers.last_ids, row)
        store_i64(row_buffers.input_ids, row, load_i64(decoder.vocabulary_map, token) if decoder.vocabulary_map else token)
        store_i64(row_buffers.position_ids, row, position)
    added = np.int64(0)
    run_decoder(
        row_buffers.input_ids, row_buffers.position_ids, added, num_rows, position, decoder, cross_kv, self_kv, workspace
    )


@kernel
def is_repeating(row_ids, start, length, options):
    """Return whether an output ends with a degenerate repetition; see `decoding.repetition`."""
    if length < options.repetition_window:
        return False
    for period in range(1, min(options.repetition_window, length // options.min_repeats) + 1):
        num_required, last_index = (
            max(options.repetition_window - period, (options.min_repeats - 1) * period),
            start + length - 1,
        )
        num_equal = np.int64(0)
        while num_equal < num_required and load_i32(row_ids, last_index - num_equal) == load_i32(
            row_ids, last_index - num_equal - period
        ):
            num_equal += 1
        if num_equal == num_required:
            return True
    return False


@kernel
def move_row(self_kv, row_buffers, row_ids, source_row, target_row, length, options):
    """Move a row to the index of a row that has left the batch."""
    num_positions = options.num_prompt_tokens + length
    store_i64(row_buffers.last_ids, target_row, load_i64(row_buffers.last_ids, source_row))
    store_i32(self_kv.slot_rows, target_row, np.int32(load_i32(self_kv.slot_rows, source_row)))
    store_i32(self_kv.sentence_ids, target_row, np.int32(load_i32(self_kv.sentence_ids, source_row)))
    copy_i32(self_kv.ancestors, target_row * self_kv.capacity, self_kv.ancestors, source_row * self_kv.capacity, num_positions)
    copy_i32(row_ids, target_row * options.max_length, row_ids, source_row * options.max_length, length)


@kernel
def copy_i32(target, target_offset, source, source_offset, count):
    """Copy integers of 32 bits."""
    for index in range(count):
        store_i32(target, target_offset + index, np.int32(load_i32(source, source_offset + index)))


@export(int, int, int, DecoderWeights, CrossKVCache, SelfKVCache, Workspace, RowBuffers, SearchOptions, GreedyBuffers)
def greedy_search(
    position, end_position, num_rows, decoder, cross_kv, self_kv, workspace, row_buffers, options, greedy_buffers
):
    """Decode from `position` to `end_position`, or until no rows are left, and return the number of rows left.

    Both positions count output tokens.
    """
    configure_amx(workspace)
    if position == 0:
        read_prompt(num_rows, decoder, cross_kv, self_kv, workspace, row_buffers, options)
    while position < end_position and num_rows > 0:
        decoder_step(num_rows, options.num_prompt_tokens + position, decoder, cross_kv, self_kv, workspace, row_buffers)
        select_candidates(num_rows, position + 1, decoder, workspace, row_buffers, options, greedy_buffers.row_ids)
        if workspace.group.thread_index == 0:
            store_i64(row_buffers.num_active, 0, greedy_step(num_rows, position, self_kv, row_buffers, options, greedy_buffers))
        barrier(workspace.group)
        position, num_rows = position + 1, load_i64(row_buffers.num_active, 0)
    release_amx(workspace)
    return num_rows


@kernel
def greedy_step(num_rows, position, self_kv, row_buffers, options, greedy_buffers):
    """Append the best token to each row, and return the number of rows that continue."""
    length, num_kept = position + 1, 0
    for row in range(num_rows):
        sentence = load_i32(self_kv.sentence_ids, row)
        token = load_i64(row_buffers.candidate_ids, row) if load_i64(row_buffers.num_filled, row) else NO_TOKEN
        logit = np.float64(load_f32(row_buffers.candidate_logits, row)) if load_i64(row_buffers.num_filled, row) else NEG_INF
        store_i32(greedy_buffers.row_ids, row * options.max_length + position, np.int32(token))
        store_f32(
            greedy_buffers.log_probs,
            sentence * options.max_length + position,
            np.float32(logit - load_f64(row_buffers.logsumexp, row)),
        )
        must_check = (
            options.repetition_window > 0
            and length % options.check_interval == 0
            and not load_i64(options.allow_repetition, sentence)
        )
        is_repetition = must_check and is_repeating(greedy_buffers.row_ids, row * options.max_length, length, options)
        if token == options.end_id or token == NO_TOKEN or is_repetition or length == load_i64(options.max_lengths, sentence):
            store_i64(greedy_buffers.lengths, sentence, length)
            store_i64(greedy_buffers.is_repetition, sentence, 1 if is_repetition else 0)
            copy_i32(
                greedy_buffers.output_ids,
                sentence * options.max_length,
                greedy_buffers.row_ids,
                row * options.max_length,
                length,
            )
            continue
        store_i64(row_buffers.last_ids, row, token)
        if num_kept != row:
            move_row(self_kv, row_buffers, greedy_buffers.row_ids, row, num_kept, length, options)
        num_kept += 1
    return num_kept


@kernel
def expand_beam(sentence, row, position, row_buffers, beam_buffers):
    """Write the best X extensions of a sentence's beam into its history, and return their offset. row: its first row"""
    beam_size, num_columns = beam_buffers.beam_size, 2 * beam_buffers.beam_size
    first = (position * beam_buffers.num_sentences + sentence) * num_columns
    for rank in range(beam_size):
        store_i64(beam_buffers.cursors, rank, 0)
    for column in range(num_columns):
        parent, best_score = np.int64(0), np.float32(NEG_INF)
        for rank in range(beam_size):
            row_index = row + rank
            candidate = load_i64(beam_buffers.cursors, rank)
            if candidate == load_i64(row_buffers.num_filled, row_index):
                continue
            score = np.float64(load_f32(beam_buffers.alive_scores, sentence * beam_size + rank))
            value = load_f32(row_buffers.candidate_logits, row_index * row_buffers.num_candidates + candidate) + np.float32(
                score - load_f64(row_buffers.logsumexp, row_index)
            )
            if value > best_score:
                parent, best_score = rank, value
        candidate, row_index = load_i64(beam_buffers.cursors, parent), row + parent
        token, log_prob = np.int64(0), np.float32(NEG_INF)  # no candidate is left
        if candidate < load_i64(row_buffers.num_filled, row_index):
            token = load_i64(row_buffers.candidate_ids, row_index * row_buffers.num_candidates + candidate)
            log_prob = np.float32(
                np.float64(load_f32(row_buffers.candidate_logits, row_index * row_buffers.num_candidates + candidate))
                - load_f64(row_buffers.logsumexp, row_index)
            )
            store_i64(beam_buffers.cursors, parent, candidate + 1)
        store_i32(beam_buffers.parents, first + column, np.int32(parent))
        store_i32(beam_buffers.tokens, first + column, np.int32(token))
        store_f32(beam_buffers.log_probs, first + column, log_prob)
        store_f32(
            beam_buffers.candidate_scores, column, load_f32(beam_buffers.alive_scores, sentence * beam_size + parent) + log_prob
        )
    return first


@kernel
def add_finished(sentence, length, first, options, beam_buffers):
    """Insert the candidates that end into the finished hypotheses, if they are good enough."""
    beam_size, num_columns = beam_buffers.beam_size, 2 * beam_buffers.beam_size
    penalty = load_f32(beam_buffers.penalties, length)
    num_competing = num_columns
    if beam_buffers.only_best_may_end:
        num_competing = beam_size
    if beam_size == 1:  # only the best candidate, as in greedy search
        num_competing = 1
    for column in range(num_competing):
        score = load_f32(beam_buffers.candidate_scores, column) / penalty
        if load_i32(beam_buffers.tokens, first + column) != options.end_id or score == NEG_INF:
            continue
        rank = beam_size
        while rank > 0 and load_f32(beam_buffers.finished_scores, sentence * beam_size + rank - 1) < score:
            rank -= 1
        if rank == beam_size:
            continue
        for index in range(sentence * beam_size + beam_size - 1, sentence * beam_size + rank, -1):
            store_f32(beam_buffers.finished_scores, index, load_f32(beam_buffers.finished_scores, index - 1))
            store_i64(beam_buffers.finished_node_ids, index, load_i64(beam_buffers.finished_node_ids, index - 1))
        store_f32(beam_buffers.finished_scores, sentence * beam_size + rank, score)
        store_i64(beam_buffers.finished_node_ids, sentence * beam_size + rank, length * num_columns + column)


@kernel
def select_alive(sentence, position, first, options, beam_buffers):
    """Select the best candidates that do not end, in order, as the next beam."""
    beam_size, num_columns = beam_buffers.beam_size, 2 * beam_buffers.beam_size
    for column in range(num_columns):
        is_end = load_i32(beam_buffers.tokens, first + column) == options.end_id
        store_i64(beam_buffers.cursors, column, 0)
        if is_end:
            store_f32(beam_buffers.candidate_scores, column, np.float32(NEG_INF))
    for rank in range(beam_size):
        best_column = np.int64(-1)
        for column in range(num_columns):
            is_free = not load_i64(beam_buffers.cursors, column)
            if is_free and (
                best_column < 0
                or load_f32(beam_buffers.candidate_scores, column) > load_f32(beam_buffers.candidate_scores, best_column)
            ):
                best_column = column
        store_i64(beam_buffers.cursors, best_column, 1)
        store_f32(beam_buffers.alive_scores, sentence * beam_size + rank, load_f32(beam_buffers.candidate_scores, best_column))
        store_i32(
            beam_buffers.alive, (position * beam_buffers.num_sentences + sentence) * beam_size + rank, np.int32(best_column)
        )


@kernel
def reorder_beam(sentence, row, position, first, self_kv, row_buffers, options, beam_buffers):
    """Reorder a sentence's rows, with their ancestors and outputs, to the hypotheses of the next beam."""
    beam_size, length = beam_buffers.beam_size, position + 1
    num_positions = options.num_prompt_tokens + length
    alive_offset = (position * beam_buffers.num_sentences + sentence) * beam_size
    for rank in range(beam_size):
        column = first + load_i32(beam_buffers.alive, alive_offset + rank)
        store_i64(row_buffers.last_ids, row + rank, load_i32(beam_buffers.tokens, column))
        parent = row + load_i32(beam_buffers.parents, column)
        copy_i32(beam_buffers.scratch_ids, rank * num_positions, self_kv.ancestors, parent * self_kv.capacity, num_positions)
    for rank in range(beam_size):
        copy_i32(
            self_kv.ancestors,
            (row + rank) * self_kv.capacity,
            beam_buffers.scratch_ids,
            rank * num_positions,
            num_positions,
        )
    for rank in range(beam_size):
        parent = row + load_i32(beam_buffers.parents, first + load_i32(beam_buffers.alive, alive_offset + rank))
        copy_i32(beam_buffers.scratch_ids, rank * length, beam_buffers.row_ids, parent * options.max_length, position)
        store_i32(beam_buffers.scratch_ids, rank * length + position, np.int32(load_i64(row_buffers.last_ids, row + rank)))
    for rank in range(beam_size):
        copy_i32(beam_buffers.row_ids, (row + rank) * options.max_length, beam_buffers.scratch_ids, rank * length, length)


@kernel
def drop_repetitions(sentence, row, length, options, beam_buffers):
    """Drop hypotheses with degenerate repetition from the beam, and record them."""
    beam_size = beam_buffers.beam_size
    for rank in range(beam_size):
        index = ((length // options.check_interval - 1) * beam_buffers.num_sentences + sentence) * beam_size + rank
        score = load_f32(beam_buffers.alive_scores, sentence * beam_size + rank)
        if score > NEG_INF and is_repeating(beam_buffers.row_ids, (row + rank) * options.max_length, length, options):
            store_i64(beam_buffers.is_repetition, index, 1)
            store_f32(beam_buffers.repetition_scores, index, score)
            store_f32(beam_buffers.alive_scores, sentence * beam_size + rank, np.float32(NEG_INF))


@kernel
def is_done(sentence, length, options, beam_buffers):
    """Return whether no alive hypothesis can still win, or the length limit is reached."""
    beam_size = beam_buffers.beam_size
    best_score = load_f32(beam_buffers.alive_scores, sentence * beam_size)
    for rank in range(1, beam_size):
        best_score = max(best_score, load_f32(beam_buffers.alive_scores, sentence * beam_size + rank))
    finished_offset = sentence * beam_size
    if length == load_i64(options.max_lengths, sentence):
        return True
    if beam_size == 1:
        return load_f32(beam_buffers.finished_scores, finished_offset) > NEG_INF or best_score == NEG_INF
    if beam_buffers.stop_when_full and load_f32(beam_buffers.finished_scores, finished_offset + beam_size - 1) > NEG_INF:
        return True
    penalty = load_f32(beam_buffers.max_penalties, sentence)
    if beam_buffers.uses_present_length:
        penalty = load_f32(beam_buffers.penalties, length)
    return load_f32(beam_buffers.finished_scores, finished_offset + beam_buffers.target_rank) >= best_score / penalty


@export(int, int, int, DecoderWeights, CrossKVCache, SelfKVCache, Workspace, RowBuffers, SearchOptions, BeamBuffers)
def beam_search(position, end_position, num_active, decoder, cross_kv, self_kv, workspace, row_buffers, options, beam_buffers):
    """Decode from `position` to `end_position`, or until no sentences are left, and return their number.

    Both positions count output tokens.
    """
    configure_amx(workspace)
    beam_size = beam_buffers.beam_size
    if position == 0:
        read_prompt(num_active * beam_size, decoder, cross_kv, self_kv, workspace, row_buffers, options)
    while position < end_position and num_active > 0:
        decoder_step(
            num_active * beam_size,
            options.num_prompt_tokens + position,
            decoder,
            cross_kv,
            self_kv,
            workspace,
            row_buffers,
        )
        select_candidates(num_active * beam_size, position + 1, decoder, workspace, row_buffers, options, beam_buffers.row_ids)
        if workspace.group.thread_index == 0:
            store_i64(row_buffers.num_active, 0, beam_step(num_active, position, self_kv, row_buffers, options, beam_buffers))
        barrier(workspace.group)
        position, num_active = position + 1, load_i64(row_buffers.num_active, 0)
    release_amx(workspace)
    return num_active


@kernel
def beam_step(num_active, position, self_kv, row_buffers, options, beam_buffers):
    """Extend each sentence's beam by one token, and return the number of sentences that continue."""
    beam_size, length, num_kept = beam_buffers.beam_size, position + 1, 0
    for row in range(0, num_active * beam_size, beam_size):
        sentence = load_i32(self_kv.sentence_ids, row)
        first = expand_beam(sentence, row, position, row_buffers, beam_buffers)
        add_finished(sentence, length, first, options, beam_buffers)
        select_alive(sentence, position, first, options, beam_buffers)
        reorder_beam(sentence, row, position, first, self_kv, row_buffers, options, beam_buffers)
        if (
            options.repetition_window > 0
            and length % options.check_interval == 0
            and not load_i64(options.allow_repetition, sentence)
        ):
            drop_repetitions(sentence, row, length, options, beam_buffers)
        if is_done(sentence, length, options, beam_buffers):
            store_i64(beam_buffers.lengths, sentence, length)
            continue
        if num_kept != row:
            for rank in range(beam_size):
                move_row(self_kv, row_buffers, beam_buffers.row_ids, row + rank, num_kept + rank, length, options)
        num_kept += beam_size
    return num_kept // beam_size
