"""Commands that list, describe and trigger the checkpoints of a job."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import click

from stateflow import operations
from stateflow.checkpoint.log.documents import ABORTED, COMPLETED, CheckpointRecord, OperatorMetrics
from stateflow.cli.common import (
    REQUESTER_OPTIONS,
    ROOT,
    align_columns,
    count_of,
    human_bytes,
    in_utc,
    json_option,
    offset_text,
    point_label,
    print_json,
    print_text,
    timeout_options,
    to_seconds,
    with_options,
    with_request,
)
from stateflow.operations import CheckpointDescription, CheckpointEntry, CheckpointRequest, Entry

_NEWEST = 20
_TITLES = (
    "checkpoint",
    "retained",
    "run",
    "ended (UTC)",
    "ms",
    "sync",
    "async",
    "commit",
    "publish",
    "rows",
    "increment",
    "compaction",
    "full",
    "files",
    "new",
)
_PERCENTILES = (50, 90, 95, 99, 99.9)


@dataclass(frozen=True)
class Percentiles:
    """Minimum, mean, percentiles by nearest rank, and maximum."""

    min: float
    avg: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float
    max: float


@dataclass(frozen=True)
class CheckpointStatistics:
    """Durations and sizes of the newest checkpoints; each None without a completed one.

    Attributes:
        checkpoints: number of completed checkpoints.
        aborted: number of aborted checkpoints.
    """

    checkpoints: int
    aborted: int
    duration_ms: Percentiles | None
    trigger_ms: Percentiles | None
    start_delay_ms: Percentiles | None
    alignment_ms: Percentiles | None
    sync_ms: Percentiles | None
    async_ms: Percentiles | None
    commit_ms: Percentiles | None
    publish_ms: Percentiles | None
    increment_bytes: Percentiles | None
    compaction_bytes: Percentiles | None
    full_bytes: Percentiles | None
    manifest_bytes: Percentiles | None
    files: Percentiles | None
    new_files: Percentiles | None
    rows_in: Percentiles | None


_SUMMARIZED = [field.name for field in fields(CheckpointStatistics)][2:]


@dataclass(frozen=True)
class TriggeredCheckpoint:
    """A checkpoint that was requested.

    Attributes:
        checkpoint_id: its id.
    """

    checkpoint_id: int


@click.group()
def checkpoints() -> None:
    """List and describe the checkpoints of a job, or trigger one."""


@checkpoints.command(name="list")
@ROOT
@click.option(
    "--newest", type=click.IntRange(min=1), default=_NEWEST, show_default=True, help="Number of checkpoints to list."
)
@json_option(list[Entry])
def list_(job_root: str, newest: int, as_json: bool) -> None:
    """List the newest checkpoints, including aborted ones, and restores, and whether they are retained."""
    points = operations.list_points(job_root, newest)
    if as_json:
        print_json(points)
        return
    rows = [_TITLES, *map(_as_row, points)]
    for line in align_columns(rows) if points else ["no checkpoint yet"]:
        print_text(line)
    for point in points:
        if isinstance(point, CheckpointEntry) and point.record.status == ABORTED:
            print_text(f"aborted at {in_utc(point.record.ended_at)}: {point.record.failure}")
    if any(point.undone for point in points):
        print_text("○  undone by a restore to an earlier point")


@checkpoints.command()
@ROOT
@click.argument("checkpoint", type=click.IntRange(min=1))
@json_option(CheckpointDescription)
def show(job_root: str, checkpoint: int, as_json: bool) -> None:
    """Show the contents of a retained checkpoint."""
    found = operations.describe_checkpoint(job_root, checkpoint)
    if as_json:
        print_json(found)
        return
    record = next((r for r in operations.history(job_root) if _is_of(r, checkpoint)), None)
    run = operations.run_name(record.run if record else None, found.generation)
    print_text(
        f"checkpoint {found.checkpoint_id} of {run}, batch {found.ordinal}, committed at {in_utc(found.committed_at)}"
    )
    for line in _statistics(record) if record else []:
        print_text(line)
    for uid, offset in found.offsets.items():
        print_text(f"  source {uid} at {offset_text(offset)}")
    for operator in found.operators:
        states = ", ".join([*operator.states, *operator.operator_states])
        print_text(
            f"  operator {operator.uid}: {human_bytes(operator.size_bytes)} in {count_of(operator.files, 'file')}, "
            f"{count_of(operator.subtasks, 'subtask')}, states {states or 'none'}"
        )


@checkpoints.command()
@ROOT
@click.option(
    "--newest", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of checkpoints to summarize."
)
@json_option(CheckpointStatistics)
def history(job_root: str, newest: int, as_json: bool) -> None:
    """Summarize the durations and sizes of the newest checkpoints."""
    found = operations.history(job_root, newest)
    operations.require_job(job_root)
    records = [record for record in found if record.status == COMPLETED]
    aborted = len(found) - len(records)
    summaries = {name: _summary([float(getattr(r, name)) for r in records]) for name in _SUMMARIZED}
    if as_json:
        print_json(CheckpointStatistics(len(records), aborted, **summaries))
        return
    print_text(count_of(len(records), "checkpoint") + (f", {aborted} aborted" if aborted else ""))
    columns = ["min", "avg", *(f"p{p:g}" for p in _PERCENTILES), "max"]
    rows = [("", *columns)]
    for name, summary in summaries.items():
        cells = [_format(name, value) for value in astuple(summary)] if summary else ["-"] * len(columns)
        rows.append((name.removesuffix("_bytes"), *cells))
    for line in align_columns(rows):
        print_text(line)


@checkpoints.command()
@ROOT
@with_options(timeout_options())
@click.option("--full", is_flag=True, help="Store all state again; the checkpoint shares no file with an earlier one.")
@with_options(REQUESTER_OPTIONS)
@json_option(TriggeredCheckpoint)
@with_request(CheckpointRequest)
def trigger(request: CheckpointRequest, job_root: str, as_json: bool) -> None:
    """Make the next barrier of the job's run a checkpoint, regardless of the interval."""
    checkpoint = operations.trigger_checkpoint(job_root, request)
    if as_json:
        print_json(TriggeredCheckpoint(checkpoint))
    else:
        print_text(f"checkpoint {checkpoint}")


def _as_row(point: Entry) -> tuple[str, ...]:
    if isinstance(point, CheckpointEntry):
        return _checkpoint_row(point, point.record)
    record = point.record
    about = (_marked(point_label(point), point), "yes" if point.retained else "", "-", to_seconds(record.ended_at))
    duration, size = f"{record.duration_ms or 0:.0f}", human_bytes(record.size_bytes or 0)
    return (*about, duration, *["-"] * 7, size, "-", "-")


def _marked(label: str, point: Entry) -> str:
    return f"○ {label}" if point.undone else label


def _checkpoint_row(point: CheckpointEntry, r: CheckpointRecord) -> tuple[str, ...]:
    sizes = map(human_bytes, (r.increment_bytes, r.compaction_bytes, r.full_bytes))
    took = (f"{ms:.0f}" for ms in (r.duration_ms, r.sync_ms, r.async_ms, r.commit_ms, r.publish_ms))
    return (
        _marked(point_label(point), point),
        "yes" if point.retained else "",
        str(r.run),
        to_seconds(r.ended_at),
        *took,
        f"{r.rows_in:,}",
        *sizes,
        str(r.files),
        str(r.new_files),
    )


def _format(name: str, value: float) -> str:
    """Returns a figure with the unit that its name ends in."""
    if name.endswith("_bytes"):
        return human_bytes(round(value))
    return f"{value:,.1f}" if name.endswith("_ms") and value < 100 else f"{value:,.0f}"


def _is_of(record: CheckpointRecord, checkpoint: int) -> bool:
    return record.status == COMPLETED and record.checkpoint_id == checkpoint


def _statistics(r: CheckpointRecord) -> list[str]:
    """Returns the recorded durations and sizes of a checkpoint as lines."""
    lines = [
        f"  {r.rows_in:,} rows, {r.duration_ms:.0f} ms: trigger {r.trigger_ms:.0f}, start delay "
        f"{r.start_delay_ms:.0f}, alignment {r.alignment_ms:.0f}, sync {r.sync_ms:.0f}, async {r.async_ms:.0f}, "
        f"commit {r.commit_ms:.0f}, publish {r.publish_ms:.0f}",
        f"  stored: {human_bytes(r.increment_bytes)}, compaction {human_bytes(r.compaction_bytes)}, "
        f"{r.new_files} of {r.files} files, manifest {human_bytes(r.manifest_bytes)}",
    ]
    for name, spread in sorted(r.subtasks.items()):
        figures = (("min", spread.min), ("avg", spread.avg), ("max", spread.max))
        formatted = ", ".join(f"{column} {_format(name, value)}" for column, value in figures)
        lines.append(f"  per subtask, {name.removesuffix('_bytes')}: {formatted}")
    lines.append(
        f"  used: {r.cpu_ms / 1000:.1f} s of CPU, {r.storage_requests:,} requests to the storage, "
        f"{human_bytes(r.storage_read_bytes)} read, {human_bytes(r.storage_written_bytes)} written"
    )
    lines += [f"  work of {uid}: {_work(metrics)}" for uid, metrics in sorted(r.operators.items())]
    for uid, sink in sorted(r.sinks.items()):
        size = f"{human_bytes(sink.written_bytes)} in {count_of(sink.files, 'file')}"
        lines.append(f"  output to {uid}: {sink.rows:,} rows, {size}, published in {sink.publish_ms:.0f} ms")
    return lines


def _work(m: OperatorMetrics) -> str:
    """Returns what an operator has done, without what is zero."""
    rows = {"in": m.rows_in, "out": m.rows_out, "filtered": m.rows_filtered, "late": m.rows_late}
    rows |= {"dropped": m.rows_dropped, "failed": m.dead_letters}
    times = {"function": m.function_ms, "state": m.state_ms, "store": m.store_ms, "CPU": m.cpu_ms}
    entries = (
        "" if m.state_entries is None else f"{'' if m.state_entries_exact else 'about '}{m.state_entries:,} entries"
    )
    parts = [
        ", ".join(f"{count:,} {name}" for name, count in rows.items() if count or name == "in"),
        ", ".join(filter(None, [entries, human_bytes(m.state_bytes)])),
        ", ".join(f"{name} {took / 1000:.2f} s" for name, took in times.items()),
        f"skew {m.skew_ratio:.2f} over {count_of(m.subtasks, 'subtask')}{_busiest(m)}",
        "" if m.watermark_lag_ms is None else f"watermark {m.watermark_lag_ms / 1000:,.0f} s behind",
    ]
    return "; ".join(filter(None, parts))


def _busiest(m: OperatorMetrics) -> str:
    if not m.busiest or m.subtasks < 2:
        return ""
    first = m.busiest[0]
    return f", most in subtask {first.subtask}: {first.rows_in:,} rows, {human_bytes(first.state_bytes)}"


def _summary(values: Sequence[float]) -> Percentiles | None:
    """Returns minimum, mean, percentiles by nearest rank, and maximum; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    at = [ordered[math.ceil(len(ordered) * p / 100) - 1] for p in _PERCENTILES]
    return Percentiles(*[ordered[0], round(statistics.fmean(ordered), 1), *at, ordered[-1]])
