"""The list of published models: that of dragoman's version, and the indexes that a user has refreshed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dragoman.catalog.download import FetchError, read_document
from dragoman.catalog.entries import CatalogModel
from dragoman.catalog.indexes import INDEXES, parse_index, read_shipped_list
from dragoman.errors import DataError, OutputError
from dragoman.io.cache_folder import get_cache_folder
from dragoman.io.storage import atomic_write, make_dirs

MIRROR_VARIABLE = "DRAGOMAN_INDEX_MIRROR"
"""Environment variable with the address of a server that has copies of the indexes, such as firefox.json."""


def list_models() -> Iterator[CatalogModel]:
    """Yield all models, in the order of the indexes. A refreshed index takes the place of the list that comes with dragoman."""
    for name in INDEXES:
        yield from _read_refreshed(name) or read_shipped_list(name)


def find_model(name: str) -> CatalogModel | None:
    """Return the model with this name, or the first one for this pair of languages; None if there is none."""
    models = list(list_models())
    return next((model for model in models if model.name == name), None) or next(
        (model for model in models if model.pair == name), None
    )


def refresh(name: str) -> list[CatalogModel]:
    """Fetch an index, keep it in the cache, and return its models.

    Raises DataError if it cannot be fetched or is no such index.
    """
    mirror = os.environ.get(MIRROR_VARIABLE)
    try:
        content = read_document(f"{mirror.rstrip('/')}/{name}.json" if mirror else INDEXES[name].address)
    except FetchError as error:
        hint = (
            f"dragoman models without --refresh lists what it has; or save this file, fetched elsewhere, as {_get_path(name)}"
        )
        raise DataError(f"{error}; {hint}", code=error.code) from None
    models = parse_index(INDEXES[name], content)
    if not models:
        raise DataError(f"{INDEXES[name].address}: lists no models; keep the list that you have", code="invalid-data")
    with suppress(OSError, OutputError, RuntimeError):  # without a cache, the next command fetches it again
        path = _get_path(name)
        make_dirs(path.parent)
        with atomic_write(path, overwrite=True) as file:
            file.write(content.decode())
    return models


def _read_refreshed(name: str) -> list[CatalogModel]:
    """Return the models of a refreshed index; none if there is no copy, or if it is of another form."""
    try:
        return parse_index(INDEXES[name], _get_path(name).read_bytes())
    except (OSError, RuntimeError, DataError):
        return []


def _get_path(name: str) -> Path:
    return get_cache_folder() / "indexes" / f"{name}.json"
