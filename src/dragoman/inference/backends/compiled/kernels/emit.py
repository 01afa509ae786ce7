"""Main program that compiles all kernels for one instruction set into an object file. The build of the package runs it.

    DRAGOMAN_KERNEL_TARGET=avx2 python -m dragoman.inference.backends.compiled.kernels.emit TRIPLE OBJECT

TRIPLE is LLVM's name of a platform, such as x86_64-unknown-linux-gnu, which need not be this one. The functions of the object
file take the address of their arguments, and are named as the kernels. Their code needs neither Numba nor Python.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import llvmlite.binding as llvm
from numba import types
from numba.core import cgutils, codegen
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET

PACKAGE = "dragoman.inference.backends.compiled.kernels"
# Exported kernels of each module.
EXPORTS = (
    ("quantize", "pack_weights"),
    ("encoder_decoder", "encode"),
    ("encoder_decoder", "step"),
    ("encoder_decoder", "predict_frames"),
    ("search_loop", "greedy_search"),
    ("search_loop", "beam_search"),
    ("logits", "logsumexp"),
    ("logits", "topk"),
)
SCALAR_TYPES = {int: types.int64, float: types.float64, bool: types.boolean}
# Function of C that calls a kernel. Numba's functions return a status too, which tells of exceptions, and kernels raise none.
ENTRY_POINT_IR = """
declare i32 @"{function}"(ptr, ptr, i64)

define i64 @{name}(i64 %arguments) {{
  %result = alloca i64
  %exception = alloca ptr
  %status = call i32 @"{function}"(ptr %result, ptr %exception, i64 %arguments)
  %value = load i64, ptr %result
  ret i64 %value
}}
"""


class _ObjectLibrary(codegen.JITCodeLibrary):
    """Functions of one kernel, which are neither optimized by themselves nor run in this process."""

    def _optimize_final_module(self) -> None:
        """Leave the optimization to `_optimize`, which sees all kernels together."""

    def _finalize_specific(self) -> None:
        pass

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0


class _ObjectCodegen(codegen.JITCPUCodegen):
    """Generation of code that can stand anywhere in memory, for the instruction set of the target."""

    _library_class = _ObjectLibrary

    def _customize_tm_options(self, options: dict[str, Any]) -> None:
        options |= {"cpu": INSTRUCTION_SET.cpu_name, "features": INSTRUCTION_SET.added_features}
        options |= {"reloc": "pic", "codemodel": "default"}

    def _add_module(self, module: Any) -> None:
        pass

    def set_env(self, env_name: str, env: Any) -> None:
        pass


def compile_kernels(triple: str) -> tuple[Any, Any]:
    """Return LLVM's module with all kernels for this platform, and the target machine that writes its machine code."""
    target_codegen = _set_target(triple)
    module = llvm.parse_assembly("")
    for module_name, name in EXPORTS:
        kernel_module = _compile_kernel(module_name, name)
        if module.name:
            for function in kernel_module.functions:
                if not function.is_declaration and function.name != name:
                    function.linkage = "linkonce_odr"  # other kernels have the same function
            module.link_in(kernel_module)
        else:
            module = kernel_module
    _optimize(module, target_codegen)
    return module, target_codegen._tm


def _set_target(triple: str) -> Any:
    """Let Numba compile for this platform, and return its code generator."""
    context = cpu_target.target_context  # which makes a code generator for this processor first
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    binding: Any = llvm
    binding.get_process_triple = lambda: triple
    context._internal_codegen = _ObjectCodegen("kernels")
    return context._internal_codegen


def _compile_kernel(module_name: str, name: str) -> Any:
    """Return LLVM's module of an exported kernel: the functions that Numba has translated, and the function of C."""
    from dragoman.inference.backends.compiled.kernels.simd import kernel

    exported = getattr(import_module(f"{PACKAGE}.{module_name}"), name)
    function = exported.function
    argument_types = types.BaseTuple.from_types([_get_numba_type(kind) for kind in exported.argument_types])
    read_arguments = _make_argument_reader(argument_types)

    def call_kernel(address):
        return function(*read_arguments(address))

    dispatcher = kernel(call_kernel)
    dispatcher.compile((types.int64,))
    (result,) = dispatcher.overloads.values()
    module = result.library._final_module.clone()
    module.name = name
    entry_point = llvm.parse_assembly(ENTRY_POINT_IR.format(name=name, function=result.fndesc.llvm_func_name))
    entry_point.triple, entry_point.data_layout = module.triple, module.data_layout
    module.link_in(entry_point)
    return module


def _optimize(module: Any, target_codegen: Any) -> None:
    """Optimize the module as Numba does, and hide all functions but the exported ones."""
    names = {name for _, name in EXPORTS}
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name not in names:
            value.linkage = "internal"
    # Numba inlines first, and then optimizes.
    for options in ({"loop_vectorize": False, "slp_vectorize": False, "opt": 0, "cost": "cheap"}, {}):
        passes, builder = target_codegen._module_pass_manager(**options)
        passes.run(module, builder)


def _get_numba_type(python_type: Any) -> Any:
    """Return Numba's type."""
    if python_type in SCALAR_TYPES:
        return SCALAR_TYPES[python_type]
    if get_origin(python_type) is tuple:
        return types.BaseTuple.from_types([_get_numba_type(item_type) for item_type in get_args(python_type)])
    return types.BaseTuple.from_types(
        [_get_numba_type(field_type) for field_type in get_type_hints(python_type).values()], python_type
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


if __name__ == "__main__":
    kernels, target_machine = compile_kernels(sys.argv[1])
    Path(sys.argv[2]).write_bytes(target_machine.emit_object(kernels))
