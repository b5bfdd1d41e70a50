"""Adds to an error of state which operator, key and row it happened at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stateflow.api.functions import Context
from stateflow.errors import JobDefinitionError, StateError

_ROW_CHARACTERS = 500


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
