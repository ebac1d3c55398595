"""Hands spans of recoveries to OpenTelemetry, where `spark.holdfast.tracing.enabled` asks for it. Runs on the driver.

Holdfast makes spans (`holdfast.reports.spans`) with the tracer provider of the process: the program sets one, or
`opentelemetry-instrument` does, and with it where spans go. Nothing here can end a run: what fails is logged once, and
tracing is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import BadInput, one_line
from holdfast.reports.spans import RecoverySpans, Span
from holdfast.runtime.coordinator.event_log import Observation

TRACER = "holdfast"


def check_tracing() -> None:
    """Refuse where OpenTelemetry is not installed; before a cluster starts."""
    try:
        import opentelemetry.trace  # noqa: F401
    except ModuleNotFoundError:
        raise BadInput(
            "opentelemetry is not installed",
            field="spark.holdfast.tracing.enabled",
            remedy="run `pip install 'holdfast[otel]'`, or set it to false",
        ) from None


class RecoveryTracer:
    """Takes every event of a run; a recovery that is over becomes a trace."""

    def __init__(self, application: str, run: str, log: Callable[[str], object], provider: Any = None) -> None:
        """Use the process's tracer provider, or a given one; refused where OpenTelemetry is not installed."""
        check_tracing()
        from opentelemetry import trace

        self._trace = trace
        found = trace.get_tracer_provider() if provider is None else provider
        if not hasattr(found, "add_span_processor"):
            log(
                "tracing is on, and this process has no tracer provider: spans of recoveries go nowhere; call "
                "opentelemetry.trace.set_tracer_provider, or start with opentelemetry-instrument"
            )
        self._tracer = trace.get_tracer(TRACER, tracer_provider=found)
        self._about = {"holdfast.application": application, "holdfast.run": run}
        self._spans = RecoverySpans()
        self._log = log
        self._works = True

    def emit(self, seen: Observation) -> None:
        """Take an event."""
        if not self._works:
            return
        try:
            if spans := self._spans.take(seen):
                self._export(spans)
        except Exception as error:  # an exporter's fault is not one of the run
            self._works = False
            self._log(f"tracing is over: {one_line(str(error), 200)}")

    def _export(self, spans: list[Span]) -> None:
        trace = self._trace
        root = self._start(spans[0], None)
        context = trace.set_span_in_context(root)
        for one in spans[1:]:
            self._start(one, context).end(end_time=_nanoseconds(one.end))
        root.end(end_time=_nanoseconds(spans[0].end))

    def _start(self, one: Span, context: Any) -> Any:
        about = self._about if context is None else {}
        span = self._tracer.start_span(
            one.name, context=context, start_time=_nanoseconds(one.begin), attributes={**about, **one.attributes}
        )
        if one.error is not None:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, one.error))
        return span


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
