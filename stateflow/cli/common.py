"""Parts that the commands share: the group that reports errors, common options and JSON output."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.cli.formatting import discard_unwritable_output, prepare_streams, print_text, unwritable_output
from stateflow.config.sources import SettingsLayer, parse_assignments, read_toml
from stateflow.errors import ConfigError, EnvironmentUnsupported, InternalError, Interrupted, StateflowError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger("stateflow")

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")

_LONGEST_WAIT = 10 * 365 * 24 * 3600


class StateflowGroup(click.Group):
    """Group of commands that prints a StateflowError and ends the process with its exit code."""

    def main(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
        call: Callable[..., object] = super().main
        prepare_streams()
        try:
            return call(*arguments, **options)
        except OSError as e:
            # Of Click's own texts, such as the help.
            error = unwritable_output(e)
            print_error(error)
            sys.exit(error.exit_code)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # Click handles these itself.
        except (Exception, KeyboardInterrupt) as e:
            if isinstance(e, OSError) and _is_output_of_click(e):
                raise
            error = as_stateflow_error(e)
            print_error(error)
            discard_unwritable_output()
            ctx.exit(error.exit_code)


def _is_output_of_click(error: OSError) -> bool:
    """Returns whether Click could not write a text of its own, such as the help of a command."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_globals.get("__name__") == "click.utils"


def as_stateflow_error(error: BaseException) -> StateflowError:
    """Returns the error to report for an exception; logs the traceback of an unexpected one."""
    if isinstance(error, StateflowError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted", hint="run the same command again; it continues from the last checkpoint")
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return EnvironmentUnsupported(
            "Python's encoding lacks a character of a name",
            hint="start it in its UTF-8 mode: PYTHONUTF8=1, or in a locale such as LC_ALL=C.UTF-8",
            encoding=error.encoding,
            character=f"U+{ord(error.object[error.start]):04X}",
        )
    log.error("unexpected error", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}", hint="report this with the lines above")


def print_error(error: StateflowError) -> None:
    """Prints an error with its code and hint to stderr."""
    print_text(f"error [{error.code}]: {error}", err=True)


def print_json(value: DataclassInstance | dict[str, R] | list[R]) -> None:
    """Prints a value as one line of JSON to stdout."""
    as_object = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value
    print_text(json.dumps(as_object))


class Seconds(click.FloatRange):
    """Duration in seconds; ``inf`` and ``nan`` are rejected."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = super().convert(value, param, ctx)
        return self.fail("not a number", param, ctx) if math.isnan(seconds) else seconds


SECONDS = Seconds(min=0, max=_LONGEST_WAIT)
JOB_FILE = click.Path(path_type=Path)

JOB = click.argument("job", type=JOB_FILE, metavar="JOB.py")
ROOT = click.option(
    "--job-root",
    required=True,
    metavar="URI",
    help="Job root: a path, or a file://, s3://, gs://, az:// or webhdfs:// URI.",
)
OPTIONAL_ROOT = click.option(
    "--job-root", default="", metavar="URI", help="Job root, as for other commands; needed to find a savepoint by name."
)
CLAIM_MODE = click.Choice([m.value for m in ClaimMode])
DROP = click.option(
    "--drop",
    multiple=True,
    metavar="UID",
    help="Drop the state of an operator, or one state, OPERATOR.STATE; an operator that the job still has "
    "starts without it. Repeatable.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
NO_SPARK = click.option("--no-spark", is_flag=True, help="Do not start Spark; list the checks that need it.")
REQUESTER_OPTIONS = [
    click.option(
        "--by", default="", metavar="NAME", help="Name of the requester, recorded as a claim in addition to user@host."
    ),
    click.option("--reason", default="", help="Reason of the request, stored in the job's history."),
]
SETTINGS_OPTIONS = [
    click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings, as for run."),
    click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting, as for run; repeatable."),
]
TIMEOUT = click.option(
    "--timeout",
    type=SECONDS,
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the run's next barrier.",
)


def graph_options(condition: str = "") -> list[Callable[[F], F]]:
    """Returns the options for a graph that has changed; `condition` begins their help."""
    return [
        click.option(
            "--map",
            "maps",
            multiple=True,
            metavar="OLD=NEW",
            help=f"{condition}Restore an operator or a source under another uid, or a state, OPERATOR.STATE, under "
            "another name. With several operators for one, each gets the states that it declares. @timers and @raw are "
            "the timers and the raw state of an operator; repeatable.",
        ),
        click.option(
            "--source",
            "sources",
            multiple=True,
            metavar="UID=POSITION",
            help=f"{condition}Position of a source: keep, earliest, latest, timestamp:TIME, position:TEXT, or the "
            "position's JSON. By default it is kept, and a new source begins at its start; repeatable.",
        ),
    ]


def with_options(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    """Returns a decorator that adds options to a command, in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def settings_layers(config: Path | None, assignments: tuple[str, ...]) -> tuple[SettingsLayer, ...]:
    """Returns the layers of ``--config`` and ``--set``; the last one has the highest precedence.

    Raises:
        ConfigError: the file or an assignment cannot be parsed.
    """
    return ((read_toml(config),) if config else ()) + (parse_assignments(assignments),)


def refuse(problem: str, hint: str) -> None:
    """Raises ConfigError: the given options do not go together."""
    raise ConfigError(problem, hint=hint)
