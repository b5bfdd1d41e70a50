"""Making a checkpoint's output visible in a sink that is fenced as well.

A sink's table keeps a token per application: the id of the last checkpoint published there. Reading the token and
committing the next use one handle of the table, so that the pair is a compare-and-swap. `decide` is the whole rule;
``docs/design/0002`` tells which histories it excludes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stateflow import failpoints
from stateflow.checkpoint.documents import PublishedOutput
from stateflow.checkpoint.log import CheckpointLog, Head
from stateflow.errors import Fenced, MissingFile, SinkDiverged, StorageError
from stateflow.state.handles import Committable

_TRIES = 50


class Decision(enum.Enum):
    """What to do with one checkpoint's output, given the table's token."""

    PUBLISH = "publish"
    ALREADY = "already published"
    WENT_BACK = "the table went back without us"
    FOREIGN = "the table holds output of a checkpoint that is not on the job's line"
    UNKNOWN_FUTURE = "the table is ahead of the log entry that we know"


def decide(token: int, published: int, checkpoint: int, head: int) -> Decision:
    """What the table's `token` means for publishing `checkpoint`.

    Args:
        token: checkpoint id that the table holds; 0 when it holds none.
        published: the last checkpoint of this job's line before `checkpoint` that was published there.
        head: the newest sequence number that the caller knows.
    """
    if token > head:
        return Decision.UNKNOWN_FUTURE
    if token >= checkpoint:
        return Decision.ALREADY
    if token < published:
        return Decision.WENT_BACK
    if token > published:
        # A driver that was paused before it published a checkpoint which the job then gave up; or the log lost its
        # newest entry. The rows of that checkpoint are in the table, and would come a second time.
        return Decision.FOREIGN
    return Decision.PUBLISH


class TableHandle(Protocol):
    """A sink's table as it was at one moment."""

    table_id: str
    version: int
    token: int | None
    """The last checkpoint that was published; None of what cannot remember it."""

    def missing(self, committables: list[Committable]) -> list[str]:
        """Those of the files that are not there with their size."""

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        """Adds the files and sets the token in one commit; returns the table's new version.

        None when the table changed after this handle was made, by this application or another: open again and decide
        anew.
        """


class PublishingSink(Protocol):
    """What publishing needs of a sink."""

    @property
    def uid(self) -> str:
        """The sink's name in the job."""

    @property
    def location(self) -> str:
        """Where its table is, for people; empty for what has no place."""

    def open_table(self) -> TableHandle:
        """The table as it is now. Raises SinkDiverged or SinkRefused when it is not one that may be written to."""


@dataclass(frozen=True)
class Output:
    """One checkpoint's output for one sink, and what is known of the sink."""

    checkpoint_id: int
    committables: list[Committable]
    known: PublishedOutput


def publish(sink: PublishingSink, output: Output, log: CheckpointLog, head: Head) -> PublishedOutput:
    """Makes the output visible exactly once; returns where the sink stands then.

    Raises:
        Fenced: a newer run published there.
        SinkDiverged: the table went back, was replaced, or knows checkpoints that the log does not.
        MissingFile: a file to be published is gone.
    """
    known = output.known.checkpoint_id
    return _published(
        sink, output, log, lambda token: decide(token, known, output.checkpoint_id, head.entry.seq)
    )


def publish_early(
    sink: PublishingSink, committables: list[Committable], known: PublishedOutput, log: CheckpointLog, head: Head
) -> PublishedOutput:  # fmt: skip
    """Makes output visible that no checkpoint has yet; it comes again when none ever does.

    Returns where the sink stands then: behind the same checkpoint as before, one version later.

    Raises as `publish` does.
    """

    def judge(token: int) -> Decision:
        if token == known.checkpoint_id:
            return Decision.PUBLISH
        # As for the next checkpoint, which will have a higher number than everything that is known.
        return decide(token, known.checkpoint_id, head.entry.seq + 1, head.entry.seq)

    # The token stays: of what is published now, no checkpoint knows.
    return _published(sink, Output(known.checkpoint_id, committables, known), log, judge)


