"""Attention: equation 1 of the paper for one query, or for several that read the same keys.

Heads alternate in a vector: lane n of queries, keys and values belongs to head n modulo the number of heads. So up to 16 heads
are computed at once, and only lanes of the same head are summed across a vector. More heads form groups of 16.

Several queries read each key and value once. A sum has the same order with one query and with several, so it is the same.
"""

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET
from dragoman.inference.backends.compiled.kernels.instruction_sets import AVX512_VNNI
from dragoman.inference.backends.compiled.kernels.memory import (
    element_pointer,
    load_f32x16,
    load_i64,
    prefetch,
    store_f16x16,
    store_f32x16,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    F16,
    F16X16,
    F32,
    F32X16,
    I64,
    divide,
    exp_f32x16,
    f32x16,
    kernel,
    make_zeros,
    maximum,
    rotate_1,
    rotate_2,
    rotate_4,
    rotate_8,
    splat,
    splat_lanes,
)
from dragoman.inference.backends.compiled.kernels.structs import LANES, MAX_QUERIES_AT_ONCE

# Score below any real one.
MIN_SCORE = -1e30
F32_BYTES, F16_BYTES, CACHE_LINE_BYTES = 4, 2, 64
# Queries, and vectors of their values, whose sums fit into the registers.
QUERIES_AT_ONCE, VECTORS_OF_QUERIES = (MAX_QUERIES_AT_ONCE, 4) if INSTRUCTION_SET is AVX512_VNNI else (2, 2)
# Vectors of values of one query: enough sums that none waits for the last one.
VECTORS_OF_QUERY = 8 if INSTRUCTION_SET is AVX512_VNNI else 4


def make_sum_functions(num_queries, num_vectors, has_float32, has_lanes=True):
    """Return functions of the sums of products for some queries and some vectors of the cache: a tuple of vectors.

    has_float32: whether the cache holds floats of 32 bits, else of 16
    has_lanes: whether a query has a vector of numbers for each vector of the cache, else one number
    """
    tuple_type, factor_type = types.UniTuple(f32x16, num_queries * num_vectors), F32X16 if has_lanes else F32

    @intrinsic
    def add_products(typing, sums, numbers, index, stride, kv, kv_index):
        """Add the products of numbers of each query, which are a stride apart, and of the vectors of the cache."""

        def codegen(context, builder, signature, args):
            sums, numbers, index, stride, kv, kv_index = args
            vectors = []
            for vector in range(num_vectors):
                vector_index = builder.add(kv_index, I64(vector * LANES))
                kv_types = (F32, F32X16) if has_float32 else (F16, F16X16)
                loaded = builder.load(element_pointer(builder, kv, vector_index, *kv_types), align=1)
                vectors.append(loaded if has_float32 else builder.fpext(loaded, F32X16))
            new_sums, old_sums = [], cgutils.unpack_tuple(builder, sums)
            for query in range(num_queries):
                query_index = builder.add(index, builder.mul(stride, I64(query)))
                factor = builder.load(element_pointer(builder, numbers, query_index, F32, factor_type), align=1)
                factor = factor if has_lanes else splat_lanes(builder, factor)
                for number, vector in enumerate(vectors):
                    product = builder.fmul(factor, vector, flags=("contract",))
                    old_sum = old_sums[query * num_vectors + number]
                    new_sums.append(builder.fadd(old_sum, product, flags=("contract",)))
            return context.make_tuple(builder, tuple_type, new_sums)

        return tuple_type(tuple_type, *[types.int64] * 5), codegen

    @intrinsic
    def add_sums(typing, sums, others):
        def codegen(context, builder, signature, args):
            pairs = zip(*(cgutils.unpack_tuple(builder, arg) for arg in args), strict=True)
            return context.make_tuple(builder, tuple_type, [builder.fadd(*pair, flags=("contract",)) for pair in pairs])

        return tuple_type(tuple_type, tuple_type), codegen

    return make_zeros(tuple_type), add_products, add_sums


