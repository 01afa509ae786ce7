"""Vectors of 16 numbers as values in functions that Numba compiles.

`f32x16` are 16 floats of 32 bits. `i32x16` are 16 integers of 32 bits, or the 64 bytes of one operand of a dot product.
LLVM holds a vector in one register of 512 bits, two of 256 or four of 128, as the processor has them. Only the product of
bytes differs between instruction sets. Loads and stores are in `memory`.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import llvmlite.binding
import numba
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET
from dragoman.inference.backends.compiled.kernels.instruction_sets import (
    AVX2,
    AVX512_VNNI,
    AVX_VNNI,
    NEON,
)
from dragoman.inference.backends.compiled.kernels.structs import LANES

if tuple(int(part) for part in numba.__version__.split(".")[:2]) < (0, 62):
    raise ImportError(f"numba {numba.__version__}: 0.62 or later is needed")

# Python calls none of these functions itself; wrappers would double the time of compilation.
_NJIT_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
kernel = njit(**_NJIT_OPTIONS)
inline_kernel = njit(inline="always")

# LLVM's types.
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
I32, I8, I64 = ir.IntType(32), ir.IntType(8), ir.IntType(64)
F32X16, I32X16 = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
I8X16, F16X16 = ir.VectorType(I8, LANES), ir.VectorType(F16, LANES)
I32X4, I32X8, I8X32 = ir.VectorType(I32, 4), ir.VectorType(I32, 8), ir.VectorType(I8, 32)
I16X16 = ir.VectorType(ir.IntType(16), 16)


class ExportedKernel(NamedTuple):
    """Kernel that Python calls through `entry_points`, and the types of its arguments. It returns an integer."""

    function: Any
    argument_types: tuple[Any, ...]


def export(*argument_types):
    """Return a decorator that exports a kernel. The types are int, float, bool, and the tuples of `structs`."""
    return lambda function: ExportedKernel(kernel(function), argument_types)


class _VectorType(types.Type):
    """Numba's type of a vector, with LLVM's."""

    def __init__(self, name: str, llvm_type: ir.VectorType) -> None:
        self.llvm_type = llvm_type
        super().__init__(name=name)


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector):
        super().__init__(manager, vector, vector.llvm_type)


f32x16, i32x16 = _VectorType("f32x16", F32X16), _VectorType("i32x16", I32X16)


def call_llvm(builder, name, result, *arguments):
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def splat_lanes(builder, number):
    vector = builder.insert_element(ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined), number, I32(0))
    return builder.shuffle_vector(vector, vector, ir.Constant(I32X16, [0] * LANES))


@intrinsic
def keep_separate(typing):
    """Keep the function that calls this apart from its callers, so that their values take none of its registers."""

    def codegen(context, builder, signature, args):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def reduce_sum_i32(typing, vector):
    """Return the sum of 16 integers."""

    def codegen(context, builder, signature, args):
        return builder.sext(call_llvm(builder, "llvm.vector.reduce.add.v16i32", I32, args[0]), I64)

    return types.int64(i32x16), codegen


@intrinsic
def splat(typing, number):
    """Return a vector with one float in all lanes."""

    def codegen(context, builder, signature, args):
        return splat_lanes(builder, context.cast(builder, args[0], number, types.float32))

    return f32x16(number), codegen


def make_zeros(tuple_type):
    """Return an intrinsic that makes a tuple of vectors of zeros. tuple_type: a `UniTuple` of vectors"""

    @intrinsic
    def make_zero_vectors(typing):
        def codegen(context, builder, signature, args):
            zero = ir.Constant(tuple_type.dtype.llvm_type, [0] * LANES)
            return context.make_tuple(builder, tuple_type, [zero] * len(tuple_type))

        return tuple_type(), codegen

    return make_zero_vectors


@intrinsic
def splat_i32(typing, number):
    """Return a vector with one integer in all lanes."""

    def codegen(context, builder, signature, args):
        return splat_lanes(builder, context.cast(builder, args[0], number, types.int32))

    return i32x16(number), codegen


def emit_dot_product(builder, sum_, inputs, weights):
    """Add to each sum four products of bytes of inputs and weights. No step of it saturates.

    inputs: unsigned bytes on x86, signed bytes with NEON
    weights: signed bytes, -127 … 127, or within the limit of `InstructionSet.max_lane_weights`
    """
    return _DOT_PRODUCTS[INSTRUCTION_SET.name](builder, sum_, inputs, weights)


def _dot_avx512_vnni(builder, sum_, inputs, weights):
    return call_llvm(
        builder, "llvm.x86.avx512.vpdpbusd.512", I32X16, sum_, _as_operand(builder, inputs), _as_operand(builder, weights)
    )


def _as_operand(builder, vector):
    """Return a vector in the type of VNNI's operands; up to LLVM 21 it is that of the sums."""
    if llvmlite.binding.llvm_version_info < (22,):
        return vector
    return builder.bitcast(vector, ir.VectorType(I8, 4 * vector.type.count))


