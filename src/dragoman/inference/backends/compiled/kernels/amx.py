"""Tiles (AMX) in functions that Numba compiles: products of bytes, 16 rows by 16 columns at once.

There are eight tiles, of 16 rows of 64 bytes each, and only literals can number them. For instruction sets without AMX these
functions compile to nothing. Then `Workspace.tile_config` is 0, and no kernel calls them.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET
from dragoman.inference.backends.compiled.kernels.instruction_sets import AVX512_VNNI
from dragoman.inference.backends.compiled.kernels.memory import element_pointer
from dragoman.inference.backends.compiled.kernels.simd import call_llvm

_I8 = ir.IntType(8)


def _emit(builder, name, *arguments):
    if INSTRUCTION_SET is AVX512_VNNI:
        call_llvm(builder, name, ir.VoidType(), *arguments)


@intrinsic
def configure_tiles(typing, address):
    """Configure the tiles by the 64 bytes at an address; see `cpu_features.build_tile_config`."""

    def codegen(context, builder, signature, args):
        _emit(builder, "llvm.x86.ldtilecfg", builder.inttoptr(args[0], _I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def release_tiles(typing):
    """Release the tiles, as every function must that has configured them."""

    def codegen(context, builder, signature, args):
        _emit(builder, "llvm.x86.tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic(prefer_literal=True)
def zero_tile(typing, tile):
    """Set a tile to zero."""

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
"""load_tile(tile, address, offset, stride): the stride is the distance of rows in bytes."""
store_tile = _make_tile_transfer("llvm.x86.tilestored64")
"""store_tile(tile, address, offset, stride)"""


@intrinsic(prefer_literal=True)
def multiply_tiles(typing, sum_, unsigned, signed):
    """Add to a tile of sums the product of unsigned rows and signed columns, with four bytes of a column side by side."""

    def codegen(context, builder, signature, args):
        tiles = [_I8(operand.literal_value) for operand in (sum_, unsigned, signed)]
        _emit(builder, "llvm.x86.tdpbusd", *tiles)
        return context.get_dummy_value()

    return types.void(sum_, unsigned, signed), codegen
