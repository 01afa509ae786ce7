"""A processor's vectors of 512 bits as values that compiled Python computes with.

`Floats` are 16 numbers of 32 bits; `Sums` are 16 whole numbers of 32 bits, or the 64 bytes that are multiplied and added up to
such. Everything here is for functions that Numba compiles; where vectors come from and go to is in `addresses`.
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

from dragoman.inference.backends.compiled.kernels.structs import BYTES, LANES

if tuple(int(part) for part in numba.__version__.split(".")[:2]) < (0, 62):
    raise ImportError(f"numba {numba.__version__}: 0.62 or later is needed")

# None of them is called by Python itself, which would take a wrapper each, and half of the time to compile.
_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
compiled = njit(**_OPTIONS)
inlined = njit(inline="always")

# What LLVM calls them.
HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
WORD, BYTE, LONG = ir.IntType(32), ir.IntType(8), ir.IntType(64)
FLOATS, SUMS = ir.VectorType(FLOAT, LANES), ir.VectorType(WORD, LANES)
SIGNED_BYTES, HALVES = ir.VectorType(BYTE, LANES), ir.VectorType(HALF, LANES)
# What LLVM calls the 64 bytes of one side of VNNI's products; sums until its version 21.
_SIDE = ir.VectorType(BYTE, BYTES) if llvmlite.binding.llvm_version_info >= (22,) else SUMS


class Entered(NamedTuple):
    """A function that Python calls through `jit_cache`, which returns a whole number. kinds: of its arguments"""

    function: Any
    kinds: tuple[Any, ...]


def entered(*kinds):
    """int, float, bool, and the tuples of `layout`."""
    return lambda function: Entered(compiled(function), kinds)


class _Vector(types.Type):
    """What Numba calls a vector, and what LLVM does."""

    def __init__(self, name: str, of: ir.VectorType) -> None:
        self.of = of
        super().__init__(name=name)


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector):
        super().__init__(manager, vector, vector.of)


floats, sums = _Vector("floats", FLOATS), _Vector("sums", SUMS)


def called(builder, name, result, *arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def repeated(builder, number):
    one = builder.insert_element(ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined), number, WORD(0))
    return builder.shuffle_vector(one, one, ir.Constant(SUMS, [0] * LANES))


@intrinsic
def whole_total(typing, vector):
    """Of whole numbers."""

    def code(context, builder, signature, given):
        return builder.sext(called(builder, "llvm.vector.reduce.add.v16i32", WORD, given[0]), LONG)

    return types.int64(sums), code


@intrinsic
def same(typing, number):
    """16 times the same number."""

    def code(context, builder, signature, given):
        return repeated(builder, context.cast(builder, given[0], number, types.float32))

    return floats(number), code


@intrinsic
def same_sums(typing, number):
    """16 times the same whole number."""

    def code(context, builder, signature, given):
        return repeated(builder, context.cast(builder, given[0], number, types.int32))

    return sums(number), code


@intrinsic
def add_products(typing, sum_, unsigned, signed):
    """To each sum four products of bytes: unsigned by signed. VNNI's, which never saturates."""

    def code(context, builder, signature, given):
        sides = [builder.bitcast(one, _SIDE) for one in given[1:]]
        return called(builder, "llvm.x86.avx512.vpdpbusd.512", SUMS, given[0], *sides)

    return sums(sums, sums, sums), code


@intrinsic
def to_floats(typing, vector):
    """The same numbers."""

    def code(context, builder, signature, given):
        return builder.sitofp(given[0], FLOATS)

    return floats(sums), code


@intrinsic
def to_sums(typing, vector):
    """The nearest whole numbers, the even one of two."""

    def code(context, builder, signature, given):
        return builder.fptosi(called(builder, "llvm.rint.v16f32", FLOATS, given[0]), SUMS)

    return sums(floats), code


@intrinsic
def power_of_two(typing, vector):
    """2 to the power of whole numbers between -126 and 127."""

    def code(context, builder, signature, given):
        exponent = builder.add(given[0], ir.Constant(SUMS, [127] * LANES))
        return builder.bitcast(builder.shl(exponent, ir.Constant(SUMS, [23] * LANES)), FLOATS)

    return floats(sums), code


