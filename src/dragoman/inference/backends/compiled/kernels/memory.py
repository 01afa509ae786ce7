"""What stands at an address, read and written: numbers, halves (of 16 bits), whole numbers and bytes, one or sixteen at a time.

An address is a whole number, and `at` counts what is read or written from there on. Nothing checks that it is within; who calls
keeps what is there alive. (Arrays as arguments would cost more than a small model's sums: each is counted at each call.)
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.simd import (
    BYTE,
    DOUBLE,
    FLOAT,
    FLOATS,
    HALF,
    HALVES,
    LONG,
    SIGNED_BYTES,
    SUMS,
    WORD,
    called,
    floats,
    repeated,
    sums,
)
from dragoman.inference.backends.compiled.kernels.structs import LANES

GREATEST_HALF = 65504.0


def place_of(builder, address, at, unit, of):
    """Where number `at` is of such units, as a pointer to this."""
    place = builder.gep(builder.inttoptr(address, unit.as_pointer()), [at], source_etype=unit)
    return builder.bitcast(place, of.as_pointer())


def _reader(unit, of, found):
    @intrinsic
    def read(typing, address, at):
        def code(context, builder, signature, given):
            value = builder.load(place_of(builder, *given, unit, of), align=1)
            return builder.sext(value, LONG) if of is WORD else value

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
number = _reader(FLOAT, FLOAT, types.float32)
whole = _reader(WORD, WORD, types.int64)
long = _reader(LONG, LONG, types.int64)
double = _reader(DOUBLE, DOUBLE, types.float64)
load = _reader(FLOAT, FLOATS, floats)
load_sums = _reader(WORD, SUMS, sums)
load_bytes = _reader(BYTE, SUMS, sums)
# (address, at, what is put there)
put = _writer(FLOAT, types.float32, FLOAT)
store = _writer(FLOAT, floats, FLOATS)
store_sums = _writer(WORD, sums, SUMS)
put_whole = _writer(WORD, types.int32, WORD)
put_long = _writer(LONG, types.int64, LONG)
put_double = _writer(DOUBLE, types.float64, DOUBLE)


@intrinsic
def store_bytes(typing, address, at, vector):
    """The lowest byte of each of 16 sums."""

    def code(context, builder, signature, given):
        place = place_of(builder, *given[:2], BYTE, SIGNED_BYTES)
        builder.store(builder.trunc(given[2], SIGNED_BYTES), place, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, sums), code


@intrinsic
def load_halves(typing, address, at):
    """16 halves, as numbers."""

    def code(context, builder, signature, given):
        return builder.fpext(builder.load(place_of(builder, *given, HALF, HALVES), align=1), FLOATS)

    return floats(types.int64, types.int64), code


@intrinsic
def store_halves(typing, address, at, vector):
    """16 numbers as the nearest halves; greater ones than those go to as the greatest."""

    def code(context, builder, signature, given):
        vector = given[2]
        for compared, bound in (("<", GREATEST_HALF), (">", -GREATEST_HALF)):
            limit = ir.Constant(FLOATS, [bound] * LANES)
            vector = builder.select(builder.fcmp_ordered(compared, vector, limit), vector, limit)
        builder.store(builder.fptrunc(vector, HALVES), place_of(builder, *given[:2], HALF, HALVES), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, floats), code


@intrinsic
def store_quads(typing, address, at, vector):
    """The lowest byte of each of 16 sums, four side by side in every 16th place for four bytes, the first of which is `at`."""

    def code(context, builder, signature, given):
        fours = builder.bitcast(builder.trunc(given[2], SIGNED_BYTES), ir.VectorType(WORD, 4))
        for four in range(4):
            place = place_of(builder, given[0], builder.add(given[1], LONG(four * LANES)), WORD, WORD)
            builder.store(builder.extract_element(fours, WORD(four)), place, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, sums), code


def _first(builder, count):
    """Which lanes are the first so many."""
    return builder.icmp_signed("<", ir.Constant(SUMS, list(range(LANES))), repeated(builder, builder.trunc(count, WORD)))


@intrinsic
def load_first(typing, count, address, at, rest):
    """So many numbers from there on, and a vector's for the rest."""

    def code(context, builder, signature, given):
        place = place_of(builder, *given[1:3], FLOAT, FLOATS)
        name, wanted = "llvm.masked.load.v16f32.p0", _first(builder, given[0])
        return called(builder, name, FLOATS, place, WORD(1), wanted, given[3])

    return floats(types.int64, types.int64, types.int64, floats), code


@intrinsic
def store_first(typing, count, address, at, vector):
    """Only so many of 16 numbers."""

    def code(context, builder, signature, given):
        wanted = _first(builder, given[0])
        place = place_of(builder, *given[1:3], FLOAT, FLOATS)
        called(builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), given[3], place, WORD(1), wanted)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, floats), code


@intrinsic
def same_bytes(typing, address, at):
    """16 times the same four bytes."""

    def code(context, builder, signature, given):
        return repeated(builder, builder.load(place_of(builder, *given, BYTE, WORD), align=1))

    return sums(types.int64, types.int64), code
