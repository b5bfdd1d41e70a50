"""A sink that prints rows, for debugging."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.sink import (
    Delivery,
    Sink,
    SinkContext,
    SinkRewind,
    SinkTable,
    SinkWriter,
    Successor,
    TableChanges,
    Writing,
)
from stateflow.errors import JobDefinitionError, StorageError
from stateflow.state.handles import Committable

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
                "the limit of printed rows is negative", hint="pass 0 to print only the number of rows", limit=limit
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
        return SinkRewind(self.version, None, None, None, ())

    def changes_since(self, version: int) -> TableChanges:
        return TableChanges("standard output", published=False, others=())

    def rewind(self, to_version: int | None, token: int) -> int | None:
        return self.version

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        return self.version
