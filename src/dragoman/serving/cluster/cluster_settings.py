"""Settings of serving on a cluster, besides those of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterSettings:
    """Division of bundles among deployments, and the number of replicas of each.

    address: address of the cluster, as `dragoman.cluster.ray_executor.connect` takes it
    models_per_replica: bundles that a replica holds at the same time, when one deployment serves all bundles; None for a
        deployment for each bundle
    min_replicas, max_replicas: bounds of the replicas of a deployment
    tokens_per_replica: estimated tokens of unfinished requests for which a deployment has one replica
    look_back_seconds: time over which the tokens are averaged
    upscale_seconds, downscale_seconds: time for which more or fewer replicas are needed before their number changes
    cores_per_replica: processor cores that a replica takes in the cluster
    gpus_per_replica: GPUs that a replica takes in the cluster
    """

    address: str
    models_per_replica: int | None = None
    min_replicas: int = 1
    max_replicas: int = 4
    tokens_per_replica: int = 4000
    look_back_seconds: float = 10.0
    upscale_seconds: float = 5.0
    downscale_seconds: float = 120.0
    cores_per_replica: int = 1
    gpus_per_replica: int = 0
