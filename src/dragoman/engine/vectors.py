"""A processor's vectors of 512 bits as values that compiled Python computes with.

`Floats` are 16 numbers of 32 bits; `Sums` are 16 whole numbers of 32 bits, or the 64 bytes that are multiplied and added up to
such. Everything here is for functions that Numba compiles. Memory is given by its address, a whole number, and `at` counts what
is read or written from there on: numbers, halves (of 16 bits), whole numbers or bytes. Nothing checks that it is within; who
calls keeps what is there alive. (Arrays as arguments would cost more than a small model's sums: each is counted at each call.)
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

from dragoman.engine.layout import BYTES, LANES

if tuple(int(part) for part in numba.__version__.split(".")[:2]) < (0, 62):
    raise ImportError(f"numba {numba.__version__}: 0.62 or later is needed")

GREATEST_HALF = 65504.0

# None of them is called by Python itself, which would take a wrapper each, and half of the time to compile.
_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
compiled = njit(**_OPTIONS)
inlined = njit(inline="always")

_HALF, _FLOAT, _DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_WORD, _BYTE, _LONG = ir.IntType(32), ir.IntType(8), ir.IntType(64)
_FLOATS, _SUMS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_WORD, LANES)
_SIGNED_BYTES, _HALVES = ir.VectorType(_BYTE, LANES), ir.VectorType(_HALF, LANES)
# What LLVM calls the 64 bytes of one side of VNNI's products; sums until its version 21.
_SIDE = ir.VectorType(_BYTE, BYTES) if llvmlite.binding.llvm_version_info >= (22,) else _SUMS


class Entered(NamedTuple):
    """A function that Python calls through `dragoman.engine.entries`, which returns a whole number. kinds: of its arguments"""

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


floats, sums = _Vector("floats", _FLOATS), _Vector("sums", _SUMS)


def place_of(builder, address, at, unit, of):
    """Where number `at` is of such units, as a pointer to this."""
    place = builder.gep(builder.inttoptr(address, unit.as_pointer()), [at], source_etype=unit)
    return builder.bitcast(place, of.as_pointer())


def called(builder, name, result, *arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _repeated(builder, number):
    one = builder.insert_element(ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined), number, _WORD(0))
    return builder.shuffle_vector(one, one, ir.Constant(_SUMS, [0] * LANES))


def _reader(unit, of, found):
    @intrinsic
    def read(typing, address, at):
        def code(context, builder, signature, given):
            value = builder.load(place_of(builder, *given, unit, of), align=1)
            return builder.sext(value, _LONG) if of is _WORD else value

        return found(types.int64, types.int64), code

    return read


def _writer(unit, kind, of):
    @intrinsic
    def write(typing, address, at, value):
        def code(context, builder, signature, given):
            builder.store(given[2], place_of(builder, *given[:2], unit, of), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, kind), code

    return write


# (address, at) → what is there
number = _reader(_FLOAT, _FLOAT, types.float32)
whole = _reader(_WORD, _WORD, types.int64)
long = _reader(_LONG, _LONG, types.int64)
double = _reader(_DOUBLE, _DOUBLE, types.float64)
load = _reader(_FLOAT, _FLOATS, floats)
load_sums = _reader(_WORD, _SUMS, sums)
load_bytes = _reader(_BYTE, _SUMS, sums)
# (address, at, what is put there)
put = _writer(_FLOAT, types.float32, _FLOAT)
store = _writer(_FLOAT, floats, _FLOATS)
store_sums = _writer(_WORD, sums, _SUMS)
put_whole = _writer(_WORD, types.int32, _WORD)
put_long = _writer(_LONG, types.int64, _LONG)
put_double = _writer(_DOUBLE, types.float64, _DOUBLE)


@intrinsic
def store_bytes(typing, address, at, vector):
    """The lowest byte of each of 16 sums."""

    def code(context, builder, signature, given):
        place = place_of(builder, *given[:2], _BYTE, _SIGNED_BYTES)
        builder.store(builder.trunc(given[2], _SIGNED_BYTES), place, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, sums), code


@intrinsic
def load_halves(typing, address, at):
    """16 halves, as numbers."""

    def code(context, builder, signature, given):
        return builder.fpext(builder.load(place_of(builder, *given, _HALF, _HALVES), align=1), _FLOATS)

    return floats(types.int64, types.int64), code


@intrinsic
def store_halves(typing, address, at, vector):
    """16 numbers as the nearest halves; greater ones than those go to as the greatest."""

    def code(context, builder, signature, given):
        vector = given[2]
        for compared, bound in (("<", GREATEST_HALF), (">", -GREATEST_HALF)):
            limit = ir.Constant(_FLOATS, [bound] * LANES)
            vector = builder.select(builder.fcmp_ordered(compared, vector, limit), vector, limit)
        builder.store(builder.fptrunc(vector, _HALVES), place_of(builder, *given[:2], _HALF, _HALVES), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, floats), code


@intrinsic
def store_quads(typing, address, at, vector):
    """The lowest byte of each of 16 sums, four side by side in every 16th place for four bytes, the first of which is `at`."""

    def code(context, builder, signature, given):
        fours = builder.bitcast(builder.trunc(given[2], _SIGNED_BYTES), ir.VectorType(_WORD, 4))
        for four in range(4):
            place = place_of(builder, given[0], builder.add(given[1], _LONG(four * LANES)), _WORD, _WORD)
            builder.store(builder.extract_element(fours, _WORD(four)), place, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, sums), code


@intrinsic
def whole_total(typing, vector):
    """Of whole numbers."""

    def code(context, builder, signature, given):
        return builder.sext(called(builder, "llvm.vector.reduce.add.v16i32", _WORD, given[0]), _LONG)

    return types.int64(sums), code


def _first(builder, count):
    """Which lanes are the first so many."""
    return builder.icmp_signed("<", ir.Constant(_SUMS, list(range(LANES))), _repeated(builder, builder.trunc(count, _WORD)))


@intrinsic
def load_first(typing, count, address, at, rest):
    """So many numbers from there on, and a vector's for the rest."""

    def code(context, builder, signature, given):
        place = place_of(builder, *given[1:3], _FLOAT, _FLOATS)
        name, wanted = "llvm.masked.load.v16f32.p0", _first(builder, given[0])
        return called(builder, name, _FLOATS, place, _WORD(1), wanted, given[3])

    return floats(types.int64, types.int64, types.int64, floats), code


