"""Logs, spans and metrics of a run, and what exports them."""

from __future__ import annotations

import contextlib
import enum
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

from opentelemetry import metrics, trace

from stateflow.config.settings import TelemetrySettings
from stateflow.errors import ConfigError, StateflowError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LogContext:
    """The run that this process works for, and its position.

    Attributes:
        run_id: of the requester, or host and process id.
        ordinal: of the newest barrier that the run has started to work towards; 0 before the first.
        checkpoint_id: the newest checkpoint; 0 before the first.
    """

    job: str = ""
    run_id: str = ""
    generation: int = 0
    ordinal: int = 0
    checkpoint_id: int = 0


class ContextFilter(logging.Filter):
    """Adds the context of the process to each record: ``context`` as a dictionary, ``where`` as text."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.context = asdict(_context[0])
        record.where = _to_text(_context[0])
        return True


def log_event(log: logging.Logger, level: int, event: str, *, text: str = "", **facts: object) -> None:
    """Logs ``event name=value …``, with `event` and `facts` as attributes of the record for structured handlers.

    Args:
        text: replaces the message for human readers.
    """
    line = text or " ".join([event, *(f"{name}={_format_fact(value)}" for name, value in facts.items())])
    log.log(level, "%s", line, extra={"event": event, "facts": facts})


def _format_fact(value: object) -> str:
    """Returns a fact as text; a dictionary as ``visits:12,late:3``."""
    return ",".join(f"{k}:{v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


class _ContextFields(TypedDict, total=False):
    job: str
    run_id: str
    generation: int
    ordinal: int
    checkpoint_id: int


def set_log_context(**fields: Unpack[_ContextFields]) -> None:
    """Sets fields of the process's `LogContext`, for the later records of all threads."""
    _context[0] = replace(_context[0], **fields)


# Of the process, not of a thread: background threads and libraries log for the same run.
_context = [LogContext()]


def _to_text(context: LogContext) -> str:
    known = [f"{name}={value}" for name, value in asdict(context).items() if value]
    return f" | {' '.join(known)}" if known else ""


BATCH, CHECKPOINT, UPLOAD, RESTORE = "batch", "checkpoint", "upload", "restore"
"""Names of the spans."""
_TRACER = "stateflow"


@contextmanager
def span(name: str, **facts: str | int | float | bool) -> Iterator[None]:
    """Records a span around the body; an exception sets its status to the error's code.

    Args:
        facts: attributes of the span, prefixed with ``stateflow.``. They must not contain credentials or row data.
    """
    attributes = {f"{_TRACER}.{key}": value for key, value in facts.items()}
    tracer = trace.get_tracer(_TRACER)
    with tracer.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield
        except BaseException as e:
            code = e.code if isinstance(e, StateflowError) else type(e).__name__
            current.set_status(trace.StatusCode.ERROR, code)
            raise


class MetricKind(enum.Enum):
    """Type of a metric."""

    COUNTER = "counter"
    """Never decreases during a run."""
    GAUGE = "gauge"


@dataclass(frozen=True)
class MetricSpec:
    """Definition of a metric.

    Attributes:
        unit: UCUM code of the unit.
        text: description for users.
    """

    kind: MetricKind
    unit: str
    text: str


def _counter(text: str) -> MetricSpec:
    return MetricSpec(MetricKind.COUNTER, "1", text)


def _counter_of(unit: str, text: str) -> MetricSpec:
    return MetricSpec(MetricKind.COUNTER, unit, text)


def _gauge(unit: str, text: str) -> MetricSpec:
    return MetricSpec(MetricKind.GAUGE, unit, text)


