"""Prints texts, and formats sizes, timestamps, source positions and tables for the terminal.

Names, reasons, positions and paths come from job roots, savepoints and servers. An escape sequence in one of them could
erase or rewrite what the user sees, and a character that changes the direction of writing could reorder it. So all
output goes through `print_text` or `add_row`, which make such characters visible.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

import click
from rich.table import Table
from rich.text import Text

from stateflow.errors import StorageError

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


def discard_unwritable_output() -> None:
    """Discards output that an error has left in the buffer of stdout: the exit code belongs to the error."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout)


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


def offset_text(offset: str) -> str:
    """Returns a source's position without JSON punctuation: ``{"row": 120}`` becomes ``row:120``.

    A position in words keeps its words; a line feed in it becomes a blank, so that it forges no line.
    """
    if not offset.lstrip().startswith(("{", "[")):
        return re.sub(r"\s+", " ", offset).strip() or "-"
    return re.sub(r'[{}"\s]', "", offset) or "-"


def short_offset(offset: str) -> str:
    """Returns a source's position like `offset_text`, cut to 58 characters, which may be cut further in a table.

    The position of a Delta table begins with the version, and does not have the id of the table.
    """
    text = re.sub("(sourceVersion|reservoirId):[^,]*,", "", offset_text(offset))
    text = text.replace("reservoirVersion:", "version:")
    return f"{text[:57]}…" if len(text) > 58 else text


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
