"""Reports the progress of a run: a live status line on a terminal, or log lines as text or JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Protocol

from rich.console import Console
from rich.text import Text

from stateflow.cli.common import print_error
from stateflow.cli.formatting import human_bytes, visible
from stateflow.errors import StateflowError
from stateflow.observability.logging import ContextFilter, log_event
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import BatchResult

log = logging.getLogger("stateflow")

_SPINNER_WIDTH = 2
"""Columns of the spinner and the space after it."""


class Progress(Protocol):
    """Receives the events of a run."""

    def step(self, description: str) -> None:
        """Reports that a slow step begins."""

    def started(self, run: JobRun) -> None:
        """Reports that the job is claimed and restored."""

    def batch(self, result: BatchResult) -> None:
        """Reports a processed batch."""

    def failed(self, error: StateflowError) -> None:
        """Reports the error that the run ended with."""

    def ended(self) -> None:
        """Releases the output; no event follows."""


def make_progress(log_format: str) -> Progress:
    """Returns the progress report for a ``--log-format``: ``auto``, ``text`` or ``json``."""
    if log_format == "auto" and sys.stderr.isatty():
        return LiveProgress()
    return LogProgress(as_json=log_format == "json")


class LiveProgress:
    """Shows the progress in one line of the terminal that is redrawn."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("starting")
        self._batches = 0
        self._rows_in = 0
        self._rows_out = 0
        self._status.start()

    def step(self, description: str) -> None:
        """Shows the step."""
        self._show(description)

    def started(self, run: JobRun) -> None:
        """Shows what the run starts from."""
        self._show(f"{run.job.root.job.job}: from {run.start_label}")

    def batch(self, result: BatchResult) -> None:
        """Shows the totals of the run after a batch."""
        self._batches += 1
        self._rows_in += result.rows_in
        self._rows_out += sum(result.rows_out.values())
        out = f", {self._rows_out:,} out" if result.rows_out else ""
        newest = f"checkpoint {result.checkpoint_id}" if result.checkpoint_id else "no checkpoint yet"
        self._show(
            f"batch {self._batches}: {self._rows_in:,} rows in{out}, {newest}, "
            f"{result.seconds:.2f} s, +{human_bytes(result.increment_bytes)}"
        )

    def failed(self, error: StateflowError) -> None:
        """Removes the line and prints the error."""
        self._status.stop()
        print_error(error)

    def ended(self) -> None:
        """Removes the line."""
        self._status.stop()

    def _show(self, line: str) -> None:
        # A path may contain what rich takes for markup, hence Text; a second line would not be erased, hence truncate.
        text = Text(visible(line))
        text.truncate(self._console.width - _SPINNER_WIDTH, overflow="ellipsis")
        self._status.update(text)


class LogProgress:
    """Logs the progress to stderr, one line per event.

    Args:
        as_json: whether each line is a JSON object.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._is_asynchronous = False
        self._omits_batches = False
        self._handler = logging.StreamHandler(sys.stderr)
        self._handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
        self._handler.addFilter(ContextFilter())
        log.addHandler(self._handler)
        log.setLevel(logging.INFO)
        log.propagate = False

    def step(self, description: str) -> None:
        """Logs the step."""
        log_event(log, logging.INFO, "step", text=description, doing=description)

    def started(self, run: JobRun) -> None:
        """Logs what the run starts from."""
        restored, checkpoints = run.restored, run.job.settings.checkpoints
        has_interval = checkpoints.interval_batches is not None or checkpoints.interval is not None
        self._is_asynchronous = checkpoints.asynchronous
        # One text line per batch: with a checkpoint after every batch, the checkpoint's own line reports the batch.
        self._omits_batches = self._is_asynchronous and not has_interval and not self._as_json
        log_event(
            log,
            logging.INFO,
            "restored",
            text=_start_text(run),
            job=run.job.root.job.job,
            run=run.head.entry.generation,
            at=run.start_label,
            checkpoint=restored.checkpoint_id,
            matched=list(restored.matched),
            new=list(restored.new),
        )

    def batch(self, result: BatchResult) -> None:
        """Logs a batch as "committed" or "processed"."""
        if self._omits_batches:
            return
        # An asynchronous checkpoint logs its own "committed" event, possibly before this line.
        event = "committed" if result.committed and not self._is_asynchronous else "processed"
        log_event(
            log,
            logging.INFO,
            event,
            checkpoint=result.checkpoint_id,
            batch=result.ordinal,
            rows=result.rows_in,
            rows_out=result.rows_out,
            seconds=round(result.seconds, 3),
            increment_bytes=result.increment_bytes,
            full_bytes=result.full_bytes,
        )

    def failed(self, error: StateflowError) -> None:
        """Logs the error as JSON, or prints it as text."""
        if self._as_json:
            log_event(log, logging.ERROR, "failed", code=error.code, error=str(error))
        else:
            print_error(error)

    def ended(self) -> None:
        """Removes the log handler."""
        log.removeHandler(self._handler)


def _start_text(run: JobRun) -> str:
    """Returns ``resumes from checkpoint 17``, the operators with restored and new state, and a change of the code."""
    restored = run.restored
    begins = f"resumes from {run.start_label}" if run.manifest is not None else "starts from the beginning"
    operators = [("operators with state:", restored.matched), ("new operators:", restored.new)]
    changed = run.manifest.code_difference(run.job.code) if run.manifest is not None else ""
    states = [f"{what} {', '.join(uids)}" for what, uids in operators if uids]
    return "; ".join(filter(None, [begins, *states, changed]))


class _TextFormatter(logging.Formatter):
    """Formats a record as one line with a UTC timestamp, as all commands print timestamps."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s%(where)s")

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _timestamp(record).replace("+00:00", "Z")


class _JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line, also when it has no event and facts."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "event": getattr(record, "event", record.getMessage()),
            "facts": getattr(record, "facts", {}),
            "context": getattr(record, "context", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
