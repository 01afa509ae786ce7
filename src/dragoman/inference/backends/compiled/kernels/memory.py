"""Loads and stores of floats, 16-bit floats, integers and bytes at an address, one or sixteen at a time.

An index counts elements from the address on. Nothing checks bounds, and the caller keeps the memory alive. Arrays as arguments
would cost more than a small model's products, because every call counts their references.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.simd import (
    F16,
    F16X16,
    F32,
    F32X16,
    F64,
    I8,
    I8X16,
    I32,
    I32X16,
    I64,
    call_llvm,
    f32x16,
    i32x16,
    splat_lanes,
)
from dragoman.inference.backends.compiled.kernels.structs import ACCUMULATOR_STRIDE, LANES

F16_MAX = 65504.0


def element_pointer(builder, address, index, element_type, target_type):
    """Return the pointer to the element with this index, as a pointer to the target type."""
    pointer = builder.gep(builder.inttoptr(address, element_type.as_pointer()), [index], source_etype=element_type)
    return builder.bitcast(pointer, target_type.as_pointer())


def _make_loader(element_type, loaded_type, numba_type):
    @intrinsic
    def load_value(typing, address, index):
        def codegen(context, builder, signature, args):
            value = builder.load(element_pointer(builder, *args, element_type, loaded_type), align=1)
            if loaded_type is I8:
                return builder.zext(value, I64)
            return builder.sext(value, I64) if loaded_type is I32 else value

        return numba_type(types.int64, types.int64), codegen

    return load_value


def _make_storer(element_type, numba_type, stored_type):
    @intrinsic
    def store_value(typing, address, index, value):
        def codegen(context, builder, signature, args):
            builder.store(args[2], element_pointer(builder, *args[:2], element_type, stored_type), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, numba_type), codegen

    return store_value


# (address, index) → the value
load_f32 = _make_loader(F32, F32, types.float32)
load_i32 = _make_loader(I32, I32, types.int64)
load_i64 = _make_loader(I64, I64, types.int64)
load_f64 = _make_loader(F64, F64, types.float64)
load_f32x16 = _make_loader(F32, F32X16, f32x16)
load_i32x16 = _make_loader(I32, I32X16, i32x16)
load_i8x64 = _make_loader(I8, I32X16, i32x16)
# (address, index, value)
store_f32 = _make_storer(F32, types.float32, F32)
store_f32x16 = _make_storer(F32, f32x16, F32X16)
store_i32x16 = _make_storer(I32, i32x16, I32X16)
store_i32 = _make_storer(I32, types.int32, I32)
store_i64 = _make_storer(I64, types.int64, I64)
store_f64 = _make_storer(F64, types.float64, F64)


def make_sum_storer(tuple_type, num_panels):
    """Return an intrinsic that stores sums, so many panels of each row, in the layout of `Workspace.accumulators`."""

    @intrinsic
    def store_sums(typing, sums, address):
        def codegen(context, builder, signature, args):
            for number, vector in enumerate(cgutils.unpack_tuple(builder, args[0])):
                row, panel = divmod(number, num_panels)
                index = I64(panel * ACCUMULATOR_STRIDE + row * LANES)
                builder.store(vector, element_pointer(builder, args[1], index, I32, vector.type), align=1)
            return context.get_dummy_value()

        return types.void(tuple_type, types.int64), codegen

    return store_sums


@intrinsic
def store_i8x16(typing, address, index, vector):
    """Store the lowest byte of each of 16 integers."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(builder, *args[:2], I8, I8X16)
        builder.store(builder.trunc(args[2], I8X16), pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, i32x16), codegen


@intrinsic
def load_i8x16(typing, address, index):
    """Load 16 integers of 8 bits as floats."""

    def codegen(context, builder, signature, args):
        bytes_ = builder.load(element_pointer(builder, *args, I8, I8X16), align=1)
        return builder.sitofp(bytes_, F32X16)

    return f32x16(types.int64, types.int64), codegen


@intrinsic
def load_f16x16(typing, address, index):
    """Load 16 floats of 16 bits."""

    def codegen(context, builder, signature, args):
        return builder.fpext(builder.load(element_pointer(builder, *args, F16, F16X16), align=1), F32X16)

    return f32x16(types.int64, types.int64), codegen


@intrinsic
def store_f16x16(typing, address, index, vector):
    """Store 16 floats in 16 bits, rounded, and clipped to the largest float of 16 bits."""

    def codegen(context, builder, signature, args):
        vector = args[2]
        for comparison, bound in (("<", F16_MAX), (">", -F16_MAX)):
            limit = ir.Constant(F32X16, [bound] * LANES)
            vector = builder.select(builder.fcmp_ordered(comparison, vector, limit), vector, limit)
        builder.store(builder.fptrunc(vector, F16X16), element_pointer(builder, *args[:2], F16, F16X16), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, f32x16), codegen


@intrinsic
def store_i8_quads(typing, address, index, vector):
    """Store the lowest bytes of 16 integers in groups of four, 64 bytes apart. index: that of the first group"""

    def codegen(context, builder, signature, args):
        quads = builder.bitcast(builder.trunc(args[2], I8X16), ir.VectorType(I32, 4))
        for quad in range(4):
            pointer = element_pointer(builder, args[0], builder.add(args[1], I64(quad * LANES)), I32, I32)
            builder.store(builder.extract_element(quads, I32(quad)), pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, i32x16), codegen


def _make_lane_mask(builder, count):
    """Return the mask of the first lanes."""
    return builder.icmp_signed("<", ir.Constant(I32X16, list(range(LANES))), splat_lanes(builder, builder.trunc(count, I32)))


@intrinsic
def load_partial(typing, count, address, index, fill):
    """Load this many floats, and take the other lanes from `fill`."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(builder, *args[1:3], F32, F32X16)
        name, lane_mask = "llvm.masked.load.v16f32.p0", _make_lane_mask(builder, args[0])
        return call_llvm(builder, name, F32X16, pointer, I32(1), lane_mask, args[3])

    return f32x16(types.int64, types.int64, types.int64, f32x16), codegen


@intrinsic
def store_partial(typing, count, address, index, vector):
    """Store only the first floats of a vector."""

    def codegen(context, builder, signature, args):
        lane_mask = _make_lane_mask(builder, args[0])
        pointer = element_pointer(builder, *args[1:3], F32, F32X16)
        call_llvm(builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), args[3], pointer, I32(1), lane_mask)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, f32x16), codegen


@intrinsic
def load_splat_i8x4(typing, address, index):
    """Return a vector with the same four bytes in all lanes."""

    def codegen(context, builder, signature, args):
        return splat_lanes(builder, builder.load(element_pointer(builder, *args, I8, I32), align=1))

    return i32x16(types.int64, types.int64), codegen


@intrinsic
def prefetch(typing, address, index):
    """Begin to read the byte with this index and its neighbors into the second level of the cache.

    The address need not be valid.
    """

    def codegen(context, builder, signature, args):
        pointer = element_pointer(builder, *args, I8, I8)
        # Arguments of LLVM: a read, into the second level of the cache, of data.
        call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, I32(0), I32(2), I32(1))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen
