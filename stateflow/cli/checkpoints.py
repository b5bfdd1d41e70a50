"""Commands that list, describe and trigger the checkpoints of a job."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import click
import msgspec

from stateflow import operations
from stateflow.checkpoint.log.documents import ABORTED, COMPLETED, CheckpointRecord, OperatorMetrics
from stateflow.cli.common import (
    JSON,
    REQUESTER_OPTIONS,
    ROOT,
    align_columns,
    count_of,
    human_bytes,
    in_utc,
    offset_text,
    print_json,
    print_text,
    timeout_options,
    to_seconds,
    with_options,
    with_request,
)
from stateflow.operations import CheckpointRequest

_NEWEST = 20
_TITLES = (
    "checkpoint",
    "retained",
    "gen",
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
_SUMMARIZED = (
    "duration_ms",
    "trigger_ms",
    "start_delay_ms",
    "alignment_ms",
    "sync_ms",
    "async_ms",
    "commit_ms",
    "publish_ms",
    "increment_bytes",
    "compaction_bytes",
    "full_bytes",
    "manifest_bytes",
    "files",
    "new_files",
    "rows_in",
)
_PERCENTILES = (50, 90, 95, 99, 99.9)


@click.group()
def checkpoints() -> None:
    """List and describe the checkpoints of a job, or trigger one."""


@checkpoints.command(name="list")
@ROOT
@click.option(
    "--newest", type=click.IntRange(min=1), default=_NEWEST, show_default=True, help="Number of checkpoints to list."
)
@JSON
def list_(job_root: str, newest: int, as_json: bool) -> None:
    """List the newest checkpoints, including aborted ones, and whether they are retained."""
    records = operations.history(job_root, newest)
    kept = frozenset(operations.describe(job_root).retained)
    if as_json:
        print_json([_as_object(record, kept) for record in records])
        return
    rows = [_TITLES, *(_as_row(record, kept) for record in records)]
    for line in align_columns(rows) if records else ["no checkpoint yet"]:
        print_text(line)
    for record in records:
        if record.status == ABORTED:
            print_text(f"aborted at {in_utc(record.committed_at)}: {record.failure}")


@checkpoints.command()
@ROOT
@click.argument("checkpoint", type=click.IntRange(min=1))
@JSON
def show(job_root: str, checkpoint: int, as_json: bool) -> None:
    """Show the contents of a retained checkpoint."""
    found = operations.describe_checkpoint(job_root, checkpoint)
    if as_json:
        print_json(found)
        return
    print_text(
        f"checkpoint {found.checkpoint_id} of generation {found.generation}, batch {found.ordinal}, "
        f"committed at {in_utc(found.committed_at)}"
    )
    record = next((r for r in operations.history(job_root) if _is_of(r, checkpoint)), None)
    for line in _statistics(record) if record else []:
        print_text(line)
    for uid, offset in found.offsets.items():
        print_text(f"  source {uid} at {offset_text(offset)}")
    for operator in found.operators:
        print_text(
            f"  operator {operator.uid}: {human_bytes(operator.bytes)} in {count_of(operator.files, 'file')}, "
            f"{count_of(operator.subtasks, 'subtask')}, states {', '.join(operator.states) or 'none'}"
        )


@checkpoints.command()
@ROOT
@click.option(
    "--newest", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of checkpoints to summarize."
)
@JSON
def history(job_root: str, newest: int, as_json: bool) -> None:
    """Summarize the durations and sizes of the newest checkpoints."""
    found = operations.history(job_root, newest)
    operations.require_job(job_root)
    records = [record for record in found if record.status == COMPLETED]
    aborted = len(found) - len(records)
    summaries = {name: _summary([float(getattr(r, name)) for r in records]) for name in _SUMMARIZED}
    if as_json:
        print_json({"checkpoints": len(records), "aborted": aborted, **summaries})
        return
    print_text(count_of(len(records), "checkpoint") + (f", {aborted} aborted" if aborted else ""))
    columns = ["min", "avg", *(f"p{p:g}" for p in _PERCENTILES), "max"]
    rows = [("", *columns)]
    for name, summary in summaries.items():
        cells = (_format(name, summary[column]) if summary else "-" for column in columns)
        rows.append((name.removesuffix("_bytes"), *cells))
    for line in align_columns(rows):
        print_text(line)


@checkpoints.command()
@ROOT
@with_options(timeout_options())
@click.option("--full", is_flag=True, help="Store all state again; the checkpoint shares no file with an earlier one.")
@with_options(REQUESTER_OPTIONS)
@JSON
@with_request(CheckpointRequest)
def trigger(request: CheckpointRequest, job_root: str, as_json: bool) -> None:
    """Make the next barrier of the job's run a checkpoint, regardless of the interval."""
    checkpoint = operations.trigger_checkpoint(job_root, request)
    if as_json:
        print_json({"checkpoint_id": checkpoint})
    else:
        print_text(f"checkpoint {checkpoint}")


