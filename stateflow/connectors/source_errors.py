"""Errors of a source that is Python code of the user."""

from __future__ import annotations

from stateflow.errors import BatchFailed
from stateflow.user_lines import line_of_user


def read_failure(what: str, source: str, error: Exception, **facts: str) -> BatchFailed:
    """Returns the error for an exception of a source's code; it is not known whether a retry can succeed.

    Args:
        what: the first part of the message, such as ``a source cannot be read``.
        source: description of the source.
        error: the exception.
        facts: more facts.
    """
    return BatchFailed(
        what,
        hint="a new run continues from the last checkpoint; if that fails as well, fix the source",
        source=source,
        **facts,
        reason=f"{type(error).__name__}: {error}"[:500],
        where=line_of_user(error),
    )
