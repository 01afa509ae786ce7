"""A processor's tiles (AMX), for functions that Numba compiles: products of bytes, 16 rows by 16 columns at once.

Tiles have 16 rows of 64 bytes. There are eight, by number, which only a literal can be. For a processor without them nothing is
made of all this, for LLVM would end the process: there, `described` is 0, and nothing comes here.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.cpu_features import knows_tiles
from dragoman.inference.backends.compiled.kernels.memory import place_of
from dragoman.inference.backends.compiled.kernels.simd import called

_BYTE = ir.IntType(8)


def _instruction(builder, name, *arguments):
    if knows_tiles():
        called(builder, name, ir.VoidType(), *arguments)


@intrinsic
def configure_tiles(typing, address):
    """By the 64 bytes that stand there; see `tile_description`."""

    def code(context, builder, signature, given):
        _instruction(builder, "llvm.x86.ldtilecfg", builder.inttoptr(given[0], _BYTE.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), code


@intrinsic
def release_tiles(typing):
    """As every function must that configured them."""

    def code(context, builder, signature, given):
        _instruction(builder, "llvm.x86.tilerelease")
        return context.get_dummy_value()

    return types.void(), code


@intrinsic(prefer_literal=True)
def empty_tile(typing, number):
    """All zero."""

    def code(context, builder, signature, given):
        _instruction(builder, "llvm.x86.tilezero", _BYTE(number.literal_value))
        return context.get_dummy_value()

    return types.void(number), code


def _tile_mover(name):
    @intrinsic(prefer_literal=True)
    def move(typing, number, address, at, stride):
        def code(context, builder, signature, given):
            place = place_of(builder, *given[1:3], _BYTE, _BYTE)
            _instruction(builder, name, _BYTE(number.literal_value), place, given[3])
            return context.get_dummy_value()

        return types.void(number, types.int64, types.int64, types.int64), code

    return move


load_tile = _tile_mover("llvm.x86.tileloadd64")
"""load_tile(number, address, at, stride): rows so many bytes apart."""
store_tile = _tile_mover("llvm.x86.tilestored64")
"""store_tile(number, address, at, stride)"""


@intrinsic(prefer_literal=True)
def multiply_tiles(typing, sum_, unsigned, signed):
    """Added to a tile of sums: rows of unsigned bytes by 16 columns of signed ones, four of a column side by side."""

    def code(context, builder, signature, given):
        numbers = [_BYTE(one.literal_value) for one in (sum_, unsigned, signed)]
        _instruction(builder, "llvm.x86.tdpbusd", *numbers)
        return context.get_dummy_value()

    return types.void(sum_, unsigned, signed), code