def _published(
    sink: PublishingSink, output: Output, log: CheckpointLog, judge: Callable[[int], Decision]
) -> PublishedOutput:
    for _ in range(_TRIES):
        table = sink.open_table()
        _check_identity(sink, table, output.known)
        failpoints.hit("publish.before")
        decision = judge(_token(table, output.known))
        if decision is Decision.ALREADY:
            return _standing(table, table.version, output)
        if decision is not Decision.PUBLISH:
            raise _refusal(decision, sink, table, log)
        _check_files(sink.uid, table, output)
        version = table.commit(output.checkpoint_id, output.committables)
        if version is not None:
            failpoints.hit("publish.after")
            return _standing(table, version, output)
    raise StorageError("the sink's table changes too fast to publish", sink=sink.uid, tries=_TRIES)


def check_standing(sink: PublishingSink, known: PublishedOutput, log: CheckpointLog, head: Head) -> None:
    """Raises Fenced or SinkDiverged unless the sink stands where the log says, with nothing pending."""
    table = sink.open_table()
    _check_identity(sink, table, known)
    token = _token(table, known)
    if token != known.checkpoint_id:
        # As for the next checkpoint, which will have a higher number than everything that is known.
        decision = decide(token, known.checkpoint_id, head.entry.seq + 1, head.entry.seq)
        raise _refusal(decision, sink, table, log)


def _token(table: TableHandle, known: PublishedOutput) -> int:
    return known.checkpoint_id if table.token is None else table.token


def _standing(table: TableHandle, version: int, output: Output) -> PublishedOutput:
    return PublishedOutput(table_id=table.table_id, version=version, checkpoint_id=output.checkpoint_id)


def _check_identity(sink: PublishingSink, table: TableHandle, known: PublishedOutput) -> None:
    if known.table_id and table.table_id != known.table_id:
        raise SinkDiverged("the sink's table is another one than before", hint="it was dropped and made again: either "
                           "put the old one back, or give the sink a new uid to go on with a new table", sink=sink.uid,
                           **_at(sink), known=known.table_id, found=table.table_id)  # fmt: skip


def _at(sink: PublishingSink) -> dict[str, str]:
    """The table's place as a fact of an error."""
    return {"table": sink.location} if sink.location else {}


def _check_files(uid: str, table: TableHandle, output: Output) -> None:
    missing = table.missing(output.committables)
    if missing:
        raise MissingFile("output that is not yet published was deleted", hint="was the table vacuumed? the run goes "
                          "back to the checkpoint before it", sink=uid, checkpoint=output.checkpoint_id,
                          files=missing[:3])  # fmt: skip


def _refusal(
    decision: Decision, sink: PublishingSink, table: TableHandle, log: CheckpointLog
) -> Fenced | SinkDiverged:
    if decision is Decision.WENT_BACK:
        return SinkDiverged("the sink's table went back without this job", hint="either restore the table to the "
                            "version before that, or take the job back to where the table is: stateflow restore",
                            sink=sink.uid, **_at(sink), token=table.token)  # fmt: skip
    if decision is Decision.FOREIGN:
        return SinkDiverged("the sink's table holds output of a checkpoint that the job gave up, or its log lost",
                            hint="either restore the table to the version before that checkpoint, or give the sink a "
                            "new uid and another table", sink=sink.uid, **_at(sink), token=table.token)  # fmt: skip
    newest = log.read_head()
    if newest is not None and table.token is not None and newest.entry.seq >= table.token:
        return Fenced(
            "a newer run published to the sink",
            hint="let the other run work",
            sink=sink.uid,
            token=table.token,
        )
    return SinkDiverged("the sink's table knows checkpoints that the log does not", hint="if the job root is a copy, "
                        "run the original; else restore the table to a version that the log knows, or give the sink a "
                        "new uid and another table", sink=sink.uid, **_at(sink), token=table.token)  # fmt: skip
