"""Adds to an error where it happened: operator, key and row, or a line of the job file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb

from stateflow.api.functions import Context
from stateflow.errors import JobDefinitionError, StateError, StateflowError

_ROW_CHARACTERS = 500
_PACKAGE = str(Path(__file__).parents[1]) + os.sep


@contextmanager
def naming_position(operator: str, columns: Sequence[str], context: Context) -> Iterator[None]:
    """Lets a StateError or JobDefinitionError of the body name the operator, the current key and its last row.

    A changed value is encoded when the rows of its key end, so the row is the last one of the key in this batch, which
    need not be the one that set the value.

    Args:
        operator: uid.
        columns: names of the key columns.
        context: what the function was called with.
    """
    try:
        yield
    except (StateError, JobDefinitionError) as e:
        e.add_facts(operator=operator)
        if context.key_values:
            e.add_facts(key=repr(dict(zip(columns, context.key_values, strict=True))))
        if context.row is not None:
            e.add_facts(row=repr(context.row)[:_ROW_CHARACTERS])
        raise


@contextmanager
def naming_job_line() -> Iterator[None]:
    """Lets a StateflowError of the body name the file and line of the job that led to it."""
    try:
        yield
    except StateflowError as e:
        where = line_of_user(e)
        if where:
            e.add_facts(where=where)
        raise


def line_of_user(error: BaseException) -> str:
    """File and line of the innermost call that is neither stateflow's nor made by the interpreter; empty without."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if not frame.filename.startswith((_PACKAGE, "<")):
            return f"{frame.filename}:{frame.lineno}"
    return ""
