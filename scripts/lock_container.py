"""Write the packages of the container and those of its build with the SHA-256 of their files, for x86-64 and ARM.

    python scripts/lock_container.py

pip chooses the files of PyPI by constraints.txt and for the container's version of Python.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PLATFORMS = {
    machine: [f"manylinux_2_{minor}_{machine}" for minor in (28, 27, 26, 24, 17, 12, 5)]
    + [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
    for machine in ("x86_64", "aarch64")
}
INDEX = "https://pypi.org/simple"
HEADER = "# Written by scripts/lock_container.py. Packages of the container with the digests of their files.\n"


def read_container() -> tuple[str, list[str]]:
    """Return the version of Python and the extras of the container file."""
    text = (ROOT / "deploy/Containerfile").read_text(encoding="utf-8")
    version, _ = re.findall(r"^FROM \S+/python:(3\.\d+)-slim", text, re.MULTILINE)
    (extras,) = re.findall(r"/src\[([a-z,]+)\]", text)
    return version, extras.split(",")


def list_requirements(version: str, lines: list[str]) -> list[str]:
    """Return the requirements that hold in the container."""
    environment = {"python_version": version, "platform_system": "Linux", "sys_platform": "linux", "extra": ""}
    requirements = map(Requirement, lines)
    return [
        f"{requirement.name}{requirement.specifier}"
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate(environment)
    ]


def resolve(requirements: list[str], version: str, platforms: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, version and SHA-256 of each package that pip would install."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [sys.executable, "-m", "pip", "install", "--isolated", "--quiet", "--index-url", INDEX, "--dry-run"]
        words += ["--ignore-installed", "--only-binary=:all:", "--target", folder, "--implementation", "cp"]
        words += ["--python-version", version, "--constraint", str(ROOT / "constraints.txt"), "--report", str(report)]
        words += [word for platform in platforms for word in ("--platform", platform)]
        subprocess.run([*words, *requirements], check=True)
        items: list[dict[str, Any]] = json.loads(report.read_bytes())["install"]
    for item in items:
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        yield item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"], digest


def main() -> None:
    """Write deploy/requirements.txt and deploy/build-requirements.txt."""
    version, extras = read_container()
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, kernels = document["project"], document["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    lock("requirements.txt", version, lines)
    lock("build-requirements.txt", version, [*document["build-system"]["requires"], kernels["compiler"], kernels["linker"]])


def lock(name: str, version: str, lines: list[str]) -> None:
    """Write a file with the packages that these requirements need."""
    digests: dict[str, set[str]] = {}
    for platforms in PLATFORMS.values():
        for package, package_version, digest in resolve(list_requirements(version, lines), version, platforms):
            digests.setdefault(f"{package}=={package_version}", set()).add(digest)
    packages = [
        " \\\n".join([package, *(f"    --hash=sha256:{digest}" for digest in sorted(digests[package]))]) + "\n"
        for package in sorted(digests)
    ]
    (ROOT / "deploy" / name).write_text(HEADER + "".join(packages), encoding="utf-8")


if __name__ == "__main__":
    main()
