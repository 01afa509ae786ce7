"""Environments of other programs: each has one of its own, made once from a pinned list. Nothing is installed anywhere else."""

from __future__ import annotations

import hashlib
import json
import shutil
import venv
from pathlib import Path

from .usage import CommandError, run

INSTALL_SECONDS = 600.0


class Absent(Exception):
    """A program that cannot be had here; the message says why."""


def make_environment(
    wanted: Path, folder: Path, *, install: bool, probe: list[str], limit_seconds: float = INSTALL_SECONDS
) -> Path:
    """The folder of programs of the environment in `folder` for the list `wanted`; `probe` is run once in it. Raises Absent.

    What failed once with this list is not tried again; delete `folder` to try.
    """
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    told = folder / "told.json"
    found = json.loads(told.read_text()) if told.exists() else {}
    if found.get("digest") == digest:
        if found["failed"]:
            raise Absent(found["failed"])
        return folder / "bin"
    if not install:
        raise Absent("not installed by a quick run; a full one does it")
    shutil.rmtree(folder, ignore_errors=True)
    failed = None
    try:
        venv.create(folder, with_pip=True)
        pip: list[str | Path] = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "-r", wanted]
        run(pip, limit_seconds=limit_seconds)
        run([folder / "bin" / probe[0], *probe[1:]], limit_seconds=120.0)
    except CommandError as error:
        failed = str(error).replace(f"{wanted.parent}/", "")
        shutil.rmtree(folder, ignore_errors=True)  # it may be a gigabyte
        folder.mkdir(parents=True)
    told.write_text(json.dumps({"digest": digest, "failed": failed}))
    if failed:
        raise Absent(failed)
    return folder / "bin"


def versions(programs: Path, *names: str) -> str:
    """The versions of some distributions in an environment, as one line."""
    asked = "import sys; from importlib.metadata import version; print(', '.join(f'{n} {version(n)}' for n in sys.argv[1:]))"
    return run([programs / "python", "-c", asked, *names]).output.strip()
