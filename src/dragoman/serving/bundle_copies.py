"""Copies of the bundles of a server with several processes.

All processes load the same copies, also one that is started again later. So they answer alike, and later changes on disk change
no answer. A reload makes new copies first; if a bundle is damaged, the present copies stay.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from dragoman.errors import BundleError
from dragoman.inference.bundle_store import locate_bundle
from dragoman.io.storage import MANIFEST_FILE, read_digests, verify_checksums
from dragoman.runtime.shared_weights import COPIES_FILE, COPIES_FOLDER

logger = logging.getLogger("dragoman.serving")


class BundleCopies:
    """Copies in the folder that the processes share; `dragoman.runtime.shared_weights.find_copy` finds them.

    bundles: the bundles, as the caller names them
    folder: the folder, which belongs to this server alone
    """

    def __init__(self, bundles: Sequence[Path], folder: Path) -> None:
        self._bundles = bundles
        self._folder = folder
        self._generation = 0
        self._copies: dict[str, str] = {}

    def update(self) -> None:
        """Copy the bundles as they are now. Without room for that, each process copies them for itself.

        Raises BundleError if a bundle is damaged or changes meanwhile; the present copies stay.
        """
        self._generation += 1
        folder = self._folder / COPIES_FOLDER / str(self._generation)
        copies: dict[str, str] = {}
        try:
            for index, bundle in enumerate(self._bundles):
                _copy_bundle(locate_bundle(bundle), folder / str(index))
                copies[str(bundle)] = str(folder / str(index))
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            logger.warning("the bundles are not copied (%s), so each server process copies them for itself", error.strerror)
            copies = {}
        self._copies = copies
        new = self._folder / f"{COPIES_FILE}.new"
        new.write_text(json.dumps(copies), encoding="utf-8")
        new.replace(self._folder / COPIES_FILE)

    def remove_former(self) -> None:
        """Remove all copies but the present ones, after every process has loaded these."""
        for folder in (self._folder / COPIES_FOLDER).iterdir():
            if folder.name != str(self._generation):
                shutil.rmtree(folder, ignore_errors=True)

    def name_bundles(self, message: str) -> str:
        """Return a message of a process with the names of the bundles in place of their copies."""
        for bundle, copy in self._copies.items():
            message = message.replace(copy, bundle)
        return message


def _copy_bundle(bundle: Path, copy: Path) -> None:
    """Copy the files of a manifest, and check the copy. Raises BundleError for a damaged bundle, and OSError without room."""
    names = read_digests(bundle, BundleError)
    try:
        present = {path.name for path in bundle.iterdir()}
    except OSError as error:
        raise BundleError(f"{bundle}: cannot be read: {error.strerror}", code="bundle-damaged") from None
    copy.mkdir(parents=True)
    for name in (MANIFEST_FILE, *names):
        if name in present and (bundle / name).is_file():
            shutil.copyfile(bundle / name, copy / name)
    try:
        verify_checksums(copy, BundleError)
    except BundleError:
        verify_checksums(bundle, BundleError)  # names the file of the bundle
        raise BundleError(
            f"{bundle}: changed while it was copied; try again when it is complete", code="bundle-damaged"
        ) from None
