"""Input and output rows of a harness: the source without rows, the collecting sink, and checks of pushed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkTable, SinkWriter, Writing
from stateflow.api.source import LocalSource, Slice
from stateflow.config.settings import SourceSettings
from stateflow.errors import JobDefinitionError, SchemaMismatch
from stateflow.runtime.task.row_conversion import to_batch, to_rows
from stateflow.state.handles import Committable
from stateflow.types.columns.conversion import maker_of

Rows = list[Any]
"""Rows of any class: a job's rows have one class for each of its streams, which type checkers cannot infer here."""


class PushedRows(LocalSource):
    """A source without rows; the harness passes the pushed rows to the tasks itself."""

    def __init__(self, row_class: type[object]) -> None:
        self.schema = RowSchema.of(row_class)

    @property
    def description(self) -> str:
        return f"PushedRows[{self.schema.row_class.__name__}]"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        return None


class CollectedRows(Sink):
    """A sink that keeps the rows of a batch in this process; the harness drops them if the batch fails."""

    def __init__(self) -> None:
        self._rows: Rows = []

    def __deepcopy__(self, memo: object) -> CollectedRows:
        """Returns the object itself: tasks, which receive a copy of their operators, write to this sink."""
        return self

    def add(self, rows: pa.RecordBatch, schema: RowSchema) -> None:
        """Adds rows that a task has emitted."""
        self._rows += to_rows(rows.columns, schema)

    def take(self) -> Rows:
        """Returns the rows that were written since the last call, and removes them."""
        rows, self._rows = self._rows, []
        return rows

    def for_changelog(self, changelog: Changelog) -> CollectedRows:
        return self

    def check(self, context: SinkContext) -> str | None:
        return None

    def prepare(self, context: SinkContext) -> str:
        return context.uid

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        return _RowCollector(context.schema, self)

    def open_table(self, context: SinkContext) -> SinkTable:
        raise JobDefinitionError("a harness has no table", hint="declare a sink in a job and run the job")

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        return []

    def shadow(self) -> Sink:
        return CollectedRows()


class _RowCollector(SinkWriter):
    def __init__(self, schema: RowSchema, sink: CollectedRows) -> None:
        self._schema = schema
        self._sink = sink

    def write(self, rows: pa.RecordBatch) -> None:
        self._sink.add(rows, self._schema)

    def close(self) -> list[Committable]:
        return []


def typed_rows(rows: Iterable[object], row_class: type[object]) -> list[object]:
    """Returns the rows as objects of `row_class`.

    Args:
        rows: such objects, dictionaries by column, or tuples in the order of columns.
        row_class: the row class of the input.

    Raises:
        SchemaMismatch: a row does not fit; the error names it.
    """
    schema = RowSchema.of(row_class)
    result = [_typed(row, schema) for row in rows]
    try:
        to_batch(result, schema)
    except SchemaMismatch as e:
        raise SchemaMismatch(
            "a pushed row does not match its class", hint="compare the row's values with the class", **e.facts
        ) from e
    return result


def _typed(row: object, schema: RowSchema) -> object:
    if isinstance(row, schema.row_class):
        return row
    try:
        if isinstance(row, Mapping):
            return schema.row_class(**row)
        if isinstance(row, tuple | list):
            return maker_of(schema.row_class, schema.names)(*row)
        raise TypeError(f"it is of type {type(row).__name__}")
    except (TypeError, ValueError) as e:
        raise SchemaMismatch(
            "a pushed row does not match its class",
            hint="push objects of the class, dictionaries or tuples",
            row_class=schema.row_class.__name__,
            row=repr(row)[:500],
            reason=str(e),
        ) from e
