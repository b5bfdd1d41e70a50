"""Converts what the user's code returns for a split into columns, and rejects rows that do not fit the row class."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from stateflow.api.dead_letters import OnError
from stateflow.api.hidden_columns import RejectedRecord, rejection_error
from stateflow.api.schema import RowSchema
from stateflow.connectors.columns.column_policy import ColumnPolicy
from stateflow.connectors.partitioned.arrow_batches import conformed, nullable_columns
from stateflow.connectors.partitioned.positions import Split
from stateflow.errors import UserCodeError, cut
from stateflow.types.columns.conversion import to_column, with_type

_ROWS = 1000
"""Rows that are converted together."""
_SHOWN = 500
"""Characters of a value in an error."""
_MISFITS = (TypeError, ValueError, OverflowError, AttributeError)


@dataclass(frozen=True)
class BadRow:
    """A row that `read_split` could not decode.

    Attributes:
        value: what was read; bytes that are not UTF-8 are shown in Base64.
        reason: why it cannot be decoded.
        offset: its offset; None to count it as the row after those that the split has returned.
    """

    value: str | bytes | None
    reason: str
    offset: int | None = None


@dataclass(frozen=True)
class Chunk:
    """Some rows of a split.

    Attributes:
        columns: the columns of the row class.
        rejected: rows that do not fit it.
    """

    columns: pa.RecordBatch
    rejected: Sequence[RejectedRecord] = ()


@dataclass(frozen=True)
class RowRules:
    """What rows of a source must be.

    Attributes:
        schema: the row class.
        policy: which columns may be missing or added.
        on_error: what happens to rows that do not fit.
        source: description of the source, for errors.
    """

    schema: RowSchema
    policy: ColumnPolicy
    on_error: OnError
    source: str


def chunks_of(items: Iterable[object], split: Split, rules: RowRules) -> Iterator[Chunk]:
    """Yields the rows of a split.

    Args:
        items: what the user's code has returned for the split.

    Raises:
        CorruptInput: a row does not fit the row class, and the source has no dead letters.
        SchemaMismatch: an Arrow batch does not fit it.
        UserCodeError: an item is neither a row nor an Arrow batch.
    """
    pending = _Pending(split, rules)
    for item in items:
        if isinstance(item, pa.RecordBatch | pa.Table):
            yield from pending.taken()
            for batch in [item] if isinstance(item, pa.RecordBatch) else item.to_batches():
                pending.number += len(batch)
                yield Chunk(conformed(batch, rules.schema, rules.policy, rules.source))
        else:
            pending.add(item)
            if pending.full:
                yield from pending.taken()
    yield from pending.taken()


class _Pending:
    """Rows that are not converted yet.

    Attributes:
        number: number of rows of the split so far.
    """

    def __init__(self, split: Split, rules: RowRules) -> None:
        self.number = 0
        self._split = split
        self._rules = rules
        self._encoded = _encoded_names(rules.schema)
        self._rows: list[tuple[int, object]] = []
        self._rejected: list[RejectedRecord] = []

    @property
    def full(self) -> bool:
        """Whether the rows should be converted."""
        return len(self._rows) + len(self._rejected) >= _ROWS

    def add(self, item: object) -> None:
        """Adds a row, as an object, a mapping, or a `BadRow`."""
        offset = self._split.start + self.number
        self.number += 1
        if isinstance(item, BadRow):
            self._reject(offset if item.offset is None else item.offset, item.value, item.reason)
        elif isinstance(item, Mapping):
            self._add_mapping(offset, item)
        elif isinstance(item, self._rules.schema.row_class):
            self._rows.append((offset, item))
        else:
            raise UserCodeError(
                "a split of a source has returned something that is no row",
                hint=f"yield {self._rules.schema.row_class.__name__} objects, dicts, BadRow or Arrow batches",
                source=self._rules.source,
                split=self._split.partition,
                found=type(item).__name__,
            )

    def taken(self) -> Iterator[Chunk]:
        """Yields what was added, if anything was."""
        rows, self._rows = self._rows, []
        if not rows and not self._rejected:
            return
        try:
            columns = self._columns([row for _, row in rows])
        except _MISFITS:
            # Only now row by row, which is slow.
            columns = self._columns([row for offset, row in rows if self._fits(offset, row)])
        rejected, self._rejected = self._rejected, []
        yield Chunk(columns, rejected)

    def _columns(self, rows: Sequence[object]) -> pa.RecordBatch:
        schema = self._rules.schema
        target = nullable_columns(schema)
        return pa.RecordBatch.from_struct_array(
            with_type(to_column(schema.shape, rows, exact=True), pa.struct(list(target)))
        )

    def _fits(self, offset: int, row: object) -> bool:
        try:
            to_column(self._rules.schema.shape, [row], exact=True)
        except _MISFITS as e:
            self._reject(offset, _text(row), str(e).lstrip("."))
            return False
        return True

    def _add_mapping(self, offset: int, item: Mapping[object, object]) -> None:
        schema, policy = self._rules.schema, self._rules.policy
        added = sorted(map(str, item.keys() - set(schema.names))) if policy.added == "refuse" else []
        absent = [c for c in schema.columns if c.name not in item]
        missing = [c.name for c in absent if not c.nullable or policy.missing == "refuse"]
        if added or missing:
            what = f"columns that are not declared: {added}" if added else f"no value of {missing}"
            self._reject(offset, _text(item), f"the row has {what}")
            return
        try:
            # A default of the class does not count: all sources read a missing column as null.
            values = {encoded: item.get(name) for name, encoded in self._encoded.items()}
            row = msgspec.convert(values, schema.row_class)
        except (msgspec.ValidationError, RecursionError) as e:
            self._reject(offset, _text(item), str(e))
            return
        self._rows.append((offset, row))

    def _reject(self, offset: int, value: str | bytes | None, reason: str) -> None:
        record = RejectedRecord(self._split.partition, 0, offset, None, _shown(value), cut(reason, _SHOWN))
        if self._rules.on_error is None:
            raise rejection_error(record)
        self._rejected.append(record)


def _encoded_names(schema: RowSchema) -> dict[str, str]:
    """Returns the name of each field in encoded data."""
    if issubclass(schema.row_class, msgspec.Struct):
        return {field.name: field.encode_name for field in msgspec.structs.fields(schema.row_class)}
    return {name: name for name in schema.names}


def _text(row: object) -> str:
    try:
        return msgspec.json.encode(row, enc_hook=repr).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(row)


def _shown(value: str | bytes | None) -> str | None:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"
