"""Write deploy/requirements.txt: the packages of the container with the SHA-256 of their files, for x86-64 and ARM.

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
    (version,) = re.findall(r"^FROM \S+/python:(3\.\d+)-slim", text, re.MULTILINE)
    (extras,) = re.findall(r"/src\[([a-z,]+)\]", text)
    return version, extras.split(",")


def list_requirements(version: str, extras: list[str]) -> Iterator[str]:
    """Yield the requirements of the project with these extras, and those to build the project."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    kernels = document["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    build_lines = [*document["build-system"]["requires"], kernels["compiler"], kernels["linker"]]
    for line in [*lines, *build_lines]:
        requirement = Requirement(line)
        environment = {"python_version": version, "platform_system": "Linux", "sys_platform": "linux", "extra": ""}
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield f"{requirement.name}{requirement.specifier}"


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
    """Write the file."""
    version, extras = read_container()
    requirements = list(list_requirements(version, extras))
    digests: dict[str, set[str]] = {}
    for platforms in PLATFORMS.values():
        for name, package_version, digest in resolve(requirements, version, platforms):
            digests.setdefault(f"{name}=={package_version}", set()).add(digest)
    lines = [
        " \\\n".join([package, *(f"    --hash=sha256:{digest}" for digest in sorted(digests[package]))]) + "\n"
        for package in sorted(digests)
    ]
    (ROOT / "deploy/requirements.txt").write_text(HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
