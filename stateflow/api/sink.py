"""What a sink is: it writes files that nobody sees in the tasks, and makes them visible after the commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from stateflow.api.schema import RowSchema
from stateflow.state.handles import Committable


@dataclass(frozen=True)
class SinkContext:
    """Which sink of which job this is.

    Attributes:
        application: name under which the table remembers what this sink published: ``<job uuid>/<uid>``.
    """

    job_uuid: str
    uid: str
    schema: RowSchema

    @property
    def application(self) -> str:
        return f"{self.job_uuid}/{self.uid}"


@dataclass(frozen=True)
class Writing:
    """Which attempt of which subtask towards which barrier writes; all of it becomes part of file names."""

    generation: int
    ordinal: int
    subtask: int
    attempt: str


class SinkWriter(ABC):
    """Writes the rows of one attempt of one subtask. Nothing that it writes is visible."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Takes rows of the sink's schema."""

    @abstractmethod
    def close(self) -> list[Committable]:
        """Makes the files durable and returns them; empty when there were no rows."""


@dataclass(frozen=True)
class SinkRewind:
    """What going back in a sink's table means.

    Attributes:
        from_version: the version of the handle.
        to_version: the version whose content comes back; None when this application published nothing after the
            checkpoint, so that there is nothing to take back.
        rows_removed: rows that disappear; None when it is not known.
        rows_returned: rows that come back, because somebody deleted or rewrote them since; None when it is not known.
        others: commits by others after `to_version` that changed data and are undone as well, a sentence for each.
            Compaction changes none.
    """

    from_version: int
    to_version: int | None
    rows_removed: int | None
    rows_returned: int | None
    others: tuple[str, ...]


@dataclass(frozen=True)
class OtherCommit:
    """A commit of another writer that changed rows of a sink's table.

    Attributes:
        version: the version that it made.
        applications: those whose token it set; empty for a writer that sets none.
        text: who did what and when, and how many rows more or fewer; for people.
        files: what it added and removed.
    """

    version: int
    applications: frozenset[str]
    text: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableChanges:
    """What changed in a sink's table after one of its versions, up to the version of the handle.

    Attributes:
        table: path or name, for people.
        published: whether this application committed.
        others: commits of other writers that changed rows, oldest first. Compaction changes none.
    """

    table: str
    published: bool
    others: tuple[OtherCommit, ...]


class SinkTable(Protocol):
    """A sink's table as it was when the handle was made; a commit through it fails when the application committed
    in between."""

    table_id: str
    version: int
    token: int | None
    """The last checkpoint that this application published; 0 when there is none. None of what keeps no token, as
    a terminal: the log's word counts then, and what was published just before a run died comes again."""

    def missing(self, committables: list[Committable]) -> list[str]:
        """Paths of those files that are not there with their size."""

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        """Adds the files and sets the token, in one step; returns the table's new version.

        None when the table changed after this handle was made, by this application or another: open again and decide
        anew.
        """

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        """What going back to `checkpoint_id` would do; changes nothing.

        The version to go back to is the one before the first whose token, of this application, is above
        `checkpoint_id`: with what others committed before that, and without what they committed after it.

        Raises SinkDiverged when that version cannot be had any more, SinkRefused when the table forbids it.
        """

    def changes_since(self, version: int) -> TableChanges:
        """What changed after `version`. A commit whose log entry is gone counts as one of another writer."""

    def rewind(self, to_version: int | None, token: int) -> int | None:
        """Makes the table hold what it held at `to_version` (None: what it holds now) and sets the token, in one
        step that is durable; returns the table's new version.

        None when the table changed after this handle was made: open again and decide anew. If the token is there then,
        it has been done.

        Raises SinkDiverged or SinkRefused as `plan_rewind` does, with nothing changed.
        """


class Sink(ABC):
    """Where a stream ends. One object describes it; it is sent to tasks, so it holds settings, never connections."""

    @abstractmethod
    def check(self, context: SinkContext) -> str | None:
        """The id of the table when there is one; changes nothing. Called before the job root is touched, so
        `context.job_uuid` may be empty.

        Raises SinkRefused or SchemaMismatch when there is a table that cannot be honoured.
        """

    @property
    def location(self) -> str:
        """Path or address of what it writes to, for people; empty when it has none."""
        return ""

    @property
    def host_local(self) -> bool:
        """Whether only processes of this host can see what it writes."""
        return False

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        """Ids of the other jobs whose sink of the same uid has written what the table holds, as far as that is known.

        A job root that begins over such a table is likely to be a mistyped one: its first run would write all rows a
        second time.
        """
        return frozenset()

    @abstractmethod
    def prepare(self, context: SinkContext) -> str:
        """Creates the table when there is none, and checks that it can be honoured; safe to repeat and to race.
        Called on the driver before the first batch of a run. Returns the table's id.

        Raises SinkRefused or SchemaMismatch.
        """

    @abstractmethod
    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        """A writer for one attempt, in a task."""

    @abstractmethod
    def open_table(self, context: SinkContext) -> SinkTable:
        """The table as it is now, checked again. Raises SinkRefused, SchemaMismatch or SinkDiverged."""

    @abstractmethod
    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        """Removes files of this sink that were written and never published.

        Args:
            is_leftover: asked with (generation, ordinal, path) of each file that the sink wrote, that no version of
                the table which can still be read names.

        Returns:
            what was removed.
        """

    @abstractmethod
    def shadow(self) -> Sink:
        """The same sink into the table beside its own whose name ends in ``_shadow``."""
