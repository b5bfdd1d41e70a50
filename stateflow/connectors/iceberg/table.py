"""The table of an Iceberg sink: publishes and rewinds, and creates and checks the table, its columns and partitions.

Iceberg has no type for a duration: it is stored as ``long``, in microseconds, as in Delta tables. PyIceberg computes
partitions of columns with a further package, and those of single values without: here each distinct value of a batch is
computed once.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import ParquetFormatWriter, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import Transform, UnknownTransform, parse_transform
from pyiceberg.typedef import Record as PartitionRecord
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from pyiceberg.utils.properties import property_as_int

from stateflow.api.schema import Column, RowSchema
from stateflow.api.sink import SinkContext, SinkRewind, Successor, TableChanges
from stateflow.clock import SystemClock
from stateflow.connectors.column_policy import columns_to_add
from stateflow.connectors.iceberg.catalog import (
    CatalogConnection,
    NewSnapshot,
    TableCommit,
    head_of,
    refusal_of,
    remove_files,
)
from stateflow.connectors.iceberg.snapshots import History, SnapshotToken, current_token, successor_of, version_of
from stateflow.connectors.iceberg.target import ADD_COLUMNS, IcebergSettings
from stateflow.connectors.staged_output import StagedTable, cast_to_declared
from stateflow.connectors.store_assignment import assign_rows, can_assign
from stateflow.errors import InternalError, JobDefinitionError, SchemaMismatch, SinkDiverged, SinkRefused, StorageError
from stateflow.state.handles import Committable
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape
from stateflow.types.declared_types import BY_NAME

_logger = logging.getLogger(__name__)

_clock = SystemClock()


class IcebergTable(StagedTable):
    """A table at one snapshot.

    Args:
        connection: the catalog.
        context: the sink.
        table: the table as it was read.
    """

    def __init__(self, connection: CatalogConnection, context: SinkContext, table: Table) -> None:
        super().__init__(context)
        self._connection = connection
        self._table = table
        self._location = connection.settings.location
        self._history = History(self._location, table.metadata, context.application)
        head = table.metadata.current_snapshot()
        self.table_id = str(table.metadata.table_uuid)
        self.version = version_of(head) if head else 0
        self.token = self._last_token = current_token(table.metadata, context.application)
        self.successor = successor_of(table.metadata, context.application)

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        # Before data files are written that no snapshot would have.
        if self._is_stale() or not add_columns(self._connection, self._table, self.context.schema):
            return None
        name = f"stateflow-{self.context.application.replace('/', '-')}-{token}-{_clock.new_id()}"
        schema, stored = self.context.schema, self._table.schema()
        files = DataFiles(self._table, file_schema(schema, stored), name, target_schema(schema, stored))
        try:
            with self._connection.errors():
                commit = self._commit(token, files.write(self._rows(committables)))
        except Exception:
            files.remove()
            raise
        version = commit.make()
        if version is None:
            files.remove()
        return version

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        with self._connection.errors():
            return self._history.plan(checkpoint_id, self._table.io)

    def changes_since(self, version: int) -> TableChanges:
        return self._history.changes_since(version)

    def rewind(self, to_version: int | None, token: int) -> int | None:
        if token <= self._last_token or to_version == self.version:
            raise InternalError(
                "a rewind needs another version and a larger token",
                table=self._location,
                version=self.version,
                to_version=to_version,
                known=self.token,
                token=token,
            )
        # Checked first: the snapshot of the rewind may have expired since the handle was made.
        if self._is_stale():
            return None
        base = None if to_version is None else self._history.at(to_version).snapshot_id
        with self._connection.errors():
            commit = self._commit(token, base=base)
        return commit.make()

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        if self._is_stale():
            return None
        with self._connection.errors():
            # A snapshot without rows: the former applications' commits require the one before it.
            commit = self._commit(token, taken_over=tuple((name, by.text) for name in former))
        return commit.make()

    def _commit(
        self,
        token: int,
        files: Sequence[DataFile] = (),
        base: int | None = None,
        taken_over: tuple[tuple[str, str], ...] = (),
    ) -> TableCommit:
        head = head_of(self._table.metadata)
        summary = SnapshotToken(self.context.application, token, self._last_token, head, taken_over)
        return TableCommit(self._connection, self._table, NewSnapshot(summary, files, base))

    def _is_stale(self) -> bool:
        """Returns whether the table has changed since the handle was made, so that a commit would fail."""
        found = self._connection.find_table()
        if found is None or found.metadata.table_uuid != self._table.metadata.table_uuid:
            return True
        return head_of(found.metadata) != head_of(self._table.metadata)

    def _rows(self, committables: list[Committable]) -> Iterator[pa.RecordBatch]:
        for batch in self.staged_rows(committables):
            yield cast_to_declared(batch, self.context.schema, self._location)


FORMAT_VERSION = 2


@dataclass(frozen=True)
class _Refusal:
    """Why a table is refused, and what changes that."""

    reason: str
    hint: str
    facts: dict[str, object]


def check_schema(settings: IcebergSettings, schema: RowSchema) -> None:
    """Raises JobDefinitionError for rows without columns, of which no file can be made, and for unusable partitions."""
    if not schema.names:
        raise JobDefinitionError("a table needs at least one column", row_class=schema.row_class.__name__)
    new_spec(settings.partition_by, table_schema(schema), schema)


def check_table(settings: IcebergSettings, table: Table, schema: RowSchema) -> tuple[Column, ...]:
    """Checks a table; returns the columns that have to be added to it.

    Args:
        schema: the columns of the rows.

    Raises:
        SinkRefused: a property of the table would make commits fail or readers fail.
        SchemaMismatch: columns are missing or have other types.
    """
    for refusal in _refusals(table, schema):
        raise SinkRefused(
            f"the Iceberg table cannot be written to: {refusal.reason}",
            hint=refusal.hint,
            table=settings.location,
            **refusal.facts,
        )
    fields = {field.name: field for field in table.schema().fields}
    added = _columns_to_add(settings, table.schema(), schema) if settings.schema_evolution == ADD_COLUMNS else ()
    expected = [column for column in schema.columns if column not in added]
    misfits = [c.name for c in expected if c.name not in fields or not _may_store(fields[c.name], c)]
    if misfits:
        raise SchemaMismatch(
            "the sink's rows do not match the columns of the Iceberg table",
            hint='change the row class or the table; schema_evolution="add-columns" adds missing columns',
            table=settings.location,
            declared={name: _type_of(schema.column(name)) for name in misfits},
            found={name: type_text(fields[name].field_type) if name in fields else None for name in misfits},
        )
    return added


def _columns_to_add(settings: IcebergSettings, table: Schema, schema: RowSchema) -> tuple[Column, ...]:
    fields = table.fields
    names = [field.name for field in fields]
    return columns_to_add(settings.location, names, schema, lambda column, at: _has_type(fields[at], column))


def _type_of(column: Column) -> str:
    return type_text(iceberg_type(column.shape))


def _has_type(field: NestedField, column: Column) -> bool:
    return type_text(field.field_type) == _type_of(column)


def _may_store(field: NestedField, column: Column) -> bool:
    try:
        return can_assign(column.arrow_type, arrow_field(field).type)
    except KeyError:
        return False


def _refusals(table: Table, schema: RowSchema) -> Iterator[_Refusal]:
    if table.format_version != FORMAT_VERSION:
        hint = f"ALTER TABLE … SET TBLPROPERTIES ('format-version' = '{FORMAT_VERSION}'), or use another table"
        yield _Refusal("its format has another version", hint, {"format_version": table.format_version})
    if (refusal := refusal_of(table)) is not None:
        hint = "remove the property, or correct the location; data files are always below the location of the table"
        yield _Refusal(refusal[0], hint, {"property": refusal[1]})
    unknown = unknown_partition(table.spec())
    if unknown is not None:
        hint = "replace the partition field, or use a newer version of pyiceberg"
        yield _Refusal("the values of a partition field cannot be computed", hint, {"partition": unknown})
    declared = {column.name: column for column in schema.columns}
    for field in table.schema().fields:
        facts: dict[str, object] = {"column": field.name}
        column = declared.get(field.name)
        if column is None and field.required:
            yield _Refusal("a required column is not in the rows", "declare it, or make it optional", facts)


_TYPES: dict[str, PrimitiveType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
    "time(6)": TimeType(),
}
"""By Spark's names. Iceberg has no integers of less than 32 bits."""
_DURATION = LongType()
"""Iceberg has no durations: they are stored in microseconds."""
_ARROW: dict[IcebergType, pa.DataType] = {kind: BY_NAME[name].arrow for name, kind in _TYPES.items()}


