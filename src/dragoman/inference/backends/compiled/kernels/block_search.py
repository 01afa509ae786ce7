"""Greedy search over blocks of tokens without Python: `decoding.block_search` for the requests of `search_loop`.

A step reads k rows for each sentence, so a product reads its weights once for all of them. Keys and values are written at the
positions of the output. So refused tokens need no treatment: the next block overwrites them.

    C active sentences    k block size    M longest output    others as in `structs`
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.barrier import barrier, thread_range
from dragoman.inference.backends.compiled.kernels.candidates import (
    is_token_allowed,
    merge_candidates,
    multiply_logit_block,
    reduce_logsumexp,
    update_candidates,
)
from dragoman.inference.backends.compiled.kernels.encoder_decoder import (
    MIN_PREFETCHED_WIDTH,
    attend,
    embed_tokens,
    finish_decoder_layer,
    layer_norm,
    project,
    write_kv,
)
from dragoman.inference.backends.compiled.kernels.gemm import (
    configure_amx,
    multiply,
    prepare_inputs,
    release_amx,
)
from dragoman.inference.backends.compiled.kernels.logits import NEG_INF, compute_exp_moment, compute_exp_sum, compute_max
from dragoman.inference.backends.compiled.kernels.memory import (
    load_f32,
    load_f32x16,
    load_f64,
    load_i32,
    load_i64,
    load_partial,
    store_f32,
    store_f32x16,
    store_f64,
    store_i32,
    store_i64,
)
from dragoman.inference.backends.compiled.kernels.search_loop import NO_TOKEN, copy_i32, is_repeating, read_prompt
from dragoman.inference.backends.compiled.kernels.simd import export, kernel, splat
from dragoman.inference.backends.compiled.kernels.structs import (
    LANES,
    LOGIT_BLOCK,
    BlockBuffers,
    CrossKVCache,
    DecoderWeights,
    GreedyBuffers,
    ProposerWeights,
    RowBuffers,
    SearchOptions,
    SelfKVCache,
    Workspace,
)

I32_BYTES, F32_BYTES = 4, 4


@kernel
def apply_block_self_attention(head_layout, layer, block_size, start, self_kv, workspace, output_lengths, options, num_rows):
    """Attend from each row to its output so far and to the earlier rows of its block, whose keys are written first."""
    row_stride = 2 * head_layout.key_width + head_layout.value_width
    first, stop = thread_range(num_rows, workspace.group)
    for row in range(first, stop):
        sentence_row = row // block_size
        position = options.num_prompt_tokens + start + load_i64(output_lengths, sentence_row) + row % block_size
        kv_row = (layer * self_kv.num_rows + load_i32(self_kv.slot_rows, sentence_row)) * self_kv.capacity + position
        write_kv(head_layout, row * row_stride + head_layout.key_width, self_kv.keys, self_kv.values, kv_row, workspace)
    barrier(workspace.group)
    next_distance = self_kv.capacity if head_layout.key_width >= MIN_PREFETCHED_WIDTH else 0
    for row in range(first, stop):
        sentence_row = row // block_size
        end = options.num_prompt_tokens + start + load_i64(output_lengths, sentence_row) + row % block_size + 1
        first_row = (layer * self_kv.num_rows + load_i32(self_kv.slot_rows, sentence_row)) * self_kv.capacity
        for position in range(end):
            store_i64(workspace.kv_rows, position, first_row + position)
        distance = next_distance if row % block_size == block_size - 1 else 0
        attend(head_layout, row * row_stride, self_kv.keys, self_kv.values, np.int64(0), end, row, distance, workspace)
    barrier(workspace.group)


@kernel
def run_block_decoder(
    token_ids, block_size, start, num_rows, decoder, cross_kv, self_kv, workspace, row_buffers, options, block_buffers
):
    """Read a block of each sentence, and leave in x the inputs of the output projection.

    token_ids: (C, block_size), the tokens of the blocks
    start: position of a block's first token behind the last token of the output
    """
    layers = decoder.layers
    for row in range(num_rows):
        length = load_i64(block_buffers.output_lengths, row // block_size)
        position = options.num_prompt_tokens + start + length + row % block_size
        store_i64(row_buffers.input_ids, row, load_i64(token_ids, row))
        store_i64(row_buffers.position_ids, row, min(position, block_buffers.num_positions - 1))
    embed_tokens(
        row_buffers.input_ids, row_buffers.position_ids, num_rows, decoder.embedding_table, decoder.positions, workspace
    )
    for layer in range(layers.num_layers):
        project(layers.norms[0], layers.pre_norm, layers.qkv, layer, workspace.projections, num_rows, workspace)
        apply_block_self_attention(
            decoder.head_layout,
            layer,
            block_size,
            start,
            self_kv,
            workspace,
            block_buffers.output_lengths,
            options,
            num_rows,
        )
        finish_decoder_layer(layer, decoder, cross_kv, self_kv.sentence_ids, block_size, num_rows, workspace)
    if layers.final_norm.is_present:
        layer_norm(workspace.x, workspace.x, num_rows, workspace.width, layers.final_norm, np.int64(0))


@kernel
def select_block_tokens(num_rows, decoder, workspace, row_buffers, options, row_ids, block_buffers, has_proposals):
    """Find the best allowed token after each row, and log Σ exp over all tokens. Thread 0 then holds the results.

    row_ids: (C, M), the outputs with the proposals behind them, so that a rule reads the context of each row
    has_proposals: whether the blocks hold proposals, which typical acceptance may put in place of the best tokens
    """
    is_typical = has_proposals and block_buffers.typical_threshold > 0.0
    output, logits, group, block_size = decoder.output, row_buffers.logits, workspace.group, block_buffers.block_size
    num_blocks, first_list = -(-output.num_outputs // LOGIT_BLOCK), group.thread_index * row_buffers.num_rows
    for row in range(num_rows):
        store_i64(row_buffers.num_filled, first_list + row, 0)
    prepare_inputs(workspace.x, output, num_rows, workspace.width, workspace)
    first_block, end_block = thread_range(num_blocks, group)
    for block in range(first_block, end_block):
        column, count = block * LOGIT_BLOCK, multiply_logit_block(workspace.x, output, block, logits, num_rows, workspace)
        for row in range(num_rows):
            start, sentence_row = row * LOGIT_BLOCK, row // block_size
            block_max = compute_max(logits, start, count)
            store_f32(row_buffers.block_max, row * num_blocks + block, block_max)
            store_f64(row_buffers.block_sum, row * num_blocks + block, compute_exp_sum(logits, start, count, block_max))
            if is_typical:
                moment = compute_exp_moment(logits, start, count, block_max)
                store_f64(block_buffers.exp_moments, row * num_blocks + block, moment)
                offset = get_proposal(row, block_buffers) - column
                if 0 <= offset < count:
                    store_f32(block_buffers.proposal_logits, row, np.float32(load_f32(logits, start + offset)))
            length = load_i64(block_buffers.output_lengths, sentence_row) + row % block_size + 1
            context_ids = row_ids + I32_BYTES * options.max_length * (sentence_row - row)
            update_candidates(
                row,
                first_list,
                column,
                start,
                count,
                block_max,
                min(length, options.max_length),
                row_buffers,
                options,
                context_ids,
            )
    barrier(group)
    if group.thread_index == 0:
        for row in range(num_rows):
            reduce_logsumexp(row, num_blocks, row_buffers)
            for thread_index in range(1, group.num_threads):
                merge_candidates(row, thread_index * row_buffers.num_rows + row, row_buffers)
            if is_typical and row % block_size + 1 < block_size:
                accept_typical(row, num_blocks, row_buffers, options, row_ids, block_buffers)


@kernel
def get_proposal(row, block_buffers):
    """Return the proposal that follows a row in its block, or a token that does not exist behind the last row."""
    if row % block_buffers.block_size + 1 == block_buffers.block_size:
        return np.int64(NO_TOKEN)
    return load_i64(block_buffers.block_ids, row + 1)


@kernel
def accept_typical(row, num_blocks, row_buffers, options, row_ids, block_buffers):
    """Put the proposal after a row in place of the best token, if its probability exceeds min(ε, √ε · exp(-H)).

    ε is the threshold, and H the entropy of the model's next token (Cai et al. 2024, section 2.3.1).
    """
    log_sum, mean_logit = load_f64(row_buffers.logsumexp, row), 0.0
    for block in range(row * num_blocks, (row + 1) * num_blocks):
        block_max = np.float64(load_f32(row_buffers.block_max, block))
        weighted_sum = load_f64(block_buffers.exp_moments, block) + block_max * load_f64(row_buffers.block_sum, block)
        mean_logit += np.exp(block_max - log_sum) * weighted_sum
    entropy, log_threshold = log_sum - mean_logit, np.log(block_buffers.typical_threshold)
    limit = min(log_threshold, 0.5 * log_threshold - entropy)
    proposal, logit = get_proposal(row, block_buffers), load_f32(block_buffers.proposal_logits, row)
    sentence_row = row // block_buffers.block_size
    length = load_i64(block_buffers.output_lengths, sentence_row) + row % block_buffers.block_size + 1
    context_ids = row_ids + I32_BYTES * options.max_length * (sentence_row - row)
    if np.float64(logit) - log_sum > limit and is_token_allowed(
        proposal, row, min(length, options.max_length), options, context_ids
    ):
        store_i64(row_buffers.num_filled, row, 1)
        store_i64(row_buffers.candidate_ids, row, proposal)
        store_f32(row_buffers.candidate_logits, row, logit)


@kernel
def append_token(sentence_row, sentence, row, length, row_buffers, options, greedy_buffers):
    """Append the best token of a row to an output of `length` tokens, and return whether the output ends."""
    token = load_i64(row_buffers.candidate_ids, row) if load_i64(row_buffers.num_filled, row) else NO_TOKEN
    logit = np.float64(load_f32(row_buffers.candidate_logits, row)) if load_i64(row_buffers.num_filled, row) else NEG_INF
    store_i32(greedy_buffers.row_ids, sentence_row * options.max_length + length, np.int32(token))
    log_prob = np.float32(logit - load_f64(row_buffers.logsumexp, row))
    store_f32(greedy_buffers.log_probs, sentence * options.max_length + length, log_prob)
    new_length = length + 1
    must_check = (
        options.repetition_window > 0
        and new_length % options.check_interval == 0
        and not load_i64(options.allow_repetition, sentence)
    )
    is_repetition = must_check and is_repeating(greedy_buffers.row_ids, sentence_row * options.max_length, new_length, options)
    is_end = token == options.end_id or token == NO_TOKEN or new_length == load_i64(options.max_lengths, sentence)
    if is_end or is_repetition:
        store_i64(greedy_buffers.lengths, sentence, new_length)
        store_i64(greedy_buffers.is_repetition, sentence, 1 if is_repetition else 0)
        copy_i32(
            greedy_buffers.output_ids,
            sentence * options.max_length,
            greedy_buffers.row_ids,
            sentence_row * options.max_length,
            new_length,
        )
        return True
    return False


@kernel
def verify_blocks(num_active, self_kv, row_buffers, options, greedy_buffers, block_buffers):
    """Extend each output by the proposals that hold and the token behind them, and return the number of active sentences."""
    block_size, num_kept, longest = block_buffers.block_size, 0, np.int64(0)
    for sentence_row in range(num_active):
        sentence, first_row = load_i32(self_kv.sentence_ids, sentence_row), sentence_row * block_size
        length, row = load_i64(block_buffers.output_lengths, sentence_row), first_row
        start_length, step = length, load_i64(block_buffers.num_steps, sentence)
        is_done = append_token(sentence_row, sentence, row, length, row_buffers, options, greedy_buffers)
        length += 1
        while (
            not is_done
            and row + 1 < first_row + block_size
            and load_i64(block_buffers.block_ids, row + 1) == load_i64(row_buffers.candidate_ids, row)
        ):
            row += 1
            is_done = append_token(sentence_row, sentence, row, length, row_buffers, options, greedy_buffers)
            length += 1
        store_i64(block_buffers.num_steps, sentence, step + 1)
        store_i32(block_buffers.step_lengths, sentence * options.max_length + step, np.int32(length - start_length))
        if is_done:
            continue
        store_i64(block_buffers.last_rows, num_kept, row)
        store_i64(row_buffers.last_ids, num_kept, load_i64(row_buffers.candidate_ids, row))
        store_i64(block_buffers.output_lengths, num_kept, length)
        longest = max(longest, length)
        if num_kept != sentence_row:
            store_i32(self_kv.slot_rows, num_kept, np.int32(load_i32(self_kv.slot_rows, sentence_row)))
            store_i32(self_kv.sentence_ids, num_kept, np.int32(sentence))
            copy_i32(
                greedy_buffers.row_ids,
                num_kept * options.max_length,
                greedy_buffers.row_ids,
                sentence_row * options.max_length,
                length,
            )
        num_kept += 1
    store_i64(block_buffers.longest, 0, longest)
    return num_kept


@kernel
def write_head_inputs(num_active, decoder, workspace, row_buffers, block_buffers):
    """Move the outputs h of accepted tokens to the first rows of x, and write [h; y] with the embeddings of the next tokens."""
    width, table = workspace.width, decoder.embedding_table
    full_width = table.width // LANES * LANES
    for index in range(num_active):
        source, target = load_i64(block_buffers.last_rows, index) * width, index * width
        token = load_i64(row_buffers.last_ids, index)
        scale = splat(load_f32(table.scale, token))
        for offset in range(0, width, LANES):
            vector = load_f32x16(workspace.x, source + offset)
            store_f32x16(workspace.x, target + offset, vector)
            store_f32x16(block_buffers.head_inputs, 2 * target + offset, vector)
            if offset < full_width:
                embedding = load_f32x16(table.vectors, token * table.width + offset)
            else:
                embedding = load_partial(table.width - offset, table.vectors, token * table.width + offset, splat(0.0))
            store_f32x16(block_buffers.head_inputs, 2 * target + width + offset, embedding * scale)


@kernel
def find_proposals(inputs, num_rows, proposer, workspace, row_buffers):
    """Find the best proposed token of each row of the inputs (N, D). Thread 0 then holds the results."""
    output, logits, group = proposer.output, row_buffers.logits, workspace.group
    num_blocks, first_list = -(-output.num_outputs // LOGIT_BLOCK), group.thread_index * row_buffers.num_rows
    for row in range(num_rows):
        store_i64(row_buffers.candidate_ids, first_list + row, 0)
        store_f32(row_buffers.candidate_logits, first_list + row, np.float32(NEG_INF))
    prepare_inputs(inputs, output, num_rows, workspace.width, workspace)
    first_block, end_block = thread_range(num_blocks, group)
    for block in range(first_block, end_block):
        column, count = block * LOGIT_BLOCK, multiply_logit_block(inputs, output, block, logits, num_rows, workspace)
        for row in range(num_rows):
            start = row * LOGIT_BLOCK
            block_max = compute_max(logits, start, count)
            if block_max > load_f32(row_buffers.candidate_logits, first_list + row):
                offset = np.int64(0)
                while load_f32(logits, start + offset) != block_max:
                    offset += 1
                store_f32(row_buffers.candidate_logits, first_list + row, block_max)
                store_i64(row_buffers.candidate_ids, first_list + row, column + offset)
    barrier(group)
    if group.thread_index == 0:
        for row in range(num_rows):
            for thread_index in range(1, group.num_threads):
                other = thread_index * row_buffers.num_rows + row
                if load_f32(row_buffers.candidate_logits, other) > load_f32(row_buffers.candidate_logits, row):
                    store_f32(row_buffers.candidate_logits, row, load_f32(row_buffers.candidate_logits, other))
                    store_i64(row_buffers.candidate_ids, row, load_i64(row_buffers.candidate_ids, other))


@kernel
def write_blocks(num_active, proposer, row_buffers, options, greedy_buffers, block_buffers, has_proposals):
    """Write the next blocks: the last token of each output and the proposals, which also stand behind the output."""
    block_size = block_buffers.block_size
    for index in range(num_active):
        length = load_i64(block_buffers.output_lengths, index)
        store_i64(block_buffers.block_ids, index * block_size, load_i64(row_buffers.last_ids, index))
        for head in range(block_size - 1):
            token = np.int64(options.end_id)
            if has_proposals:
                token = load_i64(proposer.token_ids, load_i64(row_buffers.candidate_ids, head * num_active + index))
            store_i64(block_buffers.block_ids, index * block_size + 1 + head, token)
            if length + head < options.max_length:
                store_i32(greedy_buffers.row_ids, index * options.max_length + length + head, np.int32(token))


@kernel
def propose_with_heads(num_active, decoder, proposer, workspace, row_buffers, options, greedy_buffers, block_buffers):
    """Run the heads on the last accepted token of each sentence, and write the next blocks."""
    width = workspace.width
    write_head_inputs(num_active, decoder, workspace, row_buffers, block_buffers)
    for head in range(block_buffers.block_size - 1):
        multiply(block_buffers.head_inputs, proposer.inner, head, workspace.projections, num_active, 2 * width, workspace)
        head_outputs = block_buffers.head_outputs + F32_BYTES * width * head * num_active
        multiply(workspace.projections, proposer.outer, head, head_outputs, num_active, proposer.inner.num_outputs, workspace)
    num_rows = (block_buffers.block_size - 1) * num_active
    find_proposals(block_buffers.head_outputs, num_rows, proposer, workspace, row_buffers)
    if workspace.group.thread_index == 0:
        write_blocks(num_active, proposer, row_buffers, options, greedy_buffers, block_buffers, True)
    barrier(workspace.group)


@kernel
def begin_draft(num_active, row_buffers, block_buffers):
    """Write the last two tokens of each output, or the start token in place of the first.

    The draft has not read the first of them if all proposals were accepted. Otherwise it writes the same keys and values again.
    """
    block_size = block_buffers.block_size
    for index in range(num_active):
        last_id = load_i64(row_buffers.last_ids, index)
        store_i64(
            block_buffers.draft_ids, 2 * index, load_i64(block_buffers.block_ids, load_i64(block_buffers.last_rows, index))
        )
        store_i64(block_buffers.draft_ids, 2 * index + 1, last_id)
        store_i64(block_buffers.block_ids, index * block_size, last_id)


@kernel
def write_draft_tokens(num_active, step, proposer, row_buffers, options, greedy_buffers, block_buffers):
    """Write the proposal of each sentence into its block, behind its output, and as the next token that the draft reads."""
    for index in range(num_active):
        token = load_i64(proposer.token_ids, load_i64(row_buffers.candidate_ids, index))
        position = load_i64(block_buffers.output_lengths, index) + step
        store_i64(block_buffers.block_ids, index * block_buffers.block_size + 1 + step, token)
        store_i64(block_buffers.draft_ids, index, token)
        if position < options.max_length:
            store_i32(greedy_buffers.row_ids, index * options.max_length + position, np.int32(token))


@kernel
def propose_with_draft(
    num_active,
    draft,
    cross_kv,
    self_kv,
    proposer,
    workspace,
    row_buffers,
    options,
    greedy_buffers,
    block_buffers,
):
    """Run the draft token by token behind each output, and write the next blocks. Its cache is rolled back by position."""
    width, is_first_thread = workspace.width, workspace.group.thread_index == 0
    if is_first_thread:
        begin_draft(num_active, row_buffers, block_buffers)
    barrier(workspace.group)
    for step in range(block_buffers.block_size - 1):
        rows, start = (np.int64(2), np.int64(-1)) if step == 0 else (np.int64(1), np.int64(step))
        run_block_decoder(
            block_buffers.draft_ids,
            rows,
            start,
            num_active * rows,
            draft,
            cross_kv,
            self_kv,
            workspace,
            row_buffers,
            options,
            block_buffers,
        )
        if step == 0:
            for index in range(num_active):
                for offset in range(0, width, LANES):
                    vector = load_f32x16(workspace.x, (2 * index + 1) * width + offset)
                    store_f32x16(workspace.x, index * width + offset, vector)
        find_proposals(workspace.x, num_active, proposer, workspace, row_buffers)
        if is_first_thread:
            write_draft_tokens(num_active, step, proposer, row_buffers, options, greedy_buffers, block_buffers)
        barrier(workspace.group)


@kernel
def read_draft_prompt(num_active, draft, cross_kv, self_kv, workspace, row_buffers, options):
    """Run the draft on the tokens of the prompt, as `read_prompt` runs the decoder, and restore the start token."""
    start_id = load_i64(row_buffers.last_ids, 0)
    barrier(workspace.group)
    read_prompt(num_active, draft, cross_kv, self_kv, workspace, row_buffers, options)
    barrier(workspace.group)
    for row in range(num_active):  # all threads write the same token
        store_i64(row_buffers.last_ids, row, start_id)
    barrier(workspace.group)


@export(
    int,
    int,
    int,
    DecoderWeights,
    CrossKVCache,
    SelfKVCache,
    Workspace,
    RowBuffers,
    SearchOptions,
    GreedyBuffers,
    ProposerWeights,
    DecoderWeights,
    CrossKVCache,
    SelfKVCache,
    BlockBuffers,
)
def block_search(
    is_first,
    max_steps,
    num_active,
    decoder,
    cross_kv,
    self_kv,
    workspace,
    row_buffers,
    options,
    greedy_buffers,
    proposer,
    draft,
    draft_cross_kv,
    draft_self_kv,
    block_buffers,
):
    """Take at most `max_steps` steps, or until the cache is full, and return the number of active sentences."""
    configure_amx(workspace)
    block_size = block_buffers.block_size
    if is_first:
        if proposer.has_draft:
            read_draft_prompt(num_active, draft, draft_cross_kv, draft_self_kv, workspace, row_buffers, options)
        read_prompt(num_active, decoder, cross_kv, self_kv, workspace, row_buffers, options)
        barrier(workspace.group)
        if workspace.group.thread_index == 0:
            write_blocks(num_active, proposer, row_buffers, options, greedy_buffers, block_buffers, False)
        barrier(workspace.group)
    num_steps = 0
    while (
        num_steps < max_steps
        and num_active > 0
        and options.num_prompt_tokens + load_i64(block_buffers.longest, 0) + 2 * block_size <= self_kv.capacity
    ):
        num_rows = num_active * block_size
        run_block_decoder(
            block_buffers.block_ids,
            block_size,
            np.int64(0),
            num_rows,
            decoder,
            cross_kv,
            self_kv,
            workspace,
            row_buffers,
            options,
            block_buffers,
        )
        has_proposals = not (is_first and num_steps == 0)
        select_block_tokens(
            num_rows, decoder, workspace, row_buffers, options, greedy_buffers.row_ids, block_buffers, has_proposals
        )
        if workspace.group.thread_index == 0:
            remaining = verify_blocks(num_active, self_kv, row_buffers, options, greedy_buffers, block_buffers)
            store_i64(row_buffers.num_active, 0, remaining)
        barrier(workspace.group)
        num_active, num_steps = load_i64(row_buffers.num_active, 0), num_steps + 1
        if num_active > 0 and proposer.has_draft:
            propose_with_draft(
                num_active,
                draft,
                draft_cross_kv,
                draft_self_kv,
                proposer,
                workspace,
                row_buffers,
                options,
                greedy_buffers,
                block_buffers,
            )
        elif num_active > 0:
            propose_with_heads(num_active, decoder, proposer, workspace, row_buffers, options, greedy_buffers, block_buffers)
    release_amx(workspace)
    return num_active
