"""Bundles in object stores: a bundle is copied once to the cache folder of the machine."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from dragoman.errors import BundleError, WriteError
from dragoman.model_packages import resolve_model

PARTIAL_PREFIX = ".partial-"
"""Beginning of the names of folders that are being filled."""


def locate_bundle(path: str | Path) -> Path:
    """Return the local folder of a bundle: a path, the name of a model of `model_packages`, or a URL.

    A bundle of an object store is copied first, unless this version of it is there.

    Raises BundleError if the store has no such bundle, and WriteError if the cache cannot be written.
    """
    if ":/" not in str(path):  # pathlib makes one slash of the two of a URL
        return resolve_model(path)
    from dragoman.formats.object_store import is_url, normalize_url  # most bundles are on this machine

    return _copy_bundle(normalize_url(path).rstrip("/")) if is_url(path) else resolve_model(path)


def _copy_bundle(url: str) -> Path:
    from dragoman.formats.object_store import StoreFolder, fetch_folder
    from dragoman.io.cache_folder import get_cache_folder
    from dragoman.io.storage import MANIFEST_FILE, make_dirs, to_write_error
    from dragoman.runtime.owned_folder import own_folder, remove_abandoned

    manifest = StoreFolder(url).read_if_exists(MANIFEST_FILE)
    if manifest is None:
        raise BundleError(f"{url}: is no bundle, because it has no {MANIFEST_FILE}; check the URL", code="bundle-not-found")
    try:
        parent = get_cache_folder() / "bundles"
    except RuntimeError:
        raise WriteError(f"{url}: there is no home folder to copy the bundle to; set XDG_CACHE_HOME to a folder") from None
    folder = parent / sha256(url.encode() + b"\0" + manifest).hexdigest()
    if folder.exists():
        return folder
    try:
        make_dirs(parent)
        remove_abandoned(PARTIAL_PREFIX, parent=parent)
        with own_folder(PARTIAL_PREFIX, parent) as partial:
            fetch_folder(url, partial)
            if not folder.exists():  # another process may have been faster
                partial.rename(folder)
    except OSError as error:
        if folder.exists():
            return folder
        raise to_write_error(folder, error) from None
    return folder
