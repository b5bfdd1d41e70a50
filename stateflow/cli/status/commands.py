"""Commands that show the position of a job, its newest checkpoints and failures, and its history."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from stateflow import operations
from stateflow.checkpoint.log.records import ABORTED, ActionRecord, CheckpointRecord
from stateflow.cli.common import JOB_FILE, JSON, ROOT, SETTINGS_OPTIONS, print_json, settings_layers, with_options
from stateflow.cli.formatting import add_row, human_bytes, in_utc, one_line, print_text, short_offset, to_seconds
from stateflow.cli.status.timeline import draw_timeline
from stateflow.operations import JobCode
from stateflow.requesters import describe_requester, requester_facts
from stateflow.runtime.watermarks import waiting_texts

_NEWEST = 10
"""Number of checkpoints and skipped files that are shown."""
_FIRST_GENERATION = 1
"""Generation of a root that a fork or a savepoint has created; its first run has a higher one."""


@click.command()
@ROOT
@click.option(
    "--job",
    type=JOB_FILE,
    metavar="JOB.py",
    help="Job file; used to check which tables an incomplete restore has restored.",
)
@with_options(SETTINGS_OPTIONS)
@JSON
def status(job_root: str, job: Path | None, config: Path | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show the position of a job and its sources, its newest checkpoints and its failures."""
    found = operations.describe(job_root)
    records = operations.history(job_root, _NEWEST)
    undone = operations.undone(job_root, records)
    restored: dict[str, bool] = {}
    if job is not None and found.restoring is not None:
        restored = operations.restored_tables(job_root, JobCode(job, settings_layers(config, assignments)))
    if as_json:
        checkpoints = [{**msgspec.to_builtins(r), "undone": r.checkpoint_id in undone} for r in records]
        restoring = found.restoring and {**dataclasses.asdict(found.restoring), **requester_facts(found.restoring.by)}
        print_json(
            {**dataclasses.asdict(found), "restoring": restoring, "tables_back": restored, "checkpoints": checkpoints}
        )
        return
    restore = _incomplete_restore(found.restoring, restored)
    for line in [*_position(found), *restore, *map(_background_failure, found.background), *_skipped(found)]:
        print_text(one_line(line))
    if records:
        Console().print(_checkpoint_table(records, undone))
    for record in records:
        if record.status == ABORTED:
            print_text(f"aborted at {in_utc(record.committed_at)}: {record.failure}")
    if undone:
        print_text("○  undone by a restore to an earlier point")


def _position(found: operations.JobDescription) -> list[str]:
    return [
        f"job {found.job} ({found.job_uuid})" + (f", {found.origin}" if found.origin else ""),
        f"at {found.position}, generation {found.generation}, retained: "
        f"{', '.join(map(str, found.retained)) or 'none'}",
        *_newest_run(found),
        *_failed_start(found),
        *_drained(found),
        *waiting_texts(found.waiting),
        *(f"source {uid} at {short_offset(offset)}" for uid, offset in found.offsets.items()),
        *map(_claimed, found.claimed),
    ]


def _claimed(claimed: operations.Claimed) -> str:
    until = f"as long as checkpoint {claimed.checkpoint} is kept"
    return f"claims savepoint {claimed.name}, {until if claimed.checkpoint else 'not completed'}: {claimed.path}"


def _newest_run(found: operations.JobDescription) -> list[str]:
    if found.failure is not None:
        failure = found.failure
        return [f"the newest run failed at {in_utc(failure.at)}: [{failure.code}] {failure.message}"]
    if found.forked_from and found.generation == _FIRST_GENERATION:
        return ["no run has started yet"]
    return ["the newest run has not ended: it is running, or it was killed"] if found.run_open else []


def _failed_start(found: operations.JobDescription) -> list[str]:
    failed = found.failed_start
    return [f"a start failed at {in_utc(failed.at)}: [{failed.code}] {failed.message}"] if failed else []


def _drained(found: operations.JobDescription) -> list[str]:
    return [f"checkpoint {found.checkpoint_id} was drained: its timers fired early"] if found.drained else []


def _background_failure(failure: operations.BackgroundFailure) -> str:
    times = "once" if failure.failures == 1 else f"{failure.failures} times"
    return (
        f"background work: {failure.work} failed {times} in generation {failure.generation}, most recently at "
        f"{in_utc(failure.at)}: [{failure.code}] {failure.message}"
    )


def _incomplete_restore(pending: operations.PendingRestore | None, restored: dict[str, bool]) -> list[str]:
    if pending is None:
        return []
    requester = f", requested by {describe_requester(pending.by)} at {in_utc(pending.at)}" if pending.by else ""
    reason = f" ({pending.reason})" if pending.reason else ""
    done = {True: ": restored", False: ": NOT YET"}
    tables = [
        f"  table of {uid} "
        + ("keeps its content" if version is None else f"to version {version}")
        + (done[restored[uid]] if uid in restored else "")
        for uid, version in pending.tables.items()
    ]
    hint = [] if restored or not tables else ["  to see which of them are restored: stateflow status --job JOB.py"]
    return [
        f"INCOMPLETE: the restore to {pending.to}{requester}{reason}",
        *tables,
        *hint,
        "  the next run, or the same stateflow restore --execute, completes it first",
    ]


def _skipped(found: operations.JobDescription) -> list[str]:
    if not found.quarantined_count:
        return []
    newest = found.quarantined[-_NEWEST:]
    more = f", the newest {len(newest)}" if found.quarantined_count > len(newest) else ""
    return [
        f"{found.quarantined_count} corrupt input files were skipped{more}:",
        *(
            line
            for q in newest
            for line in (f"  {in_utc(q.at)}  generation {q.generation}  {q.source}: {q.file}", f"    {q.error}")
        ),
    ]


def _checkpoint_table(records: list[CheckpointRecord], undone: frozenset[int]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("checkpoint", "gen", "ended (UTC)", "ms", "rows", "increment", "full", "files"):
        table.add_column(title, justify="right", no_wrap=True)
    for r in records:
        add_row(
            table,
            _label(r, undone),
            str(r.generation),
            to_seconds(r.committed_at),
            f"{r.duration_ms:.0f}",
            f"{r.rows_in:,}",
            human_bytes(r.increment_bytes),
            human_bytes(r.full_bytes),
            str(r.files),
        )
    return table


def _label(record: CheckpointRecord, undone: frozenset[int]) -> str:
    # The id of an aborted checkpoint is that of the checkpoint before it.
    if record.status == ABORTED:
        return "aborted"
    return f"○ {record.checkpoint_id}" if record.checkpoint_id in undone else str(record.checkpoint_id)


@click.command()
@ROOT
@click.option("--newest", type=click.IntRange(min=1), default=50, show_default=True, help="Number of records to show.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and record.")
def history(job_root: str, newest: int, as_json: bool) -> None:
    """Show the history of a job as a timeline with branches: checkpoints, savepoints, restores and forks.

    Records that are not as the job's log recorded them are marked. Exit codes: 0 none was changed; 4 records were
    changed or deleted.
    """
    found = operations.timeline(job_root, newest)
    if as_json:
        for record, integrity in zip(found.records, found.integrity, strict=True):
            # The driver of a checkpoint is no requester.
            who = requester_facts(record.by) if isinstance(record, ActionRecord) else {}
            print_json({**msgspec.to_builtins(record), **who, "integrity": integrity})
    else:
        width = Console().width if sys.stdout.isatty() else None
        for line in draw_timeline(found.records, width, found.integrity):
            print_text(line)
    # Last, so that the records are shown in any case.
    if found.changed:
        raise found.changed
