"""Where metrics and spans of a run go: a Prometheus endpoint on loopback, or a collector that speaks OTLP.

A process that has providers of its own for OpenTelemetry (a program that embeds stateflow, or one started by
``opentelemetry-instrument``) keeps them, and gets everything without any setting here.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry import metrics, trace

from stateflow.errors import ConfigError
from stateflow.metrics import METRICS, Kind, Recorder
from stateflow.settings import TelemetrySettings

log = logging.getLogger(__name__)

_ROLE = "stateflow"
_LOOPBACK = "127.0.0.1"
_PATIENCE_SECONDS = 3
"""How long a collector that does not answer may hold up the end of a run."""


class OpenTelemetryRecorder:
    """Gives figures to OpenTelemetry.

    Args:
        meter: of the process's provider.
        facts: attributes of every figure.
    """

    def __init__(self, meter: metrics.Meter, facts: Mapping[str, str]) -> None:
        self._facts = dict(facts)
        self._counters: dict[str, Any] = {}
        self._gauges: dict[str, Any] = {}
        for name, about in METRICS.items():
            if about.kind is Kind.COUNTER:
                self._counters[name] = meter.create_counter(name, about.unit, about.text)
            else:
                self._gauges[name] = meter.create_gauge(name, about.unit, about.text)

    def count(self, name: str, amount: int = 1) -> None:
        self._counters[name].add(amount, self._facts)

    def gauge(self, name: str, value: float) -> None:
        self._gauges[name].set(value, self._facts)


@contextlib.contextmanager
def telemetry(settings: TelemetrySettings, job: str) -> Iterator[Recorder]:
    """What a run records with, for as long as it lasts; at the end everything is handed over.

    Raises ConfigError when a package is not installed. A port that is taken is a warning: a job does not fail for that.
    """
    with contextlib.ExitStack() as stack:
        meter = metrics.get_meter(_ROLE)
        if settings.prometheus_port or settings.otlp_endpoint:
            with _told_when_missing():
                meter = _own_meter(settings, stack)
        join(settings)
        stack.callback(_flush_spans)
        yield OpenTelemetryRecorder(meter, {"job": job})


def join(settings: TelemetrySettings) -> None:
    """Sends this process's spans where those of the run go: what tasks do is told by the processes that do it."""
    # A process keeps its provider, also behind the end of a run: OpenTelemetry takes no other one.
    if settings.otlp_endpoint and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        with _told_when_missing():
            trace.set_tracer_provider(_tracer_provider(settings))


def _flush_spans() -> None:
    # Of a provider of the SDK; others have nothing to hand over.
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:
        flush(_PATIENCE_SECONDS * 1000)


def _own_meter(settings: TelemetrySettings, stack: contextlib.ExitStack) -> metrics.Meter:
    """Of a provider that ends with the run."""
    from opentelemetry.sdk.metrics import MeterProvider

    readers = []
    if settings.prometheus_port:
        readers.append(_prometheus(settings.prometheus_port, stack))
    if settings.otlp_endpoint:
        readers.append(_otlp_metrics(settings))
    provider = MeterProvider(readers, _resource())
    stack.callback(provider.shutdown, _PATIENCE_SECONDS * 1000)
    return provider.get_meter(_ROLE)


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": _ROLE})


def _prometheus(port: int, stack: contextlib.ExitStack) -> Any:
    import prometheus_client
    from opentelemetry.exporter.prometheus import PrometheusMetricReader

    try:
        server, thread = prometheus_client.start_http_server(port, addr=_LOOPBACK)
    except OSError as e:
        log.warning("metrics are not served: %s port=%d; hint: choose another telemetry.prometheus_port",
                    e.strerror, port)  # fmt: skip
    else:
        stack.callback(thread.join)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
    return PrometheusMetricReader()


def _otlp_metrics(settings: TelemetrySettings) -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    milliseconds = settings.interval.total_seconds() * 1000
    exporter = OTLPMetricExporter(
        endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/metrics", timeout=_PATIENCE_SECONDS
    )
    return PeriodicExportingMetricReader(exporter, export_interval_millis=milliseconds)


def _tracer_provider(settings: TelemetrySettings) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=_resource())
    exporter = OTLPSpanExporter(
        endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces", timeout=_PATIENCE_SECONDS
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return provider


@contextlib.contextmanager
def _told_when_missing() -> Iterator[None]:
    """Packages of telemetry are imported where a setting asks for them."""
    try:
        yield
    except ImportError as e:
        raise ConfigError("a package for telemetry is not installed", hint="pip install 'stateflow[telemetry]'",
                          package=e.name) from e  # fmt: skip
