"""Adds the rows of files, Parquet or JSON lines, to a `SavepointWriter`, as the states that a job declares.

A path or URI names a file, the files of a folder, or those that match a pattern. The rows come from one Arrow reader,
with a bounded part of them in memory. Columns have the names that `stateflow.read_state` gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stateflow.bootstrap.frames import (
    DOMAIN,
    KEY_GROUP,
    MAP_KEY,
    NAMESPACE,
    POSITION,
    READ_ONLY,
    TIME,
    VALUE,
    WRITTEN_AT,
    Frame,
    KeyedStateFrame,
    cast_column,
    check_kind,
    plain_type,
)
from stateflow.bootstrap.json_lines import first_names, read_lines
from stateflow.bootstrap.spark_imported_states import PREFIX, ImportedState, QueryAddress, SparkQueries
from stateflow.bootstrap.writer import SavepointWriter
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.errors import ConfigError, DataError, StateflowError
from stateflow.helpers import did_you_mean
from stateflow.query.reader import table_of
from stateflow.query.state_table import ALL_ROWS, OPERATOR_PREFIX, RAW, RAW_KEYED, TIMERS, key_fields
from stateflow.runtime.planning.state_discovery import DeclaredOperator
from stateflow.storage import Storage, open_location
from stateflow.storage.locations import open_if_allowed, split_address

OnStep = Callable[[str], None]
_Frames = Mapping[str, "StateFiles | ImportedState"]


@dataclass(frozen=True)
class StateFiles:
    """The files of one state.

    Attributes:
        operator: uid of the operator.
        state: name of the state, as for `stateflow.read_state`.
        rows: the rows of the files.
    """

    operator: str
    state: str
    rows: FileRows

    @property
    def name(self) -> str:
        """The state's name with its operator: ``sum.total``."""
        return f"{self.operator}.{self.state}"


def state_names(operator: DeclaredOperator) -> list[str]:
    """Returns the names of the states that an operator can have, as for `stateflow.read_state`."""
    declared = (*operator.lists, *operator.unions, *operator.broadcasts)
    return [*operator.keyed, TIMERS, *(OPERATOR_PREFIX + name for name in declared), RAW, RAW_KEYED]


def parse_states(
    options: Iterable[str], operators: Mapping[str, DeclaredOperator], max_parallelism: int, columns: Iterable[str] = ()
) -> list[StateFiles | ImportedState]:
    """Returns where states are, and checks the columns of files.

    Args:
        options: states, each as ``OPERATOR.STATE=FILES``, where FILES is as for `find_files`; or as
            ``OPERATOR.STATE=spark:QUERY``, where QUERY is as for `QueryAddress.of_state`.
        operators: what the job declares.
        max_parallelism: number of key groups.
        columns: columns of states of queries, each as ``OPERATOR.STATE.COLUMN=EXPRESSION``.

    Raises:
        ConfigError: an option is not valid, the job declares no such state, no such file exists, or its columns are not
            those of the state.
        DataError: a file cannot be read.
    """
    known = {f"{uid}.{name}": (uid, name) for uid, operator in operators.items() for name in state_names(operator)}
    found: dict[str, StateFiles | ImportedState] = {}
    for option in options:
        # Names of states may have an equals sign.
        name = max((name for name in known if option.startswith(f"{name}=")), key=len, default=None)
        if name is None or option == f"{name}=":
            raise _unknown(option, operators, known)
        if name in found:
            raise ConfigError(
                "the files of a state are given twice", hint="pass a folder, or a quoted pattern", state=name
            )
        uid, state = known[name]
        location = option.removeprefix(f"{name}=")
        with _named(uid, state):
            if location.startswith(PREFIX):
                found[name] = _imported(operators[uid], state, location.removeprefix(PREFIX))
                continue
            rows = FileRows.of(find_files(location), StateColumnNames.of(operators[uid], state, max_parallelism))
        found[name] = StateFiles(uid, state, rows)
    for option in columns:
        _add_column(found, option)
    return list(found.values())


@contextmanager
def _named(operator: str, state: str) -> Iterator[None]:
    """Adds operator and state to an error."""
    try:
        yield
    except StateflowError as e:
        e.add_facts(operator=operator, state=state)
        raise


