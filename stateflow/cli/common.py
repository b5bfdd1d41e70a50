"""Parts that the commands share: the group that reports errors, common options, and output as text or JSON.

Names, reasons, positions and paths come from job roots, savepoints and servers. An escape sequence in one of them could
erase or rewrite what the user sees, and a character that changes the direction of writing could reorder it. So all
output goes through `print_text` or `add_row`, which make such characters visible.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import json
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, TextIO, TypeVar

import click
from rich.table import Table
from rich.text import Text

from stateflow.api.source import local_position
from stateflow.checkpoint.job_requests import RequestTimeouts
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.config.settings import parse_duration
from stateflow.config.sources import SettingsLayer, parse_assignments, read_toml
from stateflow.errors import (
    ConfigError,
    EnvironmentUnsupported,
    InternalError,
    Interrupted,
    StateflowError,
    StorageError,
)
from stateflow.operations import CheckpointEntry, Entry
from stateflow.outputs import ErrorReport, encode_json, error_report
from stateflow.requesters import os_user

log = logging.getLogger("stateflow")


F = TypeVar("F", bound=Callable[..., object])
E = TypeVar("E", bound=StrEnum)


_JSON_FLAG = "--json"
_LONGEST_WAIT = 10 * 365 * 24 * 3600


class StateflowGroup(click.Group):
    """Group of commands that prints a StateflowError and ends the process with its exit code."""

    def main(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
        call: Callable[..., object] = super().main
        prepare_streams()
        given = arguments[0] if arguments else options.get("args")
        self._words = tuple(given) if isinstance(given, list | tuple) else tuple(sys.argv[1:])
        try:
            return call(*arguments, **options)
        except OSError as e:
            # Of Click's own texts, such as the help.
            error = unwritable_output(e)
            print_error(error)
            sys.exit(error.exit_code)
        except SystemExit as e:
            # Log lines that could not be written are in its buffer.
            if not _is_flushed(sys.stderr):
                _discard(sys.stderr)
            if e.code:
                _discard_unwritable_output()
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as e:
            self._refuse_usage(ctx, e)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as e:
            self._refuse_usage(ctx, e)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # Click handles these itself.
        except (Exception, KeyboardInterrupt) as e:
            if isinstance(e, OSError) and _is_output_of_click(e):
                raise
            error = as_stateflow_error(e)
            if ctx.meta.get(_JSON_FLAG):
                _print_error_json(error_report(error))
            else:
                print_error(error)
            ctx.exit(error.exit_code)

    def _refuse_usage(self, ctx: click.Context, error: click.UsageError) -> NoReturn:
        """Ends the command for a wrong command line, which may be one that asks for JSON."""
        if _JSON_FLAG not in self._words:
            raise error  # Click prints it with the usage.
        _print_error_json(ErrorReport("usage", error.format_message(), {}, "", error.exit_code, retryable=False))
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


@dataclass(frozen=True)
class FailedCommand:
    """The last line on stderr of a command with ``--json`` that ends with an error.

    Attributes:
        error: the error.
    """

    error: ErrorReport


def _print_error_json(error: ErrorReport) -> None:
    print_text(encode_json(FailedCommand(error)), err=True)


def print_json(value: object) -> None:
    """Prints an output as one line of JSON to stdout."""
    print_text(encode_json(value))


class PrintedJson:
    """The JSON that a command prints.

    Args:
        output: type of the value, or a function that imports and returns it.
        lines: whether the command prints a line for each of several such values.
        has_findings: whether an exit code other than 0 may tell what was found, which is printed then as well.
    """

    def __init__(self, output: object, *, lines: bool = False, has_findings: bool = False) -> None:
        self._output, self.lines, self.has_findings = output, lines, has_findings

    @property
    def output(self) -> object:
        """Type of the value, which the reference describes."""
        return self._output() if inspect.isfunction(self._output) else self._output


class JsonOption(click.Option):
    """The flag ``--json`` of a command."""

    def __init__(self, printed: PrintedJson) -> None:
        help = "Print a line of JSON for each record." if printed.lines else "Print JSON instead of text."
        super().__init__([_JSON_FLAG, "as_json"], is_flag=True, help=help, is_eager=True, callback=_remember_json)
        self.printed = printed


_PRINTED = "_printed_json"


def printed_json(command: click.Command) -> PrintedJson | None:
    """Returns the JSON that a command prints, with ``--json`` or always; None if it prints none."""
    always = getattr(command.callback, _PRINTED, None)
    options = (option.printed for option in command.params if isinstance(option, JsonOption))
    return always if isinstance(always, PrintedJson) else next(options, None)


def json_lines(output: object) -> Callable[[F], F]:
    """Returns a decorator of a command that always prints lines of JSON, each a value of this type."""

    def add(command: F) -> F:
        setattr(command, _PRINTED, PrintedJson(output, lines=True))
        return command

    return add


def _remember_json(ctx: click.Context, option: click.Parameter, given: bool) -> bool:
    ctx.meta[_JSON_FLAG] = given
    return given


def json_option(output: object, *, lines: bool = False, has_findings: bool = False) -> Callable[[F], F]:
    """Returns a decorator that adds ``--json`` to a command.

    Args:
        output: type of the value that the command then prints with `print_json`; or a function that returns it, if its
            module is too slow to import for other commands.
        lines: whether it prints a line for each of several such values.
        has_findings: whether an exit code other than 0 may tell what was found, which is printed then as well.
    """

    def add(command: F) -> F:
        options: list[click.Parameter] = command.__dict__.setdefault("__click_params__", [])
        options.append(JsonOption(PrintedJson(output, lines=lines, has_findings=has_findings)))
        return command

    return add


class Seconds(click.FloatRange):
    """Duration in seconds; ``inf`` and ``nan`` are rejected."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = super().convert(value, param, ctx)
        return self.fail("not a number", param, ctx) if math.isnan(seconds) else seconds


