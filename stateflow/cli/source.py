"""Commands that change the recorded positions of a job's sources."""

from __future__ import annotations

import click

from stateflow import operations
from stateflow.cli.common import JSON, REQUESTER_OPTIONS, ROOT, print_json, with_options
from stateflow.cli.formatting import print_text
from stateflow.requesters import os_user


@click.group()
def source() -> None:
    """Change what a job has recorded about its sources."""


@source.command()
@ROOT
@click.option("--source", "uid", required=True, metavar="UID", help="Uid of the source.")
@click.option(
    "--from", "old", required=True, metavar="FOLDER", help="Folder as in the present job file, or a parent of it."
)
@click.option("--to", "new", required=True, metavar="FOLDER", help="New folder, as in the next job file.")
@click.option(
    "--check",
    type=click.Choice([c.value for c in operations.FileCheck]),
    default=operations.FileCheck.NAMES.value,
    show_default=True,
    help="How to compare the files that were read: content also compares bytes, or modification times where the old "
    "folder no longer exists.",
)
@click.option("--dry-run", is_flag=True, help="Only compare the files and report what a run would read.")
@with_options(REQUESTER_OPTIONS)
@JSON
def relocate(
    job_root: str, uid: str, old: str, new: str, check: str, dry_run: bool, by: str, reason: str, as_json: bool
) -> None:
    """Record that the folder of a file source was moved or copied, together with the files that it has read.

    State, positions and tables do not change, and the next run reads the files that are new in the new folder. Change
    the path in the job file afterwards. Savepoints and older checkpoints keep the old paths: relocate again after
    restoring one of them.
    """
    request = operations.Relocation(uid, old, new, operations.FileCheck(check), os_user(by), reason, dry_run)
    done = operations.relocate_source(job_root, request)
    if as_json:
        print_json(done)
    elif done.repeated:
        print_text(f"{done.job}: {done.source} already reads {done.description}; nothing was done")
    else:
        verb = "would read" if done.dry_run else "reads"
        print_text(
            f"{done.job}: {done.source} {verb} {done.description}; {done.seen:,} files that were read exist there, "
            f"{done.unread:,} are unread"
        )
