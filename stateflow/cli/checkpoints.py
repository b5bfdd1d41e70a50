"""Commands about a job's checkpoints: which there are, what they cost, and one out of turn."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click
import msgspec

from stateflow import ops, recovery
from stateflow.checkpoint.history import ABORTED, COMPLETED, CheckpointRecord
from stateflow.recovery import CheckpointAsk
from stateflow.terminal import (
    JSON,
    ROOT,
    SECONDS,
    WHO,
    aligned,
    human_bytes,
    in_utc,
    or_fail,
    user,
    with_options,
)

_NEWEST = 20
_TITLES = (
    "checkpoint", "kept", "run", "ended (UTC)", "ms", "sync", "async", "commit", "publish", "rows", "increment",
    "compaction", "full", "files", "new",
)  # fmt: skip
_SUMMED = (
    "duration_ms", "trigger_ms", "start_delay_ms", "alignment_ms", "sync_ms", "async_ms", "commit_ms", "publish_ms",
    "increment_bytes", "compaction_bytes", "full_bytes", "manifest_bytes", "files", "new_files", "rows_in",
)  # fmt: skip
_PERCENTILES = (50, 90, 95, 99, 99.9)


@click.group()
def checkpoints() -> None:
    """Look at a job's checkpoints, or make its run take one now."""


@checkpoints.command(name="list")
@ROOT
@click.option("--newest", type=click.IntRange(min=1), default=_NEWEST, show_default=True, help="How many.")
@JSON
def list_(job_root: str, newest: int, as_json: bool) -> None:
    """List the newest checkpoints, aborted ones included, and which of them are kept."""
    records = or_fail(lambda: ops.history(job_root, newest))
    kept = frozenset(or_fail(lambda: ops.describe(job_root)).retained)
    if as_json:
        click.echo(json.dumps([_as_object(record, kept) for record in records]))
        return
    rows = [_TITLES, *(_as_row(record, kept) for record in records)]
    for line in aligned(rows) if records else ["no checkpoint yet"]:
        click.echo(line)
    for record in records:
        if record.status == ABORTED:
            click.echo(f"aborted at {in_utc(record.committed_at)}: {record.failure}")


@checkpoints.command()
@ROOT
@click.argument("checkpoint", type=click.IntRange(min=1))
@JSON
def show(job_root: str, checkpoint: int, as_json: bool) -> None:
    """Show what one kept checkpoint consists of."""
    found = or_fail(lambda: ops.describe_checkpoint(job_root, checkpoint))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found)))
        return
    click.echo(f"checkpoint {found.checkpoint_id} of run {found.generation}, batch {found.ordinal}, "
               f"committed at {in_utc(found.committed_at)}")  # fmt: skip
    record = next((r for r in or_fail(lambda: ops.history(job_root)) if _is_of(r, checkpoint)), None)
    for line in _told(record) if record else []:
        click.echo(line)
    for uid, offset in found.offsets.items():
        click.echo(f"  source {uid} at {offset}")
    for operator in found.operators:
        click.echo(f"  state of {operator.uid}: {human_bytes(operator.bytes)} in {operator.files} files, "
                   f"{operator.subtasks} subtasks, states {', '.join(operator.states) or 'none'}")  # fmt: skip


@checkpoints.command()
@ROOT
@click.option(
    "--newest", type=click.IntRange(min=1), default=1000, show_default=True, help="How many to count."
)
@JSON
def history(job_root: str, newest: int, as_json: bool) -> None:
    """Sum up the newest checkpoints: how long they took, and how large they were."""
    found = or_fail(lambda: ops.history(job_root, newest))
    or_fail(lambda: ops.require_job(job_root))
    records = [record for record in found if record.status == COMPLETED]
    aborted = len(found) - len(records)
    summary = {what: _summary([float(getattr(r, what)) for r in records]) for what in _SUMMED}
    if as_json:
        click.echo(json.dumps({"checkpoints": len(records), "aborted": aborted, **summary}))
        return
    click.echo(f"{len(records)} checkpoints" + (f", {aborted} aborted" if aborted else ""))
    names = ["min", "avg", *(f"p{p:g}" for p in _PERCENTILES), "max"]
    rows = [("", *names)]
    for what, figures in summary.items():
        rows.append(
            (what.removesuffix("_bytes"), *(_shown(what, figures[n]) if figures else "-" for n in names))
        )
    for line in aligned(rows):
        click.echo(line)


