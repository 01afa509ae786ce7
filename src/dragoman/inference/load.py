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
from dragoman.io.storage import check_seal

if TYPE_CHECKING:
    from dragoman.bundle import Bundle
    from dragoman.inference.session import Placing


def load(
    path: str | Path,
    *others: str | Path,
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    replicas: int | None = None,
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
    placing: Placing = {"device": device, "precision": precision, "threads": threads, "replicas": replicas}
    folders = [Path(one) for one in (path, *others)]
    checker = ThreadPoolExecutor(1, "seal")
    try:
        seals = [checker.submit(check_seal, folder, BundleError) for folder in folders]
        with _nothing_collected():
            # Torch takes longer to come than the seals take to be checked; so it comes only now.
            from dragoman.inference.translator import Translator

            bundles = [_opened(folder, seal) for folder, seal in zip(folders, seals, strict=True)]
    finally:
        checker.shutdown(cancel_futures=True)
    if bundles[0].recipe.task.kind == "translation":
        return Translator(bundles, shortlist=shortlist, forgetful=True, folders=folders, **placing)
    if shortlist is not None:
        raise DeviceError("shortlist: a parser's labels are few, so it takes none: leave it out")
    from dragoman.inference.parser import Parser  # only here, since who translates need not wait for it

    return Parser(bundles, forgetful=True, **placing)


_pausing = Lock()
_pauses = 0
_collected = True


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Modules make a million objects that stay, and to look through them for what could go takes a tenth of their time.

    Several threads may load at once: the first has it pause, and the last has it be as it was.
    """
    global _pauses, _collected
    with _pausing:
        if _pauses == 0:
            _collected = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _pausing:
            _pauses -= 1
            if _pauses == 0 and _collected:
                gc.enable()


def _opened(folder: Path, seal: Future[None]) -> Bundle:
    from dragoman.bundle import check_bundle, read_bundle

    if seal.exception() is not None:
        check_bundle(folder)  # which knows better what is wrong with the folder
        seal.result()
    return read_bundle(folder)