def _imported(operator: DeclaredOperator, state: str, query: str) -> ImportedState:
    if state not in (*operator.keyed, TIMERS):
        raise ConfigError(
            "a query of Spark has no state of this kind",
            hint="import keyed states and timers; pass files of the others",
            state=state,
        )
    return ImportedState(operator.uid, state, QueryAddress.of_state(query))


def _add_column(found: dict[str, StateFiles | ImportedState], option: str) -> None:
    """Adds the expression of a column to an imported state; raises ConfigError if there is none of its name."""
    name = max((name for name in found if option.startswith(f"{name}.")), key=len, default="")
    column, equals, expression = option.removeprefix(f"{name}.").partition("=")
    given = found.get(name)
    if not isinstance(given, ImportedState) or not (column and equals and expression.strip()):
        raise ConfigError(
            "a column is not one of a state that is imported from Spark",
            hint="for example --column counts.stats.total=value.sum, with --state counts.stats=spark:CHECKPOINT",
            column=option,
            imported=[each.name for each in found.values() if isinstance(each, ImportedState)],
        )
    if column in given.columns:
        raise ConfigError("a column of a state is given twice", hint="pass one expression", state=name, column=column)
    found[name] = replace(given, columns={**given.columns, column: expression})


def _unknown(option: str, operators: Mapping[str, DeclaredOperator], known: Iterable[str]) -> ConfigError:
    name, equals, files = option.partition("=")
    if not (name and equals and files):
        return ConfigError(
            "the files of a state are not of the form OPERATOR.STATE=FILES",
            hint="for example sum.total=totals.parquet",
            state=option,
        )
    operator = next((uid for uid in operators if name.startswith(f"{uid}.")), None)
    if operator is None:
        return ConfigError(
            "the job has no such operator with state",
            hint=did_you_mean(name.partition(".")[0], operators) if operators else "the job has no keyed operator",
            operator=name.partition(".")[0],
            known=sorted(operators),
        )
    state = name.removeprefix(f"{operator}.")
    hint = did_you_mean(state, state_names(operators[operator]))
    if state.startswith(OPERATOR_PREFIX):
        hint += " The map of a broadcast state has to be an attribute of its function, or a name in the same module."
    return ConfigError(
        "the operator declares no such state before its first row",
        hint=hint,
        operator=operator,
        state=state,
        known=[each for each in known if each.startswith(f"{operator}.")],
    )


def add_states(
    writer: SavepointWriter,
    given: Sequence[StateFiles | ImportedState],
    operators: Mapping[str, DeclaredOperator],
    queries: SparkQueries,
    on_step: OnStep,
) -> None:
    """Adds states to a writer.

    Args:
        writer: the writer.
        given: where they are.
        operators: what the job declares.
        queries: reads those of Spark.
        on_step: called before the files of a state are read, with a description.

    Raises:
        StateflowError: as the methods of `SavepointWriter`, of `FileRows` and of `SparkQueries` do.
    """
    for uid in dict.fromkeys(each.operator for each in given):
        of_operator = {each.state: each for each in given if each.operator == uid}
        _add_operator(writer, operators[uid], of_operator, queries, on_step)


def _add_operator(
    writer: SavepointWriter, operator: DeclaredOperator, given: _Frames, queries: SparkQueries, on_step: OnStep
) -> None:
    files = {name: each for name, each in given.items() if isinstance(each, StateFiles)}
    keyed: list[KeyedStateFrame] = []
    timers: Frame | None = None
    for name in (*operator.keyed, TIMERS):
        each = given.get(name)
        if each is None:
            continue
        with _named(operator.uid, name):
            if name == TIMERS:
                timers = _timer_frame(operator, each, queries, on_step)
            elif isinstance(each, ImportedState):
                keyed.append(queries.frame(each, operator))
            else:
                keyed.append(_keyed(operator, each, on_step))
    writer.with_operator(operator.uid, key=operator.key, states=keyed, timers=timers)
    _add_operator_state(writer, operator, files, on_step)


def _timer_frame(
    operator: DeclaredOperator, given: StateFiles | ImportedState, queries: SparkQueries, on_step: OnStep
) -> Frame:
    return queries.timers(given, operator) if isinstance(given, ImportedState) else _timers(operator, given, on_step)