@checkpoints.command()
@ROOT
@click.option("--timeout", type=SECONDS, default=600, show_default=True, metavar="SECONDS",
              help="How long to wait for the run's next barrier.")  # fmt: skip
@click.option("--patience", type=SECONDS, default=5, show_default=True, metavar="SECONDS",
              help="How long to wait for a sign of a run.")  # fmt: skip
@click.option(
    "--full", is_flag=True, help="Store all state anew: it shares no file with any checkpoint before it."
)
@with_options(WHO)
@JSON
def trigger(job_root: str, as_json: bool, full: bool, **options: Any) -> None:
    """Make the next barrier of the job's run a checkpoint, whatever its interval."""
    ask = CheckpointAsk(
        by=options["by"] or user(), reason=options["reason"], timeout=timedelta(seconds=options["timeout"]),
        patience=timedelta(seconds=options["patience"]), full=full,
    )  # fmt: skip
    made = or_fail(lambda: recovery.trigger_checkpoint(job_root, ask))
    click.echo(json.dumps({"checkpoint_id": made}) if as_json else f"checkpoint {made}")


def _as_row(r: CheckpointRecord, kept: frozenset[int]) -> tuple[str, ...]:
    sizes = map(human_bytes, (r.increment_bytes, r.compaction_bytes, r.full_bytes))
    took = (f"{ms:.0f}" for ms in (r.duration_ms, r.sync_ms, r.async_ms, r.commit_ms, r.publish_ms))
    aborted = r.status == ABORTED
    return (
        "aborted" if aborted else str(r.checkpoint_id), "yes" if r.checkpoint_id in kept and not aborted else "",
        str(r.generation), r.committed_at[:19].replace("T", " "), *took, f"{r.rows_in:,}", *sizes, str(r.files),
        str(r.new_files),
    )  # fmt: skip


def _shown(what: str, value: float) -> str:
    if what.endswith("_bytes"):
        return human_bytes(round(value))
    return f"{value:,.1f}" if what.endswith("_ms") and value < 100 else f"{value:,.0f}"


def _is_of(record: CheckpointRecord, checkpoint: int) -> bool:
    return record.status == COMPLETED and record.checkpoint_id == checkpoint


def _told(r: CheckpointRecord) -> list[str]:
    """What the history says of how it was made."""
    lines = [f"  {r.rows_in:,} rows, {r.duration_ms:.0f} ms: trigger {r.trigger_ms:.0f}, start delay "
             f"{r.start_delay_ms:.0f}, alignment {r.alignment_ms:.0f}, sync {r.sync_ms:.0f}, async {r.async_ms:.0f}, "
             f"commit {r.commit_ms:.0f}, publish {r.publish_ms:.0f}",
             f"  stored for it: {human_bytes(r.increment_bytes)}, compaction {human_bytes(r.compaction_bytes)}, "
             f"{r.new_files} of {r.files} files, manifest {human_bytes(r.manifest_bytes)}"]  # fmt: skip
    for what, spread in sorted(r.subtasks.items()):
        figures = (("min", spread.min), ("avg", spread.avg), ("max", spread.max))
        shown = ", ".join(f"{name} {_shown(what, value)}" for name, value in figures)
        lines.append(f"  per subtask, {what.removesuffix('_bytes')}: {shown}")
    return lines


def _as_object(record: CheckpointRecord, kept: frozenset[int]) -> dict[str, Any]:
    is_kept = record.status == COMPLETED and record.checkpoint_id in kept
    return {**msgspec.to_builtins(record), "kept": is_kept}


def _summary(values: Sequence[float]) -> dict[str, float]:
    """Least, mean, percentiles by nearest rank, and most; empty when there is nothing."""
    if not values:
        return {}
    ordered = sorted(values)
    at = {f"p{p:g}": ordered[math.ceil(len(ordered) * p / 100) - 1] for p in _PERCENTILES}
    return {"min": ordered[0], "avg": round(statistics.fmean(ordered), 1), **at, "max": ordered[-1]}
