"""Temporary folders go with their owners: at their end, or at the start of a later process if they were killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.platform_features import fcntl
from dragoman.runtime.owned_folder import hold_folder, own_folder, remove_abandoned

KILLED_OWNER = """
import os, sys
from pathlib import Path
from dragoman.runtime.owned_folder import own_folder
with own_folder("prefix-", Path(sys.argv[1])) as path:
    (path / "file").write_text("text of a client")
    os._exit(9)
"""


def test_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    with own_folder("prefix-", tmp_path) as present:
        (present / "file").write_text("text")
        subprocess.run([sys.executable, "-c", KILLED_OWNER, str(tmp_path)], check=False, timeout=240)
        (tmp_path / "other").mkdir()
        assert len(list(tmp_path.iterdir())) == 3
        remove_abandoned("prefix-", parent=tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([present, tmp_path / "other"])
        assert (present / "file").read_text() == "text"
    assert not present.exists()


@pytest.mark.skipif(fcntl is None, reason="the system has no locks of folders")
def test_any_owner_keeps_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "prefix-1"
    folder.mkdir()
    release, release_second = hold_folder(folder), hold_folder(folder)
    release()
    remove_abandoned("prefix-", parent=tmp_path)
    assert folder.exists()
    release_second()
    remove_abandoned("prefix-", parent=tmp_path)
    assert not folder.exists()


def test_links_and_files_are_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "prefix-link").symlink_to(target)
    (tmp_path / "prefix-file").write_text("text")
    remove_abandoned("prefix-", parent=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