def _add_operator_state(
    writer: SavepointWriter, operator: DeclaredOperator, files: Mapping[str, StateFiles], on_step: OnStep
) -> None:
    for union, lists in ((False, operator.lists), (True, operator.unions)):
        for name, of_list in lists.items():
            if rows := files.get(OPERATOR_PREFIX + name):
                writer.with_operator_state(operator.uid, of_list, _frame(rows, on_step), union=union)
    for name, of_map in operator.broadcasts.items():
        if rows := files.get(OPERATOR_PREFIX + name):
            writer.with_broadcast_state(operator.uid, of_map, _frame(rows, on_step))
    raw, raw_keyed = (_frame(files[name], on_step) if name in files else None for name in (RAW, RAW_KEYED))
    if raw is not None or raw_keyed is not None:
        writer.with_raw_state(operator.uid, partitions=raw, key_groups=raw_keyed)


def _keyed(operator: DeclaredOperator, given: StateFiles, on_step: OnStep) -> KeyedStateFrame:
    columns, rows = given.rows.columns, given.rows
    by_position = POSITION in columns.names
    if by_position:
        on_step(f"reading the order of {given.name}")
        names_of_list = [name for name in columns.names if name in (*columns.keys, NAMESPACE)]
        by_position = not rows.is_in_order(names_of_list, POSITION)
    is_left_out = POSITION in columns.names and not by_position
    return KeyedStateFrame(
        operator.keyed[given.state],
        _frame(given, on_step, POSITION if is_left_out else ""),
        value=columns.name_of(VALUE),
        map_key=columns.name_of(MAP_KEY) or MAP_KEY,
        order_by=columns.name_of(POSITION) if by_position else (),
        written_at=columns.name_of(WRITTEN_AT),
        namespace=columns.name_of(NAMESPACE),
    )


def _timers(operator: DeclaredOperator, given: StateFiles, on_step: OnStep) -> pa.RecordBatchReader:
    taken = {TIME, DOMAIN, NAMESPACE} & set(operator.key)
    if taken:
        raise ConfigError(
            "a key column has the name of a column of timers", hint="rename it in key_by", columns=sorted(taken)
        )
    return _frame(given, on_step)


def _frame(given: StateFiles, on_step: OnStep, without: str = "") -> pa.RecordBatchReader:
    count = len(given.rows.files)
    files = given.rows.files[0].uri if count == 1 else f"{count} files"
    return given.rows.reader(lambda: on_step(f"reading {given.name} from {files}"), without)


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

    files: Sequence[RowFile]
    columns: FileColumns
    schema: pa.Schema
    read: int = field(default=0, init=False)

    @classmethod
    def of(cls, files: Sequence[RowFile], wanted: StateColumnNames) -> FileRows:
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
            SchemaMismatch: the positions are not integers.
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


def _is_parquet(path: Path, file: RowFile) -> bool:
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
    columns = [cast_column(batch.column(field.name), field.type, field.name) for field in schema]
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
    numbers = cast_column(rows.column(position), pa.int64(), position)
    return rows.set_column(rows.schema.get_field_index(position), position, numbers)


def _flattened(column: pa.Array) -> list[pa.Array]:
    """Returns the fields of a column of structs, such as the namespaces, which Arrow compares one by one only."""
    return list(column.flatten()) if pa.types.is_struct(column.type) else [column]


@contextmanager
def _file_named(file: RowFile) -> Iterator[None]:
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


_OPTIONAL = frozenset((NAMESPACE, POSITION, WRITTEN_AT, DOMAIN))


@dataclass(frozen=True)
class FileColumns:
    """The columns that files of a state are read with.

    Attributes:
        schema: the columns, in their order, with the types that the state declares.
        ignored: columns of the files that are not read.
        keys: the key columns.
        names: the names in the frame, by names in the files, of the columns that are not fields of the values, and that
            of the values.
        fields: the columns that are the fields of the values; none if the values have a column.
    """

    schema: pa.Schema
    ignored: frozenset[str]
    keys: tuple[str, ...]
    names: Mapping[str, str]
    fields: tuple[str, ...]

    def name_of(self, column: str) -> str:
        """Returns the name in the frame of a column of `stateflow.read_state`; empty if the files do not have it."""
        return self.names.get(column, "")


