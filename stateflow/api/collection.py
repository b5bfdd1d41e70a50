"""A source that reads a list of rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from stateflow.api.schema import RowSchema
from stateflow.api.source import InitialPosition, LocalSource, Slice, StartKind, StartPosition
from stateflow.config.settings import SourceSettings
from stateflow.errors import ConfigError, JobDefinitionError


class CollectionSource(LocalSource):
    """A bounded source whose rows are in the job file.

    A position is a number of rows, so if a later version of the job has a longer list, the run reads the new rows.

    Args:
        rows: objects of `row_class`.
        row_class: class of the rows.
    """

    bounded = True
    may_use_spark = True
    start_kinds = frozenset({StartKind.EARLIEST, StartKind.LATEST, StartKind.POSITION})

    def __init__(self, rows: Iterable[object], row_class: type[object]) -> None:
        self.schema = RowSchema.of(row_class)
        self._rows = list(rows)
        wrong = [repr(row) for row in self._rows if not isinstance(row, row_class)]
        if wrong:
            raise JobDefinitionError(
                "a row of a collection is no instance of its row class",
                hint=f"pass {row_class.__name__} objects",
                given=wrong[0][:200],
            )

    @property
    def description(self) -> str:
        return f"CollectionSource[{self.schema.row_class.__name__}]"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        start = int(json.loads(position)["row"]) if position else 0
        rows = self._rows[start:][: limits.max_rows_per_batch]
        return Slice(rows, json.dumps({"row": start + len(rows)})) if rows else None

    def between(self, position: str | None, end: str) -> Sequence[object] | None:
        """See `LocalSource.between`: a longer list has other slices. None if the list does not have the rows."""
        start, stop = (int(json.loads(at)["row"]) if at else 0 for at in (position, end))
        return self._rows[start:stop] if start <= stop <= len(self._rows) else None

    def holds(self, position: str) -> bool | None:
        return True

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """Returns the position after all rows, or a given one: ``{"row": N}`` after N rows."""
        if start.kind is StartKind.LATEST:
            return InitialPosition(json.dumps({"row": len(self._rows)}))
        try:
            row = json.loads(start.position)["row"]
        except (ValueError, KeyError, TypeError, RecursionError):
            row = None
        if type(row) is not int or not 0 <= row <= len(self._rows):
            raise ConfigError(
                "the position of a collection is not a number of its rows",
                hint=f'use {{"row": N}} with N from 0 to {len(self._rows)}',
                position=start.position[:200],
            )
        return InitialPosition(json.dumps({"row": row}))
