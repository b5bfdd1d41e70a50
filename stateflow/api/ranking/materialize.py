"""The operator that keeps all rows of a key, and emits the newest one that exists: Flink's `SinkUpsertMaterializer`."""

from __future__ import annotations

from collections.abc import Iterator

from stateflow.api.changelog import with_kind
from stateflow.api.functions.process import Context, KeyedProcessFunction, RuntimeContext
from stateflow.api.row_identity import RowIdentity
from stateflow.api.schema import RowSchema
from stateflow.state.kinds.list_state import ListState
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.descriptors import ListStateDescriptor
from stateflow.types.ttl_config import StateTtlConfig

MATERIALIZED = "materialized"
"""Name of the state with the rows of a key, in the order of arrival; part of the stored format."""


class Materialize(KeyedProcessFunction[object, object]):
    """Keeps the rows of a key that are not retracted. A restore with fields of other names or types is refused.

    Args:
        schema: the columns of the rows.
        row_kind: their field of type `RowKind`.
        ttl: for how long a row is kept, from its arrival, and again from when another row of its key was retracted,
            because the list is then written again; None for ever.
    """

    _rows: ListState[object]

    def __init__(self, schema: RowSchema, row_kind: str, ttl: StateTtlConfig | None) -> None:
        self._row_class = schema.row_class
        self._identity = RowIdentity.of(column for column in schema.columns if column.name != row_kind)
        self._row_kind = row_kind
        self._ttl = ttl

    def open(self, ctx: RuntimeContext) -> None:
        # Of a field that was added later, a stored row has the default, and an equal row may arrive with another value.
        content = f"content: {self._identity.text}"
        descriptor = ListStateDescriptor(MATERIALIZED, self._row_class, ttl=self._ttl, arguments=content)
        self._rows = ctx.get_list_state(descriptor)

    def process_element(self, row: object, ctx: Context) -> Iterator[object]:
        kept = with_kind(row, self._row_kind, RowKind.INSERT)
        if RowKind(getattr(row, self._row_kind)).is_retraction:
            yield from self._take_back(kept)
            return
        is_first = next(iter(self._rows.get()), None) is None
        self._rows.add(kept)
        yield kept if is_first else with_kind(row, self._row_kind, RowKind.UPDATE_AFTER)

    def _take_back(self, row: object) -> Iterator[object]:
        rows, wanted = list(self._rows.get()), self._identity.content(row)
        found = next((at for at, each in enumerate(rows) if self._identity.content(each) == wanted), None)
        if found is None:
            return  # it has expired, or was never added
        is_newest = found == len(rows) - 1
        del rows[found]
        if not rows:
            self._rows.clear()
            yield with_kind(row, self._row_kind, RowKind.DELETE)
            return
        self._rows.update(rows)
        if is_newest:
            yield with_kind(rows[-1], self._row_kind, RowKind.UPDATE_AFTER)
