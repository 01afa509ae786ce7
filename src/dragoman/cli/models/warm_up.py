"""Command `warm-up`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.options import BUNDLE_TYPE, json_option

if TYPE_CHECKING:
    from dragoman.cli.json_outputs import WarmUpOutput
    from dragoman.inference.backends.protocol import Support


@click.command("warm-up")
@click.argument("bundle", type=BUNDLE_TYPE, required=False)
@json_option()
def warm_up(bundle: Path | None, as_json: bool) -> None:
    """Compile the kernels of the compiled back end for this processor, so that no first sentence waits for them.

    The kernels serve all models and stay in the cache folder. They are compiled again for another processor and after an
    update of dragoman or Numba. With BUNDLE, the command also chooses the fastest precision of this model.

    \b
    Example:  dragoman warm-up
              dragoman warm-up runs/multi30k-ende/bundle
    """
    from dragoman.cli.console import print_facts, print_json, print_table
    from dragoman.cli.json_outputs import WarmUpOutput
    from dragoman.errors import DeviceError
    from dragoman.inference.backends.protocol import SupportStatus

    support, precision = _choose_precision(bundle)
    if support.status is SupportStatus.REFUSED:
        raise DeviceError(f"{support.reason}; {support.remedy}", code=support.code)
    if support.is_supported:
        result = _compile_kernels(precision)
    else:
        result = WarmUpOutput("packed", precision, support.reason, None, None, 0.0, [])
    if as_json:
        print_json(result)
        return
    if result.kernels:
        rows = [[kernel.name, f"{kernel.seconds:.1f} s" if kernel.seconds else "cached"] for kernel in result.kernels]
        print_table("kernels", ["kernel", "compiled in"], rows)
    facts = {
        "back end": result.backend,
        "reason": result.reason,
        "precision": result.precision,
        "instruction set": result.instruction_set,
        "cache folder": result.cache_folder,
        "seconds": f"{result.seconds:.1f}",
    }
    print_facts("warm-up", {name: value for name, value in facts.items() if value is not None})


def _choose_precision(bundle: Path | None) -> tuple[Support, str | None]:
    """Return whether the compiled back end runs the bundle, or any model, and the fastest precision of the bundle."""
    from dragoman.inference.backends.compiled.backend import CompiledBackend

    if bundle is None:
        return CompiledBackend().check_machine("int8"), None
    from dragoman.bundle import load_bundle
    from dragoman.inference.backends.device import choose_fastest_precision
    from dragoman.inference.backends.select import check_compiled

    model = load_bundle(bundle).model
    return check_compiled(model, "int8"), choose_fastest_precision(model)


def _compile_kernels(precision: str | None) -> WarmUpOutput:
    """Compile the missing kernels in a child process, with a progress bar, and return what was compiled."""
    import time

    from dragoman.cli.console import progress_bar, stderr_console
    from dragoman.cli.json_outputs import KernelOutput, WarmUpOutput
    from dragoman.errors import DeviceError, WriteError
    from dragoman.inference.backends.compiled.background import CompilationError, compile_in_child
    from dragoman.inference.backends.compiled.jit_cache import ENTRY_POINTS, get_cache_dir
    from dragoman.inference.backends.compiled.kernels.cpu_features import get_instruction_set
    from dragoman.runtime.cache_folder import get_cache_folder

    start, kernels = time.monotonic(), []
    with progress_bar(stderr_console(), "compiling", len(ENTRY_POINTS), unit="kernels") as bar:
        try:
            for kernel in compile_in_child([entry.name for entry in ENTRY_POINTS]):
                kernels.append(KernelOutput(kernel.name, kernel.seconds, kernel.num_bytes))
                bar.advance(1)
        except (CompilationError, OSError) as error:
            raise DeviceError(
                f"{error}; models stay packed, so report this with the output of dragoman doctor", code="compilation-failed"
            ) from None
    cache_dir = get_cache_dir()
    if cache_dir is None or not all(entry.is_on_disk() for entry in ENTRY_POINTS):
        folder = cache_dir or get_cache_folder()
        raise WriteError(f"{folder}: cannot be written, so the kernels are not kept; set XDG_CACHE_HOME to another folder")
    instruction_set = get_instruction_set()
    return WarmUpOutput(
        "compiled",
        precision,
        None,
        None if instruction_set is None else instruction_set.name,
        str(cache_dir),
        round(time.monotonic() - start, 1),
        kernels,
    )
