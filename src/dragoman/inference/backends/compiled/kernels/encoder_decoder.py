"""The encoder and the decoder's step as one compiled function each: section 3 of the paper in plain loops.

Products multiply bytes or floats (`gemm`), and the cache holds keys and values in 16 or 32 bits. Everything else is in float32.
Kernels allocate nothing; the caller passes addresses of a workspace.

    N rows    D width of the model    L layers    K, U width of the keys and values of all heads together    V vocabulary
    B sentences    S positions of the source    T positions of the output    P stored rows
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.attention import QUERIES_AT_ONCE, attend, attend_together, write_numbers
from dragoman.inference.backends.compiled.kernels.barrier import barrier, thread_range
from dragoman.inference.backends.compiled.kernels.candidates import select_candidates
from dragoman.inference.backends.compiled.kernels.gemm import configure_amx, multiply, release_amx
from dragoman.inference.backends.compiled.kernels.long_attention import attend_in_blocks, can_attend_in_blocks
from dragoman.inference.backends.compiled.kernels.long_cross_attention import (
    LONG_QUERIES_AT_ONCE,
    attend_to_long_source,
    is_long_source,
    write_long_source,
)
from dragoman.inference.backends.compiled.kernels.memory import (
    load_f32,
    load_f32x16,
    load_i8x16,
    load_i32,
    load_i64,
    load_partial,
    store_f32x16,
    store_i32,
    store_i64,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    export,
    kernel,
    maximum,
    reduce_sum,
    sigmoid,
    splat,
)
from dragoman.inference.backends.compiled.kernels.structs import (
    LANES,
    CrossKVCache,
    DecoderWeights,
    EncoderBatch,
    EncoderWeights,
    FrameBatch,
    LinearWeights,
    RowBuffers,
    SearchOptions,
    SelfKVCache,
    Workspace,
)

# Width of all heads' keys from which on attention prefetches. The processor by itself prefetches enough of narrower keys.
MIN_PREFETCHED_WIDTH = 128


@kernel
def layer_norm(x, y, num_rows, width, norms, layer):
    """Write the normalization of each row of x into y."""
    weight_offset, num_features = layer * width, norms.num_features
    full_width = num_features // LANES * LANES
    for row in range(num_rows):
        start = row * width
        sum_ = splat(0.0)
        for offset in range(0, width, LANES):
            sum_ = sum_ + load_f32x16(x, start + offset)
        mean = splat(0.0) if norms.is_rms else splat(reduce_sum(sum_) / num_features)
        squares = splat(0.0)
        for offset in range(0, full_width, LANES):
            centered = load_f32x16(x, start + offset) - mean
            squares = squares + centered * centered
        if full_width < num_features:
            centered = load_partial(num_features - full_width, x, start + full_width, mean) - mean
            squares = squares + centered * centered
        scale = splat(1.0 / np.sqrt(reduce_sum(squares) / num_features + norms.epsilon))
        for offset in range(0, width, LANES):
            centered = (load_f32x16(x, start + offset) - mean) * scale
            store_f32x16(
                y,
                start + offset,
                centered * load_f32x16(norms.weight, weight_offset + offset) + load_f32x16(norms.bias, weight_offset + offset),
            )


@kernel
def write_kv(head_layout, source_offset, keys, values, kv_row, workspace):
    """Copy a key and the value behind it from `projections` into the cache."""
    key_width, value_width = head_layout.key_width, head_layout.value_width
    has_float32 = head_layout.has_float32_kv
    write_numbers(workspace.projections, source_offset, keys, kv_row * key_width, key_width, has_float32)
    write_numbers(workspace.projections, source_offset + key_width, values, kv_row * value_width, value_width, has_float32)


@kernel
def rotate(head_layout, positions, position, offset, workspace):
    """Turn a query at an offset of `projections`, and the key behind it, by the angles of a position.

    The pairs of a group of heads are its first and its second half; see `HeadLayout.rotation_width`.
    """
    width = head_layout.rotation_width
    half, table_offset = width // 2, position * (workspace.width + width) + workspace.width
    for start in range(offset, offset + 2 * head_layout.key_width, width):
        for index in range(start, start + half, LANES):
            sine = load_f32x16(positions, table_offset + index - start)
            cosine = load_f32x16(positions, table_offset + half + index - start)
            first, second = load_f32x16(workspace.projections, index), load_f32x16(workspace.projections, index + half)
            store_f32x16(workspace.projections, index, first * cosine - second * sine)
            store_f32x16(workspace.projections, index + half, second * cosine + first * sine)


@kernel
def apply_self_attention(head_layout, layers, sentence_start, sentence_end, start, stop, workspace):
    """Attend from rows `start` to `stop` to the rows of their sentence, `sentence_start` to `sentence_end`, in the window."""
    if can_attend_in_blocks(head_layout, layers, sentence_end - sentence_start):
        attend_in_blocks(head_layout, sentence_start, sentence_end, start, stop, workspace)
        return
    row_stride, window = 2 * head_layout.key_width + head_layout.value_width, layers.window
    for row in range(sentence_start, sentence_end):
        write_kv(
            head_layout,
            row * row_stride + head_layout.key_width,
            workspace.keys,
            workspace.values,
            row - sentence_start,
            workspace,
        )
        store_i64(workspace.kv_rows, row - sentence_start, row - sentence_start)
    caches, length, row = (workspace.keys, workspace.values), sentence_end - sentence_start, start
    while row < stop:
        position = row - sentence_start
        span = max(np.int64(0), position - window), min(length, position + window + 1)
        queries, position_bias = (row * row_stride, row_stride), (layers.relative_bias, layers.max_distance, position)
        if window >= length and stop - row >= QUERIES_AT_ONCE:
            attend_together(head_layout, queries, caches, span, row, np.int64(0), position_bias, workspace)
            row += QUERIES_AT_ONCE
        else:
            attend(head_layout, queries, caches, span, row, np.int64(0), position_bias, workspace)
            row += 1


@kernel
def apply_causal_self_attention(head_layout, layers, layer, positions, self_kv, workspace, num_rows, position):
    """Attend from each row to its own output so far, in the window, and write its new key and value into the cache."""
    row_stride = 2 * head_layout.key_width + head_layout.value_width
    start, stop = thread_range(num_rows, workspace.group)
    next_distance = self_kv.capacity if head_layout.key_width >= MIN_PREFETCHED_WIDTH else 0
    for row in range(start, stop):
        slot_row = load_i32(self_kv.slot_rows, row)
        store_i32(self_kv.ancestors, row * self_kv.capacity + position, np.int32(slot_row))
        kv_row = (layer * self_kv.num_rows + slot_row) * self_kv.capacity + position
        if head_layout.rotation_width:
            rotate(head_layout, positions, position, row * row_stride, workspace)
        write_kv(head_layout, row * row_stride + head_layout.key_width, self_kv.keys, self_kv.values, kv_row, workspace)
    for row in range(start, stop):
        first = max(np.int64(0), position - layers.window)
        for earlier_position in range(first, position + 1):
            ancestor_row = load_i32(self_kv.ancestors, row * self_kv.capacity + earlier_position)
            store_i64(
                workspace.kv_rows,
                earlier_position,
                (layer * self_kv.num_rows + ancestor_row) * self_kv.capacity + earlier_position,
            )
        caches, span = (self_kv.keys, self_kv.values), (first, position + 1)
        queries, position_bias = (row * row_stride, row_stride), (layers.relative_bias, layers.max_distance, position)
        attend(head_layout, queries, caches, span, row, next_distance, position_bias, workspace)
    barrier(workspace.group)


@kernel
def apply_cross_attention(head_layout, layer, cross_kv, sentence_ids, rows_per_sentence, workspace, num_rows):
    """Attend from each row to its source. sentence_ids: (N / rows_per_sentence,), the source of each group of rows"""
    start, stop = thread_range(num_rows, workspace.group)
    next_distance = cross_kv.num_positions if head_layout.key_width >= MIN_PREFETCHED_WIDTH else 0
    caches, no_bias = (cross_kv.keys, cross_kv.values), (np.int64(0), np.int64(0), np.int64(0))
    row = start
    while row < stop:
        sentence = load_i32(sentence_ids, row // rows_per_sentence)
        length = load_i32(cross_kv.lengths, sentence)
        first_row = (layer * cross_kv.num_sentences + sentence) * cross_kv.num_positions
        is_long, count = is_long_source(head_layout, length), 1
        limit = min(LONG_QUERIES_AT_ONCE if is_long else QUERIES_AT_ONCE, stop - row)
        while count < limit and load_i32(sentence_ids, (row + count) // rows_per_sentence) == sentence:
            count += 1
        if is_long:
            attend_to_long_source(head_layout, caches, first_row, length, row, count, workspace)
            row += count
            continue
        for position in range(length):
            store_i64(workspace.kv_rows, position, first_row + position)
        queries, span = (row * head_layout.key_width, head_layout.key_width), (np.int64(0), length)
        if count == QUERIES_AT_ONCE:
            attend_together(head_layout, queries, caches, span, row, next_distance, no_bias, workspace)
            row += QUERIES_AT_ONCE
        else:
            attend(head_layout, queries, caches, span, row, next_distance, no_bias, workspace)
            row += 1
    barrier(workspace.group)


@kernel
def load_vector(embedding_table, token, offset):
    """Return 16 numbers of a token's vector."""
    index = token * embedding_table.width + offset
    if embedding_table.steps == 0:
        return load_f32x16(embedding_table.vectors, index)
    return load_i8x16(embedding_table.vectors, index) * splat(load_f32(embedding_table.steps, token))


