"""Parts of serving on a cluster that need no cluster: the models of the application, the number of replicas, and metrics."""

from __future__ import annotations

import asyncio
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from dragoman.cli.main import cli
from dragoman.errors import BundleError, RecipeError
from dragoman.inference.whole_texts import OutputLimits
from dragoman.serving.cluster import remote_bundle
from dragoman.serving.cluster.remote_bundle import ClusterService, RemoteBundle, build_models
from dragoman.serving.cluster.replica import BundleDescription, StepDescription
from dragoman.serving.cluster.replica_metrics import MAX_ENDED_REPLICAS, ReplicaMetrics
from dragoman.serving.cluster.token_policy import UNFINISHED_TOKENS, TokenPolicy
from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.model_set import LineKey, Pair
from dragoman.serving.request_queue import QueueFullError, estimate_tokens
from dragoman.serving.service import RequestTimes
from dragoman.serving.settings import ServerLimits


def describe(name: str, *pairs: Pair) -> BundleDescription:
    steps = tuple(StepDescription(pair, (), OutputLimits(), mask_codes=True, annotate_terms=False) for pair in pairs)
    return BundleDescription(name, steps)


def test_application_has_the_steps_of_the_replicas() -> None:
    bundles = [describe("first", ("de", "en"), ("en", "de")), describe("second", ("en", "fr"), ("en", "de"))]
    models = build_models([*bundles, describe("parser")], lambda bundle: bundle, pivot="en")
    assert models.targets == {"de": ["en", "fr"], "en": ["de", "fr"], "fr": []}
    assert models.find_route("en", "de")[0].model.name == "first"  # the first of two bundles serves the pair
    assert all(step.mask_codes for step in models.steps.values())
    assert models.parser is not None
    assert models.parser.name == "parser"


def test_bundle_without_a_pair_of_its_own_is_refused() -> None:
    bundles = [describe("first", ("en", "de"), ("en", "fr")), describe("second", ("en-GB", "fr"))]
    with pytest.raises(RecipeError, match="second: translates en-GB to fr, as first does; give one bundle for each pair"):
        build_models(bundles, str, pivot=None)


def test_second_parser_and_unknown_pivot_are_refused() -> None:
    with pytest.raises(BundleError, match="b: is a second parser, after a"):
        build_models([describe("a"), describe("b")], str, pivot=None)
    with pytest.raises(RecipeError, match="--pivot fr: is no language of the bundles; their languages are de, en"):
        build_models([describe("a", ("en", "de"))], str, pivot="fr")


