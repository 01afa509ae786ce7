"""Has Numba make machine code of a function that is given the address of its arguments, and can be called without Numba."""

from __future__ import annotations

from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

from numba import cfunc, config, types
from numba.core import cgutils
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.simd import Entered

SIMPLE = {int: types.int64, float: types.float64, bool: types.boolean}


def assemble(module: str, name: str) -> tuple[str, bytes]:
    """The symbol and the object file of `NAME` in the module `kernels.MODULE`."""
    entered: Entered = getattr(import_module(f"dragoman.inference.backends.compiled.kernels.{module}"), name)
    function, read = entered.function, _reader(types.BaseTuple.from_types([_kind(kind) for kind in entered.kinds]))

    def enter(address):
        return function(*read(address))

    made: Any = cfunc(types.int64(types.int64))(enter)
    return made.native_name, made._library._get_compiled_object()


def is_for_this_processor() -> bool:
    """Whether Numba was not told to compile for another one, or for none."""
    settings: Any = config
    return not (settings.DISABLE_JIT or not settings.ENABLE_AVX or settings.CPU_NAME or settings.CPU_FEATURES)


def _kind(kind: Any) -> Any:
    """What Numba calls it."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if get_origin(kind) is tuple:
        return types.BaseTuple.from_types([_kind(one) for one in get_args(kind)])
    return types.BaseTuple.from_types([_kind(one) for one in get_type_hints(kind).values()], kind)


def _reader(kind: types.Type) -> Any:
    """Makes a value of the numbers that stand from an address on, eight bytes each, those of tuples one after the other."""

    @intrinsic
    def read(typing, address):
        def code(context, builder, signature, given):
            place = 0

            def value(kind):
                nonlocal place
                if isinstance(kind, types.BaseTuple):
                    return context.make_tuple(builder, kind, [value(one) for one in kind])
                number = types.float64 if kind == types.float64 else types.int64
                pointer = builder.inttoptr(given[0], context.get_value_type(number).as_pointer())
                found = builder.load(builder.gep(pointer, [context.get_constant(types.int64, place)]))
                place += 1
                return cgutils.is_not_null(builder, found) if kind == types.boolean else found

            return value(kind)

        return kind(types.int64), code

    return read
