"""The files of `deploy/` name paths, extras, commands, options, ports and routes that exist."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from ruamel.yaml import YAML

from dragoman.serving.app import build_app
from dragoman.serving.command import serve
from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.model_set import ModelSet
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerLimits, ServerSettings

ROOT = Path(__file__).parents[2]
DEFAULTS = ServerSettings()
FIRST_USER_ID = 1000
"""User that `useradd` makes in an image without other users."""


def read_instructions() -> list[tuple[str, str]]:
    """Return the instructions of the container file and their arguments."""
    text = (ROOT / "deploy/Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, argument) for name, _, argument in (line.partition(" ") for line in lines)]


def get_arguments(name: str) -> list[str]:
    return [argument for instruction, argument in read_instructions() if instruction == name]


def parse_serve(arguments: list[str]) -> dict[str, Any]:
    """Return the options of `dragoman serve`. Raises click.UsageError for unknown ones."""
    return serve.make_context("serve", arguments).params


def read_kubernetes() -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all((ROOT / "deploy/kubernetes.yaml").read_text(encoding="utf-8")))


def list_routes() -> set[str]:
    service = TranslationService(ModelSet([]), ServerLimits())
    try:
        return set(build_app(service, DEFAULTS).openapi()["paths"])
    finally:
        service.queue.close()


def test_container_copies_what_the_build_needs() -> None:
    copied = {name for argument in get_arguments("COPY") for name in argument.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    ignored, *others = [line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    assert ignored == "*"
    assert {line[1:] for line in others if line[0] == "!"} == copied
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked = {"deploy/requirements.txt", "deploy/build-requirements.txt"}
    assert {"pyproject.toml", "hatch_build.py", "src", project["readme"], *project["license-files"], *locked} == copied


def read_locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return the version and the digests of each package of a file of requirements."""
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if "==" in line]
    return {line[0].partition("==")[0]: (line[0].partition("==")[2], line[1:]) for line in lines}


def get_base() -> str:
    """Return the image from which both stages start."""
    first, second = get_arguments("FROM")
    assert first == f"{second} AS build"
    return second


def test_container_pins_digests_and_has_no_pytorch() -> None:
    assert re.fullmatch(r"docker\.io/library/python:3\.12-slim@sha256:[0-9a-f]{64}", get_base())
    packages, build_packages = read_locked("requirements.txt"), read_locked("build-requirements.txt")
    constraints = dict(
        line.lower().split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line
    )
    assert not {"torch", "pyarrow", "sacrebleu", "numba", "llvmlite", "ziglang", "hatchling"} & set(packages)
    assert {"fastapi", "starlette", "h11", "python-multipart"} <= set(packages)
    assert {"numba", "ziglang", "hatchling"} <= set(build_packages)
    for name, (version, digests) in [*packages.items(), *build_packages.items()]:
        assert digests, name
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", digest) for digest in digests)
        assert constraints.get(name, version) == version
    build, install = get_arguments("RUN")
    assert build.count("--require-hashes") == build.count("--only-binary :all:") == 2
    assert build.count("--no-deps") == len(re.findall("pip (?:install|download|wheel)", build)) == 3
    assert "pip wheel --no-deps --no-index --no-build-isolation -w /dist" in build
    assert "pip install --no-cache-dir --no-deps --no-index /dist/*.whl" in install
    assert "index-url" not in build + install


def test_locked_packages_meet_the_bounds_of_the_project() -> None:
    """The bounds leave out versions with faults that requests reach, and the container has every package of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in read_extras() for line in project["optional-dependencies"][extra])]
    packages = read_locked("requirements.txt")
    bounds = {requirement.name.replace("_", "-"): requirement.specifier for requirement in map(Requirement, lines)}
    for name, specifier in bounds.items():
        assert packages[name][0] in specifier
    for name, version in (("python-multipart", "0.0.17"), ("starlette", "0.49.0"), ("h11", "0.15.0"), ("fastapi", "0.120.0")):
        assert version not in bounds[name]


def read_extras() -> list[str]:
    """Return the extras that the container has."""
    match = re.search(r"/src\[([a-z,]+)\]", get_arguments("RUN")[0])
    assert match is not None
    return match[1].split(",")


def test_container_installs_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "serve" in read_extras()
    assert set(read_extras()) <= set(project["optional-dependencies"])
    (version,) = re.findall(r"python:(3\.\d+)-slim", get_base())
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_container_runs_commands_that_exist() -> None:
    program, command, *options = json.loads(*get_arguments("ENTRYPOINT"))
    assert (program, command) == ("dragoman", "serve")
    fields = parse_serve([*options, *json.loads(*get_arguments("CMD"))])
    assert (fields["host"], fields["port"], fields["bundles"]) == ("0.0.0.0", DEFAULTS.port, (Path("/bundle"),))
    assert get_arguments("EXPOSE") == [str(DEFAULTS.port)]


def test_container_serves_as_an_ordinary_user() -> None:
    (user,) = get_arguments("USER")
    names = [name for name, _ in read_instructions()]
    assert any(argument.endswith(f"useradd --create-home {user}") for argument in get_arguments("RUN"))
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_systemd_unit_starts_the_server() -> None:
    unit = (ROOT / "deploy/dragoman.service").read_text(encoding="utf-8")
    program, command, *options = shlex.split(*re.findall("ExecStart=(.*)", unit))
    assert (Path(program).name, command) == ("dragoman", "serve")
    assert parse_serve(options)["admin_port"] == 9090
    (seconds,) = re.findall(r"TimeoutStopSec=(\d+)", unit)
    assert int(seconds) > DEFAULTS.limits.drain_seconds


def test_kubernetes_manifest_agrees_with_the_server() -> None:
    deployment, service, autoscaler = read_kubernetes()
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    fields = parse_serve(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": fields["port"], "metrics": fields["admin_port"]}
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["path"] for probe in probes} <= list_routes()
    assert {probe["port"] for probe in probes} | {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    target = autoscaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
    assert pod["securityContext"]["runAsUser"] == FIRST_USER_ID
    assert pod["terminationGracePeriodSeconds"] > DEFAULTS.limits.drain_seconds
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    assert all(str(path).startswith(mounts["bundles"]) for path in fields["bundles"])
    assert str(fields["keys"]).startswith(mounts["keys"])


def test_autoscaler_follows_a_metric_that_exists() -> None:
    *_, autoscaler = read_kubernetes()
    names = {metric["pods"]["metric"]["name"] for metric in autoscaler["spec"]["metrics"]}
    assert names <= {family.name for family in ServerMetrics().registry.collect()}
