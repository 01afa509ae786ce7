"""A bundle's public face, whatever it does."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from dragoman.errors import BundleError, DeviceError
from dragoman.io.storage import verify_checksums

if TYPE_CHECKING:
    from dragoman.bundle import Bundle
    from dragoman.inference.session import DeviceOptions


def load(
    path: str | Path,
    *ensemble_paths: str | Path,
    device: str = "auto",
    precision: str = "auto",
    intra_threads: int | None = None,
    inter_threads: int | None = None,
    shortlist: str | Path | None = None,
) -> Any:
    """Open a bundle, or several as an ensemble: a `Translator`, or a `Parser` where the (first) bundle parses.

    device: "cpu", "cuda", "cuda:1", or "auto", which takes a GPU where there is one
    precision: "float32", "bfloat16", "int8" (a processor's), or "auto": int8 where that is compiled (extra `fast`), else the
        fastest here, measured at first use and remembered
    replicas: batches that are computed side by side on a processor, each by `threads` threads; measured when not given
    shortlist: a folder that `dragoman shortlist` wrote: only likely words are computed, which costs some quality

    Raises BundleError naming the file that is missing, cut or changed, and DeviceError for a place that is not here.
    """
    device_options: DeviceOptions = {
        "device": device,
        "precision": precision,
        "threads": intra_threads,
        "replicas": inter_threads,
    }
    bundle_paths = [Path(bundle_path) for bundle_path in (path, *ensemble_paths)]
    executor = ThreadPoolExecutor(1, "seal")
    try:
        checks = [executor.submit(verify_checksums, bundle_path, BundleError) for bundle_path in bundle_paths]
        with _paused_garbage_collection():
            # Torch takes longer to come than the seals take to be checked; so it comes only now.
            from dragoman.inference.translator import Translator

            bundles = [_read_checked_bundle(folder, check) for folder, check in zip(bundle_paths, checks, strict=True)]
    finally:
        executor.shutdown(cancel_futures=True)
    if bundles[0].recipe.task.kind == "translation":
        return Translator(
            bundles, shortlist=shortlist, release_mapped_weights=True, bundle_paths=bundle_paths, **device_options
        )
    if shortlist is not None:
        raise DeviceError("shortlist: a parser's labels are few, so it takes none: leave it out")
    from dragoman.inference.parser import Parser  # only here, since who translates need not wait for it

    return Parser(bundles, release_mapped_weights=True, **device_options)


_gc_lock = Lock()
_num_gc_pauses = 0
_gc_was_enabled = True


@contextmanager
def _paused_garbage_collection() -> Iterator[None]:
    """Modules make a million objects that stay, and to look through them for what could go takes a tenth of their time.

    Several threads may load at once: the first has it pause, and the last has it be as it was.
    """
    global _num_gc_pauses, _gc_was_enabled
    with _gc_lock:
        if _num_gc_pauses == 0:
            _gc_was_enabled = gc.isenabled()
            gc.disable()
        _num_gc_pauses += 1
    try:
        yield
    finally:
        with _gc_lock:
            _num_gc_pauses -= 1
            if _num_gc_pauses == 0 and _gc_was_enabled:
                gc.enable()


def _read_checked_bundle(path: Path, check: Future[None]) -> Bundle:
    from dragoman.bundle import check_bundle, read_bundle

    if check.exception() is not None:
        check_bundle(path)  # which knows better what is wrong with the folder
        check.result()
    return read_bundle(path)
