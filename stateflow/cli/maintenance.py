"""Commands that check and maintain a job: doctor, verify, gc, can-delete, pins, tables and source."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stateflow import operations
from stateflow.checkpoint.garbage_collector import FileStatus
from stateflow.cli.common import (
    JOB,
    REQUESTER_OPTIONS,
    ROOT,
    Members,
    count_of,
    human_bytes,
    json_option,
    one_line,
    print_json,
    print_text,
    refuse,
    to_duration,
    to_seconds,
    with_options,
    with_request,
    with_settings,
)
from stateflow.clock import SystemClock
from stateflow.config.settings import Settings
from stateflow.config.sources import SettingsLayer
from stateflow.operations import GarbageReport, JobCode, PinReport, VacuumRequest, Verified
from stateflow.operations.doctor import Finding, Health, examine
from stateflow.outputs import Inline
from stateflow.requesters import describe_requester

if TYPE_CHECKING:
    from stateflow.connectors.delta.maintenance import CompactionReport, VacuumReport


_HAS_PROBLEM = 6
"""Exit code of doctor when a check failed."""


@click.command()
@ROOT
@click.option("--deep", is_flag=True, help="Also decode every key and value of the state.")
@click.option("--checkpoint", type=click.IntRange(min=1), metavar="ID", help="Verify only this checkpoint.")
@json_option(list[Verified])
def verify(job_root: str, deep: bool, checkpoint: int | None, as_json: bool) -> None:
    """Read all files of the retained checkpoints, and the history, and compare them with their recorded hashes.

    Can be used while the job runs. Exit codes: 0 all files are intact; 4 a file is missing, damaged or changed.
    """
    found = operations.verify(job_root, deep, checkpoint, _print_nothing if as_json else _print_verified)
    if as_json:
        print_json(found)
    if checkpoint is None:
        number = operations.verify_history(job_root)
        if not as_json:
            print_text(f"history: {count_of(number, 'object')}, hashes match")


def _print_nothing(_: Verified) -> None:
    """JSON is printed once, at the end."""


def _print_verified(verified: Verified) -> None:
    decoded = "" if verified.entries is None else f"; {verified.entries:,} entries decode, each in its key group"
    print_text(
        f"checkpoint {verified.checkpoint_id}: {count_of(verified.files, 'file')}, {human_bytes(verified.size_bytes)}, "
        f"sizes and hashes match{decoded}{f'; code {verified.code_hash}' if verified.code_hash else ''}"
    )


@click.command()
@click.option(
    "--job-root", default="", metavar="URI", envvar="STATEFLOW_JOB_ROOT", help="Also check this job root's storage."
)
@click.option("--local-dir", type=click.Path(path_type=Path), help="Scratch folder, for a job that sets local_dir.")
@json_option(list[Finding], has_findings=True)
def doctor(job_root: str, local_dir: Path | None, as_json: bool) -> None:
    """Check whether this machine, and the storage of a job root, meet the requirements of a run.

    Can be used while the job runs. The check writes below probe/ in the storage and removes what it wrote.

    Exit codes: 0 no problem, although there may be warnings; 6 there is a problem.
    """
    findings = examine(job_root, local_dir or Settings().local_folder, SystemClock())
    if as_json:
        print_json(findings)
    else:
        _print_findings(findings)
    if any(f.health is Health.BAD for f in findings):
        sys.exit(_HAS_PROBLEM)


def _print_findings(findings: list[Finding]) -> None:
    width = max(len(f.check) for f in findings)
    for f in findings:
        print_text(f"{f.health.value:9}{f.check:{width}}  {f.found}")
        if f.hint:
            print_text(f"{'':5}{'':{width}}  hint: {f.hint}")


_IS_NEEDED = 6
"""Exit code of can-delete for a file that must stay."""


@dataclass(frozen=True)
class ListedFile:
    """A stored file, and whether a collection deletes it.

    Attributes:
        key: key of the file in the job root.
        size_bytes: its size.
        deletable: whether a collection deletes it.
        fate: whether it is needed, as a word.
        reason: the same as a sentence.
        needed_by: the checkpoints that need it, with the owners of their pins.
    """

    key: str
    size_bytes: int
    deletable: bool
    fate: str
    reason: str
    needed_by: tuple[str, ...]


@dataclass(frozen=True)
class CollectionReport:
    """Result of a garbage collection, or of its dry run.

    Attributes:
        report: what was deleted.
        files: every file, with ``--files``; None otherwise.
    """

    report: Inline[GarbageReport]
    files: list[ListedFile] | None


@click.command()
@ROOT
@click.option("--retain", type=click.IntRange(min=1), help="Retain only this many checkpoints.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted, without deleting it.")
@click.option(
    "--files", "lists_files", is_flag=True, help="With --dry-run: list every file with the reason to keep or delete it."
)
@json_option(CollectionReport)
def gc(job_root: str, retain: int | None, dry_run: bool, lists_files: bool, as_json: bool) -> None:
    """Delete files that no retained checkpoint needs."""
    if lists_files and (retain or not dry_run):
        refuse("the option --files lists what is stored now", "pass --dry-run with it, and not --retain")
    report = operations.collect_garbage(job_root, retain=retain, dry_run=dry_run)
    files = operations.explain_files(job_root) if lists_files else []
    if as_json:
        print_json(CollectionReport(report, [_listed(file) for file in files] if lists_files else None))
    else:
        _print_collection(report, files)


def _listed(file: FileStatus) -> ListedFile:
    fate = file.fate
    return ListedFile(file.key, file.size, fate.is_deletable, fate.name.lower(), fate.value, file.needed_by)


def _print_collection(report: GarbageReport, files: Sequence[FileStatus]) -> None:
    for file in files:
        mark = "-" if file.fate.is_deletable else " "
        print_text(f"{mark} {file.key}  {human_bytes(file.size)}  {_explain(file)}")
    verb = "would delete" if report.dry_run else "deleted"
    kept = ", ".join(map(str, sorted(report.retained_checkpoint_ids))) or "none"
    print_text(
        f"{report.job}: {verb} {count_of(report.deleted_files, 'file')}, {human_bytes(report.freed_bytes)}; "
        f"retained checkpoints: {kept}"
    )
    for name in report.unknown_keys:
        print_text(f"  unknown file, not deleted: {name}")


@click.command("can-delete")
@click.argument("path")
@ROOT
@json_option(ListedFile, has_findings=True)
def can_delete(path: str, job_root: str, as_json: bool) -> None:
    """Report whether a file of a job root can be deleted by hand, and which checkpoints need it.

    Exit codes: 0 the file is not needed now or later; 6 it is needed; any other: the answer is unknown.
    """
    found = operations.can_delete(job_root, path)
    if as_json:
        print_json(_listed(found))
    else:
        print_text(f"{'yes' if found.fate.is_deletable else 'no'}: {_explain(found)}")
    sys.exit(0 if found.fate.is_deletable else _IS_NEEDED)


def _explain(file: FileStatus) -> str:
    return f"needed by {', '.join(file.needed_by)}" if file.needed_by else file.fate.value


@click.command()
@ROOT
@click.option("--drop", metavar="ID", help="Remove this pin; a reader that still uses it fails.")
@json_option(list[PinReport])
def pins(job_root: str, drop: str | None, as_json: bool) -> None:
    """List the checkpoints that are pinned for readers outside the job, or drop an abandoned pin.

    With --json, --drop prints the pins that remain.
    """
    if drop:
        operations.drop_pin(job_root, drop)
        if not as_json:
            print_text(f"dropped {drop}")
            return
    found = operations.list_pins(job_root)
    if as_json:
        print_json(found)
        return
    for pin in found:
        owner, since = describe_requester(pin.owner), to_seconds(pin.pinned_at)
        end = f", until {to_seconds(pin.expires_at)}" if pin.expires_at else ""
        print_text(one_line(f"{pin.id}  checkpoint {pin.checkpoint_id}  {owner}: {pin.reason}  since {since}{end}"))
    if not found:
        print_text("no pins")


_TABLE = click.option(
    "--table", "tables", multiple=True, metavar="UID", help="Only the table of this sink; repeatable. Default: all."
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Report what would be done, without doing it.")


def _compactions() -> object:
    from stateflow.connectors.delta.maintenance import CompactionReport

    return list[CompactionReport]


def _vacuums() -> object:
    from stateflow.connectors.delta.maintenance import VacuumReport

    return list[VacuumReport]


@click.group()
def tables() -> None:
    """Optimize or vacuum the Delta tables of a job's sinks."""


