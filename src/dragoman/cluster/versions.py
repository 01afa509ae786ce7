"""Versions that the command and all workers must share. The module imports little, because each worker imports it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from dragoman.errors import ClusterError
from dragoman.version import __version__


def get_versions() -> dict[str, str]:
    """Return the versions of dragoman, Python and PyTorch. Ray compares its own."""
    python_version = ".".join(platform.python_version_tuple()[:2])
    return {"dragoman": __version__, "Python": python_version, "torch": _find_torch_version()}


@cache
def _find_torch_version() -> str:
    """Return the version of PyTorch without its import, which takes seconds."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def check_versions(expected: Mapping[str, str]) -> None:
    """Raise ClusterError if this process has other versions than the command."""
    for name, present in get_versions().items():
        if present != expected.get(name):
            raise ClusterError(
                f"worker {platform.node()}: has {name} {present}, but the command has {expected.get(name)}; install "
                "one version on all machines",
                code="cluster-mismatch",
            )
