"""The sink interface, and the sink that prints rows.

Tasks write files that are invisible until the driver publishes them after the commit.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.datasets import Dataset, without_credentials
from stateflow.api.schema import RowSchema
from stateflow.errors import ConfigError, JobDefinitionError, StorageError
from stateflow.state.handles import Committable
from stateflow.storage import Storage


@dataclass(frozen=True)
class SinkContext:
    """Identifies a sink of a job.

    Attributes:
        job_uuid: UUID of the job; empty if the job root does not exist yet.
        uid: uid of the sink.
        schema: columns of the rows.
        storage: the job root, where a sink may keep files until they are published; see
            `stateflow.connectors.staged_output`. None if the job root does not exist yet, and for `check` and
            `open_table` of a job root that is not the sink's own.
    """

    job_uuid: str
    uid: str
    schema: RowSchema
    storage: Storage | None = field(default=None, repr=False, compare=False)

    @property
    def application(self) -> str:
        """The name under which the table stores this sink's token: ``<job uuid>/<uid>``."""
        return f"{self.job_uuid}/{self.uid}"


class Delivery(StrEnum):
    """How often a sink passes on the rows of a checkpoint if runs fail."""

    EXACTLY_ONCE = "exactly-once"
    IDEMPOTENT = "idempotent"
    """Rows may be passed on again; the receiver ignores repetitions."""
    AT_LEAST_ONCE = "at-least-once"


_NAME_PART = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class CatalogEntry:
    """A table's name in the catalog of Spark.

    Attributes:
        name: optionally the catalog, then the schema and the table.
        provider: the format of the table, as in Spark's ``USING``.
        location: path of the table.
    """

    name: tuple[str, ...]
    provider: str
    location: str

    @classmethod
    def parse(cls, name: str, provider: str, location: str) -> CatalogEntry:
        """Returns the entry of a name such as ``schema.table`` or ``catalog.schema.table``.

        Raises:
            ConfigError: the name has other parts, or parts with other characters than letters, digits, ``_`` and ``-``.
        """
        parts = tuple(name.split("."))
        if len(parts) not in (2, 3) or not all(map(_NAME_PART.fullmatch, parts)):
            raise ConfigError(
                "a name in the catalog needs a schema and a table, of letters, digits, '_' and '-'",
                hint="use schema.table or catalog.schema.table",
                given=name,
            )
        return cls(parts, provider, location)

    @property
    def text(self) -> str:
        """The name with dots."""
        return ".".join(self.name)

    @property
    def identifier(self) -> tuple[str, str]:
        """The name in lineage events: the catalog, by default Spark's own, and the rest."""
        *catalog, schema, table = self.name
        return (catalog[0] if catalog else "spark_catalog"), f"{schema}.{table}"


@dataclass(frozen=True)
class Writing:
    """Identifies the attempt of a subtask that writes, and its barrier. All fields are part of file names."""

    generation: int
    ordinal: int
    subtask: int
    attempt: str


class SinkWriter(ABC):
    """Writes the rows of one attempt of one subtask, to files that are not visible in the table."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Writes rows of the sink's schema."""

    @abstractmethod
    def close(self) -> list[Committable]:
        """Makes the files durable and returns them; an empty list without rows."""


@dataclass(frozen=True)
class SinkRewind:
    """The effect of rewinding a sink's table.

    Attributes:
        from_version: the version of the handle.
        to_version: the version whose content is restored; None if this application published nothing after the
            checkpoint, so that there is nothing to undo.
        rows_removed: number of rows that are removed; None if unknown.
        rows_returned: number of rows that are restored, because another writer deleted or rewrote them; None if
            unknown.
        others: commits of other writers after `to_version` that changed rows and are undone as well, oldest first.
            Compaction changes no rows.
    """

    from_version: int
    to_version: int | None
    rows_removed: int | None
    rows_returned: int | None
    others: tuple[OtherCommit, ...]


@dataclass(frozen=True)
class OtherCommit:
    """A commit of another writer that changed rows of a sink's table.

    Attributes:
        version: the table version that it created.
        applications: the applications whose token it set; empty for a writer without tokens.
        text: writer, operation, time and change in rows, for display.
        files: the files that it added and removed.
        operation: the operation's name in the table's log; empty if the log does not name it.
        rows: change in the number of rows; None if unknown.
    """

    version: int
    applications: frozenset[str]
    text: str
    files: tuple[str, ...] = ()
    operation: str = ""
    rows: int | None = None


@dataclass(frozen=True)
class TableChanges:
    """The changes of a sink's table after one of its versions, up to the version of the handle.

    Attributes:
        table: path or name, for display.
        published: whether this application committed.
        others: commits of other writers that changed rows, oldest first. Compaction changes no rows.
    """

    table: str
    published: bool
    others: tuple[OtherCommit, ...]


