"""Models by name: bundles in distributions of their own, such as `dragoman-en-de`, and models that the catalog has fetched.

A distribution names its package in the entry point group `dragoman.models`, for instance `en-de = "dragoman_en_de"`, and the
package holds the bundle in a folder of the model's name. The package is found and never imported. A checkout of the repository
has its models in `models/`. A fetched model such as firefox-en-pt also has the name of its pair, en-pt.
"""

from __future__ import annotations

import importlib.machinery
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dragoman.io.cache_folder import get_cache_folder
from dragoman.io.storage import MANIFEST_FILE

ENTRY_POINT_GROUP = "dragoman.models"
CATALOG_INDEXES = ("firefox", "opus-mt", "argos")
"""Indexes of the catalog. A pair of languages names the model of the first of them that has it."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_CHECKOUT = Path(__file__).resolve().parents[2] / "models"


def find_model(name: str | os.PathLike[str]) -> Path | None:
    """Return the folder of the bundle with this name, or None if no installed distribution and no checkout has it."""
    text = os.fspath(name)
    if not _NAME.fullmatch(text):
        return None
    return next((folder for known, folder in _iter_models() if known == text), None)


def list_models() -> list[str]:
    """Return the names of the models that this environment has."""
    return sorted({name for name, _ in _iter_models()})


def resolve_model(path: str | os.PathLike[str]) -> Path:
    """Return a path that exists as it is, else the folder of the model with this name, else the path."""
    return Path(path) if os.path.exists(path) else find_model(path) or Path(path)


def _iter_models() -> Iterator[tuple[str, Path]]:
    from importlib.metadata import entry_points  # a path needs no list of the models

    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        # The path finder looks at the folders of sys.path. It does not run the package.
        spec = importlib.machinery.PathFinder.find_spec(entry_point.module.partition(".")[0], sys.path)
        for package in (spec.submodule_search_locations or ()) if spec is not None else ():
            if (folder := Path(package) / entry_point.name / MANIFEST_FILE).is_file():
                yield entry_point.name, folder.parent
    for manifest in sorted(_CHECKOUT.glob(f"*/src/*/*/{MANIFEST_FILE}")):
        yield manifest.parent.name, manifest.parent
    fetched = {folder.name: folder for folder in _list_fetched()}
    yield from fetched.items()
    for index in CATALOG_INDEXES:
        for name, folder in fetched.items():
            if name.startswith(f"{index}-"):
                yield name.removeprefix(f"{index}-"), folder


def get_fetched_folder() -> Path:
    """Return the folder of the fetched models. Raises RuntimeError without a home folder."""
    return get_cache_folder() / "models"


def _list_fetched() -> list[Path]:
    """Return the folders of the fetched models by name."""
    with suppress(RuntimeError):
        return sorted(manifest.parent for manifest in get_fetched_folder().glob(f"*/{MANIFEST_FILE}"))
    return []
