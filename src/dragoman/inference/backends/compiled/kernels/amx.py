"""A processor's tiles (AMX), for functions that Numba compiles: products of bytes, 16 rows by 16 columns at once.

Tiles have 16 rows of 64 bytes. There are eight, by number, which only a literal can be. For a processor without them nothing is
made of all this, for LLVM would end the process: there, `described` is 0, and nothing comes here.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.cpu_features import has_amx_int8
from dragoman.inference.backends.compiled.kernels.memory import element_pointer
from dragoman.inference.backends.compiled.kernels.simd import call_llvm

_I8 = ir.IntType(8)


def _emit(builder, name, *arguments):
    if has_amx_int8():
        call_llvm(builder, name, ir.VoidType(), *arguments)


@intrinsic
def configure_tiles(typing, address):
    """By the 64 bytes that stand there; see `tile_description`."""

    def codegen(context, builder, signature, args):
        _emit(builder, "llvm.x86.ldtilecfg", builder.inttoptr(args[0], _I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def release_tiles(typing):
    """As every function must that configured them."""

    def codegen(context, builder, signature, args):
        _emit(builder, "llvm.x86.tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic(prefer_literal=True)
def zero_tile(typing, tile):
    """All zero."""

    def codegen(context, builder, signature, args):
        _emit(builder, "llvm.x86.tilezero", _I8(tile.literal_value))
        return context.get_dummy_value()

    return types.void(tile), codegen


def _make_tile_transfer(name):
    @intrinsic(prefer_literal=True)
    def transfer(typing, tile, address, offset, stride):
        def codegen(context, builder, signature, args):
            pointer = element_pointer(builder, *args[1:3], _I8, _I8)
            _emit(builder, name, _I8(tile.literal_value), pointer, args[3])
            return context.get_dummy_value()

        return types.void(tile, types.int64, types.int64, types.int64), codegen

    return transfer


load_tile = _make_tile_transfer("llvm.x86.tileloadd64")
"""load_tile(number, address, at, stride): rows so many bytes apart."""
store_tile = _make_tile_transfer("llvm.x86.tilestored64")
"""store_tile(number, address, at, stride)"""


@intrinsic(prefer_literal=True)
def multiply_tiles(typing, sum_, unsigned, signed):
    """Added to a tile of sums: rows of unsigned bytes by 16 columns of signed ones, four of a column side by side."""

    def codegen(context, builder, signature, args):
        tiles = [_I8(operand.literal_value) for operand in (sum_, unsigned, signed)]
        _emit(builder, "llvm.x86.tdpbusd", *tiles)
        return context.get_dummy_value()

    return types.void(sum_, unsigned, signed), codegen
