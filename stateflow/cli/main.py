"""Entry point of the command line: the group of all commands."""

from __future__ import annotations

import click

from stateflow.cli.check import check, explain
from stateflow.cli.checkpoints import checkpoints
from stateflow.cli.common import StateflowGroup
from stateflow.cli.compare import diff
from stateflow.cli.maintenance import can_delete, doctor, gc, pins, source, tables, verify
from stateflow.cli.queries import query, serve
from stateflow.cli.replay import replay
from stateflow.cli.restore import fork, restore
from stateflow.cli.run import run, submit
from stateflow.cli.savepoints import change, savepoint, stop, write
from stateflow.cli.state import state
from stateflow.cli.status import history, status
from stateflow.cli.ui import ui
from stateflow.helpers import installed_version


@click.group(cls=StateflowGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version=installed_version() or "unknown (not installed)")
def main() -> None:
    """Checkpoints, recovery and managed state for PySpark jobs."""


for command in (write, change):
    savepoint.add_command(command)
for command in (
    run,
    submit,
    explain,
    check,
    status,
    history,
    checkpoints,
    savepoint,
    stop,
    restore,
    fork,
    replay,
    diff,
    source,
    verify,
    gc,
    can_delete,
    pins,
    state,
    tables,
    serve,
    query,
    ui,
    doctor,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