@kernel
def embed_tokens(tokens, position_ids, num_rows, embedding_table, positions, rotation_width, workspace):
    """Write the scaled vectors of tokens (N,) plus their positions into x, normalized if the table has a norm."""
    width, table_width, stride = workspace.width, embedding_table.width, workspace.width + rotation_width
    full_width = table_width // LANES * LANES
    for row in range(num_rows):
        token, position = load_i64(tokens, row), load_i64(position_ids, row)
        scale = splat(load_f32(embedding_table.scale, token))
        for offset in range(0, full_width, LANES):
            vector = load_vector(embedding_table, token, offset)
            store_f32x16(workspace.x, row * width + offset, vector * scale + load_f32x16(positions, position * stride + offset))
        if full_width < table_width:
            index, count = token * table_width + full_width, table_width - full_width
            vector = load_partial(count, embedding_table.vectors, index, splat(0.0))
            store_f32x16(
                workspace.x, row * width + full_width, vector * scale + load_f32x16(positions, position * stride + full_width)
            )
    if embedding_table.norm.is_present:
        layer_norm(workspace.x, workspace.x, num_rows, width, embedding_table.norm, np.int64(0))


@kernel
def project(norms, pre_norm, linear, layer, output, num_rows, workspace):
    """Begin a sub-layer: multiply x, or its normalization if the norm comes first."""
    if pre_norm:
        layer_norm(workspace.x, workspace.y, num_rows, workspace.width, norms, layer)
    multiply(workspace.y if pre_norm else workspace.x, linear, layer, output, num_rows, workspace.width, workspace)


