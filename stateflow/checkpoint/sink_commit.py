"""Publishes a checkpoint's output in a sink's table exactly once.

A sink's table stores a token per application: the id of the last checkpoint published there. Reading the token and
committing the next one use the same table handle, so that the pair is a compare-and-swap, which also fences the sink.
`decide` is the complete rule; ``docs/design/0002`` describes the failures that it excludes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from stateflow import failpoints
from stateflow.checkpoint.log.checkpoint_log import CheckpointLog, Head
from stateflow.checkpoint.log.documents import PublishedOutput
from stateflow.checkpoint.log.fencing import FENCED_HINT
from stateflow.errors import Fenced, MissingFile, SinkDiverged, StorageError
from stateflow.state.handles import Committable

_TRIES = 50
_EARLY = 1
"""The token of a table that only has output without a checkpoint: it shows other job roots that this one writes there.
The log's first entry has this number, and no checkpoint does."""


class Decision(enum.Enum):
    """Actions on a checkpoint's output, given the table's token."""

    PUBLISH = "publish"
    ALREADY = "already published"
    ROLLED_BACK = "the table was restored to an older version outside of this job"
    DROPPED_CHECKPOINT = "the table has output of a checkpoint that the job's current state does not descend from"
    UNKNOWN_FUTURE = "the table's token is newer than the newest log entry known to the caller"


def decide(token: int, published: int, checkpoint: int, head: int) -> Decision:
    """Returns what a table's token means for publishing a checkpoint.

    Args:
        token: checkpoint id stored in the table; 0 for none.
        published: id of the last ancestor of `checkpoint` that was published there.
        checkpoint: id of the checkpoint to publish.
        head: the newest sequence number that the caller knows.
    """
    if token > head:
        return Decision.UNKNOWN_FUTURE
    if token >= checkpoint:
        return Decision.ALREADY
    if token < published:
        return Decision.ROLLED_BACK
    if token > published:
        # A paused driver published a checkpoint that the job had dropped; or the log lost its newest entry. The rows of
        # that checkpoint are in the table, and would be written a second time.
        return Decision.DROPPED_CHECKPOINT
    return Decision.PUBLISH


class TableHandle(Protocol):
    """A snapshot of a sink's table."""

    table_id: str
    version: int
    token: int | None
    """The last checkpoint that was published; None for a sink that cannot store it."""

    def missing(self, committables: list[Committable]) -> list[str]:
        """Returns the paths of files that are not stored with their size."""

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        """Adds the files and sets the token in one commit; returns the table's new version.

        Returns None when any application changed the table after this handle was opened: open the table and decide
        again.
        """


class PublishingSink(Protocol):
    """A sink as publishing requires it."""

    @property
    def uid(self) -> str:
        """The sink's uid in the job."""

    @property
    def location(self) -> str:
        """Path or address of its table, for display; empty for a sink without one."""

    def open_table(self) -> TableHandle:
        """Returns the current table.

        Raises Fenced if another job root has taken it over, SinkDiverged or SinkRefused if it may not be written.
        """

    def check_unshared(self) -> None:
        """Raises ConfigError if the sink of the same uid of another job root writes to the table."""


@dataclass(frozen=True)
class SinkOutput:
    """A checkpoint's output for one sink.

    Attributes:
        checkpoint_id: id of the checkpoint.
        committables: the files to publish.
        known: the last known position of the sink's table.
    """

    checkpoint_id: int
    committables: list[Committable]
    known: PublishedOutput


def publish(sink: PublishingSink, output: SinkOutput, log: CheckpointLog, head: Head) -> PublishedOutput:
    """Publishes a checkpoint's output exactly once; returns the new position of the sink's table.

    Args:
        sink: the sink.
        output: the output.
        log: the job's log.
        head: the newest entry that the caller knows.

    Raises:
        Fenced: a newer run published there.
        SinkDiverged: the table was restored or replaced, or has checkpoints that the log does not have.
        MissingFile: a file to publish does not exist.
        StorageError: other commits to the table were first each time.
    """
    known = output.known.checkpoint_id
    return _publish_with_retries(
        sink, output, log, lambda token: decide(token, known, output.checkpoint_id, head.entry.seq)
    )


def publish_early(
    sink: PublishingSink, committables: list[Committable], known: PublishedOutput, log: CheckpointLog, head: Head
) -> PublishedOutput:
    """Publishes output before its checkpoint, at least once: it is published again if the checkpoint fails.

    Args:
        sink: the sink.
        committables: the files to publish.
        known: the last known position of the sink's table.
        log: the job's log.
        head: the newest entry that the caller knows.

    Returns the new position of the sink's table: the same checkpoint as before, at a newer version.

    Raises as `publish` does.
    """

    def judge(token: int) -> Decision:
        if token == known.checkpoint_id:
            return Decision.PUBLISH
        # Decide as for the next checkpoint, whose number will be higher than all known numbers.
        return decide(token, known.checkpoint_id, head.entry.seq + 1, head.entry.seq)

    # The token stays, because no checkpoint contains this output yet.
    output = SinkOutput(known.checkpoint_id or _EARLY, committables, known)
    return msgspec.structs.replace(_publish_with_retries(sink, output, log, judge), checkpoint_id=known.checkpoint_id)


