"""`dragoman.load`: open a bundle of either task."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from dragoman.errors import BundleError, DeviceError
from dragoman.io.storage import verify_checksums

if TYPE_CHECKING:
    from dragoman.bundle import Bundle
    from dragoman.inference.parser import Parser
    from dragoman.inference.session import DeviceOptions
    from dragoman.inference.translator import Translator


@overload
def load(
    path: str | Path,
    *ensemble_paths: str | Path,
    task: Literal["translation"],
    device: str = ...,
    precision: str = ...,
    intra_threads: int | None = ...,
    inter_threads: int | None = ...,
    shortlist: str | Path | None = ...,
    compile_in_background: bool = ...,
) -> Translator: ...


@overload
def load(
    path: str | Path,
    *ensemble_paths: str | Path,
    task: Literal["parsing"],
    device: str = ...,
    precision: str = ...,
    intra_threads: int | None = ...,
    inter_threads: int | None = ...,
    compile_in_background: bool = ...,
) -> Parser: ...


@overload
def load(
    path: str | Path,
    *ensemble_paths: str | Path,
    task: None = ...,
    device: str = ...,
    precision: str = ...,
    intra_threads: int | None = ...,
    inter_threads: int | None = ...,
    shortlist: str | Path | None = ...,
    compile_in_background: bool = ...,
) -> Translator | Parser: ...


def load(
    path: str | Path,
    *ensemble_paths: str | Path,
    task: Literal["translation", "parsing"] | None = None,
    device: str = "auto",
    precision: str = "auto",
    intra_threads: int | None = None,
    inter_threads: int | None = None,
    shortlist: str | Path | None = None,
    compile_in_background: bool = False,
) -> Translator | Parser:
    """Open a bundle, or an ensemble of several. Return a `Translator`, or a `Parser` if the first bundle is a parser.

    task: expected task; a type checker then knows the class of the result, and a bundle of the other task raises an error
    device: "cpu", "cuda", "cuda:1", or "auto", which takes a GPU if there is one
    precision: "float32", "bfloat16", "int8" (CPU only), or "auto". "auto" is int8 if the compiled back end runs. Otherwise it
        is the fastest precision, measured at first use and cached for the machine.
    inter_threads: number of batches that a CPU computes in parallel; measured if None
    intra_threads: number of threads of each batch; measured if None
    shortlist: folder that `dragoman shortlist` wrote. The search computes only likely output tokens, which is faster and
        loses some quality.
    compile_in_background: on a machine without compiled kernels, the packed back end answers until they are compiled, some
        20 seconds. Its outputs may differ, because its int8 products round otherwise. By default, the first call waits for the
        kernels, so equal calls have equal results. The environment variable DRAGOMAN_COMPILE (`wait` or `background`) takes
        precedence.

    Raises BundleError for a missing, truncated or changed file and for another task, and DeviceError for an unavailable
    device.
    """
    device_options: DeviceOptions = {
        "device": device,
        "precision": precision,
        "intra_threads": intra_threads,
        "inter_threads": inter_threads,
        "compile_in_background": compile_in_background,
    }
    bundle_paths = [Path(bundle_path) for bundle_path in (path, *ensemble_paths)]
    bundles = _read_bundles(bundle_paths)
    if (task or bundles[0].recipe.task.kind) == "translation":
        from dragoman.inference.translator import Translator

        return Translator.from_bundles(
            bundles, shortlist=shortlist, release_mapped_weights=True, bundle_paths=bundle_paths, **device_options
        )
    if shortlist is not None:
        raise DeviceError("shortlist: a parser has few labels and takes no shortlist; leave it out")
    from dragoman.inference.parser import Parser  # imported late, because translation does not need it

    return Parser.from_bundles(bundles, release_mapped_weights=True, **device_options)


def _read_bundles(paths: list[Path]) -> list[Bundle]:
    """Read bundles, and verify their checksums while torch is being imported, which takes longer."""
    executor = ThreadPoolExecutor(1, "checksums")
    try:
        checks = [executor.submit(verify_checksums, bundle_path, BundleError) for bundle_path in paths]
        from dragoman.inference import translator  # noqa: F401

        return [_read_checked_bundle(bundle_path, check) for bundle_path, check in zip(paths, checks, strict=True)]
    finally:
        executor.shutdown(cancel_futures=True)


def _read_checked_bundle(path: Path, check: Future[None]) -> Bundle:
    from dragoman.bundle import check_bundle, read_bundle

    if check.exception() is not None:
        check_bundle(path)  # raises a more precise message, for example for a run folder
        check.result()
    return read_bundle(path)