@kernel
def copy_vectors(source, target, start, stop):
    """Copy floats from an index of the source to the same index of the target."""
    for offset in range(start, stop, LANES):
        store_f32x16(target, offset, load_f32x16(source, offset))


@kernel
def add_vectors(x, added, count):
    """Add floats to those of x."""
    for offset in range(0, count, LANES):
        store_f32x16(x, offset, load_f32x16(x, offset) + load_f32x16(added, offset))


@kernel
def add_residual(inputs, width, norms, pre_norm, linear, layer, num_rows, workspace):
    """End a sub-layer: add a product to x, and normalize the sum if the norm comes last."""
    multiply(inputs, linear, layer, workspace.residual, num_rows, width, workspace)
    finish_residual(norms, pre_norm, layer, num_rows, workspace)


@kernel
def finish_residual(norms, pre_norm, layer, num_rows, workspace):
    """Copy the residual sum into x, normalized if the norm comes last."""
    if not pre_norm:
        layer_norm(workspace.residual, workspace.x, num_rows, workspace.width, norms, layer)
    elif workspace.residual != workspace.x:
        copy_vectors(workspace.residual, workspace.x, np.int64(0), num_rows * workspace.width)


@kernel
def apply_feed_forward(layers, layer, num_rows, workspace):
    norms = layers.norms[1]
    first = layers.gate if layers.is_gated else layers.inner
    project(norms, layers.pre_norm, first, layer, workspace.projections, num_rows, workspace)
    if layers.is_gated:
        x = workspace.y if layers.pre_norm else workspace.x
        multiply(x, layers.inner, layer, workspace.projections, num_rows, workspace.width, workspace)
    add_residual(
        workspace.projections, layers.inner.num_outputs, norms, layers.pre_norm, layers.outer, layer, num_rows, workspace
    )