METRICS = {
    "number_of_completed_checkpoints": _counter("committed and published checkpoints"),
    "number_of_failed_checkpoints": _counter("aborted checkpoints"),
    "number_of_in_progress_checkpoints": _gauge("1", "checkpoints that are neither completed nor aborted"),
    "last_completed_checkpoint_id": _gauge("1", "id of the newest checkpoint"),
    "last_checkpoint_size": _gauge("By", "bytes that the newest checkpoint added to the storage"),
    "last_checkpoint_full_size": _gauge("By", "bytes of all files that the newest checkpoint refers to"),
    "last_checkpoint_compaction_size": _gauge("By", "bytes of last_checkpoint_size that compaction has rewritten"),
    "last_checkpoint_manifest_size": _gauge("By", "bytes of the newest checkpoint's manifest"),
    "last_checkpoint_files": _gauge("1", "files that the newest checkpoint refers to"),
    "last_checkpoint_new_files": _gauge("1", "files that the newest checkpoint added"),
    "last_checkpoint_duration": _gauge("s", "time from the start of its first batch to its publication"),
    "last_checkpoint_restore_timestamp": _gauge("ms", "time of the last restore, since 1970-01-01 in UTC"),
    "num_idle_starts": _counter("starts that had nothing to do and did not start Spark"),
    "num_restarts": _counter("restarts by the restart strategy"),
    "num_records_in": _counter("rows that were read from sources, before filters"),
    "num_records_out": _counter("rows written to sinks; visible with their checkpoint"),
    "num_late_records_dropped": _counter("rows that windows, joins and patterns dropped because they were too late"),
    "hot_key_pairs": _gauge("1", "pairs of rows of one key that a join compared in the newest batch, if ten million"),
    "num_records_waiting": _gauge("1", "rows above the watermark of their operator, which other sources hold back"),
    "num_request_watch_failures": _counter("failed polls for requests to the run, and unanswered requests"),
    "num_collection_failures": _counter("failed garbage collections"),
    "num_history_failures": _counter("failed writes and clean-ups of the history"),
    "num_backlog_failures": _counter("failed reports of the input that waits"),
    "num_cleanup_failures": _counter("failed clean-ups of old requests and of leftovers in sinks"),
    "num_files_quarantined": _counter("skipped corrupt input files"),
    "last_batch_duration": _gauge("s", "time from the start of the newest batch to its barrier"),
    "stateflow.source.backlog.rows": _gauge("{row}", "rows that wait at a source"),
    "stateflow.source.backlog.size": _gauge("By", "bytes that wait at a source"),
    "stateflow.source.backlog.files": _gauge("{file}", "files that wait at a source"),
    "stateflow.source.backlog.age": _gauge("s", "time since the oldest input that waits at a source was written"),
    "stateflow.source.backlog.unknown": _gauge("1", "1 if a source does not tell all of its backlog, 0 if it does"),
    "stateflow.backlog.catch_up_time": _gauge("s", "time to read all that waits, at the rate of the last runs"),
    "stateflow.operator.rows.in": _counter_of("{row}", "rows that the operator has taken"),
    "stateflow.operator.rows.out": _counter_of("{row}", "rows that the operator has emitted, to all outputs"),
    "stateflow.operator.rows.filtered": _counter_of("{row}", "rows that `filter` after the operator has dropped"),
    "stateflow.operator.rows.late": _counter_of("{row}", "rows that were late when their batch began, dropped or not"),
    "stateflow.operator.rows.dropped": _counter_of("{row}", "rows that were dropped because they were too late"),
    "stateflow.operator.rows.failed": _counter_of("{row}", "rows that became dead letters"),
    "stateflow.operator.state.size": _gauge("By", "size of the operator's keyed state"),
    "stateflow.operator.state.entries": _gauge("{entry}", "entries of its keyed state; RocksDB estimates them"),
    "stateflow.operator.function.time": _counter_of("s", "time in functions of the job, of all subtasks together"),
    "stateflow.operator.state.time": _counter_of("s", "time of reading and writing state for many keys at once"),
    "stateflow.operator.store.time": _counter_of("s", "time in the stores of the state backend, with snapshots"),
    "stateflow.operator.cpu.time": _counter_of("s", "CPU time of the Python processes of its tasks"),
    "stateflow.operator.skew": _gauge("1", "rows of the subtask with most, by the average of all subtasks"),
    "stateflow.operator.watermark.timestamp": _gauge("ms", "the operator's watermark, since 1970-01-01 in UTC"),
    "stateflow.operator.watermark.lag": _gauge("s", "processing time of the newest batch minus the watermark"),
    "stateflow.sink.rows": _counter_of("{row}", "rows written to the sink"),
    "stateflow.sink.size": _counter_of("By", "bytes written to the sink"),
    "stateflow.sink.files": _counter_of("{file}", "files written to the sink"),
    "stateflow.sink.publish.time": _counter_of("s", "time of making the sink's output visible"),
    "stateflow.cpu.time": _counter_of("s", "CPU time of the Python processes of driver and tasks"),
    "stateflow.storage.requests": _counter_of("{request}", "requests of driver and tasks to the storage"),
    "stateflow.storage.read": _counter_of("By", "bytes of objects read from the storage"),
    "stateflow.storage.written": _counter_of("By", "bytes of objects written to the storage"),
}
"""Every metric that a run records, by name."""

