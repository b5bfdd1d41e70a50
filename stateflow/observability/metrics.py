"""Recording of figures: which there are, a small protocol, a recorder that keeps them in memory, one that drops them.

Names are Flink's, in snake case, where Flink has the figure.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol


class Kind(enum.Enum):
    """How a figure changes."""

    COUNTER = "counter"
    """It only grows while a run lasts."""
    GAUGE = "gauge"


@dataclass(frozen=True)
class About:
    """What a figure is.

    Attributes:
        unit: as UCUM has it.
    """

    kind: Kind
    unit: str
    text: str


def _counter(text: str) -> About:
    return About(Kind.COUNTER, "1", text)


def _gauge(unit: str, text: str) -> About:
    return About(Kind.GAUGE, unit, text)


METRICS = {
    "number_of_completed_checkpoints": _counter("checkpoints that were committed and published"),
    "number_of_failed_checkpoints": _counter("checkpoints that were aborted"),
    "number_of_in_progress_checkpoints": _gauge("1", "checkpoints that are neither completed nor aborted"),
    "last_completed_checkpoint_id": _gauge("1", "id of the newest checkpoint"),
    "last_checkpoint_size": _gauge("By", "bytes that the newest checkpoint added to the storage"),
    "last_checkpoint_full_size": _gauge(
        "By", "bytes that the newest checkpoint would have if it had no file of others"
    ),
    "last_checkpoint_compaction_size": _gauge(
        "By", "bytes of last_checkpoint_size that compaction wrote anew"
    ),
    "last_checkpoint_manifest_size": _gauge("By", "bytes of the newest checkpoint's manifest"),
    "last_checkpoint_files": _gauge("1", "files that the newest checkpoint refers to"),
    "last_checkpoint_new_files": _gauge("1", "files that the newest checkpoint added"),
    "last_checkpoint_duration": _gauge("s", "from the beginning of its first batch to its publication"),
    "last_checkpoint_restore_timestamp": _gauge(
        "ms", "when a run was restored last, since 1970-01-01 in UTC"
    ),
    "num_restarts": _counter("times that the run started again by itself"),
    "num_records_in": _counter("rows that sources gave"),
    "num_records_out": _counter("rows for sinks; visible with their checkpoint"),
    "num_request_watch_failures": _counter(
        "looks for requests to the run that failed, and requests not answered"
    ),
    "num_collection_failures": _counter("collections of garbage that failed"),
    "num_history_failures": _counter("writes to the history, and clean-ups of it, that failed"),
    "num_cleanup_failures": _counter("clean-ups of old requests and of leftovers in sinks that failed"),
    "num_files_quarantined": _counter("corrupt input files that were skipped"),
    "last_batch_duration": _gauge("s", "from the beginning of the newest batch to its barrier"),
}
"""Every figure that a run records."""


class Recorder(Protocol):
    """Receives figures of `METRICS`; exporters implement it at the edge."""

    def count(self, name: str, amount: int = 1) -> None:
        """Adds `amount` to the counter `name`."""

    def gauge(self, name: str, value: float) -> None:
        """Sets the figure `name` to `value`."""


class NullRecorder:
    """Drops everything."""

    def count(self, name: str, amount: int = 1) -> None: ...

    def gauge(self, name: str, value: float) -> None: ...


class MemoryRecorder:
    """Keeps everything in two dictionaries."""

    def __init__(self) -> None:
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.gauges: dict[str, float] = {}

    def count(self, name: str, amount: int = 1) -> None:
        assert METRICS[name].kind is Kind.COUNTER
        self.counters[name] += amount

    def gauge(self, name: str, value: float) -> None:
        assert METRICS[name].kind is Kind.GAUGE
        self.gauges[name] = value