@kernel
def apply_ssru(layer, self_kv, workspace, num_rows, position):
    """Compute the cells of an SSRU from its two projections, and add their ReLU to x in `residual`.

    A cell is at its row's slot for even or for odd positions. The earlier one is at the slot of the row's ancestor.
    """
    width, zero = workspace.width, splat(0.0)
    start, stop = thread_range(num_rows, workspace.group)
    for row in range(start, stop):
        slot_row = load_i32(self_kv.slot_rows, row)
        store_i32(self_kv.ancestors, row * self_kv.capacity + position, np.int32(slot_row))
        cell_offset = ((layer * self_kv.num_rows + slot_row) * 2 + position % 2) * width
        past_offset = cell_offset
        if position > 0:
            ancestor_row = load_i32(self_kv.ancestors, row * self_kv.capacity + position - 1)
            past_offset = ((layer * self_kv.num_rows + ancestor_row) * 2 + (position - 1) % 2) * width
        for offset in range(0, width, LANES):
            forget = sigmoid(load_f32x16(workspace.projections, (2 * row + 1) * width + offset))
            past = load_f32x16(self_kv.cells, past_offset + offset) if position > 0 else zero
            candidate = load_f32x16(workspace.projections, 2 * row * width + offset)
            cell = forget * past + (splat(1.0) - forget) * candidate
            store_f32x16(self_kv.cells, cell_offset + offset, cell)
            index = row * width + offset
            store_f32x16(workspace.residual, index, load_f32x16(workspace.x, index) + maximum(cell, zero))
    barrier(workspace.group)


@kernel
def write_cross_kv(head_layout, layer, cross_kv, sentence, sentence_start, sentence_end, workspace):
    """Copy this thread's share of a sentence's keys and values into the cache: rows, or heads of a long source."""
    first_row = (layer * cross_kv.num_sentences + sentence) * cross_kv.num_positions
    row_stride, length = head_layout.key_width + head_layout.value_width, sentence_end - sentence_start
    if is_long_source(head_layout, length):
        caches = cross_kv.keys, cross_kv.values
        write_long_source(head_layout, sentence_start * row_stride, length, caches, first_row, workspace)
        return
    for row in range(*thread_range(length, workspace.group)):
        offset = (sentence_start + row) * row_stride
        write_kv(head_layout, offset, cross_kv.keys, cross_kv.values, first_row + row, workspace)


