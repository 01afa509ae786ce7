"""Fetch a published model, convert it, and keep the bundle in the cache. It is never fetched again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dragoman.catalog.download import FetchError, download_file
from dragoman.catalog.entries import CatalogModel
from dragoman.catalog.indexes import INDEXES
from dragoman.catalog.listing import refresh
from dragoman.errors import DataError, WriteError
from dragoman.io.storage import make_dirs, to_write_error
from dragoman.model_packages import get_fetched_folder
from dragoman.runtime.owned_folder import own_folder, remove_abandoned

PARTIAL_PREFIX = ".partial-"
"""Beginning of the names of folders that are being filled."""


def fetch_model(
    model: CatalogModel,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
    notify: Callable[[str], None] = lambda _: None,
) -> Path:
    """Fetch and convert a model, and return the folder of its bundle, whose weights are int8.

    on_bytes: takes the number of bytes that have arrived since its last call
    notify: takes each difference to the published model, one sentence each

    Raises:
        DataError: it cannot be fetched. Without a network, the message says what to fetch elsewhere, and where to put it.
        BundleError: it has a feature that dragoman does not have.
        MissingDependencyError: a model of the hub needs the extra `hub`.
        WriteError: the cache cannot be written.
    """
    try:
        folder = get_fetched_folder() / model.name
    except RuntimeError:
        raise WriteError(f"{model.name}: there is no home folder to keep it in; set XDG_CACHE_HOME to a folder") from None
    if folder.exists():
        return folder
    try:
        make_dirs(folder.parent)
        remove_abandoned(PARTIAL_PREFIX, parent=folder.parent)
        with own_folder(PARTIAL_PREFIX, folder.parent) as partial:
            _convert(model, _fetch_source(model, partial, on_bytes), partial / "converted", partial / "bundle", notify)
            if not folder.exists():  # another process may have been faster
                (partial / "bundle").rename(folder)
    except OSError as error:
        if folder.exists():
            return folder
        raise to_write_error(folder, error) from None
    return folder


def _fetch_source(model: CatalogModel, folder: Path, on_bytes: Callable[[int], None]) -> str:
    """Return the source to convert: a folder or a file in `folder`, or a name of the hub."""
    if model.hub_name is not None:
        return model.hub_name
    source = folder / "source"
    source.mkdir()
    files = model.files
    try:
        if not files:
            newest = next((other for other in refresh(model.index) if other.name == model.name), None)
            if newest is None:
                raise DataError(
                    f"{model.name}: its index lists it no longer; see dragoman models --all", code="model-unavailable"
                )
            files = newest.files
        for file in files:
            download_file(file, source, on_bytes)
    except FetchError as error:
        raise DataError(f"{error}; {_explain_offline(model)}", code="model-unavailable") from None
    if model.license is not None:
        (source / "README.md").write_text(f"---\nlicense: {model.license}\n---\n", encoding="utf-8")
    return str(source / files[0].name if len(files) == 1 else source)


def _explain_offline(model: CatalogModel) -> str:
    """Return what to do without a network."""
    what = (
        ", ".join(file.url for file in model.files) or f"the files that {INDEXES[model.index].address} lists for {model.pair}"
    )
    place = get_fetched_folder() / model.name
    source = "the file" if len(model.files) == 1 else "their folder"
    return f"without a network, fetch {what} elsewhere, then: dragoman convert {source} -o {place}"


def _convert(model: CatalogModel, source: str, converted: Path, output: Path, notify: Callable[[str], None]) -> None:
    """Write the bundle of a source with int8 weights."""
    from dragoman.conversion.converter import convert
    from dragoman.quantization import quantize_bundle

    try:
        result = convert(source, converted, source_language=model.source_language, target_language=model.target_language)
    except DataError as error:
        if error.code != "hub-unavailable":
            raise
        raise DataError(
            f"{error}; then: dragoman convert FOLDER -o {output.parent.parent / model.name}", code=error.code
        ) from None
    for note in result.notes:
        notify(note)
    quantize_bundle(converted, output, notify=notify)
