"""Metrics of a run: their definitions, the recorder protocol, and recorders for tests and for no metrics.

Names are Flink's, in snake case, where Flink has the metric.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol


class Kind(enum.Enum):
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

    kind: Kind
    unit: str
    text: str


def _counter(text: str) -> MetricSpec:
    return MetricSpec(Kind.COUNTER, "1", text)


def _gauge(unit: str, text: str) -> MetricSpec:
    return MetricSpec(Kind.GAUGE, unit, text)


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
    "num_cleanup_failures": _counter("failed clean-ups of old requests and of leftovers in sinks"),
    "num_files_quarantined": _counter("skipped corrupt input files"),
    "last_batch_duration": _gauge("s", "time from the start of the newest batch to its barrier"),
}
"""Every metric that a run records, by name."""


class Recorder(Protocol):
    """Receives the values of `METRICS`."""

    def count(self, name: str, amount: int = 1) -> None:
        """Adds `amount` to the counter `name`."""

    def gauge(self, name: str, value: float) -> None:
        """Sets the gauge `name` to `value`."""


class NullRecorder:
    """Recorder that discards all values."""

    def count(self, name: str, amount: int = 1) -> None:
        """Does nothing."""

    def gauge(self, name: str, value: float) -> None:
        """Does nothing."""


class MemoryRecorder:
    """Recorder that keeps all values in memory, for tests."""

    def __init__(self) -> None:
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.gauges: dict[str, float] = {}

    def count(self, name: str, amount: int = 1) -> None:
        """Adds `amount` to the counter `name`."""
        assert METRICS[name].kind is Kind.COUNTER
        self.counters[name] += amount

    def gauge(self, name: str, value: float) -> None:
        """Sets the gauge `name` to `value`."""
        assert METRICS[name].kind is Kind.GAUGE
        self.gauges[name] = value
