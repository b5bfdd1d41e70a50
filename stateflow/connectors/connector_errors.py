"""Errors that several sources and sinks raise: wrong arguments, failed reads, and malformed positions."""

from __future__ import annotations

from stateflow.errors import BatchFailed, ConfigError
from stateflow.helpers import line_of_user


def check_choice(name: str, given: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError if an argument is not one of its values."""
    if given not in choices:
        raise ConfigError(
            f"the value of {name} is not supported", hint=f"use {' or '.join(map(repr, choices))}", given=given
        )


def read_failure(what: str, source: str, error: Exception, **facts: str) -> BatchFailed:
    """Returns the error for an exception of the user's code in a source; a retry may succeed.

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


def position_error(kind: str, hint: str, source: str, position: str, error: Exception) -> ConfigError:
    """Returns the error for a position that a source cannot parse.

    Args:
        kind: the kind of source, such as ``a Kafka source``.
        hint: what a position looks like.
        source: description of the source.
        position: the position; its beginning is a fact of the error.
        error: why it cannot be parsed.
    """
    return ConfigError(
        f"the position is not valid for {kind}",
        hint=hint,
        source=source,
        position=position[:500],
        reason=str(error)[:500],
    )
