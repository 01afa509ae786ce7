"""`dragoman.load`: open a bundle of either task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from dragoman.errors import BundleError, DeviceError
from dragoman.inference.bundle_store import locate_bundle
from dragoman.runtime.shared_weights import find_copy
from dragoman.runtime.tensor_files import TensorFiles

if TYPE_CHECKING:
    from dragoman.bundle import Bundle
    from dragoman.inference.pivot import PivotTranslator
    from dragoman.inference.translator import Translator
    from dragoman.parsing.parser import Parser
    from dragoman.runtime.device_options import DeviceOptions


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
    adapters: Mapping[str, str | Path] | None = ...,
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
    adapters: Mapping[str, str | Path] | None = ...,
) -> Translator | Any: ...


def load(
    path: str | Path,
    *ensemble_paths: str | Path,
    task: Literal["translation", "parsing"] | None = None,
    device: str = "auto",
    precision: str = "auto",
    intra_threads: int | None = None,
    inter_threads: int | None = None,
    shortlist: str | Path | None = None,
    adapters: Mapping[str, str | Path] | None = None,
) -> Translator | Parser:
    """Open a bundle, or an ensemble of several. Return a `Translator`, or a `Parser` if the first bundle is a parser.

    path, ensemble_paths: folders, or URLs of an object store, which are copied to the cache folder
    task: expected task; a bundle of another task raises an error. Without it, type checkers expect a `Translator`.
    device: "cpu", "cuda", "cuda:1", or "auto", which takes a GPU if there is one
    precision: "float32", "int8" (CPU only), "bfloat16" (GPU only), or "auto". "auto" is int8 if the compiled back end runs,
        else float32, or bfloat16 on a GPU that computes in it
    inter_threads: number of batches that a CPU computes in parallel; chosen by their number if None
    intra_threads: number of threads of each batch; chosen if None
    shortlist: folder that `dragoman model shortlist` wrote. The search computes only likely output tokens, which is faster and
        loses some quality.
    adapters: folders of low-rank adapters of the bundle, by the names that `translate(adapter=NAME)` takes; they share the
        weights that no adapter changes

    Raises BundleError for a missing, truncated or changed file, for another task, and for an adapter of another bundle.
    Raises DeviceError for an unavailable device.
    """
    device_options: DeviceOptions = {
        "device": device,
        "precision": precision,
        "intra_threads": intra_threads,
        "inter_threads": inter_threads,
    }
    bundle_paths = [find_copy(bundle_path) or locate_bundle(bundle_path) for bundle_path in (path, *ensemble_paths)]
    with ExitStack() as checks:  # which end after all else, because the checksums take longest
        files = [checks.enter_context(TensorFiles(bundle_path, BundleError)) for bundle_path in bundle_paths]
        bundles = _read_bundles(bundle_paths, files)
        kind = task or bundles[0].recipe.task.kind
        if kind == "transcription":
            raise BundleError(
                f"{path}: is a transcriber of speech; open it with dragoman.Transcriber.load, or use dragoman transcribe",
                code="wrong-task",
            )
        if kind == "translation":
            from dragoman.inference.translator import Translator

            translator = Translator.from_bundles(bundles, shortlist=shortlist, release_mapped_weights=True, **device_options)
            if adapters:
                translator.adapters = _load_adapters(bundles, bundle_paths, adapters, shortlist, device_options)
            return translator
        if adapters:
            raise BundleError(f"{path}: is a parser, and adapters are for translators; leave adapters out", code="wrong-task")
        if shortlist is not None:
            raise DeviceError("shortlist: a parser has few labels and takes no shortlist; leave it out")
        from dragoman.parsing.parser import Parser  # imported late, because translation does not need it

        return Parser.from_bundles(bundles, release_mapped_weights=True, **device_options)


def _load_adapters(
    bundles: list[Bundle],
    bundle_paths: list[Path],
    adapters: Mapping[str, str | Path],
    shortlist: str | Path | None,
    device_options: DeviceOptions,
) -> dict[str, Translator]:
    """Return a translator for each adapter of the bundle."""
    from dragoman.adapter import apply_adapter, load_adapter
    from dragoman.inference.translator import Translator

    if len(bundles) > 1:
        raise BundleError(
            f"adapters: an ensemble has no single base; load {bundle_paths[0]} alone, or merge the adapter",
            code="adapter-mismatch",
        )
    translators = {}
    for name, adapter_path in adapters.items():
        adapter_path = Path(adapter_path)
        adapted = apply_adapter(bundles[0], load_adapter(adapter_path), bundle_path=bundle_paths[0], adapter_path=adapter_path)
        translators[name] = Translator.from_bundles(
            [adapted], shortlist=shortlist, release_mapped_weights=True, **device_options
        )
    return translators


def load_pivot(
    first: str | Path, second: str | Path | None = None, *, via: str = "", **device_options: Unpack[DeviceOptions]
) -> PivotTranslator:
    """Open one bundle of many languages, or two bundles, for translation in two steps over a pivot language.

    first, second: bundles of the steps; with one bundle, it translates both
    via: code of the pivot language; two bundles of one pair each need none
    device_options: see `load`

    Raises the errors of `load`, and RecipeError if the bundles do not meet in one language.
    """
    from dragoman.inference.pivot import build_pivot

    translator = load(first, task="translation", **device_options)
    return build_pivot(translator, translator if second is None else load(second, task="translation", **device_options), via)


def _read_bundles(paths: list[Path], files: list[TensorFiles]) -> list[Bundle]:
    """Read bundles whose files threads copy and check while modules are being imported."""
    from dragoman.bundle import read_bundle
    from dragoman.inference import translator  # noqa: F401

    return [read_bundle(*opened) for opened in zip(paths, files, strict=True)]
