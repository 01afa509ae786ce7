"""Deployment that answers HTTP requests: the application of `dragoman serve`, whose models are on other replicas."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman.serving.app import build_app
from dragoman.serving.cluster.remote_bundle import ClusterService, Deployment, build_models
from dragoman.serving.model_set import ModelSet
from dragoman.serving.server import COLLECTION_THRESHOLD, spare_objects
from dragoman.serving.settings import ServerSettings
from dragoman.serving.telemetry import Telemetry

if TYPE_CHECKING:
    from fastapi import FastAPI


class Ingress:
    """Replica of the application. Ray Serve's proxies give it the requests.

    deployments: deployments of the bundles, which are ready
    """

    def __init__(self, deployments: Sequence[Deployment], settings: ServerSettings, pivot: str | None) -> None:
        logging.basicConfig(format="%(message)s", stream=sys.stderr)
        logging.getLogger("dragoman").setLevel(logging.INFO)
        self._deployments = deployments
        self._settings = settings
        self._pivot = pivot
        telemetry = Telemetry.from_environment() if settings.traces else None
        self._service = ClusterService(ModelSet(()), settings.limits, retry=settings.retry, telemetry=telemetry)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application. Ray Serve calls it before the first request."""
        await self.refresh()
        app = build_app(self._service, self._settings)
        gc.set_threshold(COLLECTION_THRESHOLD)
        spare_objects()
        return app

    async def refresh(self) -> None:
        """Ask the deployments for their bundles again, and serve new requests accordingly."""
        handles = {bundle: item.get_handle(bundle) for item in self._deployments for bundle in item.bundles}
        descriptions = await asyncio.gather(*(handle.describe.remote(bundle) for bundle, handle in handles.items()))
        self._service.models = build_models(descriptions, handles.__getitem__, pivot=self._pivot)

    def render_metrics(self) -> tuple[str, str]:
        """Return the id of the replica, and its metrics in the text format of Prometheus."""
        from ray import serve

        return serve.get_replica_context().replica_id.unique_id, self._service.metrics.render().decode()
