"""How threads that compute one function together share it out, compiled: each takes its share, and where all need what all
have found they wait for each other.

Waiting is looking again and again, for it is over in less time than a thread takes to fall asleep. Who has looked in vain for
long lets other threads of its core go on: one of them may be whom it waits for.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.simd import kernel
from dragoman.inference.backends.compiled.kernels.structs import CACHE_LINE_I64

# Vain looks before others may go on.
SPINS_BEFORE_YIELD = 512

_I64 = ir.IntType(64)


def _element_pointer(builder, address, index):
    return builder.gep(builder.inttoptr(address, _I64.as_pointer()), [index], source_etype=_I64)


@intrinsic
def load_acquire(typing, address, index):
    """What stands there, and all that was written before it was."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_element_pointer(builder, *args), "acquire", 8, typ=_I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_release(typing, address, index, value):
    """Put it there, after all that was written before."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[2], _element_pointer(builder, *args[:2]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(typing):
    """For some moments."""

    def codegen(context, builder, signature, args):
        function_type = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), function_type), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_function(typing, address):
    """A function that takes nothing, and whose result nobody reads."""

    def codegen(context, builder, signature, args):
        builder.call(builder.inttoptr(args[0], ir.FunctionType(ir.IntType(32), []).as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@kernel
def thread_range(count, group):
    """Which of so many are this member's: from, and up to."""
    return count * group.thread_index // group.num_threads, count * (group.thread_index + 1) // group.num_threads


@kernel
def barrier(group):
    """Go on when all members are here, with all that they have written."""
    if group.num_threads == 1:
        return
    generation = load_acquire(group.arrivals, group.thread_index * CACHE_LINE_I64) + 1
    store_release(group.arrivals, group.thread_index * CACHE_LINE_I64, generation)
    for peer in range(group.num_threads):
        spins = 0
        while load_acquire(group.arrivals, peer * CACHE_LINE_I64) < generation and not load_acquire(group.cancelled, 0):
            pause()
            spins += 1
            if spins % SPINS_BEFORE_YIELD == 0 and group.yield_fn:
                call_function(group.yield_fn)