@intrinsic
def store_first(typing, count, address, at, vector):
    """Only so many of 16 numbers."""

    def code(context, builder, signature, given):
        wanted = _first(builder, given[0])
        place = place_of(builder, *given[1:3], _FLOAT, _FLOATS)
        called(builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), given[3], place, _WORD(1), wanted)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, floats), code


@intrinsic
def same(typing, number):
    """16 times the same number."""

    def code(context, builder, signature, given):
        return _repeated(builder, context.cast(builder, given[0], number, types.float32))

    return floats(number), code


@intrinsic
def same_sums(typing, number):
    """16 times the same whole number."""

    def code(context, builder, signature, given):
        return _repeated(builder, context.cast(builder, given[0], number, types.int32))

    return sums(number), code


@intrinsic
def same_bytes(typing, address, at):
    """16 times the same four bytes."""

    def code(context, builder, signature, given):
        return _repeated(builder, builder.load(place_of(builder, *given, _BYTE, _WORD), align=1))

    return sums(types.int64, types.int64), code


@intrinsic
def add_products(typing, sum_, unsigned, signed):
    """To each sum four products of bytes: unsigned by signed. VNNI's, which never saturates."""

    def code(context, builder, signature, given):
        sides = [builder.bitcast(one, _SIDE) for one in given[1:]]
        return called(builder, "llvm.x86.avx512.vpdpbusd.512", _SUMS, given[0], *sides)

    return sums(sums, sums, sums), code


@intrinsic
def to_floats(typing, vector):
    """The same numbers."""

    def code(context, builder, signature, given):
        return builder.sitofp(given[0], _FLOATS)

    return floats(sums), code


@intrinsic
def to_sums(typing, vector):
    """The nearest whole numbers, the even one of two."""

    def code(context, builder, signature, given):
        return builder.fptosi(called(builder, "llvm.rint.v16f32", _FLOATS, given[0]), _SUMS)

    return sums(floats), code


@intrinsic
def power_of_two(typing, vector):
    """2 to the power of whole numbers between -126 and 127."""

    def code(context, builder, signature, given):
        exponent = builder.add(given[0], ir.Constant(_SUMS, [127] * LANES))
        return builder.bitcast(builder.shl(exponent, ir.Constant(_SUMS, [23] * LANES)), _FLOATS)

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
            return builder.shuffle_vector(given[0], given[0], ir.Constant(_SUMS, order))

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
        return called(builder, "llvm.fabs.v16f32", _FLOATS, given[0])

    return floats(floats), code


def _reduction(name, freely, *first):
    @intrinsic
    def reduce(typing, vector):
        def code(context, builder, signature, given):
            kind = ir.FunctionType(_FLOAT, [*(one.type for one in first), _FLOATS])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.call(function, [*first, given[0]], fastmath=freely)

        return types.float32(floats), code

    return reduce


total = _reduction("llvm.vector.reduce.fadd.v16f32", ("reassoc",), ir.Constant(_FLOAT, 0.0))
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
