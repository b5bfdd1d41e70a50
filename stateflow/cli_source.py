"""Commands about a job's sources."""

from __future__ import annotations

import dataclasses
import json

import click

from stateflow import recovery
from stateflow.terminal import JSON, ROOT, WHO, or_fail, user, with_options


@click.group()
def source() -> None:
    """Change what a job knows of its sources."""


@source.command()
@ROOT
@click.option("--source", "uid", required=True, metavar="UID", help="The source.")
@click.option("--from", "old", required=True, metavar="FOLDER",
              help="Its folder, as the job file names it, or one above it.")  # fmt: skip
@click.option(
    "--to", "new", required=True, metavar="FOLDER", help="Where that is now, as the job file will name it."
)
@click.option("--check", type=click.Choice([c.value for c in recovery.Check]), default=recovery.Check.NAMES.value,
              show_default=True, help="How files that were read are looked for: content compares bytes as well, or "
              "modification times where the old folder is gone.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only check, and say what a run would read.")
@with_options(WHO)
@JSON
def relocate(job_root: str, as_json: bool, **options: str) -> None:
    """Record that the folder of a file source was moved or copied, with the files that it has read.

    State, positions and tables stay as they are, and the next run reads what is new in the new folder. Then change the
    path in the job file. Savepoints and older checkpoints keep the old paths: relocate again after a restore to one.
    """
    wanted = recovery.Relocation(
        options["uid"], options["old"], options["new"], recovery.Check(options["check"]), options["by"] or user(),
        options["reason"], bool(options["dry_run"]),
    )  # fmt: skip
    done = or_fail(lambda: recovery.relocate_source(job_root, wanted))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(done)))
    elif done.repeated:
        click.echo(f"{done.job}: {done.source} reads {done.description} already; nothing was done")
    else:
        verb = "would read" if done.dry_run else "reads"
        click.echo(f"{done.job}: {done.source} {verb} {done.description}; {done.seen:,} files that were read are "
                   f"there, {done.unread:,} are not read yet")  # fmt: skip