@tables.command()
@JOB
@ROOT
@_TABLE
@_DRY_RUN
@with_settings
@json_option(_compactions)
def optimize(
    job: Path, job_root: str, tables: tuple[str, ...], dry_run: bool, layers: tuple[SettingsLayer, ...], as_json: bool
) -> None:
    """Combine small data files of each partition, without a change of rows.

    Runs of the job may continue meanwhile. A restore does not count the commit as one that changed rows.
    """
    reports = operations.optimize_tables(job_root, JobCode(job, layers), tables, dry_run=dry_run)
    if as_json:
        print_json(reports)
        return
    for report in reports:
        print_text(f"{report.uid}: {_optimized(report)}; {report.table} at version {report.version}")
    _print_none(reports)


def _optimized(report: CompactionReport) -> str:
    files = f"{count_of(report.combined_files, 'file')}, {human_bytes(report.combined_bytes)}"
    if report.new_files is None:
        return f"would combine {files}"
    skipped = f"; {count_of(report.skipped_files, 'file')} skipped" if report.skipped_files else ""
    return f"combined {files}, to {count_of(report.new_files, 'file')}{skipped}"


@tables.command()
@JOB
@ROOT
@_TABLE
@click.option(
    "--older-than",
    callback=to_duration,
    default="7d",
    show_default=True,
    metavar="DURATION",
    help="Keep files that were removed from their table after this; a duration such as 12h or 7d.",
)
@click.option(
    "--ignore-other-jobs",
    "ignores_other_jobs",
    is_flag=True,
    help="Also vacuum tables that other jobs write to, whose checkpoints are unknown.",
)
@_DRY_RUN
@with_settings
@json_option(_vacuums)
@with_request(VacuumRequest)
def vacuum(request: VacuumRequest, job: Path, job_root: str, layers: tuple[SettingsLayer, ...], as_json: bool) -> None:
    """Delete data files that were removed from the tables, and that no checkpoint or savepoint needs.

    Reports which checkpoint or savepoint holds which version. Runs of the job may continue meanwhile.
    """
    reports = operations.vacuum_tables(job_root, JobCode(job, layers), request)
    if as_json:
        print_json(reports)
        return
    for report in reports:
        _print_vacuum(report, "would delete" if request.dry_run else "deleted")
    _print_none(reports)