@kernel
def attend_within_sentences(head_layout, layers, layer, positions, sentence_starts, num_sentences, num_rows, workspace):
    """Compute the self-attention of a layer in which each row attends to its whole sentence, or to the window around it.

    positions: addresses of the table of positions and of the rows' positions in it
    """
    project(layers.norms[0], layers.pre_norm, layers.qkv, layer, workspace.projections, num_rows, workspace)
    first_row, end_row = thread_range(num_rows, workspace.group)
    if head_layout.rotation_width:
        row_stride, (table, position_ids) = 2 * head_layout.key_width + head_layout.value_width, positions
        for row in range(first_row, end_row):
            position = load_i64(position_ids, row)
            rotate(head_layout, table, position, row * row_stride, workspace)
        barrier(workspace.group)
    for index in range(num_sentences):
        sentence_start, sentence_end = load_i64(sentence_starts, index), load_i64(sentence_starts, index + 1)
        if max(sentence_start, first_row) < min(sentence_end, end_row):
            apply_self_attention(
                head_layout,
                layers,
                sentence_start,
                sentence_end,
                max(sentence_start, first_row),
                min(sentence_end, end_row),
                workspace,
            )
    barrier(workspace.group)
    add_residual(
        workspace.attention_output,
        head_layout.value_width,
        layers.norms[0],
        layers.pre_norm,
        layers.output,
        layer,
        num_rows,
        workspace,
    )


@export(EncoderBatch, EncoderWeights, CrossKVCache, Workspace)
def encode(batch, weights, cross_kv, workspace):
    """Encode some sentences, and write their keys and values for every decoder layer into `cross_kv`."""
    configure_amx(workspace)
    num_rows, layers, head_layout = batch.num_rows, weights.layers, weights.head_layout
    positions = weights.positions, batch.position_ids
    embed_tokens(
        batch.token_ids,
        batch.position_ids,
        num_rows,
        weights.embedding_table,
        weights.positions,
        head_layout.rotation_width,
        workspace,
    )
    first_row, end_row = thread_range(num_rows, workspace.group)
    for layer in range(layers.num_layers):
        attend_within_sentences(
            head_layout, layers, layer, positions, batch.sentence_starts, batch.num_sentences, num_rows, workspace
        )
        apply_feed_forward(layers, layer, num_rows, workspace)
    if layers.final_norm.is_present:
        layer_norm(workspace.x, workspace.x, num_rows, workspace.width, layers.final_norm, np.int64(0))
    if batch.outputs:
        copy_vectors(workspace.x, batch.outputs, first_row * workspace.width, end_row * workspace.width)
    for layer in range(weights.num_decoder_layers):
        multiply(workspace.x, weights.cross_kv, layer, workspace.projections, num_rows, workspace.width, workspace)
        for index in range(batch.num_sentences):
            sentence, sentence_start = load_i64(batch.sentence_ids, index), load_i64(batch.sentence_starts, index)
            sentence_end = load_i64(batch.sentence_starts, index + 1)
            write_cross_kv(head_layout, layer, cross_kv, sentence, sentence_start, sentence_end, workspace)
        barrier(workspace.group)
    release_amx(workspace)
    return 0


@kernel
def finish_decoder_layer(layer, decoder, cross_kv, sentence_ids, rows_per_sentence, num_rows, workspace):
    """Compute cross-attention and the feed-forward network."""
    layers, cross_attention, head_layout = decoder.layers, decoder.cross_attention, decoder.head_layout
    project(cross_attention.norms, layers.pre_norm, cross_attention.query, layer, workspace.projections, num_rows, workspace)
    apply_cross_attention(head_layout, layer, cross_kv, sentence_ids, rows_per_sentence, workspace, num_rows)
    add_residual(
        workspace.attention_output,
        head_layout.value_width,
        cross_attention.norms,
        layers.pre_norm,
        cross_attention.output,
        layer,
        num_rows,
        workspace,
    )
    apply_feed_forward(layers, layer, num_rows, workspace)