def _dot_avx_vnni(builder, sum_, inputs, weights):
    def multiply_half(sum_half, inputs_half, weights_half):
        operands = _as_operand(builder, inputs_half), _as_operand(builder, weights_half)
        return call_llvm(builder, "llvm.x86.avx512.vpdpbusd.256", I32X8, sum_half, *operands)

    return _map_parts(builder, 8, multiply_half, sum_, inputs, weights)


def _dot_avx2(builder, sum_, inputs, weights):
    def multiply_half(sum_half, inputs_half, weights_half):
        return builder.add(sum_half, _sum_lanes_avx2(builder, _multiply_bytes_avx2(builder, inputs_half, weights_half)))

    return _map_parts(builder, 8, multiply_half, sum_, inputs, weights)


@intrinsic
def dot_accumulate_two(typing, sum_, inputs, weights, next_inputs, next_weights):
    """Add to each sum the products of two quads, which AVX2 adds in lanes of 16 bits first. See `gemm_avx2`."""

    def codegen(context, builder, signature, args):
        def multiply_half(sum_half, *operand_halves):
            lanes, next_lanes = (_multiply_bytes_avx2(builder, *quad) for quad in (operand_halves[:2], operand_halves[2:]))
            return builder.add(sum_half, _sum_lanes_avx2(builder, builder.add(lanes, next_lanes)))

        return _map_parts(builder, 8, multiply_half, *args)

    return i32x16(*[i32x16] * 5), codegen


def _multiply_bytes_avx2(builder, inputs, weights):
    """Return the sums of two products in each lane of 16 bits."""
    operands = builder.bitcast(inputs, I8X32), builder.bitcast(weights, I8X32)
    return call_llvm(builder, "llvm.x86.avx2.pmadd.ub.sw", I16X16, *operands)


def _sum_lanes_avx2(builder, lanes):
    """Return the sums of two lanes each in 32 bits."""
    return call_llvm(builder, "llvm.x86.avx2.pmadd.wd", I32X8, lanes, ir.Constant(I16X16, [1] * 16))


@intrinsic
def sum_lane_weights(typing, weights):
    """Return the sums of each four weights whose products AVX2 adds in the same 16 bits. Each sum is in several lanes.

    Of eight weights side by side, 0, 1, 4 and 5 belong together, and so do the other four.
    """

    def codegen(context, builder, signature, args):
        firsts = [lane // 8 * 8 + lane % 2 * 2 for lane in range(LANES)]
        orders = ([first + distance for first in firsts] for distance in (0, 1, 4, 5))
        parts = [builder.shuffle_vector(args[0], args[0], ir.Constant(I32X16, order)) for order in orders]
        return builder.fadd(builder.fadd(parts[0], parts[1]), builder.fadd(parts[2], parts[3]))

    return f32x16(f32x16), codegen


def _dot_neon(builder, sum_, inputs, weights):
    def multiply_quarter(sum_quarter, inputs_quarter, weights_quarter):
        operands = (builder.bitcast(quarter, I8X16) for quarter in (inputs_quarter, weights_quarter))
        return call_llvm(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", I32X4, sum_quarter, *operands)

    return _map_parts(builder, 4, multiply_quarter, sum_, inputs, weights)


def _map_parts(builder, part_lanes, function, *vectors):
    """Return the function of vectors of 16 integers that is computed in parts of this many."""
    results = []
    for start in range(0, LANES, part_lanes):
        order = ir.Constant(ir.VectorType(I32, part_lanes), list(range(start, start + part_lanes)))
        results.append(function(*(builder.shuffle_vector(vector, vector, order) for vector in vectors)))
    while len(results) > 1:
        order = ir.Constant(ir.VectorType(I32, 2 * results[0].type.count), list(range(2 * results[0].type.count)))
        results = [builder.shuffle_vector(left, right, order) for left, right in zip(results[::2], results[1::2], strict=True)]
    return results[0]


_DOT_PRODUCTS = {
    AVX512_VNNI.name: _dot_avx512_vnni,
    AVX_VNNI.name: _dot_avx_vnni,
    AVX2.name: _dot_avx2,
    NEON.name: _dot_neon,
}


@intrinsic
def convert_i32_to_f32(typing, vector):
    """Convert integers to floats."""

    def codegen(context, builder, signature, args):
        return builder.sitofp(args[0], F32X16)

    return f32x16(i32x16), codegen


@intrinsic
def round_f32_to_i32(typing, vector):
    """Round floats to the nearest integers, ties to even."""

    def codegen(context, builder, signature, args):
        return builder.fptosi(call_llvm(builder, "llvm.rint.v16f32", F32X16, args[0]), I32X16)

    return i32x16(f32x16), codegen


@intrinsic
def power_of_two(typing, vector):
    """Return 2 to the power of integers from -126 to 127."""

    def codegen(context, builder, signature, args):
        exponent = builder.add(args[0], ir.Constant(I32X16, [127] * LANES))
        return builder.bitcast(builder.shl(exponent, ir.Constant(I32X16, [23] * LANES)), F32X16)

    return f32x16(i32x16), codegen


@intrinsic
def maximum(typing, left, right):
    """Return the greater float of each lane."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return f32x16(f32x16, f32x16), codegen


@intrinsic
def minimum(typing, left, right):
    """Return the smaller float of each lane."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", *args), *args)

    return f32x16(f32x16, f32x16), codegen