def _print_vacuum(report: VacuumReport, verb: str) -> None:
    print_text(
        f"{report.uid}: {verb} {count_of(report.deleted_files, 'file')}, {human_bytes(report.freed_bytes)}; "
        f"{report.table} at version {report.version}"
    )
    for held in (each for each in report.held if each.files):
        print_text(
            f"  version {held.version} is needed by {', '.join(held.holders)}: "
            f"{count_of(held.files, 'file')} kept, {human_bytes(held.size_bytes)}"
        )
    for label in report.lost:
        print_text(f"  {label}: the table can no longer be restored to its version")


def _print_none(reports: Sequence[object]) -> None:
    if not reports:
        print_text("the job has no Delta tables")


@click.group()
def source() -> None:
    """Change what a job has recorded about its sources."""


@source.command()
@ROOT
@click.option("--source", required=True, metavar="UID", help="Uid of the source.")
@click.option(
    "--from", "old", required=True, metavar="FOLDER", help="Folder as in the present job file, or a parent of it."
)
@click.option("--to", "new", required=True, metavar="FOLDER", help="New folder, as in the next job file.")
@click.option(
    "--check",
    type=Members(operations.FileCheck),
    default=operations.FileCheck.NAMES.value,
    show_default=True,
    help="How to compare the files that were read: content also compares bytes, or modification times where the old "
    "folder no longer exists.",
)
@click.option("--dry-run", is_flag=True, help="Only compare the files and report what a run would read.")
@with_options(REQUESTER_OPTIONS)
@json_option(operations.RelocationReport)
@with_request(operations.Relocation)
def relocate(request: operations.Relocation, job_root: str, as_json: bool) -> None:
    """Record that the folder of a file source was moved or copied, together with the files that it has read.

    State, positions and tables do not change, and the next run reads the files that are new in the new folder. Change
    the path in the job file afterwards. Savepoints and older checkpoints keep the old paths: relocate again after
    restoring one of them.
    """
    done = operations.relocate_source(job_root, request)
    if as_json:
        print_json(done)
    elif done.repeated:
        print_text(f"{done.job}: {done.source} already reads {done.description}; nothing was done")
    else:
        verb = "would read" if done.dry_run else "reads"
        print_text(
            f"{done.job}: {done.source} {verb} {done.description}; {done.seen_files:,} files that were read exist "
            f"there, {done.unread_files:,} are unread"
        )