@kernel
def sum_heads(vector, num_heads):
    """Return the sums of the lanes of each head, in each of its lanes."""
    if num_heads <= 8:
        vector = vector + rotate_8(vector)
    if num_heads <= 4:
        vector = vector + rotate_4(vector)
    if num_heads <= 2:
        vector = vector + rotate_2(vector)
    if num_heads == 1:
        vector = vector + rotate_1(vector)
    return vector


@kernel
def write_numbers(source, source_offset, kv, offset, count, has_float32):
    """Copy floats into a cache."""
    for index in range(0, count, LANES):
        vector = load_f32x16(source, source_offset + index)
        if has_float32:
            store_f32x16(kv, offset + index, vector)
        else:
            store_f16x16(kv, offset + index, vector)


@kernel
def prefetch_numbers(kv, offset, count, num_bytes):
    """Prefetch this many numbers of a cache, of two or four bytes each."""
    for index in range(offset * num_bytes, (offset + count) * num_bytes, CACHE_LINE_BYTES):
        prefetch(kv, index)


def _make_writer(num_vectors):
    """Return the function that writes sums of this many vectors of each query."""

    @kernel
    def write_sums(sums, output, width, workspace):
        """Write sums of values, so many vectors of each query, divided by the sum of the query's weights."""
        for number, sum_ in enumerate(sums):
            inverse_sum = load_f32x16(workspace.accumulators, number // num_vectors * LANES)
            store_f32x16(output, number // num_vectors * width + number % num_vectors * LANES, sum_ * inverse_sum)

    return write_sums


def _make_attend(num_queries, num_vectors, has_float32):
    """Return the function that `attend` describes, for this many queries and a cache in 32 or 16 bits."""
    zero_scores, add_to_scores, add_scores = make_sum_functions(num_queries, 1, has_float32)
    zero_values, add_to_values, _ = make_sum_functions(num_queries, num_vectors, has_float32)
    num_bytes = F32_BYTES if has_float32 else F16_BYTES

    @kernel
    def compute_products(projections, queries, keys, key_offset, width):
        """Return the products of each query and a key, lane by lane. Two sums take turns, so that neither waits."""
        offset, stride = queries
        even, odd = zero_scores(), zero_scores()
        paired_width = width // (2 * LANES) * (2 * LANES)
        for index in range(0, paired_width, 2 * LANES):
            even = add_to_scores(even, projections, offset + index, stride, keys, key_offset + index)
            odd = add_to_scores(odd, projections, offset + index + LANES, stride, keys, key_offset + index + LANES)
        if paired_width < width:
            even = add_to_scores(even, projections, offset + paired_width, stride, keys, key_offset + paired_width)
        return add_scores(even, odd)

    @kernel
    def compute_weights(first, last, max_score, workspace):
        """Replace the scores by exp(score − maximum), and write the inverse of their sum for each query.

        max_score: the maximum of all queries, which one query has without another pass over the scores
        """
        scores = workspace.scores
        for query in range(num_queries):
            sum_ = splat(0.0)
            if num_queries > 1:
                max_score = splat(MIN_SCORE)
                for index in range(first, last):
                    max_score = maximum(max_score, load_f32x16(scores, (index * num_queries + query) * LANES))
            for index in range(first, last):
                offset = (index * num_queries + query) * LANES
                weight = exp_f32x16(load_f32x16(scores, offset) - max_score)
                store_f32x16(scores, offset, weight)
                sum_ = sum_ + weight
            store_f32x16(workspace.accumulators, query * LANES, divide(splat(1.0), sum_))

    write_sums, write_single_sums = _make_writer(num_vectors), _make_writer(1)

    @kernel
    def sum_values(values, first_column, end_column, width, span, output, workspace):
        """Write these columns of the weighted sum of values. output: address of column 0 of the first query"""
        first, last = span
        column = first_column
        while end_column - column >= num_vectors * LANES:
            sums = zero_values()
            for index in range(first, last):
                offset = load_i64(workspace.kv_rows, index) * width + column
                sums = add_to_values(sums, workspace.scores, index * num_queries * LANES, LANES, values, offset)
            write_sums(sums, output + column * F32_BYTES, width, workspace)
            column += num_vectors * LANES
        while column < end_column:
            single_sums = zero_scores()
            for index in range(first, last):
                offset = load_i64(workspace.kv_rows, index) * width + column
                single_sums = add_to_scores(single_sums, workspace.scores, index * num_queries * LANES, LANES, values, offset)
            write_single_sums(single_sums, output + column * F32_BYTES, width, workspace)
            column += LANES

    @kernel
    def attend_queries(head_layout, queries, caches, span, row, next_distance, position_bias, workspace):
        relative_bias, max_distance, query_position = position_bias
        query_offset, query_stride = queries
        (keys, values), (first, last) = caches, span
        key_width, value_width = head_layout.key_width, head_layout.value_width
        group_key_width, group_value_width = key_width // head_layout.num_groups, value_width // head_layout.num_groups
        for group in range(head_layout.num_groups):
            key_column, value_column = group * group_key_width, group * group_value_width
            max_score = splat(MIN_SCORE)
            for index in range(first, last):
                kv_row = load_i64(workspace.kv_rows, index)
                if next_distance:
                    next_row = kv_row + next_distance
                    prefetch_numbers(keys, next_row * key_width + key_column, group_key_width, num_bytes)
                    prefetch_numbers(values, next_row * value_width + value_column, group_value_width, num_bytes)
                group_queries = query_offset + key_column, query_stride
                products = compute_products(
                    workspace.projections, group_queries, keys, kv_row * key_width + key_column, group_key_width
                )
                for query, product in enumerate(products):
                    score = sum_heads(product, head_layout.num_heads)
                    if relative_bias:
                        distance = min(max(index - query_position - query, -max_distance), max_distance) + max_distance
                        score = score + load_f32x16(relative_bias, (distance * head_layout.num_groups + group) * LANES)
                    store_f32x16(workspace.scores, (index * num_queries + query) * LANES, score)
                    max_score = maximum(max_score, score)
            compute_weights(first, last, max_score, workspace)
            output = workspace.attention_output + row * value_width * F32_BYTES
            sum_values(values, value_column, value_column + group_value_width, value_width, span, output, workspace)

    return attend_queries


attend_f32, attend_f16 = (_make_attend(1, VECTORS_OF_QUERY, has_float32) for has_float32 in (True, False))
attend_together_f32, attend_together_f16 = (
    _make_attend(QUERIES_AT_ONCE, VECTORS_OF_QUERIES, has_float32) for has_float32 in (True, False)
)


@kernel
def attend(head_layout, queries, caches, span, row, next_distance, position_bias, workspace):
    """Apply equation 1 to one query of `projections`, and write a row of `attention_output`.

    queries: offset of the query, and distance to the next one
    caches: addresses of keys and values
    span: the first key among `kv_rows`, and the one behind the last
    next_distance: rows from a key to the one that the next query probably reads, which is prefetched with its value; or 0
    position_bias: `relative_bias` and `max_distance` of the layers, and the position of the query; or zeros
    """
    if head_layout.has_float32_kv:
        attend_f32(head_layout, queries, caches, span, row, next_distance, position_bias, workspace)
    else:
        attend_f16(head_layout, queries, caches, span, row, next_distance, position_bias, workspace)


@kernel
def attend_together(head_layout, queries, caches, span, row, next_distance, position_bias, workspace):
    """Apply equation 1 to `QUERIES_AT_ONCE` queries that read the same keys; see `attend`."""
    if head_layout.has_float32_kv:
        attend_together_f32(head_layout, queries, caches, span, row, next_distance, position_bias, workspace)
    else:
        attend_together_f16(head_layout, queries, caches, span, row, next_distance, position_bias, workspace)