class _Ids:
    """Field ids that are unique within a schema; the catalog replaces them."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last


def iceberg_type(shape: Shape, ids: _Ids | None = None) -> IcebergType:
    """Returns the type of a column for values of a shape; all parts but keys of maps are optional."""
    ids = ids or _Ids()
    if isinstance(shape, Items):
        return ListType(ids.next(), iceberg_type(shape.item, ids), element_required=False)
    if isinstance(shape, Entries):
        key, value = ids.next(), ids.next()
        return MapType(key, iceberg_type(shape.key, ids), value, iceberg_type(shape.value, ids), value_required=False)
    if isinstance(shape, Record):
        return StructType(*_fields(shape, ids))
    return _scalar(shape)


def _fields(shape: Record, ids: _Ids) -> Iterator[NestedField]:
    for name, part in zip(shape.names, shape.fields, strict=True):
        yield NestedField(ids.next(), name, iceberg_type(part, ids), required=False)


def _scalar(leaf: Leaf) -> PrimitiveType:
    if pa.types.is_decimal(leaf.arrow):
        return DecimalType(leaf.arrow.precision, leaf.arrow.scale)
    return _TYPES.get(leaf.spark, _DURATION)


def table_schema(schema: RowSchema) -> Schema:
    """Returns the schema of a new table: one optional column for each field of the row class."""
    return Schema(*_fields(schema.shape, _Ids()))


def type_text(kind: IcebergType) -> str:
    """Returns a type in words, without field ids; equal for structs whose fields are in another order."""
    if isinstance(kind, ListType):
        return f"list<{type_text(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.key_type)},{type_text(kind.value_type)}>"
    if isinstance(kind, StructType):
        fields = sorted(f"{field.name}:{type_text(field.field_type)}" for field in kind.fields)
        return f"struct<{','.join(fields)}>"
    return str(kind)


def file_schema(schema: RowSchema, table: Schema) -> Schema:
    """Returns the schema of a data file: the table's columns that the rows have, with the table's field ids.

    No column is required: Arrow refuses a required field of a struct that is null itself. `assign_rows` checks nulls.
    """
    return Schema(*_chosen(schema.shape, table.as_struct()))


def _chosen(shape: Record, struct: StructType) -> Iterator[NestedField]:
    """Yields the fields of a struct in the order of a row class, which the files have."""
    found = {field.name: field for field in struct.fields}
    for name, part in zip(shape.names, shape.fields, strict=True):
        field = found[name]
        yield NestedField(field.field_id, name, _ordered(part, field.field_type), required=False)


def _ordered(shape: Shape, kind: IcebergType) -> IcebergType:
    if isinstance(shape, Record) and isinstance(kind, StructType):
        return StructType(*_chosen(shape, kind))
    if isinstance(shape, Items) and isinstance(kind, ListType):
        item = _ordered(shape.item, kind.element_type)
        return ListType(kind.element_id, item, element_required=False)
    if isinstance(shape, Entries) and isinstance(kind, MapType):
        value = _ordered(shape.value, kind.value_type)
        return MapType(kind.key_id, kind.key_type, kind.value_id, value, value_required=False)
    return kind


def arrow_field(field: NestedField) -> pa.Field:
    """Returns a field of a table in Arrow, for `assign_rows`. Raises KeyError for a type of no row class."""
    return pa.field(field.name, _arrow_type(field.field_type), nullable=not field.required)


def _arrow_type(kind: IcebergType) -> pa.DataType:
    if isinstance(kind, ListType):
        return pa.list_(arrow_field(kind.element_field))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.key_type), arrow_field(kind.value_field))
    if isinstance(kind, StructType):
        return pa.struct([arrow_field(field) for field in kind.fields])
    return pa.decimal128(kind.precision, kind.scale) if isinstance(kind, DecimalType) else _ARROW[kind]


def target_schema(schema: RowSchema, table: Schema) -> pa.Schema:
    """Returns the columns of rows as a table stores them, for `assign_rows`; one that it lacks may be null.

    Args:
        schema: the columns of the rows.
        table: the table, whose types fit.
    """
    fields = {field.name: field for field in (*table_schema(schema).fields, *table.fields)}
    return pa.schema([arrow_field(fields[name]) for name in schema.names])


_TRIES = 20
_NEW_TABLE = {
    TableProperties.FORMAT_VERSION: str(FORMAT_VERSION),
    # Each commit writes a metadata file and a manifest: both must not become more without end.
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
}


def find_usable_table(connection: CatalogConnection, schema: RowSchema) -> Table | None:
    """Returns the table if it exists; changes nothing.

    Raises:
        SinkRefused, SchemaMismatch: the table cannot be used, or not be created.
        StorageError: the catalog failed.
    """
    check_schema(connection.settings, schema)
    table = connection.find_table()
    if table is not None:
        check_table(connection.settings, table, schema)
        return table
    if not connection.has_namespace():
        raise SinkRefused(
            "the namespace of an Iceberg table does not exist",
            hint="create it in the catalog, or correct the name of the table",
            table=connection.settings.location,
        )
    return None


def prepare_table(connection: CatalogConnection, context: SinkContext) -> str:
    """Creates the table, its first snapshot and missing columns; returns the id of the table."""
    for _ in range(_TRIES):
        table = connection.find_table()
        if table is None:
            schema = table_schema(context.schema)
            spec = new_spec(connection.settings.partition_by, schema, context.schema)
            connection.create_table(schema, spec, _NEW_TABLE)
        elif add_columns(connection, table, context.schema) and _add_snapshot(connection, table, context.application):
            return str(table.metadata.table_uuid)
    raise StorageError(
        "every attempt to prepare the Iceberg table conflicted with another writer",
        table=connection.settings.location,
        tries=_TRIES,
    )


def open_table(connection: CatalogConnection, schema: RowSchema) -> Table:
    """Returns the table as it is now, with all columns of the rows or some that the sink may add.

    Raises:
        SinkRefused, SchemaMismatch: the table cannot be used.
        SinkDiverged: the table does not exist.
    """
    table = connection.find_table()
    if table is None:
        raise SinkDiverged(
            "the sink's table no longer exists",
            hint="restore it, or give the sink a new uid",
            table=connection.settings.location,
        )
    check_table(connection.settings, table, schema)
    return table


def add_columns(connection: CatalogConnection, table: Table, schema: RowSchema) -> bool:
    """Adds missing columns to the table; returns whether it had all of them. Raises as `find_usable_table`."""
    added = check_table(connection.settings, table, schema)
    if not added:
        return True
    with connection.errors():
        try:
            with table.update_schema() as update:
                for column in added:
                    update.add_column(column.name, iceberg_type(column.shape))
        except CommitFailedException:
            return False
    names = [column.name for column in added]
    _logger.info("added columns: table=%s columns=%s", connection.settings.location, names)
    return False


def _add_snapshot(connection: CatalogConnection, table: Table, application: str) -> bool:
    """Makes a first snapshot without rows, to which a rewind can go back; returns whether the table has one.

    A table that had format version 1 has snapshots without numbers, of which none would be found again.
    """
    head = table.metadata.current_snapshot()
    if head is not None and version_of(head) > 0:
        return True
    token = current_token(table.metadata, application)
    with connection.errors():
        commit = TableCommit(
            connection, table, NewSnapshot(SnapshotToken(application, token, token, head.snapshot_id if head else None))
        )
    return commit.make() is not None


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
        path = self._spec.partition_to_path(PartitionRecord(*values), self._schema) if values else ""
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


_ROW_GROUP_BYTES = 64 << 20
_OPEN_FILES = 32


class DataFiles:
    """The data files of one checkpoint.

    The rows that are not in a file yet take at most `_ROW_GROUP_BYTES` of memory: then the largest partitions are
    written until half of it is left. At most `_OPEN_FILES` files are open: then the one that was opened first is
    finished, and further rows of its partition go to another file.

    Args:
        table: the table.
        schema: of the files, with the table's field ids.
        name: the beginning of the names of the files; no other files have it.
        target: the columns of the rows as the table stores them.
    """

    def __init__(self, table: Table, schema: Schema, name: str, target: pa.Schema) -> None:
        self._table = table
        self._target = target
        self._facts = {"table": ".".join(table.name())}
        self._schema = schema
        self._name = name
        self._arrow = schema_to_pyarrow(schema)
        size, default = (
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
        )
        self._target_bytes = property_as_int(table.properties, size, default) or default
        self._partitioning = Partitioning(table, schema)
        self._buffers: dict[Values, list[pa.Table]] = {}
        self._open: dict[Values, _OpenFile] = {}
        self._finished: list[DataFile] = []
        self._paths: list[str] = []

    def write(self, rows: Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Writes rows and returns the files, which no snapshot has yet; an empty list without rows."""
        buffered = 0
        for batch in rows:
            stored = pa.Table.from_batches([assign_rows(batch, self._target, self._facts)]).cast(self._arrow)
            for values, part in self._partitioning.split(stored):
                self._buffers.setdefault(values, []).append(part)
                buffered += part.nbytes
            if buffered >= _ROW_GROUP_BYTES:
                buffered = self._flush(down_to=_ROW_GROUP_BYTES // 2)
        self._flush(down_to=0)
        for values in list(self._open):
            self._finish(values)
        return self._finished

    def remove(self) -> None:
        """Deletes the files that were written. No snapshot may have them."""
        remove_files(self._table.io, self._paths)

    def _flush(self, down_to: int) -> int:
        """Writes the largest buffers until that many bytes are left; returns how many are left."""
        sizes = {values: sum(part.nbytes for part in parts) for values, parts in self._buffers.items()}
        left: int = sum(sizes.values())
        for values in sorted(sizes, key=lambda values: -sizes[values]):
            if left <= down_to:
                break
            self._write(values, pa.concat_tables(self._buffers.pop(values)).combine_chunks())
            left -= sizes[values]
        return left

    def _write(self, values: Values, rows: pa.Table) -> None:
        if values not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._finish(next(iter(self._open)))
            name = f"{self._partitioning.folder(values)}{self._name}-{len(self._paths)}.parquet"
            path = self._table.location_provider().new_data_location(name)
            self._paths.append(path)
            self._open[values] = _OpenFile(self._table, path, self._schema)
        file = self._open[values]
        file.write(rows)
        if file.bytes >= self._target_bytes:
            self._finish(values)

    def _finish(self, values: Values) -> None:
        self._finished.append(self._open.pop(values).close(values))


class _OpenFile:
    """A Parquet file that is being written."""

    def __init__(self, table: Table, path: str, schema: Schema) -> None:
        self._path = path
        self._spec_id = table.metadata.default_spec_id
        self._output = table.io.new_output(path)
        self._writer = ParquetFormatWriter(self._output, schema, table.properties)
        self.bytes = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write(rows)
        self.bytes += rows.nbytes

    def close(self, values: Values) -> DataFile:
        statistics = self._writer.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._path,
            file_format=FileFormat.PARQUET,
            partition=PartitionRecord(*values),
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            spec_id=self._spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
