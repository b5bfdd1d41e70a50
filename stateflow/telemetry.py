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

from stateflow.config import TelemetrySettings
from stateflow.errors import ConfigError
from stateflow.metrics import METRICS, Kind, Recorder

log = logging.getLogger(__name__)

_ROLE = "stateflow"
_LOOPBACK = "127.0.0.1"


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
        if settings.prometheus_port or settings.otlp_endpoint:
            _set_up(settings, job, stack)
        yield OpenTelemetryRecorder(metrics.get_meter(_ROLE), {"job": job})


def join(settings: TelemetrySettings) -> None:
    """Sends this process's spans where those of the run go: what tasks do is told by the processes that do it."""
    # The process of the driver, or one that was joined, has a provider already.
    if settings.otlp_endpoint and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        from opentelemetry.sdk.resources import Resource

        trace.set_tracer_provider(_tracer_provider(settings, Resource.create({"service.name": _ROLE})))


def _set_up(settings: TelemetrySettings, job: str, stack: contextlib.ExitStack) -> None:
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource
    except ImportError as e:
        raise _not_installed(e) from e
    resource = Resource.create({"service.name": _ROLE, "stateflow.job": job})
    readers = []
    if settings.prometheus_port:
        readers.append(_prometheus(settings.prometheus_port, stack))
    if settings.otlp_endpoint:
        readers.append(_otlp_metrics(settings))
        _trace(settings, resource, stack)
    provider = MeterProvider(readers, resource)
    metrics.set_meter_provider(provider)
    stack.callback(provider.shutdown)


def _prometheus(port: int, stack: contextlib.ExitStack) -> Any:
    try:
        import prometheus_client
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
    except ImportError as e:
        raise _not_installed(e) from e
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
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ImportError as e:
        raise _not_installed(e) from e
    milliseconds = settings.interval.total_seconds() * 1000
    exporter = OTLPMetricExporter(endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/metrics")
    return PeriodicExportingMetricReader(exporter, export_interval_millis=milliseconds)


def _trace(settings: TelemetrySettings, resource: Any, stack: contextlib.ExitStack) -> None:
    provider = _tracer_provider(settings, resource)
    trace.set_tracer_provider(provider)
    stack.callback(provider.shutdown)


def _tracer_provider(settings: TelemetrySettings, resource: Any) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise _not_installed(e) from e
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return provider


def _not_installed(error: ImportError) -> ConfigError:
    return ConfigError("a package for telemetry is not installed", hint="pip install 'stateflow[telemetry]'",
                       package=error.name)  # fmt: skip