_TOKEN = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True)
class Successor:
    """The sink of another job root that has taken over a table.

    Attributes:
        application: its name in the table.
        root: URI of its job root.
        token: its token after the take-over. With a larger one it has published since. Negative if it took the table
            over whatever that held.
    """

    application: str
    root: str
    token: int

    @property
    def text(self) -> str:
        """How a table stores it."""
        return f"{self.application} {self.token} {self.root}"

    @classmethod
    def parse(cls, text: str) -> Successor:
        """Returns the successor that a table has stored as a text, which other tools may have changed."""
        application, token, root = [*text.split(" ", 2), "", ""][:3]
        return cls(application, root, int(token) if _TOKEN.fullmatch(token) else -1)


class SinkTable(Protocol):
    """A handle of a sink's table at one version. A commit fails if the application has committed since.

    Attributes:
        table_id: id of the table.
        version: version of the table when the handle was created.
        token: the last checkpoint that this application published; 0 if there is none. None for a table that stores no
            tokens, such as a terminal: then the log decides, and output that was published just before a run died is
            published again.
        successor: the sink that has taken over the table from this application, which must no longer write; None
            if none has.
    """

    table_id: str
    version: int
    token: int | None
    successor: Successor | None = None

    def missing(self, committables: list[Committable]) -> list[str]:
        """Returns the paths of files that do not exist or have another size."""

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        """Adds the files and sets the token atomically. Returns the table's new version.

        Returns None if the table has changed since this handle was made, by this application or another one: open the
        table again and decide again. A table that many applications change at once may ignore others, except before
        the first publication of its own application: then another job's sink of the same uid must not have published
        since. So of two new job roots, one finds the other.
        """

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        """Returns the effect of a rewind to `checkpoint_id`; changes nothing.

        The target is the version before the first one whose token, of this application, is above `checkpoint_id`. It
        includes commits of other writers before that version and excludes later ones.

        Raises:
            SinkDiverged: that version can no longer be restored.
            SinkRefused: the table does not allow a rewind.
        """

    def changes_since(self, version: int) -> TableChanges:
        """Returns the changes after `version`. A commit whose log entry was removed counts as one of another writer."""

    def rewind(self, to_version: int | None, token: int) -> int | None:
        """Restores the content of `to_version` (None: the current content) and sets the token.

        One atomic and durable step. Returns the table's new version. Returns None if the table has changed since this
        handle was made: open the table again and decide again. If the token is set then, the rewind is complete.

        Raises: as `plan_rewind`; nothing is changed then.
        """

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        """Sets the token, and makes this application the successor of others, which can commit nothing from then on.

        One atomic and durable step, except for systems whose transactions belong to one application: these fence
        the former applications first, and repeat that without harm. Returns the table's new version. Returns None if
        the table has changed since this handle was made, or if a former application has another token.

        Args:
            token: the token of this application, larger than any before.
            former: the tokens of the former applications.
            by: this application and its job root.
        """