def _as_row(r: CheckpointRecord, kept: frozenset[int]) -> tuple[str, ...]:
    sizes = map(human_bytes, (r.increment_bytes, r.compaction_bytes, r.full_bytes))
    took = (f"{ms:.0f}" for ms in (r.duration_ms, r.sync_ms, r.async_ms, r.commit_ms, r.publish_ms))
    aborted = r.status == ABORTED
    return (
        "aborted" if aborted else str(r.checkpoint_id),
        "yes" if r.checkpoint_id in kept and not aborted else "",
        str(r.generation),
        to_seconds(r.committed_at),
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
        f"  used: {r.cpu_s:.1f} s of CPU, {r.storage_requests:,} requests to the storage, "
        f"{human_bytes(r.storage_bytes_read)} read, {human_bytes(r.storage_bytes_written)} written"
    )
    lines += [f"  work of {uid}: {_work(metrics)}" for uid, metrics in sorted(r.operators.items())]
    for uid, sink in sorted(r.sinks.items()):
        lines.append(
            f"  output to {uid}: {sink.rows:,} rows, {human_bytes(sink.bytes)} in {count_of(sink.files, 'file')}, "
            f"published in {sink.publish_s * 1000:.0f} ms"
        )
    return lines


def _work(m: OperatorMetrics) -> str:
    """Returns what an operator has done, without what is zero."""
    rows = {"in": m.rows_in, "out": m.rows_out, "filtered": m.rows_filtered, "late": m.rows_late}
    rows |= {"dropped": m.rows_dropped, "failed": m.dead_letters}
    entries = (
        "" if m.state_entries is None else f"{'' if m.state_entries_exact else 'about '}{m.state_entries:,} entries"
    )
    parts = [
        ", ".join(f"{count:,} {name}" for name, count in rows.items() if count or name == "in"),
        ", ".join(filter(None, [entries, human_bytes(m.state_bytes)])),
        f"function {m.function_s:.2f} s, state {m.state_s:.2f} s, store {m.store_s:.2f} s, CPU {m.cpu_s:.2f} s",
        f"skew {m.skew:.2f} over {count_of(m.subtasks, 'subtask')}",
        "" if m.watermark_lag_s is None else f"watermark {m.watermark_lag_s:,.0f} s behind",
    ]
    return "; ".join(filter(None, parts))


def _as_object(record: CheckpointRecord, kept: frozenset[int]) -> dict[str, object]:
    is_kept = record.status == COMPLETED and record.checkpoint_id in kept
    return {**msgspec.to_builtins(record), "kept": is_kept}


def _summary(values: Sequence[float]) -> dict[str, float]:
    """Returns minimum, mean, percentiles by nearest rank, and maximum; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    at = {f"p{p:g}": ordered[math.ceil(len(ordered) * p / 100) - 1] for p in _PERCENTILES}
    return {"min": ordered[0], "avg": round(statistics.fmean(ordered), 1), **at, "max": ordered[-1]}
