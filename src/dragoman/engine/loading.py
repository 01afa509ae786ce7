"""A bundle's public face, whatever it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.bundle import load_bundle
from dragoman.engine.parser import Parser
from dragoman.engine.translator import Translator
from dragoman.errors import DeviceError


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
    precision: "float32", "bfloat16", "int8" (a processor's), or "auto": the fastest here, measured at first use and remembered
    replicas: batches that are computed side by side on a processor, each by `threads` threads; measured when not given
    shortlist: a folder that `dragoman shortlist` wrote: only likely words are computed, which costs some quality

    Raises BundleError naming the file that is missing, cut or changed, and DeviceError for a place that is not here.
    """
    bundles = [load_bundle(Path(one)) for one in (path, *others)]
    if bundles[0].recipe.task.kind == "parsing":
        if shortlist is not None:
            raise DeviceError("shortlist: a parser's labels are few, so it takes none: leave it out")
        return Parser(bundles, device=device, precision=precision, threads=threads, replicas=replicas, forgetful=True)
    return Translator(
        bundles,
        device=device,
        precision=precision,
        threads=threads,
        replicas=replicas,
        shortlist=shortlist,
        forgetful=True,
        folders=[Path(one) for one in (path, *others)],
    )
