"""A bundle's public face, whatever it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.bundle import check_bundle, read_config
from dragoman.engine import translator
from dragoman.engine.opened import Placing, Task
from dragoman.errors import BundleError, DeviceError


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
    if _task_of(Path(path)) == "translation":
        return translator.load(path, *others, shortlist=shortlist, **placing)
    if shortlist is not None:
        raise DeviceError("shortlist: a parser's labels are few, so it takes none: leave it out")
    from dragoman.engine.parser import load_parser  # only here, since who translates need not wait for it

    return load_parser(path, *others, **placing)


def _task_of(path: Path) -> Task:
    """What a bundle does, by its config alone, whose digest is checked when the bundle is opened."""
    try:
        return read_config(path)[0].task.kind
    except BundleError:
        check_bundle(path)  # which knows better what is wrong with the folder
        raise