@dataclass(frozen=True)
class StateColumnNames:
    """The columns that files of a state may have.

    Attributes:
        table: the table of the state, as `stateflow.read_state` returns it.
        keys: the names of the key columns in the table, in their order.
        key_names: their names in the job.
        has_key_groups: whether the key group is read.
    """

    table: pa.Schema
    keys: tuple[str, ...]
    key_names: tuple[str, ...]
    has_key_groups: bool

    @classmethod
    def of(cls, operator: DeclaredOperator, state: str, max_parallelism: int) -> StateColumnNames:
        """Returns the columns of a state.

        Args:
            operator: the operator.
            state: name of the state, as for `stateflow.read_state`.
            max_parallelism: number of key groups.

        Raises:
            ConfigError: the operator has no such state.
        """
        stored = OperatorState(
            uid=operator.uid,
            parallelism=1,
            key_types=list(operator.key.values()),
            key_names=list(operator.key),
            states=list(operator.keyed_schemas),
            subtasks=[],
            operator_states=list(operator.operator_schemas),
        )
        table = table_of(stored, state, ALL_ROWS, max_parallelism).schema
        is_keyed = state in operator.keyed or state == TIMERS
        keys = tuple(field.name for field in key_fields(stored)) if is_keyed else ()
        return cls(table, keys, tuple(operator.key) if is_keyed else (), state == RAW_KEYED)

    def columns_of_files(self, names: Sequence[str], *, lacks_nulls: bool) -> FileColumns:
        """Returns the columns to read of files that have columns of these names.

        Args:
            names: the names.
            lacks_nulls: whether a row need not have a column whose value is null, as in JSON; then the fields of values
                that are not named are read too.

        Raises:
            ConfigError: a column is missing, has no meaning or two of them, or occurs twice.
        """
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError("a file has several columns of one name", hint="rename them", columns=twice)
        fields = self._value_fields(names)
        others = [field for field in self._own_fields() if not fields or field.name not in (VALUE, *fields.names)]
        wanted = pa.schema([*others, *fields])
        ignored = READ_ONLY - set(wanted.names)
        unknown = [name for name in names if name not in wanted.names and name not in ignored]
        missing = [each.name for each in others if each.name not in names and each.name not in _OPTIONAL]
        if fields and not lacks_nulls and not set(fields.names) & set(names):
            missing.append(VALUE)
        if unknown or missing:
            raise ConfigError(
                "a file does not have the columns of the state",
                hint=did_you_mean(unknown[0], missing or wanted.names)
                if unknown
                else "write the columns that stateflow state export writes, or name them in Python: SavepointWriter",
                missing=missing,
                unknown=unknown,
                columns=list(wanted.names),
            )
        # Which fields a value needs is for its encoder to say.
        lacking = set(fields.names) if lacks_nulls else set()
        found = pa.schema([field for field in wanted if field.name in names or field.name in lacking])
        of_value = tuple(name for name in found.names if name in fields.names)
        plain = [name for name in found.names if name not in of_value]
        return FileColumns(found, ignored, self.keys, self._frame_names([*plain, *[VALUE] * bool(fields)]), of_value)

    def _own_fields(self) -> list[pa.Field]:
        """Returns the columns of the table that files may have."""
        return [f for f in self.table if f.name not in READ_ONLY or (f.name == KEY_GROUP and self.has_key_groups)]

    def _value_fields(self, names: Sequence[str]) -> pa.Schema:
        """Returns the fields of values that have no column, which are columns; none if the values have a column.

        A column is a field if there is one of its name: so files cannot have the optional column that is called so.
        """
        value = self.table.field(VALUE).type if VALUE in self.table.names else None
        if VALUE in names or value is None or not pa.types.is_struct(value):
            return pa.schema([])
        needed = {*self.keys, MAP_KEY} & set(self.table.names)
        taken = sorted(needed & {field.name for field in value})
        if taken:
            raise ConfigError(
                "a column may be a field of the values, or a part of the key",
                hint="write the values as one column of structs that is called value, as stateflow state export does",
                columns=taken,
            )
        return pa.schema(list(value))

    def _frame_names(self, columns: Sequence[str]) -> dict[str, str]:
        """Returns the columns under the names of the frame: key columns as the job names them."""
        found = dict(zip(self.keys, self.key_names, strict=True))
        for name in columns:
            if name not in found:
                renamed = name
                # Such as the value of a job whose key column is called ``value``.
                while renamed in self.key_names:
                    renamed = f"{renamed}_"
                found[name] = renamed
        return {name: found[name] for name in columns}


