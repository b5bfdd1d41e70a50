"""The partitions of an Iceberg table: those of a new one, and the partition of each row.

PyIceberg computes partitions of columns with a further package, and those of single values without: here each distinct
value of a batch is computed once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import Transform, UnknownTransform, parse_transform
from pyiceberg.typedef import Record

from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError

Values = tuple[object, ...]
"""The value of each partition field, as Iceberg stores it."""
_LONGEST_FOLDER = 120
"""Bytes: a file system permits 255, and an object store 1024 for all folders together."""
_COLUMN, _TIME = r"(?P<column>\w+)", r"(?P<time>year|month|day|hour)\((?P<at>\w+)\)"
_SIZED = r"(?P<sized>bucket|truncate)\((?P<size>[1-9]\d{0,8}), *(?P<of>\w+)\)"
_TERM = re.compile(f"{_COLUMN}|{_TIME}|{_SIZED}")


class Partitioning:
    """How the rows of a table are partitioned now.

    Args:
        table: the table.
        schema: of its data files.
    """

    def __init__(self, table: Table, schema: Schema) -> None:
        self._spec = table.spec()
        self._schema = table.schema()
        self._sources = {field.source_id: _path_of(schema, field.source_id) for field in self._spec.fields}

    def split(self, rows: pa.Table) -> Iterator[tuple[Values, pa.Table]]:
        """Yields the rows of each partition.

        Args:
            rows: rows as data files have them.
        """
        if self._spec.is_unpartitioned():
            yield (), rows
            return
        columns = [self._codes(field, rows) for field in self._spec.fields]
        groups, members = np.unique(np.stack([codes for codes, _ in columns]), axis=1, return_inverse=True)
        counts = np.bincount(members, minlength=groups.shape[1])
        ordered = rows.take(np.argsort(members, kind="stable"))
        for at, end in enumerate(np.cumsum(counts)):
            values = tuple(known[code] for code, (_, known) in zip(groups[:, at], columns, strict=True))
            yield values, ordered.slice(end - counts[at], counts[at])

    def folder(self, values: Values) -> str:
        """Returns the name of a partition's folder; empty without partitions. Readers do not depend on it."""
        path = self._spec.partition_to_path(Record(*values), self._schema) if values else ""
        return "".join(f"{_shortened(name)}/" for name in path.split("/") if name)

    def _codes(self, field: PartitionField, rows: pa.Table) -> tuple[np.ndarray, list[object]]:
        """Returns the number of each row's value of a partition field, and the values by number."""
        path = self._sources[field.source_id]
        if not path:
            # The rows do not have the column.
            return np.zeros(len(rows), np.int64), [None]
        column = rows[path[0]].combine_chunks()
        encoded = (pc.struct_field(column, path[1:]) if len(path) > 1 else column).dictionary_encode("encode")
        transform = field.transform.transform(self._schema.find_type(field.source_id))
        numbers: dict[object, int] = {}
        found = [numbers.setdefault(transform(v), len(numbers)) for v in _physical(encoded.dictionary)]
        return np.array(found, np.int64)[encoded.indices.to_numpy()], list(numbers)


def _shortened(name: str) -> str:
    """Returns the name of a folder that each file system and object store accepts, and that no other value has."""
    data = name.encode()
    if len(data) <= _LONGEST_FOLDER:
        return name
    return f"{data[: _LONGEST_FOLDER // 2].decode(errors='ignore')}-{hashlib.sha256(data).hexdigest()[:32]}"


def new_spec(terms: Sequence[str], schema: Schema, rows: RowSchema) -> PartitionSpec:
    """Returns the partitions of a new table.

    Args:
        terms: columns, or ``day(at)``, ``bucket(16, id)`` and the like.
        schema: of the table.
        rows: the columns of the rows.

    Raises:
        JobDefinitionError: a term is malformed, or its column cannot be partitioned in this way.
    """
    fields = [_field(term, at, schema, rows) for at, term in enumerate(terms)]
    if len({field.name for field in fields}) < len(fields):
        raise JobDefinitionError("a column is in two partitions of the same kind", partition_by=list(terms))
    return PartitionSpec(*fields)


def unknown_partition(spec: PartitionSpec) -> str | None:
    """Returns the name of a partition field whose values cannot be computed; None without one."""
    return next((field.name for field in spec.fields if isinstance(field.transform, UnknownTransform)), None)


def _field(term: str, at: int, schema: Schema, rows: RowSchema) -> PartitionField:
    match = _TERM.fullmatch(term)
    if match is None:
        raise JobDefinitionError(
            "a partition of an Iceberg table is malformed",
            hint="use a column, or day(at), hour(at), month(at), year(at), bucket(16, id), truncate(4, name)",
            partition_by=term,
        )
    column, time, sized = match["column"], match["time"], match["sized"]
    name = column or match["at"] or match["of"]
    rows.column(name)
    source = schema.find_field(name)
    kind = f"{sized}[{match['size']}]" if sized else time or "identity"
    transform: Transform[object, object] = parse_transform(kind)
    if not transform.can_transform(source.field_type):
        raise JobDefinitionError(
            "an Iceberg table cannot be partitioned by a column in this way",
            partition_by=term,
            type=str(source.field_type),
        )
    suffix = {"bucket": "_bucket", "truncate": "_trunc"}.get(sized or "", f"_{time}" if time else "")
    return PartitionField(source.field_id, PARTITION_FIELD_ID_START + at, transform, f"{name}{suffix}")


def _path_of(schema: Schema, field_id: int) -> list[str]:
    """Returns the names of a field of a data file and of those that contain it; empty if the file has no such field."""
    name = schema.find_column_name(field_id)
    return name.split(".") if name else []


def _physical(values: pa.Array) -> list[object]:
    """Returns values as Iceberg stores them: days and microseconds as numbers."""
    kind = values.type
    if pa.types.is_date(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        values = values.cast(pa.int64())
    found: list[object] = values.to_pylist()
    return found
