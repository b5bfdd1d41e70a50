"""A list of rows as a source."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Slice
from stateflow.errors import JobDefinitionError
from stateflow.settings import SourceSettings


class CollectionSource(LocalSource):
    """Rows that the job file has itself; bounded. A position counts the rows, so a longer list in a later version of
    the job goes on behind those that were read.

    Args:
        rows: objects of `row_class`.
    """

    bounded = True
    may_use_spark = True

    def __init__(self, rows: Iterable[Any], row_class: type[Any]) -> None:
        self.schema = RowSchema.of(row_class)
        self._rows = list(rows)
        wrong = [repr(row) for row in self._rows if not isinstance(row, row_class)]
        if wrong:
            raise JobDefinitionError("a row of a collection is not of its class", hint=f"make {row_class.__name__} "
                                     "objects", given=wrong[0][:200])  # fmt: skip

    @property
    def description(self) -> str:
        return f"CollectionSource[{self.schema.row_class.__name__}]"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        start = int(json.loads(position)["row"]) if position else 0
        rows = self._rows[start:][: limits.max_rows_per_batch]
        return Slice(rows, json.dumps({"row": start + len(rows)})) if rows else None

    def holds(self, position: str) -> bool | None:
        return True