class WaitingReplicas:
    """Stand-in for the handles of several deployments, whose calls end when a test lets them."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.num_calls = 0
        self.is_lost = False

    async def call(self, method: str, *arguments: object) -> list[str]:
        if self.is_lost:
            await asyncio.sleep(60)
        if method == "ping":
            return []
        self.num_calls += 1
        await self.is_over.wait()
        return ["done"]


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> WaitingReplicas:
    class LostError(Exception):
        pass

    exceptions = SimpleNamespace(RayActorError=LostError, DeploymentUnavailableError=LostError)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(exceptions=exceptions))
    monkeypatch.setitem(sys.modules, "ray.serve.exceptions", exceptions)
    replicas = WaitingReplicas()
    monkeypatch.setattr(RemoteBundle, "call", lambda _, method, *arguments: replicas.call(method, *arguments))
    return replicas


def build_service(**limits: float) -> ClusterService:
    bundles = [describe("first", ("en", "de")), describe("second", ("en", "fr"))]
    return ClusterService(build_models(bundles, str, pivot=None), ServerLimits(**limits))  # type: ignore[arg-type]


async def search(service: ClusterService, target: str, num_lines: int, *, wait_seconds: float) -> Any:
    """Translate lines of one token by the bundle of a pair."""
    now = time.monotonic()
    (step,) = service.models.find_route("en", target)
    return await service.translate_lines(LineKey(step), ["x"] * num_lines, RequestTimes(now + wait_seconds, now + 60))


def test_queue_limit_holds_for_all_deployments_together(replicas: WaitingReplicas) -> None:
    one_line = estimate_tokens("x")

    async def run() -> None:
        service = build_service(max_queue_tokens=10 * one_line)
        calls = [asyncio.create_task(search(service, target, 5, wait_seconds=30)) for target in ("de", "fr")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert replicas.num_calls == 2
        assert await service.check_state() == "busy"
        with pytest.raises(QueueFullError):
            await search(service, "de", 1, wait_seconds=0)
        waiting = asyncio.create_task(search(service, "fr", 50, wait_seconds=30))  # more than the limit
        await asyncio.sleep(0.05)
        assert replicas.num_calls == 2
        replicas.is_over.set()
        assert await asyncio.gather(*calls, waiting) == [["done"]] * 3
        assert await service.check_state() == "ok"
        await service.close()

    asyncio.run(run())


def test_canceled_request_leaves_its_room_to_others(replicas: WaitingReplicas) -> None:
    async def run() -> None:
        service = build_service(max_queue_tokens=1)
        first = asyncio.create_task(search(service, "de", 9, wait_seconds=30))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        replicas.is_over.set()
        assert await search(service, "fr", 9, wait_seconds=0) == ["done"]
        await service.close()

    asyncio.run(run())


def test_server_is_not_ready_without_a_replica_that_answers(replicas: WaitingReplicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_bundle, "PING_SECONDS", 0.05)

    async def run() -> None:
        service = build_service()
        assert await service.check_state() == "ok"
        replicas.is_lost = True
        assert await service.check_state() == "starting"
        await service.close()

    asyncio.run(run())


def test_replicas_are_tokens_over_tokens_per_replica() -> None:
    policy = TokenPolicy(tokens_per_replica=4000)
    tokens = {UNFINISHED_TOKENS: {"one": 7000.0, "two": 3000.0}}
    assert policy(SimpleNamespace(aggregated_metrics=tokens)) == (2.5, {})
    assert policy(SimpleNamespace(aggregated_metrics=None)) == (0.0, {})


def test_metrics_are_sums_that_ended_replicas_do_not_lower() -> None:
    page = ReplicaMetrics()

    def render(replicas: dict[str, list[tuple[str, str]]]) -> dict[str, float]:
        text = page.render(replicas).decode()
        return {
            sample.name + str(sample.labels.get("application", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def count(num_tokens: int) -> str:
        metrics = ServerMetrics()
        metrics.count_batch(1, num_tokens, 0.1)
        metrics.watch_queue(lambda: 7, lambda: 1)
        return metrics.render().decode()

    first = render({"bundle": [("a", count(10)), ("b", count(20))]})
    assert (first["dragoman_source_tokens_total"], first["dragoman_replicasbundle"]) == (30, 2)
    without = render({"bundle": [("b", count(25))]})
    assert (without["dragoman_source_tokens_total"], without["dragoman_queue_tokens"]) == (35, 7)
    again = render({"bundle": [("a", count(12)), ("b", count(25))]})  # it had missed one probe
    assert again["dragoman_source_tokens_total"] == 37
    for number in range(MAX_ENDED_REPLICAS + 5):
        last = render({"bundle": [(f"c{number}", count(1))]})
    assert last["dragoman_source_tokens_total"] == 37 + MAX_ENDED_REPLICAS + 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-replicas", "2"], "--max-replicas, --tokens-per-replica and --models-per-replica need --cluster"),
        (["--cluster", "local", "--processes", "2"], "--processes: a cluster has replicas instead"),
        (["--cluster", "ray://localhost:10001"], "--cluster ray://localhost:10001: cannot serve"),
        (["--cluster", "localhost:1"], "--cluster localhost:1: does not answer"),
        (["--cluster", "local"], "pip install 'dragoman[ray]'"),
    ],
)
def test_wrong_options_and_a_missing_ray_are_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(cli, ["serve", "bundle", "--port", "0", *arguments])
    assert result.exit_code != 0
    assert message in str(result.exception) + result.output