_OPERATOR_FIELDS = {
    "rows.in": "rows_in",
    "rows.out": "rows_out",
    "rows.filtered": "rows_filtered",
    "rows.late": "rows_late",
    "rows.dropped": "rows_dropped",
    "rows.failed": "dead_letters",
    "state.size": "state_bytes",
    "state.entries": "state_entries",
    "function.time": "function_ms",
    "state.time": "state_ms",
    "store.time": "store_ms",
    "cpu.time": "cpu_ms",
    "skew": "skew_ratio",
    "watermark.timestamp": "watermark_at",
    "watermark.lag": "watermark_lag_ms",
}
_SINK_FIELDS = {"rows": "rows", "size": "written_bytes", "files": "files", "publish.time": "publish_ms"}
METRIC_FIELDS = {
    "operator": {f"stateflow.operator.{name}": field for name, field in _OPERATOR_FIELDS.items()},
    "sink": {f"stateflow.sink.{name}": field for name, field in _SINK_FIELDS.items()},
}
"""By kind of what is measured: the field of its record in the history, by name of the metric."""
_COUNTERS_OF_JOB = [
    name
    for name, spec in METRICS.items()
    if spec.kind is MetricKind.COUNTER and not any(name in fields for fields in METRIC_FIELDS.values())
]
"""Counters with one series for each job."""


class Recorder(Protocol):
    """Receives the values of `METRICS`."""

    def count(self, name: str, amount: float = 1, **attributes: str) -> None:
        """Adds `amount` to the counter `name`; each combination of attributes is a series of its own."""

    def gauge(self, name: str, value: float, **attributes: str) -> None:
        """Sets the gauge `name` to `value`; attributes as for `count`."""


class NullRecorder:
    """Recorder that discards all values."""

    def count(self, name: str, amount: float = 1, **attributes: str) -> None:
        """Does nothing."""

    def gauge(self, name: str, value: float, **attributes: str) -> None:
        """Does nothing."""


class MemoryRecorder:
    """Recorder that keeps all values in memory, for tests."""

    def __init__(self) -> None:
        self.counters: defaultdict[str, float] = defaultdict(int)
        self.gauges: dict[str, float] = {}

    def count(self, name: str, amount: float = 1, **attributes: str) -> None:
        """Adds `amount` to the counter `name`."""
        assert METRICS[name].kind is MetricKind.COUNTER
        self.counters[_series(name, attributes)] += amount

    def gauge(self, name: str, value: float, **attributes: str) -> None:
        """Sets the gauge `name` to `value`."""
        assert METRICS[name].kind is MetricKind.GAUGE
        self.gauges[_series(name, attributes)] = value


def _series(name: str, attributes: Mapping[str, str]) -> str:
    """Returns the name of a series, such as ``name{source=flights}``."""
    given = ",".join(f"{key}={value}" for key, value in sorted(attributes.items()))
    return f"{name}{{{given}}}" if given else name


_SERVICE = "stateflow"
_LOOPBACK = "127.0.0.1"
_FLUSH_TIMEOUT_SECONDS = 3
"""Maximum delay of the end of a run by a collector that does not respond."""