def _make_rotation(distance):
    """Return an intrinsic that rotates the lanes by this distance."""

    @intrinsic
    def rotate(typing, vector):
        def codegen(context, builder, signature, args):
            order = [(lane + distance) % LANES for lane in range(LANES)]
            return builder.shuffle_vector(args[0], args[0], ir.Constant(I32X16, order))

        return f32x16(f32x16), codegen

    return rotate


rotate_8, rotate_4, rotate_2, rotate_1 = (_make_rotation(distance) for distance in (8, 4, 2, 1))


@intrinsic
def any_greater(typing, left, right):
    """Return whether a lane of `left` is greater than that of `right`."""

    def codegen(context, builder, signature, args):
        lanes = builder.bitcast(builder.fcmp_ordered(">", *args), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", lanes, ir.IntType(LANES)(0))

    return types.boolean(f32x16, f32x16), codegen


@intrinsic
def find_greater(typing, left, right):
    """Return an integer whose bit n is 1 if lane n of `left` is greater than that of `right`."""

    def codegen(context, builder, signature, args):
        return builder.zext(builder.bitcast(builder.fcmp_ordered(">", *args), ir.IntType(LANES)), I64)

    return types.int64(f32x16, f32x16), codegen


@intrinsic
def find_lowest_bit(typing, bits):
    """Return the index of the lowest bit that is 1; there must be one."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


@intrinsic
def absolute(typing, vector):
    """Return the magnitudes."""

    def codegen(context, builder, signature, args):
        return call_llvm(builder, "llvm.fabs.v16f32", F32X16, args[0])

    return f32x16(f32x16), codegen


def _make_reduction(name, fastmath, *initial):
    @intrinsic
    def reduce(typing, vector):
        def codegen(context, builder, signature, args):
            function_type = ir.FunctionType(F32, [*(value.type for value in initial), F32X16])
            function = cgutils.get_or_insert_function(builder.module, function_type, name)
            return builder.call(function, [*initial, args[0]], fastmath=fastmath)

        return types.float32(f32x16), codegen

    return reduce


reduce_sum = _make_reduction("llvm.vector.reduce.fadd.v16f32", ("reassoc",), ir.Constant(F32, 0.0))
reduce_max = _make_reduction("llvm.vector.reduce.fmax.v16f32", ("nnan", "nsz"))


def _overload_operator(operation, f32_instruction, i32_instruction):
    @intrinsic
    def compute_f32x16(typing, left, right):
        def codegen(context, builder, signature, args):
            return getattr(builder, f32_instruction)(*args, flags=("contract",))

        return f32x16(f32x16, f32x16), codegen

    @intrinsic
    def compute_i32x16(typing, left, right):
        def codegen(context, builder, signature, args):
            return getattr(builder, i32_instruction)(*args)

        return i32x16(i32x16, i32x16), codegen

    def select_overload(left, right):
        if left == right == f32x16:
            return lambda left, right: compute_f32x16(left, right)
        if left == right == i32x16:
            return lambda left, right: compute_i32x16(left, right)
        return None

    overload(operation, inline="always")(select_overload)


@intrinsic
def divide(typing, left, right):
    """Divide lane by lane."""

    def codegen(context, builder, signature, args):
        return builder.fdiv(*args)

    return f32x16(f32x16, f32x16), codegen


_overload_operator(operator.add, "fadd", "add")
_overload_operator(operator.sub, "fsub", "sub")
_overload_operator(operator.mul, "fmul", "mul")


# exp of anything below is negligible beside 1.
EXP_CUTOFF = -80.0
LOG2_E = 1.4426950408889634
# Coefficients by rising powers: numpy.polynomial.Chebyshev.interpolate(exp, 5, (-ln 2 / 2, ln 2 / 2)) as a polynomial.
EXP_COEFFICIENTS = (
    1.0000000754548972,
    1.000000010771568,
    0.49998869378306193,
    0.1666650526041718,
    0.04191750724932903,
    0.008369148490146382,
)
# ln 2 in two parts; the first has few digits, so that its multiples are exact.
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.4286068203094173e-06


@kernel
def exp_f32x16(x):
    """Return exp of numbers that are not above 0: a power of two, times a polynomial of the remainder.

    The remainder is within ln 2 / 2 of 0. The polynomial equals exp at six Chebyshev points of this interval.
    """
    x = maximum(x, splat(EXP_CUTOFF))
    exponent_i32 = round_f32_to_i32(x * splat(LOG2_E))
    exponent_f32 = convert_i32_to_f32(exponent_i32)
    x = x - exponent_f32 * splat(LN2_HIGH) - exponent_f32 * splat(LN2_LOW)
    y = splat(EXP_COEFFICIENTS[5])
    for degree in (4, 3, 2, 1, 0):
        y = y * x + splat(EXP_COEFFICIENTS[degree])
    return y * power_of_two(exponent_i32)


@intrinsic
def select_nonnegative(typing, condition, nonnegative, negative):
    """Return the lanes of `nonnegative` where the condition's number is not below 0, and else those of `negative`."""

    def codegen(context, builder, signature, args):
        is_nonnegative = builder.fcmp_ordered(">=", args[0], ir.Constant(F32X16, [0.0] * LANES))
        return builder.select(is_nonnegative, *args[1:])

    return f32x16(f32x16, f32x16, f32x16), codegen


@kernel
def sigmoid(x):
    """Return the logistic sigmoid, without overflow."""
    exponential = exp_f32x16(splat(0.0) - absolute(x))
    return divide(select_nonnegative(x, splat(1.0), exponential), splat(1.0) + exponential)


@kernel
def silu(x):
    """Return x times its logistic sigmoid (Hendrycks and Gimpel 2016)."""
    return x * sigmoid(x)


# Coefficients of t, t² … in erf(x) = 1 - (a₁t + … + a₅t⁵) exp(-x²) for t = 1 / (1 + ERF_SCALE · x), with an error of at most
# 1.5e-7 (Abramowitz and Stegun 1964, formula 7.1.26).
ERF_SCALE = 0.3275911
ERF_COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


@kernel
def gelu(x):
    """Return x times the normal distribution function of x (Hendrycks and Gimpel 2016)."""
    magnitude = absolute(x) * splat(0.7071067811865476)
    t = divide(splat(1.0), splat(1.0) + splat(ERF_SCALE) * magnitude)
    polynomial = splat(ERF_COEFFICIENTS[4])
    for degree in (3, 2, 1, 0):
        polynomial = polynomial * t + splat(ERF_COEFFICIENTS[degree])
    tail = splat(0.5) * polynomial * t * exp_f32x16(splat(0.0) - magnitude * magnitude)
    return x * select_nonnegative(x, splat(1.0) - tail, tail)


@kernel
def gelu_tanh(x):
    """Return GELU in its form with tanh, x·σ(√(8/π)·(x + 0.044715·x³)) (Hendrycks and Gimpel 2016)."""
    return x * sigmoid(splat(1.5957691216057308) * (x + splat(0.044715) * x * x * x))
