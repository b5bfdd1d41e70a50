"""Reads files of rows, Parquet or JSON lines, as one Arrow reader with a bounded part of them in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stateflow.bootstrap.encoding.column_types import cast, check_kind, plain_type
from stateflow.bootstrap.encoding.frames import VALUE
from stateflow.bootstrap.state_files.columns import FileColumns, StateColumnNames
from stateflow.bootstrap.state_files.json_lines import first_names, read_lines
from stateflow.bootstrap.state_files.locations import StateFile
from stateflow.errors import ConfigError, DataError, StateflowError

_PARQUET = b"PAR1"
_ROWS, _BYTES = 32 << 10, 16 << 20
_ROWS_OF_READ = 64


@dataclass
class FileRows:
    """The rows of the files of one state.

    Attributes:
        files: the files, in the order of their rows.
        columns: their columns.
        schema: the columns with the types of the rows: those of the first file if it has types.
        read: number of rows that a reader has read.
    """

    files: Sequence[StateFile]
    columns: FileColumns
    schema: pa.Schema
    read: int = field(default=0, init=False)

    @classmethod
    def of(cls, files: Sequence[StateFile], wanted: StateColumnNames) -> FileRows:
        """Returns the rows of files.

        Raises:
            ConfigError: the columns of the first file with rows are not those of the state.
            DataError: it is damaged, or is neither Parquet nor JSON lines.
        """
        for file in files:
            with file.local_copy() as path, _file_named(file):
                if _is_parquet(path, file):
                    given = pq.read_schema(path)
                    columns = wanted.columns_of_files(given.names, lacks_nulls=False)
                    schema = pa.schema([_typed(given.field(each.name), each) for each in columns.schema])
                    return cls(files, columns, schema)
                if names := first_names(path):
                    columns = wanted.columns_of_files(names, lacks_nulls=True)
                    return cls(files, columns, columns.schema)
        columns = wanted.columns_of_files(wanted.table.names, lacks_nulls=True)
        return cls(files, columns, columns.schema)

    def reader(self, begin: Callable[[], None], without: str = "") -> pa.RecordBatchReader:
        """Returns a reader of all rows, with the names of the frame.

        Args:
            begin: called before the first file is read.
            without: a column, by its name in the files, that is not read.
        """
        names = [name for name in self.schema.names if name not in (without, *self.columns.fields)]
        columns = [pa.field(self.columns.names[name], self.schema.field(name).type) for name in names]
        if self.columns.fields:
            value = pa.struct([pa.field(name, self.schema.field(name).type) for name in self.columns.fields])
            columns.append(pa.field(self.columns.names[VALUE], value))
        schema = pa.schema(columns)
        return pa.RecordBatchReader.from_batches(schema, self._frame(names, schema, begin))

    def _frame(self, names: Sequence[str], schema: pa.Schema, begin: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        begin()
        for batch in self.batches([*names, *self.columns.fields]):
            self.read += batch.num_rows
            columns = batch.columns
            if fields := columns[len(names) :]:
                columns[len(names) :] = [pa.StructArray.from_arrays(fields, fields=list(schema[-1].type))]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the rows with some columns, by their names in the files.

        Raises:
            MissingFile: a file was deleted.
            ConfigError: a file has other columns than the first one.
            SchemaMismatch: a column has another type than in the first one.
            DataError: a file is damaged, or a line is not a row of the state.
        """
        schema = pa.schema([pa.field(name, self.schema.field(name).type) for name in names])
        for each in self.files:
            with each.local_copy() as path, _file_named(each):
                yield from self._parquet(path, schema) if _is_parquet(path, each) else self._json(path, schema)

    def is_in_order(self, keys: Sequence[str], position: str) -> bool:
        """Returns whether the elements of each list follow each other in the order of their positions.

        Then they need not be sorted, which would take all of them in memory.

        Args:
            keys: the columns that name a list.
            position: the column of the positions.

        Raises:
            SchemaMismatch: the positions are no integers.
        """
        check_kind(self.schema.field(position).type, pa.int64(), position)
        last: pa.RecordBatch | None = None
        for batch in self.batches([*keys, position]):
            batch = _with_integers(batch, position)
            rows = batch if last is None else pa.concat_batches([last, batch])
            if last is None and batch.num_rows and batch.column(position)[0].as_py() != 0:
                return False
            if not _is_in_order(rows, keys, position):
                return False
            last = rows.slice(max(0, rows.num_rows - 1))
        return True

    def _parquet(self, path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(path, memory_map=True, pre_buffer=False, page_checksum_verification=True) as file:
            self._check_names(file.schema_arrow.names, has_all=True)
            read = file.iter_batches(_rows_of_read(file.metadata), columns=schema.names, use_threads=False)
            yield from _joined(_casted(batch, schema) for batch in read)

    def _json(self, path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        # A line need not have a column whose value is null.
        self._check_names(first_names(path), has_all=False)
        for batch in read_lines(path, self.columns.schema, self.columns.ignored):
            yield _casted(batch, schema)

    def _check_names(self, names: Sequence[str], *, has_all: bool) -> None:
        found = {name for name in names if name not in self.columns.ignored}
        wanted = set(self.schema.names)
        if found - wanted or (has_all and wanted - found):
            raise ConfigError(
                "two files of a state have different columns",
                hint="write all rows with the same columns",
                first=list(self.schema.names),
                found=sorted(found),
            )


def _is_parquet(path: Path, file: StateFile) -> bool:
    """Returns whether a file has the format of Parquet; raises DataError for one that has only its name."""
    with path.open("rb") as opened:
        found = opened.read(len(_PARQUET)) == _PARQUET
    if not found and file.key.lower().endswith(".parquet"):
        # An empty one would be no rows of JSON.
        raise DataError("a file is not Parquet although its name says so", hint="write it again, or rename it")
    return found


def _typed(given: pa.Field, wanted: pa.Field) -> pa.Field:
    """Returns a column of a file of Parquet with the type that its rows are read with."""
    kind = wanted.type if pa.types.is_null(given.type) else plain_type(given.type)
    return pa.field(given.name, kind)


def _rows_of_read(metadata: pq.FileMetaData) -> int:
    """Returns a number of rows that have at most about `_BYTES`.

    The sizes in a file are those of encoded values, which are smaller if values are repeated: so only few rows are read
    before their size is known.
    """
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    rows: int = metadata.num_rows
    return max(1, min(_ROWS_OF_READ, _BYTES * rows // (size or 1)))


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of small batches in batches of about `_BYTES` or `_ROWS`."""
    found: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        found.append(batch)
        size, rows = size + batch.nbytes, rows + batch.num_rows
        if size >= _BYTES or rows >= _ROWS:
            yield pa.concat_batches(found)
            found, size, rows = [], 0, 0
    if found:
        yield pa.concat_batches(found)


def _casted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns columns of a batch with given types. Raises SchemaMismatch if that would change a value or its kind."""
    columns = [cast(batch.column(field.name), field.type, field.name) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_in_order(rows: pa.RecordBatch, keys: Sequence[str], position: str) -> bool:
    """Returns whether each row but the first begins a list, or follows its predecessor in the same list."""
    before, after = rows.slice(0, max(0, rows.num_rows - 1)), rows.slice(1)
    follows = pc.equal(pc.add(before.column(position), 1), after.column(position))
    for key in keys:
        for old, new in zip(_flattened(before.column(key)), _flattened(after.column(key)), strict=True):
            is_same = pc.coalesce(pc.equal(old, new), pc.and_(pc.is_null(old), pc.is_null(new)))
            follows = pc.and_kleene(follows, is_same)
    found = pc.or_kleene(pc.equal(after.column(position), 0), follows)
    return bool(pc.all(pc.fill_null(found, fill_value=False)).as_py())


def _with_integers(rows: pa.RecordBatch, position: str) -> pa.RecordBatch:
    """Returns rows whose positions have 64 bits: the next one of a smaller type may be its smallest."""
    numbers = cast(rows.column(position), pa.int64(), position)
    return rows.set_column(rows.schema.get_field_index(position), position, numbers)


def _flattened(column: pa.Array) -> list[pa.Array]:
    """Returns the fields of a column of structs, such as the namespaces, which Arrow compares one by one only."""
    return list(column.flatten()) if pa.types.is_struct(column.type) else [column]


@contextlib.contextmanager
def _file_named(file: StateFile) -> Iterator[None]:
    """Adds a file to errors of its body; raises DataError for one that cannot be read."""
    try:
        yield
    except StateflowError as e:
        e.add_facts(file=file.uri)
        raise
    except (pa.ArrowException, OSError, ValueError) as e:
        raise DataError(
            "a file of rows cannot be read",
            hint="write it again, as Parquet or as lines of JSON",
            file=file.uri,
            reason=str(e)[:300],
        ) from e
