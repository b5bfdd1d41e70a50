"""Commands about the files of a job root: which are needed, and the deletion of the others."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import click

from stateflow import operations
from stateflow.checkpoint.gc.collector import FileStatus
from stateflow.cli.common import JSON, ROOT, print_json, refuse
from stateflow.cli.formatting import count_of, human_bytes, one_line, print_text, to_seconds
from stateflow.operations import GarbageReport
from stateflow.requesters import describe_requester

_IS_NEEDED = 6
"""Exit code of can-delete for a file that must stay."""


@click.command()
@ROOT
@click.option("--retain", type=click.IntRange(min=1), help="Retain only this many checkpoints.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted, without deleting it.")
@click.option(
    "--files", "lists_files", is_flag=True, help="With --dry-run: list every file with the reason to keep or delete it."
)
@JSON
def gc(job_root: str, retain: int | None, dry_run: bool, lists_files: bool, as_json: bool) -> None:
    """Delete files that no retained checkpoint needs."""
    if lists_files and (retain or not dry_run):
        refuse("the option --files lists what is stored now", "pass --dry-run with it, and not --retain")
    report = operations.collect_garbage(job_root, retain=retain, dry_run=dry_run)
    files = operations.explain_files(job_root) if lists_files else []
    if as_json:
        each = {"each": [_as_object(file) for file in files]} if lists_files else {}
        print_json({**dataclasses.asdict(report), **each})
    else:
        _print_collection(report, files)


def _as_object(file: FileStatus) -> dict[str, object]:
    return {
        "key": file.key,
        "size": file.size,
        "is_deletable": file.fate.is_deletable,
        "fate": file.fate.name.lower(),
        "why": file.fate.value,
        "needed_by": file.needed_by,
    }


def _print_collection(report: GarbageReport, files: Sequence[FileStatus]) -> None:
    for file in files:
        mark = "-" if file.fate.is_deletable else " "
        print_text(f"{mark} {file.key}  {human_bytes(file.size)}  {_explain(file)}")
    verb = "would delete" if report.dry_run else "deleted"
    kept = ", ".join(map(str, sorted(report.retained))) or "none"
    print_text(
        f"{report.job}: {verb} {count_of(report.files, 'file')}, {human_bytes(report.bytes_freed)}; "
        f"retained checkpoints: {kept}"
    )
    for name in report.unknown:
        print_text(f"  unknown file, not deleted: {name}")


@click.command("can-delete")
@click.argument("path")
@ROOT
def can_delete(path: str, job_root: str) -> None:
    """Report whether a file of a job root can be deleted by hand, and which checkpoints need it.

    Exit codes: 0 the file is not needed now or later; 6 it is needed; any other: the answer is unknown.
    """
    found = operations.can_delete(job_root, path)
    print_text(f"{'yes' if found.fate.is_deletable else 'no'}: {_explain(found)}")
    sys.exit(0 if found.fate.is_deletable else _IS_NEEDED)


def _explain(file: FileStatus) -> str:
    return f"needed by {', '.join(file.needed_by)}" if file.needed_by else file.fate.value


@click.command()
@ROOT
@click.option("--drop", metavar="ID", help="Remove this pin; a reader that still uses it fails.")
def pins(job_root: str, drop: str | None) -> None:
    """List the checkpoints that are pinned for readers outside the job, or drop an abandoned pin."""
    if drop:
        operations.drop_pin(job_root, drop)
        print_text(f"dropped {drop}")
        return
    found = operations.list_pins(job_root)
    for pin in found:
        owner, since = describe_requester(pin.owner), to_seconds(pin.since)
        end = f", until {to_seconds(pin.until)}" if pin.until else ""
        print_text(one_line(f"{pin.id}  checkpoint {pin.checkpoint.id}  {owner}: {pin.reason}  since {since}{end}"))
    if not found:
        print_text("no pins")
