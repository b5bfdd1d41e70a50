"""The command that shows where a job stands."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from stateflow import ops, recovery
from stateflow.checkpoint.history import CheckpointRecord
from stateflow.recovery import JobCode
from stateflow.terminal import (
    JSON,
    ROOT,
    SETTINGS,
    human_bytes,
    in_utc,
    layers,
    or_fail,
    short_offset,
    with_options,
)

_NEWEST = 10


@click.command()
@ROOT
@click.option("--job", "job", type=click.Path(path_type=Path), metavar="JOB.py",
              help="The job file, to look which tables are back when a restore is not completed.")  # fmt: skip
@with_options(SETTINGS)
@JSON
def status(job_root: str, job: Path | None, as_json: bool, **options: Any) -> None:
    """Show where a job stands, up to where its sources were read, and its last checkpoints."""
    found = or_fail(lambda: ops.describe(job_root))
    records = or_fail(lambda: ops.history(job_root, _NEWEST))
    undone = or_fail(lambda: ops.undone(job_root, records))
    back = {}
    if job is not None and found.restoring is not None:
        code = JobCode(job, layers(options))
        back = or_fail(lambda: recovery.tables_back(job_root, code))
    if as_json:
        checkpoints = [{**msgspec.to_builtins(r), "undone": r.checkpoint_id in undone} for r in records]
        told = {**dataclasses.asdict(found), "tables_back": back, "checkpoints": checkpoints}
        click.echo(json.dumps(told))
        return
    half_done = _half_done(found.restoring, back)
    for line in [*_standing(found), *half_done, *map(_failed, found.background), *_skipped(found)]:
        click.echo(line)
    if records:
        Console().print(_checkpoints(records, undone))
    if undone:
        click.echo("○  undone: a restore went back behind it")


def _standing(found: ops.JobDescription) -> list[str]:
    return [
        f"job {found.job} ({found.job_uuid})" + (f", {found.origin}" if found.origin else ""),
        f"at {found.stands_at}, generation {found.generation}, "
        f"kept: {', '.join(map(str, found.retained)) or 'none'}",
        *_newest_run(found),
        *_drained(found),
        *(f"source {uid} at {short_offset(offset)}" for uid, offset in found.offsets.items()),
    ]  # fmt: skip


def _newest_run(found: ops.JobDescription) -> list[str]:
    if found.failure is not None:
        failure = found.failure
        return [f"the newest run failed at {in_utc(failure.at)}: [{failure.code}] {failure.message}"]
    return ["the newest run has not ended: it works, or it was killed"] if found.run_open else []


def _drained(found: ops.JobDescription) -> list[str]:
    return (
        [f"checkpoint {found.checkpoint_id} was drained: its timers fired before their time"]
        if found.drained
        else []
    )


def _failed(failure: ops.BackgroundFailure) -> str:
    times = "once" if failure.failures == 1 else f"{failure.failures} times"
    return (
        f"background work: {failure.work} failed {times} in generation {failure.generation}, the last time at "
        f"{in_utc(failure.at)}: [{failure.code}] {failure.message}"
    )


def _half_done(pending: ops.PendingRestore | None, back: dict[str, bool]) -> list[str]:
    if pending is None:
        return []
    asked = f", asked for by {pending.by} at {in_utc(pending.at)}" if pending.by else ""
    why = f" ({pending.reason})" if pending.reason else ""
    done = {True: ": is back", False: ": NOT YET"}
    tables = [
        f"  table of {uid} " + ("keeps its content" if version is None else f"to version {version}")
        + (done[back[uid]] if uid in back else "")
        for uid, version in pending.tables.items()
    ]  # fmt: skip
    look = [] if back or not tables else ["  which of them are back: stateflow status --job JOB.py looks"]
    return [
        f"NOT COMPLETED: the restore to {pending.to}{asked}{why}", *tables, *look,
        "  the job's next start completes it before anything else, and so does its stateflow restore --execute",
    ]  # fmt: skip


def _skipped(found: ops.JobDescription) -> list[str]:
    if not found.quarantined_count:
        return []
    newest = found.quarantined[-_NEWEST:]
    more = f", the newest {len(newest)}" if found.quarantined_count > len(newest) else ""
    return [
        f"{found.quarantined_count} corrupt input files were skipped{more}:",
        *(
            f"  {in_utc(q.at)}  generation {q.generation}  {q.source}: {q.file}\n    {q.error}"
            for q in newest
        ),
    ]


def _checkpoints(records: list[CheckpointRecord], undone: frozenset[int]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("checkpoint", "gen", "committed (UTC)", "ms", "rows", "increment", "full", "files"):
        table.add_column(title, justify="right", no_wrap=True)
    for r in records:
        when = r.committed_at[:19].replace("T", " ")
        number = f"○ {r.checkpoint_id}" if r.checkpoint_id in undone else str(r.checkpoint_id)
        table.add_row(number, str(r.generation), when, f"{r.duration_ms:.0f}", f"{r.rows_in:,}",
                      human_bytes(r.increment_bytes), human_bytes(r.full_bytes), str(r.files))  # fmt: skip
    return table
