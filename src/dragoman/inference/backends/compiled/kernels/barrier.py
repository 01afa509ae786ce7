"""Division of work among threads, and the barrier at which they wait for each other.

A thread waits by polling, because most waits are shorter than putting a thread to sleep. After many polls it lets other
threads of its core run, because one of them may be the thread that it waits for.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET
from dragoman.inference.backends.compiled.kernels.instruction_sets import NEON
from dragoman.inference.backends.compiled.kernels.simd import call_llvm, kernel
from dragoman.inference.backends.compiled.kernels.structs import CACHE_LINE_I64

# Polls before a thread yields its core.
SPINS_BEFORE_YIELD = 512
# Number of the hint that a thread waits (YIELD).
ARM_YIELD_HINT = 1

_I64 = ir.IntType(64)


def _element_pointer(builder, address, index):
    return builder.gep(builder.inttoptr(address, _I64.as_pointer()), [index], source_etype=_I64)


@intrinsic
def load_acquire(typing, address, index):
    """Load an integer with acquire order."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_element_pointer(builder, *args), "acquire", 8, typ=_I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_release(typing, address, index, value):
    """Store an integer with release order."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[2], _element_pointer(builder, *args[:2]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(typing):
    """Pause for some cycles."""

    def codegen(context, builder, signature, args):
        if INSTRUCTION_SET is NEON:
            call_llvm(builder, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(ir.IntType(32), ARM_YIELD_HINT))
        else:
            call_llvm(builder, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_function(typing, address):
    """Call the function at an address, without arguments, and ignore its result."""

    def codegen(context, builder, signature, args):
        builder.call(builder.inttoptr(args[0], ir.FunctionType(ir.IntType(32), []).as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@kernel
def thread_range(count, group):
    """Return the start and the end of this thread's share of a range."""
    return count * group.thread_index // group.num_threads, count * (group.thread_index + 1) // group.num_threads


@kernel
def barrier(group):
    """Wait until all threads of the group are here. Their writes are visible afterwards."""
    if group.num_threads == 1:
        return
    generation = load_acquire(group.arrivals, group.thread_index * CACHE_LINE_I64) + 1
    store_release(group.arrivals, group.thread_index * CACHE_LINE_I64, generation)
    for peer in range(group.num_threads):
        spins = 0
        while load_acquire(group.arrivals, peer * CACHE_LINE_I64) < generation and not load_acquire(group.canceled, 0):
            pause()
            spins += 1
            if spins % SPINS_BEFORE_YIELD == 0 and group.yield_fn:
                call_function(group.yield_fn)
