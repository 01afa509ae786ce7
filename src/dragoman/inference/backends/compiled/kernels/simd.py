"""Vectors of 512 bits as values in functions that Numba compiles.

`f32x16` are 16 floats of 32 bits. `i32x16` are 16 integers of 32 bits, or the 64 bytes of one operand of a dot product.
Loads and stores are in `memory`.
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

from dragoman.inference.backends.compiled.kernels.structs import LANES, VECTOR_BYTES

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
# LLVM's type of an operand of VNNI's dot product; up to version 21 it is that of the sums.
_VNNI_OPERAND = ir.VectorType(I8, VECTOR_BYTES) if llvmlite.binding.llvm_version_info >= (22,) else I32X16


class ExportedKernel(NamedTuple):
    """Kernel that Python calls through `jit_cache`, and the types of its arguments. It returns an integer."""

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


@intrinsic
def splat_i32(typing, number):
    """Return a vector with one integer in all lanes."""

    def codegen(context, builder, signature, args):
        return splat_lanes(builder, context.cast(builder, args[0], number, types.int32))

    return i32x16(number), codegen


@intrinsic
def dot_accumulate_u8i8(typing, sum_, unsigned, signed):
    """Add to each sum four products of unsigned by signed bytes (VNNI, which never saturates)."""

    def codegen(context, builder, signature, args):
        operands = [builder.bitcast(operand, _VNNI_OPERAND) for operand in args[1:]]
        return call_llvm(builder, "llvm.x86.avx512.vpdpbusd.512", I32X16, args[0], *operands)

    return i32x16(i32x16, i32x16, i32x16), codegen


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
