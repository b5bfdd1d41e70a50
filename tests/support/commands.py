"""The command line in this process, with an output that is the same on every machine."""

from __future__ import annotations

from click.testing import CliRunner, Result

from stateflow.cli.main import main

_PLAIN = {"COLUMNS": "120", "NO_COLOR": "1", "FORCE_COLOR": None, "TTY_COMPATIBLE": None, "TTY_INTERACTIVE": None}


def invoke(*arguments: str) -> Result:
    """Runs a command that prints to a pipe, without colours, and for 120 columns."""
    return CliRunner(env=_PLAIN).invoke(main, list(arguments), prog_name="stateflow")