@intrinsic
def greater(typing, one, other):
    """The greater of each two numbers."""

    def code(context, builder, signature, given):
        return builder.select(builder.fcmp_ordered(">", *given), *given)

    return floats(floats, floats), code


def _turner(places):
    """Gives a vector whose lanes have all moved on by so many places, round and round."""

    @intrinsic
    def turn(typing, vector):
        def code(context, builder, signature, given):
            order = [(lane + places) % LANES for lane in range(LANES)]
            return builder.shuffle_vector(given[0], given[0], ir.Constant(SUMS, order))

        return floats(floats), code

    return turn


turned_by_8, turned_by_4, turned_by_2, turned_by_1 = (_turner(places) for places in (8, 4, 2, 1))


@intrinsic
def any_above(typing, vector, other):
    """Whether any number is greater than its counterpart."""

    def code(context, builder, signature, given):
        lanes = builder.bitcast(builder.fcmp_ordered(">", *given), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", lanes, ir.IntType(LANES)(0))

    return types.boolean(floats, floats), code


@intrinsic
def size(typing, vector):
    """Without the signs."""

    def code(context, builder, signature, given):
        return called(builder, "llvm.fabs.v16f32", FLOATS, given[0])

    return floats(floats), code


def _reduction(name, freely, *first):
    @intrinsic
    def reduce(typing, vector):
        def code(context, builder, signature, given):
            kind = ir.FunctionType(FLOAT, [*(one.type for one in first), FLOATS])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.call(function, [*first, given[0]], fastmath=freely)

        return types.float32(floats), code

    return reduce


total = _reduction("llvm.vector.reduce.fadd.v16f32", ("reassoc",), ir.Constant(FLOAT, 0.0))
greatest = _reduction("llvm.vector.reduce.fmax.v16f32", ("nnan", "nsz"))


def _arithmetic(operation, on_floats, on_sums):
    @intrinsic
    def compute_floats(typing, one, other):
        def code(context, builder, signature, given):
            return getattr(builder, on_floats)(*given, flags=("contract",))

        return floats(floats, floats), code

    @intrinsic
    def compute_sums(typing, one, other):
        def code(context, builder, signature, given):
            return getattr(builder, on_sums)(*given)

        return sums(sums, sums), code

    def choose(one, other):
        if one == other == floats:
            return lambda one, other: compute_floats(one, other)
        if one == other == sums:
            return lambda one, other: compute_sums(one, other)
        return None

    overload(operation, inline="always")(choose)


@intrinsic
def quotient(typing, one, other):
    """Of each two numbers."""

    def code(context, builder, signature, given):
        return builder.fdiv(*given)

    return floats(floats, floats), code


_arithmetic(operator.add, "fadd", "add")
_arithmetic(operator.sub, "fsub", "sub")
_arithmetic(operator.mul, "fmul", "mul")


# e to less than this is nothing beside 1.
FAINT = -80.0
LOG2_E = 1.4426950408889634
# By rising powers: numpy.polynomial.Chebyshev.interpolate(exp, 5, (-ln 2 / 2, ln 2 / 2)) as a polynomial.
EXPONENTIAL = (
    1.0000000754548972,
    1.000000010771568,
    0.49998869378306193,
    0.1666650526041718,
    0.04191750724932903,
    0.008369148490146382,
)
# ln 2 in two parts, the first of which has so few digits that its multiples are exact.
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.4286068203094173e-06


@compiled
def exponential(x):
    """e to the power of numbers that are not above 0: 2 to the power of the whole part, times a polynomial of the rest.

    That is within ln 2 / 2 of 0, and the polynomial meets e to the power of it at Chebyshev's six points there.
    """
    x = greater(x, same(FAINT))
    whole = to_sums(x * same(LOG2_E))
    times = to_floats(whole)
    x = x - times * same(LN2_HIGH) - times * same(LN2_LOW)
    y = same(EXPONENTIAL[5])
    for degree in (4, 3, 2, 1, 0):
        y = y * x + same(EXPONENTIAL[degree])
    return y * power_of_two(whole)
