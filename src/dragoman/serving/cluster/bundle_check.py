"""Check that all machines of a cluster have the same bundles and versions. It imports little in each worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from dragoman.cluster.versions import get_versions
from dragoman.errors import BundleError, ClusterError
from dragoman.formats.text import format_reason
from dragoman.io.storage import read_digests, verify_checksums


def check_bundles(bundles: Sequence[str]) -> dict[str, str]:
    """Return the digest of each bundle, after each machine of the cluster with cores has verified all of them.

    Raises BundleError if a machine lacks a bundle or has a damaged or another one, and ClusterError if a machine has other
    versions.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray: Any = import_module("ray")
    check = ray.remote(num_cpus=0, max_retries=0)(digest_bundles)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0)]
    calls = [
        check.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(list(bundles))
        for node in nodes
    ]
    reports: list[BundleReport] = []
    for node, call in zip(nodes, calls, strict=True):
        machine = node["NodeManagerAddress"]
        try:
            report: BundleReport = ray.get(call)
        except ray.exceptions.RayTaskError as error:
            reason = format_reason(str(error.cause))
            raise ClusterError(
                f"{machine}: {reason}; install one version of dragoman on all machines", code="cluster-mismatch"
            ) from None
        except ray.exceptions.RayError as error:
            raise ClusterError(f"{machine}: does not work: {format_reason(str(error))}; see `ray status`") from None
        for name, present in get_versions().items():
            if report.versions.get(name) != present:
                raise ClusterError(
                    f"{machine}: has {name} {report.versions.get(name)}, not {present}; install one version on all machines",
                    code="cluster-mismatch",
                )
        if report.problem is not None:
            raise BundleError(f"machine {machine}: {report.problem}", code=report.code)
        reports.append(report)
        for bundle in bundles:
            if report.digests[bundle] != reports[0].digests[bundle]:
                raise BundleError(
                    f"{bundle}: machines {nodes[0]['NodeManagerAddress']} and {machine} have different ones; copy one to all"
                )
    if not reports:
        raise ClusterError("the cluster has no machine with cores; see `ray status`")
    return reports[0].digests


@dataclass(frozen=True)
class BundleReport:
    """Bundles of a machine. problem: what is wrong with one of them, with its code"""

    versions: dict[str, str]
    digests: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    code: str | None = None


def digest_bundles(bundles: Sequence[str]) -> BundleReport:
    """Return the digests of bundles on this machine, or the first problem with one of them."""
    digests = {}
    for bundle in bundles:
        try:
            verify_checksums(Path(bundle), BundleError)
            digests[bundle] = sha256(json.dumps(read_digests(Path(bundle), BundleError), sort_keys=True).encode()).hexdigest()
        except BundleError as error:
            return BundleReport(get_versions(), problem=str(error), code=error.code)
    return BundleReport(get_versions(), digests)
