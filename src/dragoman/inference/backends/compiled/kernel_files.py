"""Shared libraries with the kernels' machine code, which the build of the package makes, and their list with digests.

`machine_code/` holds one library for each instruction set of a platform. The build reads this module too, so it imports the
standard library only.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import sysconfig
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent / "machine_code"
LIST_FILE = "kernels.json"
BUILD_COMMAND = "pip install -e ."


class KernelFileError(Exception):
    """The kernels cannot be loaded. reason: what is wrong with them; remedy: what to do"""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason, self.remedy = reason, remedy


@dataclass(frozen=True)
class KernelFiles:
    """List of the libraries.

    platform: platform that they run on, by its name in Python
    sources: digest of the kernels' sources
    digests: digest of each file by the file's name; empty if the platform has no compiler
    """

    platform: str
    sources: str
    digests: dict[str, str]

    def write(self) -> None:
        """Write the list beside the libraries."""
        (FOLDER / LIST_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def get_platform() -> str:
    """Return the name of this platform, such as linux-x86_64. The version of macOS is not part of it."""
    system, _, rest = sysconfig.get_platform().partition("-")
    return f"{system}-{platform.machine()}" if system == "macosx" else f"{system}-{rest}" if rest else system


def compute_source_digest() -> str:
    """Return the digest of the sources from which kernels are built."""
    paths = sorted((Path(__file__).parent / "kernels").glob("*.py"))
    content = b"\0".join(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n") for path in paths)
    return hashlib.sha256(content).hexdigest()


def compute_digest(path: Path) -> str:
    """Return the digest of a library."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_list() -> KernelFiles:
    """Return the list of the libraries. Raises KernelFileError if it is missing, damaged, or of another platform or version."""
    path = FOLDER / LIST_FILE
    try:
        kernel_files = KernelFiles(**json.loads(path.read_text(encoding="utf-8")))
    except OSError:
        raise KernelFileError("the kernels are not built", f"build them in the checkout by {BUILD_COMMAND}") from None
    except (ValueError, TypeError):
        raise _report_damage(path) from None
    if kernel_files.platform != get_platform():
        raise KernelFileError(
            f"the kernels of this installation are for {kernel_files.platform}, and this is {get_platform()}",
            "install dragoman's wheel for this platform",
        )
    if kernel_files.sources != compute_source_digest():
        raise KernelFileError("the kernels are older than their sources", f"build them again by {BUILD_COMMAND}")
    return kernel_files


@lru_cache(maxsize=1)
def _read_list_once() -> KernelFiles:
    return read_list()


def has_kernels() -> bool:
    """Return whether this platform has kernels. Raises KernelFileError as `read_list` does."""
    return bool(_read_list_once().digests)


@cache
def load_library(name: str) -> ctypes.CDLL:
    """Return a library, such as avx2. Raises KernelFileError if it is missing or damaged, or the system refuses it."""
    digests = _read_list_once().digests
    path = next((FOLDER / file for file in digests if Path(file).stem == name), None)
    if path is None:
        raise KernelFileError(f"this installation has no kernels for {name}", "install dragoman's wheel for this processor")
    try:
        digest = compute_digest(path)
    except OSError:
        raise _report_damage(path) from None
    if digest != digests[path.name]:
        raise _report_damage(path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelFileError(f"the system does not load the kernels: {error}", "install dragoman again") from None


def _report_damage(path: Path) -> KernelFileError:
    return KernelFileError(f"{path}: is missing or damaged", "install dragoman again by pip install --force-reinstall dragoman")