def _publish_with_retries(
    sink: PublishingSink, output: SinkOutput, log: CheckpointLog, judge: Callable[[int], Decision]
) -> PublishedOutput:
    for _ in range(_TRIES):
        table = sink.open_table()
        _check_identity(sink, table, output.known)
        if not output.known.table_id or table.token is None:
            # The first output, or a token that is gone: nothing else shows whether another job root began meanwhile.
            # After the handle was made, so that what follows this check makes the commit fail.
            sink.check_unshared()
        failpoints.hit("publish.before")
        decision = judge(_token(table, output.known))
        if decision is Decision.ALREADY:
            return _position(table, table.version, output)
        if decision is not Decision.PUBLISH:
            raise _refusal(decision, sink, table, log)
        missing = table.missing(output.committables)
        if missing:
            # A fenced run may have published the output since the table was opened, and then removed the files.
            if _is_newest(sink, table):
                raise _missing(sink.uid, output, missing)
            continue
        version = table.commit(output.checkpoint_id, output.committables)
        if version is not None:
            failpoints.hit("publish.after")
            return _position(table, version, output)
    raise StorageError(
        "every attempt to commit to the sink's table conflicted with another writer", sink=sink.uid, tries=_TRIES
    )


def check_sink_position(sink: PublishingSink, known: PublishedOutput, log: CheckpointLog, head: Head) -> None:
    """Raises Fenced or SinkDiverged unless the token of a sink without pending output matches the log.

    Args:
        sink: the sink.
        known: the position of the sink's table in the log.
        log: the job's log.
        head: the newest entry that the caller knows.
    """
    table = sink.open_table()
    _check_identity(sink, table, known)
    token = _token(table, known)
    if token != known.checkpoint_id:
        # Decide as for the next checkpoint, whose number will be higher than all known numbers.
        decision = decide(token, known.checkpoint_id, head.entry.seq + 1, head.entry.seq)
        raise _refusal(decision, sink, table, log)


def _token(table: TableHandle, known: PublishedOutput) -> int:
    if table.token is None or (table.token, known.checkpoint_id) == (_EARLY, 0):
        return known.checkpoint_id
    return table.token


def _position(table: TableHandle, version: int, output: SinkOutput) -> PublishedOutput:
    return PublishedOutput(table_id=table.table_id, version=version, checkpoint_id=output.checkpoint_id)


def _check_identity(sink: PublishingSink, table: TableHandle, known: PublishedOutput) -> None:
    if known.table_id and table.table_id != known.table_id:
        raise SinkDiverged(
            "the sink's table was replaced by another table",
            hint="it was dropped and created again: restore the old table, or give the sink a new uid to continue with "
            "the new table",
            sink=sink.uid,
            **_at(sink),
            known=known.table_id,
            found=table.table_id,
        )


def _at(sink: PublishingSink) -> dict[str, str]:
    """Returns the table's location as a fact of an error."""
    return {"table": sink.location} if sink.location else {}


def _is_newest(sink: PublishingSink, table: TableHandle) -> bool:
    """Returns whether this application has not committed since a handle was made."""
    newest = sink.open_table()
    return (newest.table_id, newest.version, newest.token) == (table.table_id, table.version, table.token)


def _missing(uid: str, output: SinkOutput, files: list[str]) -> MissingFile:
    return MissingFile(
        "output was deleted before it was published",
        hint="check whether the table was vacuumed; the run restores the checkpoint before it",
        sink=uid,
        checkpoint_id=output.checkpoint_id,
        files=files[:3],
    )


def _refusal(decision: Decision, sink: PublishingSink, table: TableHandle, log: CheckpointLog) -> Fenced | SinkDiverged:
    if decision is Decision.ROLLED_BACK:
        return SinkDiverged(
            "the sink's table was restored to an older version outside of this job",
            hint="undo that restore of the table, or restore the job to the same position: stateflow restore",
            sink=sink.uid,
            **_at(sink),
            token=table.token,
        )
    if decision is Decision.DROPPED_CHECKPOINT:
        return SinkDiverged(
            "the sink's table has output of a checkpoint that the job dropped, or its log lost",
            hint="restore the table to the version before that checkpoint, or give the sink a new uid and "
            "another table",
            sink=sink.uid,
            **_at(sink),
            token=table.token,
        )
    newest = log.read_head()
    if newest is not None and table.token is not None and newest.entry.seq >= table.token:
        return Fenced("a newer run published to the sink", hint=FENCED_HINT, sink=sink.uid, token=table.token)
    return SinkDiverged(
        "the sink's table has checkpoints that the log does not have",
        hint="if the job root is a copy, "
        "run the original; otherwise restore the table to a version that the log has, or give the sink a "
        "new uid and another table",
        sink=sink.uid,
        **_at(sink),
        token=table.token,
        newest=newest.entry.seq if newest else 0,
    )
