"""Compilation by Numba into object files. A compiled function takes the address of its arguments and runs without Numba."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

from numba import cfunc, types
from numba.core import cgutils, codegen
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.simd import ExportedKernel

SCALAR_TYPES = {int: types.int64, float: types.float64, bool: types.boolean}


def compile_object(module: str, name: str) -> tuple[str, bytes]:
    """Return the symbol and the object file of the exported kernel with this name in `kernels.<module>`."""
    exported: ExportedKernel = getattr(import_module(f"dragoman.inference.backends.compiled.kernels.{module}"), name)
    function, argument_types = exported.function, [_numba_type(kind) for kind in exported.argument_types]
    read_arguments = _make_argument_reader(types.BaseTuple.from_types(argument_types))

    def call_kernel(address):
        return function(*read_arguments(address))

    with _skip_module_optimization():
        function.compile(tuple(argument_types))
    compiled_function: Any = cfunc(types.int64(types.int64))(call_kernel)
    return compiled_function.native_name, compiled_function._library._get_compiled_object()


@contextmanager
def _skip_module_optimization() -> Iterator[None]:
    """Compile functions without LLVM's optimization of whole modules, where Numba has it as a method that can be replaced.

    Numba optimizes a function again in each function that calls it, directly or not. The last one, which contains all others,
    is optimized as a whole afterwards. So this saves a third of the time and changes nothing.
    """
    library: Any = codegen.CPUCodeLibrary
    optimize = library.__dict__.get("_optimize_final_module")
    if optimize is None:
        yield
        return
    library._optimize_final_module = lambda self: None
    try:
        yield
    finally:
        library._optimize_final_module = optimize


def _numba_type(python_type: Any) -> Any:
    """Return Numba's type."""
    if python_type in SCALAR_TYPES:
        return SCALAR_TYPES[python_type]
    if get_origin(python_type) is tuple:
        return types.BaseTuple.from_types([_numba_type(item_type) for item_type in get_args(python_type)])
    return types.BaseTuple.from_types(
        [_numba_type(field_type) for field_type in get_type_hints(python_type).values()], python_type
    )


def _make_argument_reader(argument_types: types.Type) -> Any:
    """Return an intrinsic that reads arguments from an address: eight bytes each, the fields of tuples in order."""

    @intrinsic
    def read(typing, address):
        def codegen(context, builder, signature, args):
            index = 0

            def load_value(value_type):
                nonlocal index
                if isinstance(value_type, types.BaseTuple):
                    return context.make_tuple(builder, value_type, [load_value(item_type) for item_type in value_type])
                scalar_type = types.float64 if value_type == types.float64 else types.int64
                pointer = builder.inttoptr(args[0], context.get_value_type(scalar_type).as_pointer())
                scalar = builder.load(builder.gep(pointer, [context.get_constant(types.int64, index)]))
                index += 1
                return cgutils.is_not_null(builder, scalar) if value_type == types.boolean else scalar

            return load_value(argument_types)

        return argument_types(types.int64), codegen

    return read
