"""What all commands share: options, errors in sentences, sizes for people."""

from __future__ import annotations

import getpass
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from stateflow.config import parse_assignments, read_toml
from stateflow.errors import ConfigError, InternalError, Interrupted, StateflowError

log = logging.getLogger("stateflow")

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
ROOT = click.option(
    "--job-root",
    required=True,
    metavar="URI",
    help="The job's directory: a path, file:///path, s3://, gs://, az:// or webhdfs://.",
)
ROOT_OF_NAME = click.option(
    "--job-root",
    default="",
    metavar="URI",
    help="The job's directory, as for other commands; not needed with a path.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead, for programs.")
NO_SPARK = click.option(
    "--no-spark", is_flag=True, help="Do not start Spark; list what only Spark can check."
)
JOB = click.argument("job", type=click.Path(path_type=Path), metavar="JOB.py")
WHO = [
    click.option("--by", default="", metavar="NAME", help="Who asks; by default the user and host."),
    click.option("--reason", default="", help="Why; kept in the job's history."),
]
SETTINGS = [
    click.option(
        "--config", type=click.Path(path_type=Path), help="Settings of the job in TOML, as for run."
    ),
    click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting, as for run."),
]

_LONGEST = 10 * 365 * 24 * 3600


class Seconds(click.FloatRange):
    """A duration that can be waited for: neither ``inf`` nor ``nan``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        return self.fail("not a number", param, ctx) if math.isnan(seconds) else seconds


SECONDS = Seconds(min=0, max=_LONGEST)


def attempt(work: Callable[[], R]) -> tuple[R | None, StateflowError | None]:
    """The result of `work`, or the error that it ended with; one that nobody foresaw becomes an InternalError."""
    try:
        return work(), None
    except StateflowError as e:
        return None, e
    except KeyboardInterrupt:
        return None, Interrupted(
            "interrupted", hint="the last checkpoint is safe: the same command goes on from it"
        )
    except Exception as e:
        log.exception("unexpected error")
        return None, InternalError(f"{type(e).__name__}: {e}", hint="please report this with the lines above")


def or_fail(work: Callable[[], R]) -> R:
    """The result of `work`; ends the process with the error's sentence and exit code when there is none."""
    result, error = attempt(work)
    if error:
        fail(error)
    return cast(R, result)  # which may well be None


def fail(error: StateflowError) -> None:
    """Ends the process with an error."""
    tell(error)
    sys.exit(error.exit_code)


def refuse(what: str, hint: str) -> None:
    """Ends the process: the options that were given do not go together."""
    fail(ConfigError(what, hint=hint))


def tell(error: StateflowError) -> None:
    """Prints an error for people."""
    click.echo(f"error [{error.code}]: {error}", err=True)


def with_options(options: list[Callable[[F], F]]) -> Callable[[F], F]:
    """Gives a command several options, in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def layers(options: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """The job's settings that `SETTINGS` were given, the weakest first."""
    config = options["config"]
    return ((or_fail(lambda: read_toml(config)),) if config else ()) + (
        or_fail(lambda: parse_assignments(options["assignments"])),
    )


def user() -> str:
    """Who asks, unless an option says it: user and host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose columns stand below each other. Nothing is cut or folded, however narrow the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


def short_offset(offset: str) -> str:
    """A source's position without what only programs need: ``row:120`` for ``{"row": 120}``."""
    text = re.sub(r'[{}"\s]', "", offset)
    return f"{text[:57]}…" if len(text) > 58 else text or "-"


def in_utc(at: str) -> str:
    """A time that a document has, for people; all of them are UTC, whatever the host's zone."""
    return f"{at[:19].replace('T', ' ')} UTC"


def human_bytes(count: int) -> str:
    """A number of bytes with a unit."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