class Members(click.Choice[E]):
    """The values of an enumeration, as its members."""

    def __init__(self, members: Iterable[E]) -> None:
        super().__init__(list(members))

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        return str(choice)


def to_duration(ctx: click.Context, option: click.Parameter, text: str | None) -> timedelta | None:
    """Returns the value of an option such as ``36h``: a callback for it. Raises ConfigError for another text."""
    try:
        return None if text is None else parse_duration(text)
    except (ValueError, OverflowError) as e:
        raise ConfigError(
            f"the value of {option.opts[0]} is not a duration", hint="pass one such as 36h or 30d", given=text
        ) from e


SECONDS = Seconds(min=0, max=_LONGEST_WAIT)
JOB_FILE = click.Path(path_type=Path)


JOB = click.argument("job", type=JOB_FILE, metavar="JOB.py")
JOB_OF_REQUEST = click.argument("job_file", type=JOB_FILE, metavar="JOB.py")
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


def timeout_options(then: str = "") -> list[Callable[[F], F]]:
    """Returns the options for the time limits of a request to a run; `then` ends the help of the second one."""
    limits = {
        "--timeout": (RequestTimeouts.answer, "How long to wait for the run's next barrier."),
        "--acknowledge-timeout": (
            RequestTimeouts.acknowledge,
            f"How long to wait until a run acknowledges the request{then}.",
        ),
    }
    return [
        click.option(
            name,
            type=SECONDS,
            callback=lambda ctx, option, seconds: timedelta(seconds=seconds),
            default=int(limit.total_seconds()),
            show_default=True,
            metavar="SECONDS",
            help=text,
        )
        for name, (limit, text) in limits.items()
    ]


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


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options for settings to a command, which gets them as `layers`."""

    @functools.wraps(command)
    def call(*, config: Path | None, assignments: tuple[str, ...], **others: object) -> None:
        command(layers=settings_layers(config, assignments), **others)

    return with_options(SETTINGS_OPTIONS)(call)


def with_request(make: Callable[..., object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that passes those parameters of a command that are fields of a request to it as `request`.

    An option that is not given leaves the default of the field. `by` becomes the user of the operating system with that
    name as a claim, and `on_step` prints to stderr.

    Args:
        make: the class of the request.
    """
    fields = inspect.signature(make).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(**given: object) -> None:
            own = {name: value for name, value in given.items() if name in fields and value is not None}
            if "by" in own:
                own["by"] = os_user(str(own["by"]))
            if "on_step" in fields:
                own["on_step"] = lambda step: print_text(step, err=True)
            others = {name: value for name, value in given.items() if name not in fields}
            command(request=make(**own), **others)

        return call

    return decorate


def settings_layers(config: Path | None, assignments: tuple[str, ...]) -> tuple[SettingsLayer, ...]:
    """Returns the layers of ``--config`` and ``--set``; the last one has the highest precedence.

    Raises:
        ConfigError: the file or an assignment cannot be parsed.
    """
    return ((read_toml(config),) if config else ()) + (parse_assignments(assignments),)


def refuse(problem: str, hint: str) -> None:
    """Raises ConfigError: the given options do not go together."""
    raise ConfigError(problem, hint=hint)


