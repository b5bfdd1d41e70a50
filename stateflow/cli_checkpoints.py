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
from stateflow.checkpoint.history import CheckpointRecord
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
_PERCENTILES = (50, 90, 95, 99, 99.9)


@click.group()
def checkpoints() -> None:
    """Look at a job's checkpoints, or make its run take one now."""


@checkpoints.command(name="list")
@ROOT
@click.option("--newest", type=click.IntRange(min=1), default=_NEWEST, show_default=True, help="How many.")
@JSON
def list_(job_root: str, newest: int, as_json: bool) -> None:
    """List the newest checkpoints, and which of them are kept."""
    records = or_fail(lambda: ops.history(job_root, newest))
    kept = frozenset(or_fail(lambda: ops.describe(job_root)).retained)
    if as_json:
        click.echo(json.dumps([_as_object(record, kept) for record in records]))
        return
    titles = (
        "checkpoint",
        "kept",
        "run",
        "committed (UTC)",
        "ms",
        "rows",
        "increment",
        "compaction",
        "full",
        "files",
    )
    rows = [titles, *(_as_row(record, kept) for record in records)]
    for line in aligned(rows) if records else ["no checkpoint yet"]:
        click.echo(line)


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
    records = or_fail(lambda: ops.history(job_root, newest))
    or_fail(lambda: ops.require_job(job_root))
    summary = {
        "duration_ms": _summary([r.duration_ms for r in records]),
        "increment_bytes": _summary([float(r.increment_bytes) for r in records]),
        "compaction_bytes": _summary([float(r.compaction_bytes) for r in records]),
        "full_bytes": _summary([float(r.full_bytes) for r in records]),
        "rows_in": _summary([float(r.rows_in) for r in records]),
    }
    if as_json:
        click.echo(json.dumps({"checkpoints": len(records), **summary}))
        return
    click.echo(f"{len(records)} checkpoints")
    names = ["min", "avg", *(f"p{p:g}" for p in _PERCENTILES), "max"]
    rows = [("", *names)]
    for what, figures in summary.items():
        shown = human_bytes if what.endswith("bytes") else lambda value: f"{value:,.0f}"
        rows.append(
            (what.removesuffix("_bytes"), *(shown(round(figures[n])) if figures else "-" for n in names))
        )
    for line in aligned(rows):
        click.echo(line)


@checkpoints.command()
@ROOT
@click.option("--timeout", type=SECONDS, default=600, show_default=True, metavar="SECONDS",
              help="How long to wait for the run's next barrier.")  # fmt: skip
@click.option("--patience", type=SECONDS, default=5, show_default=True, metavar="SECONDS",
              help="How long to wait for a sign of a run.")  # fmt: skip
@with_options(WHO)
@JSON
def trigger(job_root: str, as_json: bool, **options: Any) -> None:
    """Make the next barrier of the job's run a checkpoint, whatever its interval."""
    ask = CheckpointAsk(
        by=options["by"] or user(), reason=options["reason"], timeout=timedelta(seconds=options["timeout"]),
        patience=timedelta(seconds=options["patience"]),
    )  # fmt: skip
    made = or_fail(lambda: recovery.trigger_checkpoint(job_root, ask))
    click.echo(json.dumps({"checkpoint_id": made}) if as_json else f"checkpoint {made}")


def _as_row(r: CheckpointRecord, kept: frozenset[int]) -> tuple[str, ...]:
    sizes = map(human_bytes, (r.increment_bytes, r.compaction_bytes, r.full_bytes))
    return (
        str(r.checkpoint_id), "yes" if r.checkpoint_id in kept else "", str(r.generation),
        r.committed_at[:19].replace("T", " "), f"{r.duration_ms:.0f}", f"{r.rows_in:,}", *sizes, str(r.files),
    )  # fmt: skip


def _as_object(record: CheckpointRecord, kept: frozenset[int]) -> dict[str, Any]:
    return {**msgspec.to_builtins(record), "kept": record.checkpoint_id in kept}


def _summary(values: Sequence[float]) -> dict[str, float]:
    """Least, mean, percentiles by nearest rank, and most; empty when there is nothing."""
    if not values:
        return {}
    ordered = sorted(values)
    at = {f"p{p:g}": ordered[math.ceil(len(ordered) * p / 100) - 1] for p in _PERCENTILES}
    return {"min": ordered[0], "avg": round(statistics.fmean(ordered), 1), **at, "max": ordered[-1]}
