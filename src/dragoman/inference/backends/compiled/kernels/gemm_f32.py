"""Matrix products of weights and inputs in float32.

Each output is the sum of its products in the order of the inputs, and every product is a fused multiply-add. So the number of
rows, which decides how many sums stay in registers, never changes a result.

    N rows    I, O inputs and outputs
"""

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET
from dragoman.inference.backends.compiled.kernels.epilogue import store_outputs
from dragoman.inference.backends.compiled.kernels.instruction_sets import AVX512_VNNI
from dragoman.inference.backends.compiled.kernels.memory import (
    element_pointer,
    load_f32x16,
    make_sum_storer,
    prefetch,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    F32,
    F32X16,
    I64,
    call_llvm,
    f32x16,
    kernel,
    make_zeros,
    splat_lanes,
)
from dragoman.inference.backends.compiled.kernels.structs import (
    ACCUMULATOR_STRIDE,
    LANES,
    OUTPUT_BLOCK,
)

F32_BYTES = 4
# Distance of the weights that are prefetched, in vectors of a panel. The processor by itself prefetches two panels beside each
# other for four rows.
PREFETCHED_VECTORS = 64


def _make_sum_functions(num_rows, num_panels):
    """Return functions of the sums of some rows and panels of 16 outputs, which are a tuple of vectors."""
    tuple_type = types.UniTuple(f32x16, num_rows * num_panels)

    @intrinsic
    def add_products(typing, sums, x, indices, weights, offset, panel_size):
        """Add the products of one input of each row, which has this index in x, and of its weights from an offset on."""

        def codegen(context, builder, signature, args):
            sums, x, indices, weights, offset, panel_size = args
            panels = []
            for panel in range(num_panels):
                panel_offset = builder.add(offset, builder.mul(panel_size, I64(panel)))
                panels.append(builder.load(element_pointer(builder, weights, panel_offset, F32, F32X16), align=1))
            new_sums, old_sums = [], cgutils.unpack_tuple(builder, sums)
            for row, row_index in enumerate(cgutils.unpack_tuple(builder, indices)):
                number = splat_lanes(builder, builder.load(element_pointer(builder, x, row_index, F32, F32), align=1))
                for panel, panel_weights in enumerate(panels):
                    old_sum = old_sums[row * num_panels + panel]
                    new_sums.append(call_llvm(builder, "llvm.fma.v16f32", F32X16, number, panel_weights, old_sum))
            return context.make_tuple(builder, tuple_type, new_sums)

        return tuple_type(tuple_type, types.int64, indices, *[types.int64] * 3), codegen

    return make_zeros(tuple_type), add_products, make_sum_storer(tuple_type, num_panels)


# Panels whose sums, for four rows and for one, fit into the registers and do not wait for each other.
FOUR_ROW_PANELS, ONE_ROW_PANELS = 2 if INSTRUCTION_SET is AVX512_VNNI else 1, OUTPUT_BLOCK // LANES
make_zeros_of_four_rows, add_products_of_four_rows, store_sums_of_four_rows = _make_sum_functions(4, FOUR_ROW_PANELS)
make_zeros_of_one_row, add_products_of_one_row, store_sums_of_one_row = _make_sum_functions(1, ONE_ROW_PANELS)


@kernel
def finish_rows(linear, layer, y, row_stride, row, num_rows, column, num_columns, workspace):
    """Write the sums of these rows and columns into y, with the bias and the epilogue."""
    num_outputs, first = linear.num_outputs, layer * linear.padded_outputs
    for output in range(column, min(column + num_columns, num_outputs), LANES):
        bias = load_f32x16(linear.bias, first + output)
        panel = (output - column) // LANES * ACCUMULATOR_STRIDE
        for row_offset in range(num_rows):
            result = load_f32x16(workspace.accumulators, panel + row_offset * LANES) + bias
            index = (row + row_offset) * row_stride + output
            store_outputs(result, linear, output, y, index, workspace)


@kernel
def multiply_four_rows(weights, first, x, row, num_rows, width, accumulators):
    """Compute the sums of up to four rows. If there are less, the last one takes the places of the others.

    first: index of the first weight
    """
    panel_size, last = width * LANES, num_rows - 1
    a, b = row * width, (row + min(last, 1)) * width
    c, d = (row + min(last, 2)) * width, (row + min(last, 3)) * width
    sums = make_zeros_of_four_rows()
    for index in range(width):
        offset, rows = first + index * LANES, (a + index, b + index, c + index, d + index)
        if FOUR_ROW_PANELS == 1:
            prefetch(weights, F32_BYTES * (offset + PREFETCHED_VECTORS * LANES))
        sums = add_products_of_four_rows(sums, x, rows, weights, offset, panel_size)
    store_sums_of_four_rows(sums, accumulators)


@kernel
def multiply_one_row(weights, first, x, width, accumulators):
    """Compute the sums of 64 outputs of one row."""
    panel_size = width * LANES
    sums = make_zeros_of_one_row()
    for index in range(width):
        offset = first + index * LANES
        for panel in range(ONE_ROW_PANELS):
            prefetch(weights, F32_BYTES * (offset + panel * panel_size + PREFETCHED_VECTORS * LANES))
        sums = add_products_of_one_row(sums, x, (index,), weights, offset, panel_size)
    store_sums_of_one_row(sums, accumulators)


@kernel
def multiply_floats(x, linear, layer, y, row_stride, column, end_column, num_rows, width, workspace):
    """Multiply the rows of x (N, I), for whole blocks of 64 outputs.

    y: address of output 0
    row_stride: distance between the rows of y
    """
    num_columns = (ONE_ROW_PANELS if num_rows == 1 else FOUR_ROW_PANELS) * LANES
    # All rows read the same weights before any reads the next ones.
    for output in range(column, end_column, num_columns):
        first = (layer * linear.padded_outputs + output) * width
        for row in range(0, num_rows, 4):
            count = min(num_rows - row, 4)
            if num_rows == 1:
                multiply_one_row(linear.weights, first, x, width, workspace.accumulators)
            else:
                multiply_four_rows(linear.weights, first, x, row, count, width, workspace.accumulators)
            finish_rows(linear, layer, y, row_stride, row, count, output, num_columns, workspace)