_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164\ufeff"
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters except tab and line feed, invisible ones, changes of direction, and lone surrogates."""


def print_text(text: str = "", *, err: bool = False) -> None:
    """Prints a text to stdout, or to stderr.

    No command depends on what stderr shows: a reader that has gone, or a full device, does not end it.

    Raises:
        StorageError: stdout cannot be written, for another reason than that its reader has gone.
    """
    try:
        click.echo(visible(text), err=err)
    except OSError as e:
        if not err and isinstance(e, BrokenPipeError):
            raise
        if err:
            _discard(sys.stderr)
        else:
            raise unwritable_output(e) from e


def unwritable_output(e: OSError) -> StorageError:
    """Returns the error for output that stdout cannot take, and discards all further output."""
    _discard(sys.stdout)
    return StorageError("could not write the output", hint="free space, or write to another file", reason=e.strerror)


def _discard_unwritable_output() -> None:
    """Discards output that an error has left in the buffer of stdout, and all later output of this process.

    The exit code belongs to the error. A thread that publishes rows may still print, and fail, while the process ends.
    """
    # Not a stream that a caller in this process has put there.
    if not _is_flushed(sys.stdout) or sys.stdout is sys.__stdout__:
        _discard(sys.stdout)


def _is_flushed(stream: TextIO) -> bool:
    """Writes the buffer of a stream; returns False if it cannot be written."""
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _discard(stream: TextIO) -> None:
    """Lets the file descriptor of a stream lead to nothing.

    Otherwise Python writes what is left in the buffer when the process ends, and exits with a code of its own.
    """
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


def prepare_streams() -> None:
    """Makes the standard streams usable, whatever the caller has closed, and however they are encoded.

    The next file that is opened would take a closed descriptor, and get the output of libraries. A character
    that the encoding lacks is escaped.
    """
    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            # The lowest free number, which is the closed one.
            opened = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(opened, mode, closefd=opened != descriptor))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="backslashreplace")


def visible(text: str) -> str:
    r"""Returns the text with control characters as ``\u001b``, which also means the character in a string of JSON."""
    return _CONTROLS.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    """Returns the escape of a character in JSON: of one above U+FFFF, the escapes of its two surrogates."""
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def one_line(text: str) -> str:
    r"""Returns the text like `visible`, with ``\u000a`` for a line feed, so that a name or reason forges no line."""
    return visible(text).replace("\n", "\\u000a").replace("\t", "\\u0009")


def add_row(table: Table, *cells: str) -> None:
    """Adds a row to a table. The cells are shown as they are, since rich would interpret brackets as its markup."""
    table.add_row(*(Text(one_line(cell)) for cell in cells))


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as lines with aligned columns; nothing is cut or wrapped, however narrow the terminal."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


def offset_text(offset: object) -> str:
    """Returns a source's position without JSON punctuation: ``{"row": 120}`` becomes ``row:120``.

    A position in words keeps its words; a line feed in it becomes a blank, so that it forges no line.

    Args:
        offset: the position as the source has written it, or its JSON value; None for none.
    """
    if not isinstance(offset, str):
        offset = "" if offset is None else json.dumps(offset, separators=(",", ":"))
    # Of a source that Spark reads through its Python API, it is within Spark's own.
    offset = local_position(offset) or offset
    if not offset.lstrip().startswith(("{", "[")):
        return re.sub(r"\s+", " ", offset).strip() or "-"
    return re.sub(r'[{}"\s]', "", offset) or "-"


def short_offset(offset: object) -> str:
    """Returns a source's position like `offset_text`, cut to 58 characters, which may be cut further in a table.

    The position of a Delta table begins with the version, and does not have the id of the table.
    """
    text = re.sub("(sourceVersion|reservoirId):[^,]*,|^table:[0-9a-f-]{36},", "", offset_text(offset))
    text = text.replace("reservoirVersion:", "version:")
    return f"{text[:57]}…" if len(text) > 58 else text


def point_label(point: Entry) -> str:
    """Returns the id of a point; for a restore, with the id of the checkpoint that it restored: ``61 = 42``, ``= 42``.

    The second is a checkpoint that the job still had: its id stays the same.
    """
    if not point.checkpoint_id:
        return "aborted"
    restored = 0 if isinstance(point, CheckpointEntry) else point.restored_checkpoint_id
    if not restored:
        return str(point.checkpoint_id)
    return f"= {restored}" if restored == point.checkpoint_id else f"{point.checkpoint_id} = {restored}"


def to_seconds(timestamp: str) -> str:
    """Returns an ISO timestamp to the second, without its zone: ``2026-01-31 03:00:00``."""
    return one_line(timestamp[:19].replace("T", " "))


def in_utc(timestamp: str) -> str:
    """Returns a stored timestamp to the second; stored ones are in UTC on every host."""
    return f"{to_seconds(timestamp)} UTC"


def count_of(count: int, noun: str) -> str:
    """Returns a count with its noun: ``1 file``, ``1,200 files``; batch and batches likewise."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def human_bytes(count: int) -> str:
    """Returns a number of bytes with a decimal unit."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
