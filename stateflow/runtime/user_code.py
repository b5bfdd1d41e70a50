"""Errors of user code: their classification, and the line, operator, key and row where they happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stateflow.api.functions.process import Context
from stateflow.api.functions.returned import InvalidReturnValue
from stateflow.errors import JobDefinitionError, StateError, StateflowError, UserCodeError, cut
from stateflow.helpers import line_of_class, line_of_user

_LONGEST_FACT = 500
"""Characters of a key or row in an error."""


def describe_value(value: object) -> str:
    """Returns a key or row as a fact of an error; a long one is cut as by `cut`."""
    return cut(repr(value), _LONGEST_FACT)


@contextmanager
def add_position(operator: str, columns: Sequence[str], context: Context) -> Iterator[None]:
    """Adds operator, current key, last row and line of the job to a StateError or JobDefinitionError of the body.

    A changed value is encoded after the last row of its key. So the row is the last one of the key in this batch, not
    necessarily the one that set the value.

    Args:
        operator: uid of the operator.
        columns: names of the key columns.
        context: the context that the function was called with.
    """
    try:
        yield
    except (StateError, JobDefinitionError) as e:
        where = line_of_user(e)
        e.add_facts(operator=operator, **({"where": where} if where else {}))
        if context.key_values:
            e.add_facts(key=describe_value(dict(zip(columns, context.key_values, strict=True))))
        if context.row is not None:
            e.add_facts(row=describe_value(context.row))
        raise


def find_user_line(error: BaseException, function: object = None) -> str:
    """Returns file and line of the innermost call of the user's code, never of stateflow's.

    For an `InvalidReturnValue` these are the function's; without a call of the user's code, the lines of the class of
    `function`, which lacks a method, for example.
    """
    if isinstance(error, InvalidReturnValue):
        return error.where
    return line_of_user(error) or (line_of_class(function) if function is not None else "")


def is_user_error(error: Exception) -> bool:
    """Returns whether user code caused an error, by raising it or by an invalid value for state."""
    return not isinstance(error, StateflowError) or isinstance(error, StateError | UserCodeError)
