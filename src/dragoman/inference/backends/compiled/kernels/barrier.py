"""How threads that compute one function together share it out, compiled: each takes its share, and where all need what all
have found they wait for each other.

Waiting is looking again and again, for it is over in less time than a thread takes to fall asleep. Who has looked in vain for
long lets other threads of its core go on: one of them may be whom it waits for.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.simd import compiled
from dragoman.inference.backends.compiled.kernels.structs import APART

# Vain looks before others may go on.
PATIENCE = 512

_LONG = ir.IntType(64)


def _place(builder, address, at):
    return builder.gep(builder.inttoptr(address, _LONG.as_pointer()), [at], source_etype=_LONG)


@intrinsic
def seen(typing, address, at):
    """What stands there, and all that was written before it was."""

    def code(context, builder, signature, given):
        return builder.load_atomic(_place(builder, *given), "acquire", 8, typ=_LONG)

    return types.int64(types.int64, types.int64), code


@intrinsic
def show(typing, address, at, value):
    """Put it there, after all that was written before."""

    def code(context, builder, signature, given):
        builder.store_atomic(given[2], _place(builder, *given[:2]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


@intrinsic
def pause(typing):
    """For some moments."""

    def code(context, builder, signature, given):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def call(typing, address):
    """A function that takes nothing, and whose result nobody reads."""

    def code(context, builder, signature, given):
        builder.call(builder.inttoptr(given[0], ir.FunctionType(ir.IntType(32), []).as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), code


@compiled
def share(count, team):
    """Which of so many are this member's: from, and up to."""
    return count * team.member // team.members, count * (team.member + 1) // team.members


@compiled
def meet(team):
    """Go on when all members are here, with all that they have written."""
    if team.members == 1:
        return
    here = seen(team.arrived, team.member * APART) + 1
    show(team.arrived, team.member * APART, here)
    for other in range(team.members):
        looks = 0
        while seen(team.arrived, other * APART) < here and not seen(team.over, 0):
            pause()
            looks += 1
            if looks % PATIENCE == 0 and team.pass_on:
                call(team.pass_on)
