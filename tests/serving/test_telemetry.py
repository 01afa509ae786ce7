"""OpenTelemetry spans of requests, waits and batches, without text of users."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from capital_letters import CapitalTranslator, make_client, make_models
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerLimits
from dragoman.serving.telemetry import Telemetry
from expected_errors import raises_code

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
"""Example of the recommendation Trace Context of the W3C, section 3.2."""


def test_spans_join_the_trace_of_the_client_and_hold_no_text() -> None:
    sdk: Any = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra telemetry")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    models = make_models((CapitalTranslator(), ("en", "de")))
    client = make_client(TranslationService(models, ServerLimits(), telemetry=Telemetry(provider)))
    fields = {"texts": ["A secret. Another one."], "source": "en", "target": "de"}
    client.post("/v1/translate?source=secret", json=fields, headers={"traceparent": TRACEPARENT})
    client.post("/v1/translate", json={**fields, "texts": ["secret: fail"]}, headers={"traceparent": TRACEPARENT})
    client.get("/secret", headers={"authorization": "Bearer secret"})
    finished: list[Any] = list(exporter.get_finished_spans())
    spans = {(span.name, span.attributes.get("http.response.status_code")): span for span in finished}
    answered, failed = spans["POST /v1/translate", 200], spans["POST /v1/translate", 500]
    assert spans["GET other", 404].parent is None
    assert {f"{span.context.trace_id:032x}" for span in (answered, failed)} == {TRACE}
    assert f"{answered.parent.span_id:016x}" == PARENT
    assert (answered.status.is_ok, failed.status.is_ok) == (True, False)
    below = {span.name: span for span in finished if span.parent and span.parent.span_id == answered.context.span_id}
    assert set(below) == {"queue wait", "batch"}
    assert dict(below["batch"].attributes)["dragoman.batch.lines"] == 2
    times = [answered.start_time, below["queue wait"].start_time, below["queue wait"].end_time, below["batch"].end_time]
    assert times == sorted(times)
    assert below["queue wait"].end_time == below["batch"].start_time
    assert "secret" not in "".join(span.to_json() for span in finished)


def test_missing_extra_is_answered_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with raises_code("missing-dependency", "pip install 'dragoman[telemetry]'"):
        Telemetry.from_environment()
