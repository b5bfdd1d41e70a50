"""The command that runs the batches of a checkpoint again, for debugging."""

from __future__ import annotations

from pathlib import Path

import click

from stateflow.cli.common import JOB, JSON, ROOT, SETTINGS_OPTIONS, refuse, settings_layers, with_options
from stateflow.cli.formatting import print_text
from stateflow.cli.replay.output import print_report, print_report_json
from stateflow.replay.debugger import KeyDebugger
from stateflow.replay.keys import KeyRequest
from stateflow.replay.run import DEFAULT_ROWS, ReplayRequest
from stateflow.replay.run import replay as run_replay


@click.command()
@JOB
@ROOT
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="Id of the checkpoint whose batch runs again: what the job did between the checkpoint before it and N.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=DEFAULT_ROWS,
    show_default=True,
    metavar="COUNT",
    help="Rows of each sink, changes of state, and calls for a key, to print.",
)
@click.option(
    "--key",
    "key",
    multiple=True,
    metavar="VALUE",
    help="Show one key only: its rows, timers, emitted rows and state. Once for each key column, in their order, or as "
    "for state get; '[null]' for a null.",
)
@click.option("--operator", default="", metavar="UID", help="With --key: only this operator. Default: all that fit.")
@click.option(
    "--pdb",
    "debug",
    is_flag=True,
    help="With --key: run the batch in this process, and stop in Python's debugger in the first call for the key.",
)
@with_options(SETTINGS_OPTIONS)
@JSON
def replay(
    job: Path,
    job_root: str,
    batch: int,
    rows: int,
    key: tuple[str, ...],
    operator: str,
    debug: bool,
    config: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a batch again, from the checkpoint before it, and print what it emits and how it changes the state.

    Nothing is published, and the job root does not change: state and rows go to a scratch folder that is removed at the
    end. Runs of the job may continue meanwhile. The source has to have the rows still. The resulting state is compared
    with that of checkpoint N.
    """
    if (operator or debug) and not key:
        refuse("--operator and --pdb need a key", "pass --key VALUE")
    request = ReplayRequest(
        job,
        job_root,
        batch,
        settings_layers(config, assignments),
        rows,
        KeyRequest(key, operator) if key else None,
        KeyDebugger() if debug else None,
        lambda step: print_text(step, err=True),
    )
    report = run_replay(request)
    if as_json:
        print_report_json(report)
    else:
        print_report(report, job.stem)