@kernel
def run_decoder(token_ids, position_ids, added, num_rows, position, decoder, cross_kv, self_kv, workspace):
    """Read one token in each row, at `position` of its output, and leave in x the input of the output projection.

    token_ids, position_ids: (N,), rows of the embedding table and of `decoder.positions`
    added: (N, D), vectors that are added to the embeddings, or 0
    """
    layers, head_layout = decoder.layers, decoder.head_layout
    embed_tokens(
        token_ids, position_ids, num_rows, decoder.embedding_table, decoder.positions, head_layout.rotation_width, workspace
    )
    if added:
        add_vectors(workspace.x, added, num_rows * workspace.width)
    for layer in range(layers.num_layers):
        project(layers.norms[0], layers.pre_norm, layers.qkv, layer, workspace.projections, num_rows, workspace)
        if layers.has_ssru:
            apply_ssru(layer, self_kv, workspace, num_rows, position)
            finish_residual(layers.norms[0], layers.pre_norm, layer, num_rows, workspace)
        else:
            apply_causal_self_attention(head_layout, layers, layer, decoder.positions, self_kv, workspace, num_rows, position)
            add_residual(
                workspace.attention_output,
                head_layout.value_width,
                layers.norms[0],
                layers.pre_norm,
                layers.output,
                layer,
                num_rows,
                workspace,
            )
        finish_decoder_layer(layer, decoder, cross_kv, self_kv.sentence_ids, np.int64(1), num_rows, workspace)
    if layers.final_norm.is_present:
        layer_norm(workspace.x, workspace.x, num_rows, workspace.width, layers.final_norm, np.int64(0))


@export(int, int, int, int, int, DecoderWeights, CrossKVCache, SelfKVCache, Workspace, int)
def step(token_ids, position_ids, added, num_rows, position, decoder, cross_kv, self_kv, workspace, logits):
    """Write the logits (N, V) of the next token. The other arguments are those of `run_decoder`."""
    configure_amx(workspace)
    run_decoder(token_ids, position_ids, added, num_rows, position, decoder, cross_kv, self_kv, workspace)
    multiply(workspace.x, decoder.output, np.int64(0), logits, num_rows, workspace.width, workspace)
    release_amx(workspace)
    return 0


@kernel
def upsample(batch, linear, positions, norm, workspace):
    """Write several vectors of each source token into x: a product of the encoder's output, plus positions."""
    width = workspace.width
    multiply(batch.memory, linear, np.int64(0), workspace.projections, batch.num_tokens, width, workspace)
    for row in range(batch.num_rows):
        position = load_i64(batch.position_ids, row)
        for offset in range(0, width, LANES):
            vector = load_f32x16(workspace.projections, row * width + offset)
            store_f32x16(workspace.x, row * width + offset, vector + load_f32x16(positions, position * width + offset))
    if norm.is_present:
        layer_norm(workspace.x, workspace.x, batch.num_rows, width, norm, np.int64(0))
    barrier(workspace.group)  # the next product overwrites the projections


@export(FrameBatch, LinearWeights, DecoderWeights, CrossKVCache, Workspace, RowBuffers, SearchOptions)
def predict_frames(batch, upsampling, decoder, cross_kv, workspace, row_buffers, options):
    """Find the best predictions at all positions of a decoder that reads no target tokens, and log Σ exp over all tokens.

    upsampling: (num_rows / num_tokens · D, D), the product that makes the decoder's inputs
    """
    configure_amx(workspace)
    layers, head_layout, num_rows = decoder.layers, decoder.head_layout, batch.num_rows
    positions = decoder.positions, batch.position_ids
    upsample(batch, upsampling, decoder.positions, decoder.embedding_table.norm, workspace)
    for layer in range(layers.num_layers):
        attend_within_sentences(
            head_layout, layers, layer, positions, batch.sentence_starts, batch.num_sentences, num_rows, workspace
        )
        finish_decoder_layer(layer, decoder, cross_kv, batch.row_sentence_ids, np.int64(1), num_rows, workspace)
    if layers.final_norm.is_present:
        layer_norm(workspace.x, workspace.x, num_rows, workspace.width, layers.final_norm, np.int64(0))
    select_candidates(num_rows, np.int64(1), decoder, workspace, row_buffers, options, np.int64(0))
    release_amx(workspace)
    return 0
