"""Errors of Delta's source for Spark that another try does not solve, as errors of stateflow. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from stateflow.api.input_files import plain_path, unreadable_in
from stateflow.errors import CorruptInput, DataError, InputLost, SchemaMismatch, StateflowError

_CONDITION = re.compile(r"\[(DELTA_[A-Z_]+)(?:\.[A-Z_]+)?\]\s*([^\n]*)")
_VERSION = re.compile(r"\bversions? \[?(\d+)\]?")
_SHOWN = 500


@dataclass(frozen=True)
class _Failure:
    """What one of Delta's error conditions means."""

    error: type[StateflowError]
    message: str
    hint: str


_CHANGED = _Failure(
    DataError,
    "a commit of a Delta table updates or deletes rows, and a source without changes reads only rows that are added",
    "skip such commits with DeltaSource(…, skip_changes=True), or read them with changes=True; to continue after it, "
    "restore with --source UID=position:VERSION",
)
_OTHER_COLUMNS = _Failure(
    SchemaMismatch,
    "columns of a Delta table were renamed, removed or changed their type after the position of its source",
    "restore with --source UID=position:VERSION, with a version after the change, or with UID=earliest",
)
_LOG_GONE = _Failure(
    InputLost,
    "a Delta table no longer has the log of versions that were not read",
    "restore with --source UID=earliest or position:VERSION; to keep the log longer, set delta.logRetentionDuration "
    "of the table",
)
_FILE_GONE = _Failure(
    InputLost,
    "a Delta table no longer has a file that was not read",
    "restore the file from a copy, or the job with --source UID=earliest or position:VERSION; VACUUM must keep files "
    "for longer than the time between two runs (delta.deletedFileRetentionDuration)",
)
_FAILURES = {
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES": _CHANGED,
    "DELTA_SOURCE_IGNORE_DELETE": _CHANGED,
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE": _OTHER_COLUMNS,
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG": _OTHER_COLUMNS,
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA": _OTHER_COLUMNS,
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE": _OTHER_COLUMNS,
    "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE": _LOG_GONE,
    "DELTA_MISSING_CHANGE_DATA": _Failure(
        DataError,
        "a Delta table has not recorded its changes in versions that were not read",
        "set delta.enableChangeDataFeed=true of the table, and restore with --source UID=position:VERSION, with a "
        "version since then",
    ),
}


def stream_error(reason: str, source: str, table: str) -> StateflowError | None:
    """Returns the error that ended a stream of a Delta table; None if it is unknown, or another try may solve it.

    Args:
        reason: text of Spark's error.
        source: description of the source.
        table: path of its table. An error that names another path is one of another source.
    """
    for condition, text in _CONDITION.findall(reason):
        failure = _FAILURES.get(condition)
        if failure is not None and not _names_another(unquote(text), table):
            version = _VERSION.search(text)
            facts = {"version": int(version[1])} if version else {}
            return failure.error(failure.message, hint=failure.hint, source=source, **facts, reason=_first_part(text))
    return _error_of_file(reason, source, plain_path(table))


def _error_of_file(reason: str, source: str, table: str) -> StateflowError | None:
    """Returns the error of a data file of a table; None if the error is another one, or a retry may read the file."""
    found = unreadable_in(reason)
    if found is None or not found.path.startswith(f"{table.rstrip('/')}/"):
        return None
    if found.was_deleted:
        return InputLost(_FILE_GONE.message, hint=_FILE_GONE.hint, source=source, file=found.path)
    if not found.is_corrupt:
        return None
    return CorruptInput(
        "a data file of a Delta table cannot be read",
        hint="restore the file from a copy, or delete its rows from the table",
        source=source,
        file=found.path,
        reason=found.reason,
    )


def _names_another(text: str, table: str) -> bool:
    """Returns whether a message has the path of another table, which may begin or end with that of this one."""
    path = re.escape(table.removeprefix("file://"))
    named = rf" at path (file:(//)?)?{path}/?\.?(\s+SQLSTATE|$)"
    return " at path " in text and not re.search(named, text)


def _first_part(text: str) -> str:
    """Returns Delta's message without its advice, which is about options of Spark."""
    return text.partition(" This is currently not supported")[0][:_SHOWN]
