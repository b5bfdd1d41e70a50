"""Rules for the names and times of savepoints, when one is created and when its document is read. Pure functions."""

from __future__ import annotations

from stateflow.checkpoint.log.documents import Savepoint
from stateflow.clock import parse_timestamp
from stateflow.errors import ConfigError
from stateflow.helpers import check_name

LATEST = "latest"
"""Names the newest checkpoint as a restore target, so no savepoint may have this name."""


def check_savepoint_name(name: str) -> str:
    """Returns `name` if a savepoint may have it. Raises ConfigError for a name that as a target means a checkpoint."""
    if check_name("a savepoint's name", name) == LATEST or name.isdigit():
        raise ConfigError(
            "a savepoint's name may not be a number or latest, which mean checkpoints",
            hint="use a name with letters, other than latest",
            name=name,
        )
    return name


def invalid_field(document: Savepoint) -> str:
    """Returns the field of a savepoint's document that no creation could have written; empty if there is none.

    Others may have written it: a name could mean a checkpoint or contain control characters, and a time that cannot be
    compared would fail the retention of all savepoints.
    """
    try:
        check_savepoint_name(document.name)
    except ConfigError:
        return "name"
    for field, text in (("made_at", document.made_at), ("committed_at", document.committed_at)):
        try:
            parse_timestamp(text)
        except ValueError:
            return field
    return ""
