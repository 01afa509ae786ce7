"""Virtual environments of other programs, each made once from a pinned list in the work folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import venv
from pathlib import Path

from .usage import CommandError, run_commands

INSTALL_SECONDS = 600.0


class MissingPeerError(Exception):
    """Error for a program that is not available; the message gives the reason."""


def make_environment(
    requirements: Path, environment_path: Path, *, install: bool, probe: list[str], limit_seconds: float = INSTALL_SECONDS
) -> Path:
    """Return the `bin` folder of the environment for a requirements file; create it if `install` allows that.

    A list that failed once is not tried again; delete the folder to try again. `probe` runs once in a new environment.

    Raises MissingPeerError if the environment cannot be made.
    """
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    state_path = environment_path / "environment.json"
    state = json.loads(state_path.read_text()) if state_path.exists() else {}
    if state.get("digest") == digest:
        if state["failed"]:
            raise MissingPeerError(state["failed"])
        return environment_path / "bin"
    if not install:
        raise MissingPeerError("not installed by a quick run; a full one does it")
    shutil.rmtree(environment_path, ignore_errors=True)
    failed = None
    try:
        venv.create(environment_path, with_pip=True)
        pip: list[str | Path] = [
            environment_path / "bin" / "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-r",
            requirements,
        ]
        run_commands(pip, limit_seconds=limit_seconds)
        run_commands([environment_path / "bin" / probe[0], *probe[1:]], limit_seconds=120.0)
    except CommandError as error:
        failed = str(error).replace(f"{requirements.parent}/", "")
        shutil.rmtree(environment_path, ignore_errors=True)  # it may be a gigabyte
        environment_path.mkdir(parents=True)
    state_path.write_text(json.dumps({"digest": digest, "failed": failed}))
    if failed:
        raise MissingPeerError(failed)
    return environment_path / "bin"


def describe_versions(programs: Path, *names: str) -> str:
    """Return the versions of distributions in an environment, as one line."""
    program = "import sys; from importlib.metadata import version; print(', '.join(f'{n} {version(n)}' for n in sys.argv[1:]))"
    return run_commands([programs / "python", "-c", program, *names]).output.strip()
