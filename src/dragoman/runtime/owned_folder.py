"""Temporary folders of processes, which a later process removes if theirs were killed.

Each owner holds a lock of its folder, which the system takes back when the process ends or is killed. Numbers of processes
would not do, because the system gives them again to others. On Windows, an open file in the folder takes the place of the lock.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from dragoman.platform_features import fcntl

OWNER_FILE = "owner-"
"""Beginning of the name of a file that is open as long as an owner lives, on Windows."""


@contextmanager
def own_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Give a private folder that is removed at the end, by this process or by a later one.

    prefix: beginning of its name
    parent: folder that it is made in, by default the temporary folder of the system
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        release = hold_folder(path)
        if path.exists():  # another process may have removed it before it had a lock
            break
        release()
    try:
        yield path
    finally:
        if fcntl is None:
            release()  # Windows removes no open file
        shutil.rmtree(path, ignore_errors=True)
        if fcntl is not None:
            release()


def hold_folder(path: Path) -> Callable[[], None]:
    """Keep a folder from `remove_abandoned` while this process lives, and return a function that ends this."""
    if fcntl is None:
        return (path / f"{OWNER_FILE}{os.getpid()}").open("wb").close
    descriptor = os.open(path, os.O_RDONLY)
    with suppress(OSError):  # the file system has no locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return partial(os.close, descriptor)


def has_owner(path: Path) -> bool:
    """Return whether an owner of a folder lives. On Windows, the owner has removed the folder if not."""
    if fcntl is None:
        return path.exists()
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # an owner has the lock, or the file system has none
        return True
    finally:
        os.close(descriptor)
    return False


def remove_abandoned(*prefixes: str, parent: Path | None = None) -> None:
    """Remove the folders with these prefixes whose owners have all ended. Those of other users, and links, stay."""
    with suppress(OSError):
        for path in (parent or Path(tempfile.gettempdir())).iterdir():
            with suppress(OSError):
                if path.name.startswith(prefixes) and not path.is_symlink() and path.is_dir() and _is_own(path):
                    _remove_if_abandoned(path)


def _is_own(path: Path) -> bool:
    """Return whether the folder belongs to the user of this process."""
    return not hasattr(os, "geteuid") or path.stat().st_uid == os.geteuid()


def _remove_if_abandoned(path: Path) -> None:
    """Remove a folder. Raises OSError if an owner lives, or if the file system cannot tell."""
    if fcntl is None:
        for file in path.glob(f"{OWNER_FILE}*"):
            file.unlink()
        shutil.rmtree(path, ignore_errors=True)
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