class Sink(ABC):
    """The end of a stream. The object is sent to tasks, so it has settings but no connections."""

    @abstractmethod
    def check(self, context: SinkContext) -> str | None:
        """Returns the id of the table if it exists; changes nothing.

        Called before the job root is created, so `context.job_uuid` may be empty.

        Raises:
            SinkRefused, SchemaMismatch: the existing table cannot be used.
        """

    @property
    def location(self) -> str:
        """Path or address of the table, for display; empty if it has none."""
        return ""

    def datasets(self) -> Sequence[Dataset]:
        """Returns what the sink writes, for lineage events."""
        return (Dataset("stateflow", without_credentials(self.location)),) if self.location else ()

    @property
    def host_local(self) -> bool:
        """Whether only processes of this host can read the table."""
        return False

    @property
    def delivery(self) -> Delivery:
        """How often rows are passed on, while the mode of checkpoints is exactly-once."""
        return Delivery.EXACTLY_ONCE

    @property
    def catalog_entry(self) -> CatalogEntry | None:
        """The name under which a run on Spark registers the table, once it exists; None for no name."""
        return None

    @property
    def ordering_key(self) -> tuple[str, ...]:
        """Columns whose rows with equal values one task must write, in order; empty if any task may write any row.

        It matters for streams without an operator before the sink: an operator emits all rows of its key in one task.
        """
        return ()

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Columns that may be declared nullable, and whose nulls end the run when a row is written: keys of rows."""
        return ()

    def for_changelog(self, changelog: Changelog) -> Sink:
        """Returns the sink for rows that correct earlier ones.

        Raises:
            JobDefinitionError: the sink only appends rows, which is the default, or it matches rows by other keys.
        """
        raise JobDefinitionError(
            "a sink that only appends rows cannot be the end of a changelog",
            hint="use a sink by key: DeltaSink(…, mode='upsert', keys=…), PostgresSink(…, mode='upsert', keys=…) or "
            "KafkaSink(…, key=…); to append each change as a row of its own, call as_append_only() on the stream",
            sink=repr(self),
            upsert_key=list(changelog.keys),
            row_kind=changelog.row_kind,
        )

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        """Returns the ids of other jobs whose sink of the same uid has published to the table, and still may.

        The tokens of the table decide. A sink that another one has taken over from does not count. A new job root that
        used such a table would read all input again, and write its rows a second time.
        """
        return frozenset()

    @abstractmethod
    def prepare(self, context: SinkContext) -> str:
        """Creates the table if it does not exist, and checks it. Returns the table's id.

        Called on the driver before the first batch of a run. Idempotent, and safe to call concurrently.

        Raises:
            SinkRefused, SchemaMismatch: the table cannot be used.
        """

    @abstractmethod
    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        """Returns a writer for one attempt; called in a task."""

    @abstractmethod
    def open_table(self, context: SinkContext) -> SinkTable:
        """Returns a handle of the table's current version, after checking it.

        Raises:
            SinkRefused, SchemaMismatch, SinkDiverged: the table cannot be used.
        """

    def begin_run(self, context: SinkContext, generation: int) -> None:  # noqa: B027 - most sinks need nothing
        """Called once in each run, before it writes anything and before `sweep`.

        Args:
            context: the sink.
            generation: the generation of the run; earlier runs have lower ones.

        Raises:
            StorageError: the run cannot begin.
        """

    @abstractmethod
    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        """Removes files of this sink that were written but never published.

        Args:
            context: the sink.
            is_leftover: called with (generation, ordinal, path) of each file that this sink wrote and that no readable
                version of the table references.

        Returns:
            The names of the removed files.
        """

    @abstractmethod
    def shadow(self) -> Sink:
        """Returns the sink for the shadow table, whose name has the suffix ``_shadow``."""


_ROW_LIMIT = 500
"""Maximum number of characters of a row, since the log stores the lines until they are printed."""


class PrintSink(Sink):
    """Prints the rows of committed batches to the driver's standard output, one per line: ``(1,4)``.

    The lines are stored in the checkpoint's log entry, so at most `limit` rows of each subtask and batch are printed,
    and the first 500 characters of each. At-least-once: if a run dies just after printing, the next run prints the same
    lines again.

    Args:
        limit: maximum number of rows per subtask and batch; with 0, only the number of rows is printed.
    """

    def __init__(self, limit: int = 100) -> None:
        if limit < 0:
            raise JobDefinitionError(
                "the limit of printed rows must not be negative",
                hint="pass 0 to print only the number of rows",
                limit=limit,
            )
        self.limit = limit

    @property
    def delivery(self) -> Delivery:
        return Delivery.AT_LEAST_ONCE

    def for_changelog(self, changelog: Changelog) -> PrintSink:
        return self

    def check(self, context: SinkContext) -> str | None:
        return _table_id(context)

    def prepare(self, context: SinkContext) -> str:
        return _table_id(context)

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        return _Lines(self.limit, writing.subtask)

    def open_table(self, context: SinkContext) -> SinkTable:
        return _StandardOutput(_table_id(context))

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        return []

    def shadow(self) -> Sink:
        return self


def _table_id(context: SinkContext) -> str:
    return f"standard output of {context.uid}"


class _Lines(SinkWriter):
    def __init__(self, limit: int, subtask: int) -> None:
        self._limit = limit
        self._subtask = subtask
        self._lines: list[str] = []
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows += len(rows)
        for row in rows.slice(0, max(0, self._limit - len(self._lines))).to_pylist():
            self._lines.append(f"({','.join(map(str, row.values()))})"[:_ROW_LIMIT])

    def close(self) -> list[Committable]:
        if not self._rows:
            return []
        more = self._rows - len(self._lines)
        lines = [*self._lines, *([f"… and {more:,} more rows"] if more else [])]
        text = "".join(f"{line}\n" for line in lines)
        return [Committable(path=f"lines-{self._subtask}", size=len(text.encode()), rows=self._rows, stats=text)]


class _StandardOutput:
    """Standard output as a table with one version and without a token."""

    version = 0
    token: int | None = None
    successor: Successor | None = None

    def __init__(self, table_id: str) -> None:
        self.table_id = table_id

    def missing(self, committables: list[Committable]) -> list[str]:
        return []

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        try:
            sys.stdout.write("".join(c.stats for c in committables))
            sys.stdout.flush()
        except OSError as e:
            raise StorageError(
                "could not print rows", hint="free space, or write to another file", reason=e.strerror
            ) from e
        return self.version

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        return SinkRewind(self.version, None, 0, 0, ())

    def changes_since(self, version: int) -> TableChanges:
        return TableChanges("standard output", published=False, others=())

    def rewind(self, to_version: int | None, token: int) -> int | None:
        return self.version

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        return self.version
