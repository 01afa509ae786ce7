"""Serving by a Ray cluster: the command deploys the bundles and the application, and removes them when it ends."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from dragoman.cluster.ray_executor import connect
from dragoman.errors import ClusterError, DragomanError, MissingDependencyError
from dragoman.formats.text import format_reason
from dragoman.serving.addresses import OnReady, bind_addresses
from dragoman.serving.admin import serve_admin
from dragoman.serving.cluster.bundle_check import check_bundles
from dragoman.serving.cluster.cluster_settings import ClusterSettings
from dragoman.serving.cluster.ingress import Ingress
from dragoman.serving.cluster.remote_bundle import Deployment, build_models
from dragoman.serving.cluster.replica import LoadModels, build_replica_class
from dragoman.serving.cluster.replica_metrics import ReplicaMetrics
from dragoman.serving.cluster.token_policy import TokenPolicy
from dragoman.serving.model_set import ModelSet
from dragoman.serving.server import KEEP_ALIVE_SECONDS
from dragoman.serving.server_processes import catch_signals
from dragoman.serving.settings import ServerSettings

logger = logging.getLogger("dragoman.serving")

APPLICATION = "dragoman"
"""Name of the application in Ray Serve that answers requests. Those of the bundles begin with it."""
MAX_ONGOING_REQUESTS = 10_000
"""Requests that Ray Serve gives to a replica at the same time, so many that the limits of the server decide."""
MAX_SURGE_PERCENT = 25
"""Replicas that a redeploy may add, in percent, rounded up. Each takes over before a former one ends."""
METRICS_INTERVAL_SECONDS = 1.0
"""Time between two reports of a replica to the autoscaler."""
PROBE_SECONDS = 5.0
"""Longest wait for the metrics of all replicas of a deployment."""
HEALTH_CHECK_SECONDS = 5.0
STOP_MARGIN_SECONDS = 10.0
"""Time for the application to end after the time for its requests in progress."""
POLL_SECONDS = 0.2


def serve_on_cluster(
    bundles: Sequence[Path],
    load_models: LoadModels,
    settings: ServerSettings,
    cluster: ClusterSettings,
    *,
    pivot: str | None = None,
    on_ready: OnReady = lambda url, targets: None,
) -> None:
    """Serve by a cluster until SIGTERM or SIGINT; SIGHUP redeploys the bundles that have changed.

    bundles: folders under the same path on all machines
    load_models: function that loads one bundle in a replica

    Raises RecipeError for an address that cannot be used, for two bundles for one pair, and for an unknown pivot. Raises
    BundleError if a machine lacks a bundle, ClusterError if the cluster cannot serve, and MissingDependencyError.
    """
    if cluster.address.startswith("ray://"):
        raise ClusterError(
            f"--cluster {cluster.address}: cannot serve; start the command on a machine of the cluster, with HOST:PORT"
        )
    with ExitStack() as stack:
        server_socket, admin_socket = bind_addresses(settings, stack)
        port = server_socket.getsockname()[1]
        server_socket.close()  # a proxy of Ray takes the address
        stack.enter_context(connect(cluster.address))
        wake = stack.enter_context(catch_signals())
        server = ClusterServer(
            [str(path.absolute()) for path in bundles], load_models, replace(settings, port=port), cluster, pivot
        )
        stack.callback(server.stop)
        targets = server.start()
        if admin_socket is not None:
            stack.callback(serve_admin(admin_socket, server.render_metrics, server.describe_state).shutdown)
        on_ready(f"http://{settings.host}:{port}/", targets)
        while wake.recv_bytes() != b"stop":
            threading.Thread(target=server.redeploy, name="redeploy", daemon=True).start()


class ClusterServer:
    """Applications of a server in Ray Serve, from the side of the command. The process is connected to the cluster."""

    def __init__(
        self,
        bundles: Sequence[str],
        load_models: LoadModels,
        settings: ServerSettings,
        cluster: ClusterSettings,
        pivot: str | None,
    ) -> None:
        self._bundles = tuple(bundles)
        self._load_models = load_models
        self._settings = settings
        self._cluster = cluster
        self._pivot = pivot
        self._deployments = self._plan_deployments()
        self._digests: dict[str, str] = {}
        self._redeploy_lock = threading.Lock()
        self._is_stopping = False
        self._metrics = ReplicaMetrics()
        self._is_started = False

    def _plan_deployments(self) -> list[Deployment]:
        if self._cluster.models_per_replica is not None:
            return [Deployment(f"{APPLICATION}-bundles", self._bundles, is_shared=True)]
        return [
            Deployment(f"{APPLICATION}-bundle-{number}", (bundle,), is_shared=False)
            for number, bundle in enumerate(self._bundles, 1)
        ]

    def start(self) -> dict[str, list[str]]:
        """Deploy everything; return the targets of each language. See `serve_on_cluster` for the errors."""
        serve = _import_serve()
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._digests = check_bundles(self._bundles)
        self._check_resources()
        if _is_serve_running():
            raise ClusterError(
                "Ray Serve runs on this cluster already, with an address of its own; stop it with `serve shutdown`"
            )
        self._is_started = True
        options = {"host": self._settings.host, "port": self._settings.port, "keep_alive_timeout_s": KEEP_ALIVE_SECONDS}
        with _cluster_errors("Ray Serve"):
            serve.start(http_options=options, logging_config={"log_level": "ERROR", "enable_access_log": False})
        self._deploy(self._deployments)
        models = self._describe()
        application = serve.deployment(serve.ingress()(Ingress)).options(
            name=APPLICATION,
            num_replicas=1,
            ray_actor_options={"num_cpus": 0},
            **self._common_options(),
        )
        with _cluster_errors("the application"):
            serve.run(application.bind(self._deployments, self._settings, self._pivot), name=APPLICATION, route_prefix="/")
        return models.targets

    def _common_options(self) -> dict[str, Any]:
        return {
            "max_ongoing_requests": MAX_ONGOING_REQUESTS,
            "graceful_shutdown_timeout_s": self._settings.limits.drain_seconds,
            "graceful_shutdown_wait_loop_s": 0.5,
            "health_check_period_s": HEALTH_CHECK_SECONDS,
            "max_constructor_retry_count": 2,
        }

    def _check_resources(self) -> None:
        """Raise ClusterError if the cluster is too small for one replica of each deployment."""
        ray: Any = import_module("ray")
        resources = ray.cluster_resources()
        for name, unit, needed in (
            ("CPU", "cores", self._cluster.cores_per_replica),
            ("GPU", "GPUs", self._cluster.gpus_per_replica),
        ):
            needed *= len(self._deployments) * self._cluster.min_replicas
            if needed > resources.get(name, 0):
                raise ClusterError(
                    f"the cluster has {resources.get(name, 0):g} {unit}, and the bundles need {needed}; "
                    "add machines, or let bundles share replicas with --models-per-replica"
                )

    def _deploy(self, deployments: Sequence[Deployment]) -> None:
        """Deploy bundles, or redeploy them: new replicas take over, and former ones finish their requests."""
        serve = _import_serve()
        targets = [
            serve.RunTarget(
                self._build_application(serve, deployment).bind(self._load_models, self._settings.limits, self._settings.retry),
                name=deployment.app,
                route_prefix=None,
            )
            for deployment in deployments
        ]
        names = ", ".join(bundle for deployment in deployments for bundle in deployment.bundles)
        with _cluster_errors(names):
            serve.run_many(targets)

    def _build_application(self, serve: Any, deployment: Deployment) -> Any:
        """Return the deployment as Ray Serve describes it."""
        cluster = self._cluster
        with _without_deprecation_warnings():
            autoscaling = serve.config.AutoscalingConfig(
                min_replicas=cluster.min_replicas,
                max_replicas=max(cluster.min_replicas, cluster.max_replicas),
                metrics_interval_s=METRICS_INTERVAL_SECONDS,
                look_back_period_s=cluster.look_back_seconds,
                upscale_delay_s=cluster.upscale_seconds,
                downscale_delay_s=cluster.downscale_seconds,
                policy=serve.config.AutoscalingPolicy(
                    policy_function=TokenPolicy, policy_kwargs={"tokens_per_replica": cluster.tokens_per_replica}
                ),
            )
        replica = build_replica_class(deployment.bundles, cluster.models_per_replica or 1)
        return serve.deployment(replica).options(
            name=deployment.app,
            autoscaling_config=autoscaling,
            ray_actor_options={"num_cpus": cluster.cores_per_replica, "num_gpus": cluster.gpus_per_replica},
            max_surge_percent=MAX_SURGE_PERCENT,
            **self._common_options(),
        )

    def _describe(self) -> ModelSet:
        """Return the models as the application sees them, and so check that they go together."""
        handles = {bundle: item.get_handle(bundle) for item in self._deployments for bundle in item.bundles}
        with _cluster_errors("the bundles"):
            descriptions = [handle.describe.remote(bundle).result() for bundle, handle in handles.items()]
        return build_models(descriptions, handles.__getitem__, pivot=self._pivot)

    def redeploy(self) -> None:
        """Redeploy the bundles whose files have changed. If that fails, the present replicas stay, and the log says why."""
        serve = _import_serve()
        with self._redeploy_lock:
            if self._is_stopping:
                return
            outcome = "the present bundles stay"
            try:
                digests = check_bundles(self._bundles)
                changed = [
                    item for item in self._deployments if any(digests[name] != self._digests[name] for name in item.bundles)
                ]
                if changed:
                    self._deploy(changed)
                outcome = "the application keeps the languages and options of the former bundles"
                self._describe()
                with _cluster_errors("the application"):
                    serve.get_app_handle(APPLICATION).broadcast("refresh").results()
                self._digests = digests
            except DragomanError as error:
                logger.error("redeploy failed, %s: %s", outcome, error)
                return
            logger.info("redeployed %d of %d deployments", len(changed), len(self._deployments))

    def render_metrics(self) -> bytes:
        """Return the sums of the metrics of all replicas, those that have ended included."""
        return self._metrics.render({name: self._probe(name) for name in self._list_apps()})

    def describe_state(self) -> dict[str, Any]:
        """Return "ok" if the application and each deployment have a replica that answers, and the number of replicas."""
        counts = {name: len(self._probe(name)) for name in self._list_apps()}
        return {"status": "ok" if all(counts.values()) else "starting", "replicas": counts}

    def _list_apps(self) -> list[str]:
        return [APPLICATION, *(deployment.app for deployment in self._deployments)]

    def _probe(self, app: str) -> list[tuple[str, str]]:
        """Return the id and the metrics of each replica of an application that answers in time."""
        serve = _import_serve()
        try:
            response = serve.get_app_handle(app).broadcast("render_metrics")
            results: list[Any] = response.results(timeout_s=PROBE_SECONDS, return_exceptions=True)
        except Exception as error:  # Ray Serve has exceptions of several libraries
            logger.warning("%s: does not answer: %s", app, format_reason(str(error)))
            return []
        return [result for result in results if not isinstance(result, BaseException)]

    def stop(self) -> None:
        """Let the application finish its requests, and remove everything that was deployed, after a redeploy in progress.

        A request that takes longer than `drain_seconds` is lost.
        """
        serve = _import_serve()
        self._is_stopping = True
        if not self._is_started:
            return
        with self._redeploy_lock, _cluster_errors("Ray Serve", action="removed"):
            serve.delete(APPLICATION, _blocking=False)  # else Ray waits for 60 seconds at most, and raises an error
            end = time.monotonic() + self._settings.limits.drain_seconds + STOP_MARGIN_SECONDS
            while _is_deployed(serve) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
            serve.shutdown()


def _import_serve() -> Any:
    """Return Ray Serve. Raises MissingDependencyError."""
    try:
        return import_module("ray.serve")
    except ImportError as error:
        raise MissingDependencyError(error.name or "ray", "ray", "dragoman serve --cluster") from None


@contextmanager
def _without_deprecation_warnings() -> Iterator[None]:
    """Ignore Ray's warning about the interval of metrics, for which it has only an environment variable besides."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _is_deployed(serve: Any) -> bool:
    """Return whether Ray Serve still has the application."""
    with _without_deprecation_warnings():
        return APPLICATION in serve.status().applications


def _is_serve_running() -> bool:
    """Return whether the cluster has a controller of Ray Serve."""
    ray: Any = import_module("ray")
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


@contextmanager
def _cluster_errors(name: str, *, action: str = "deployed") -> Iterator[None]:
    """Turn the errors of Ray into ClusterError with one line, but for those of dragoman."""
    ray: Any = import_module("ray")
    try:
        yield
    except DragomanError:
        raise
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DragomanError):
            raise error.cause from None
        raise ClusterError(f"{name}: {format_reason(str(error.cause))}; `serve status` and Ray's logs say more") from None
    except Exception as error:  # Ray Serve has exceptions of several libraries
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else type(error).__name__
        raise ClusterError(f"{name}: cannot be {action}: {reason}; `serve status` and Ray's logs say more") from None