SUFFIXES = (".parquet", ".jsonl", ".json", ".ndjson")
"""Ends of the names of files that are read of a folder, in lower or upper case."""
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class RowFile:
    """A file of rows."""

    storage: Storage
    key: str

    @property
    def uri(self) -> str:
        """URI of the file."""
        path = self.storage.local_path(self.key)
        return f"{self.storage.uri}/{self.key}" if path is None else path.as_uri()

    @contextmanager
    def local_copy(self) -> Iterator[Path]:
        """Yields the path of a local file with the content; raises MissingFile if the file was deleted."""
        with self.storage.local_copy(self.key) as path:
            yield path


def find_files(location: str) -> list[RowFile]:
    """Returns the files at a location, ordered by name; at least one.

    Of a folder, these are the files whose names end as those of Parquet or JSON lines. Files and subfolders whose names
    begin with ``.`` or ``_`` are left out; any other one is an error.

    Args:
        location: path or URI of a file or folder, or a pattern with ``*``, ``?`` or ``[…]``, which match no ``/``.

    Raises:
        ConfigError: no such file exists, a folder has other files or subfolders, or the environment does not allow
            the location.
    """
    parts = split_address(location)
    if parts is not None and parts.scheme == "file" and parts.netloc in ("", "localhost"):
        # In other URIs, keys are not encoded. The path ends at no ? or #: both may be part of a name or pattern.
        location = unquote(location.partition(":")[2].removeprefix(f"//{parts.netloc}"))
    folder, _, name = location.rpartition("/")
    if name and not folder.endswith(":/"):
        # A folder may be allowed, and its parent not.
        storage = open_if_allowed(folder or _root_of(location))
        if storage is not None and storage.size(name) is not None:
            return [RowFile(storage, name)]
    found = _matching(location) if _WILDCARDS & set(location) else _of_folder(location)
    if not found:
        raise ConfigError(
            "no file of rows exists at the location",
            hint="pass a file of Parquet or JSON lines, a folder of such files, or a quoted pattern such as "
            "'rows/*.parquet'",
            location=location,
        )
    return found


def _root_of(location: str) -> str:
    return "/" if location.startswith("/") else "."


def _of_folder(location: str) -> list[RowFile]:
    storage = open_location(location)
    keys = [blob.key for blob in storage.list("") if not any(part[:1] in (".", "_") for part in blob.key.split("/"))]
    others = [key for key in keys if "/" in key or not key.lower().endswith(SUFFIXES)]
    if others:
        # Their rows would be missing without an error.
        raise ConfigError(
            "a folder of rows has files of another format, or subfolders",
            hint="pass a quoted pattern such as 'rows/*.parquet', or move them; names of files of Parquet and JSON "
            f"lines end with {', '.join(SUFFIXES)}",
            location=location,
            files=others[:10],
        )
    return [RowFile(storage, key) for key in keys]


def _matching(location: str) -> list[RowFile]:
    parts = location.split("/")
    first = next(number for number, part in enumerate(parts) if _WILDCARDS & set(part))
    patterns = parts[first:]
    storage = open_location("/".join(parts[:first]) or _root_of(location))
    return [RowFile(storage, blob.key) for blob in storage.list("") if _fits(blob.key.split("/"), patterns)]


def _fits(names: list[str], patterns: list[str]) -> bool:
    """Returns whether the parts of a key match those of a pattern; a hidden file only if the pattern begins as it."""
    return len(names) == len(patterns) and all(
        fnmatchcase(name, pattern) and (name[0] != "." or pattern[0] == ".")
        for name, pattern in zip(names, patterns, strict=True)
    )