class OpenTelemetryRecorder:
    """Recorder that passes metrics to OpenTelemetry. The counters of the job are 0 from the start.

    Args:
        meter: creates the instruments.
        attributes: attributes of every value.
    """

    def __init__(self, meter: metrics.Meter, attributes: Mapping[str, str]) -> None:
        self._attributes = dict(attributes)
        self._counters: dict[str, metrics.Counter] = {}
        self._gauges: dict[str, metrics._Gauge] = {}
        for name, spec in METRICS.items():
            if spec.kind is MetricKind.COUNTER:
                self._counters[name] = meter.create_counter(name, spec.unit, spec.text)
            else:
                self._gauges[name] = meter.create_gauge(name, spec.unit, spec.text)
        # Without the 0, the first failure would begin a series with 1: Prometheus sees no increase there.
        for name in _COUNTERS_OF_JOB:
            self.count(name, 0)

    def count(self, name: str, amount: float = 1, **attributes: str) -> None:
        """Adds `amount` to the counter `name`."""
        self._counters[name].add(amount, {**self._attributes, **attributes})

    def gauge(self, name: str, value: float, **attributes: str) -> None:
        """Sets the gauge `name` to `value`."""
        self._gauges[name].set(value, {**self._attributes, **attributes})


@contextlib.contextmanager
def telemetry(settings: TelemetrySettings, job: str) -> Iterator[Recorder]:
    """Provides the recorder of a run, and flushes metrics and spans at the end.

    A Prometheus port that is in use is a warning, because it must not fail the job.

    Raises:
        ConfigError: a required package is not installed.
    """
    with contextlib.ExitStack() as stack:
        meter = metrics.get_meter(_SERVICE)
        if settings.prometheus_port or settings.otlp_endpoint:
            with _missing_package_reported():
                meter = _own_meter(settings, stack)
        export_spans(settings)
        stack.callback(_flush_spans)
        yield OpenTelemetryRecorder(meter, {"job": job})


def export_spans(settings: TelemetrySettings) -> None:
    """Exports the spans of this process to the run's collector; each process of a task exports its own spans."""
    # A process keeps its provider after the end of a run: OpenTelemetry does not accept another one.
    if settings.otlp_endpoint and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        with _missing_package_reported():
            trace.set_tracer_provider(_tracer_provider(settings))


def _flush_spans() -> None:
    # Only the SDK's provider has this method; others have nothing to flush.
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:
        flush(_FLUSH_TIMEOUT_SECONDS * 1000)


def _own_meter(settings: TelemetrySettings, stack: contextlib.ExitStack) -> metrics.Meter:
    """Returns a meter whose provider is shut down at the end of the run."""
    from opentelemetry.sdk.metrics import MeterProvider

    readers: list[MetricReader] = []
    if settings.prometheus_port:
        readers.append(_prometheus())
    if settings.otlp_endpoint:
        readers.append(_otlp_metrics(settings))
    provider = MeterProvider(readers, _resource())
    stack.callback(provider.shutdown, _FLUSH_TIMEOUT_SECONDS * 1000)
    if settings.prometheus_port:
        # After the provider, and closed before it: a reader without a provider cannot answer a scrape.
        _serve_metrics(settings.prometheus_port, stack)
    return provider.get_meter(_SERVICE)


def _resource() -> Resource:
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": _SERVICE})


def _prometheus() -> MetricReader:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader

    return PrometheusMetricReader()


def _serve_metrics(port: int, stack: contextlib.ExitStack) -> None:
    import prometheus_client

    try:
        server, thread = prometheus_client.start_http_server(port, addr=_LOOPBACK)
    except OSError as e:
        log.warning(
            "metrics are not served: %s port=%d; hint: choose another telemetry.prometheus_port", e.strerror, port
        )
    else:
        stack.callback(thread.join)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)


def _otlp_metrics(settings: TelemetrySettings) -> MetricReader:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    milliseconds = settings.interval.total_seconds() * 1000
    exporter = OTLPMetricExporter(
        endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/metrics", timeout=_FLUSH_TIMEOUT_SECONDS
    )
    return PeriodicExportingMetricReader(exporter, export_interval_millis=milliseconds)


def _tracer_provider(settings: TelemetrySettings) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=_resource())
    endpoint = f"{settings.otlp_endpoint.rstrip('/')}/v1/traces"
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_FLUSH_TIMEOUT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return provider


@contextlib.contextmanager
def _missing_package_reported() -> Iterator[None]:
    """Raises ConfigError for an ImportError of the body: the packages are imported only if a setting needs them."""
    try:
        yield
    except ImportError as e:
        raise ConfigError(
            "a package for telemetry is not installed", hint="pip install 'stateflow[telemetry]'", package=e.name
        ) from e
