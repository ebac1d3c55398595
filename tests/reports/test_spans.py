"""Spans of a recovery: from events, pure; and through the SDK of OpenTelemetry into a real exporter."""

from __future__ import annotations

import sys

import pytest

from holdfast.errors import BadInput
from holdfast.reports.spans import RecoverySpans, Span
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.spark.tracing import RecoveryTracer
from reports.run_logs import BEGAN, event, one_node_lost, outputs, started, state


def traces(events: list[Observation]) -> list[list[Span]]:
    spans = RecoverySpans()
    return [found for one in events if (found := spans.take(one))]


def test_a_recovery_is_one_trace() -> None:
    (trace,) = traces(one_node_lost())
    root, *children = trace
    assert root.name == "holdfast.recovery"
    assert (root.begin, root.end) == pytest.approx((BEGAN + 20.5, BEGAN + 33.0))
    assert root.attributes["holdfast.nodes"] == ["n2"]
    assert root.attributes["holdfast.plans"] == 2
    assert root.error is None
    names = [one.name for one in children]
    assert names.count("detect") == 1
    assert names.count("plan") == 2
    assert names.count("restore") == names.count("replay") == 3
    assert names[-1] == "level"
    restore = next(one for one in children if one.name == "restore" and one.attributes["holdfast.partition"] == "A[1]")
    assert (restore.begin, restore.end) == pytest.approx((BEGAN + 20.6, BEGAN + 21.6))
    assert all(root.begin <= one.begin <= one.end <= root.end for one in children)


def test_a_start_is_no_recovery() -> None:
    assert (
        traces([event(-1, "run", claim=1), *started(), *outputs(range(10), 1.0), event(20, "ended", problem=None)])
        == []
    )


def test_a_recovery_that_the_driver_does_not_see_to_its_end() -> None:
    cut = [one for one in one_node_lost() if one.at < BEGAN + 29]
    (trace,) = traces([*cut, event(29.5, "run", claim=2), *started(30.0, claim=2)])
    assert trace[0].error == "the driver ended"
    assert trace[0].end == pytest.approx(BEGAN + 29.5)


def test_a_log_repeats_how_it_began() -> None:
    events = [event(-1, "run", claim=1), *one_node_lost(), event(25, "run", claim=1)]
    (trace,) = traces(sorted(events, key=lambda one: one.at))
    assert trace[0].error is None


def test_a_restore_that_fails_is_an_error_and_not_the_end() -> None:
    again = [
        event(60.0, "node-silent", nodes=["n4"]),
        event(60.0, "epoch", claim=1, epoch=5, why="n4 silent"),
        state(60.0, "B[0]", "running", "lost"),
        state(60.1, "B[0]", "lost", "restoring", "n1"),
        state(61.0, "B[0]", "restoring", "lost"),
        state(61.1, "B[0]", "lost", "restoring", "n3"),
        state(62.0, "B[0]", "restoring", "catching-up", "n3"),
        state(63.0, "B[0]", "catching-up", "running", "n3"),
    ]
    _, trace = traces([*one_node_lost(), *again])
    assert [one.error is None for one in trace if one.name == "restore"] == [False, True]
    assert trace[0].error is None


def test_the_sdk_gets_the_spans() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra otel")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    lines: list[str] = []
    tracer = RecoveryTracer("web", "web-1", lines.append, provider)
    for one in one_node_lost():
        tracer.emit(one)
    spans = exporter.get_finished_spans()
    (root,) = [one for one in spans if one.parent is None]
    assert root.name == "holdfast.recovery"
    assert root.attributes["holdfast.application"] == "web"
    assert {one.parent.span_id for one in spans if one.parent} == {root.context.span_id}
    assert {one.name for one in spans} == {"holdfast.recovery", "detect", "plan", "restore", "replay", "level"}
    assert root.start_time == round((BEGAN + 20.5) * 1e9)
    assert lines == []


def test_an_exporter_that_fails_ends_tracing_and_nothing_else() -> None:
    pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra otel")
    lines: list[str] = []
    tracer = RecoveryTracer("web", "web-1", lines.append)

    def fail(span: object) -> None:
        raise RuntimeError("no route\nto host")

    tracer._export = fail  # type: ignore[method-assign, assignment]
    for one in [*one_node_lost(), *one_node_lost()]:
        tracer.emit(one)
    assert lines[-1] == "tracing is over: no route to host"
    assert len(lines) == 2, "the first one says that nothing is configured"


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"pip install 'holdfast\[otel\]'"):
        RecoveryTracer("web", "web-1", lambda line: None)
