"""Bundles with int8 weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dragoman.bundle import load_bundle, save_bundle
from dragoman.bundle_parts import inherit_parts, inherit_shortlist, without_parts
from dragoman.io.int8_tensors import quantize_matrices


def quantize_bundle(
    path: Path, output: Path, *, overwrite: bool = False, notify: Callable[[str], None] = lambda _: None
) -> None:
    """Write a bundle with its matrices as int8, a quarter of the size. Its int8 products are those of the first one.

    notify: takes one sentence if parts of the bundle are not measured again

    Raises BundleError if the bundle is damaged, and OutputError if the system refuses to write.
    """
    bundle = load_bundle(path)
    metadata, sentences = inherit_parts(without_parts(bundle.metadata), {str(path): bundle.metadata})
    shortlist, _ = inherit_shortlist([path], bundle.tokenizer)
    save_bundle(
        output,
        recipe=bundle.recipe,
        tokenizer=bundle.tokenizer,
        weights=quantize_matrices(bundle.arrays),
        metadata=metadata,
        overwrite=overwrite,
        shortlist=shortlist,
    )
    for sentence in sentences:
        notify(sentence)
