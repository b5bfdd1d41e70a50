"""State as DataFrames of Spark, ``spark.read.format("stateflow")``, through the Python data source API.

Spark plans a query in a Python process of its own, which pins the checkpoint, and sends each task the part of the
manifest that it reads: the tasks read no log and no manifest.

The planning process ends before the query begins, and Spark reports no end of a query: a DataFrame that was planned
once may be read at any time. So the planning process records its pin in a folder of the driver. The driver renews the
recorded pins, and removes a pin when its time has passed or when the driver ends; the pins of a driver that is killed
end after `LEASE`. Without such a folder, as with Spark Connect, a pin lasts for its whole time.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import logging
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from stateflow.checkpoint.log.documents import EntryRef, OperatorState
from stateflow.checkpoint.log.job_root import LEASE, JobRoot
from stateflow.checkpoint.restore.targets import find_kept_checkpoint
from stateflow.clock import Clock, SystemClock
from stateflow.config.spark_versions import arrow_schema
from stateflow.errors import ConfigError, MissingFile, StateflowError
from stateflow.helpers import did_you_mean
from stateflow.private_files import ScratchFolder
from stateflow.query.metadata import read_metadata
from stateflow.query.reader import table_of
from stateflow.query.snapshot import Snapshot, open_snapshot
from stateflow.query.state_table import ALL_ROWS, Rows, StateTable, key_fields, select_columns
from stateflow.requesters import by_process
from stateflow.storage import open_storage
from stateflow.types.columns.conversion import with_scalars
from stateflow.types.decoders import msgpack_decoder
from stateflow.types.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

log = logging.getLogger(__name__)

FORMAT_NAME = "stateflow"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_OPTIONS = ("path", "snapshot", "operator", "state", "columns", "table", "lease_seconds")
_LEASE_SECONDS = 3600
_OPERATORS = {
    "EqualTo": "in",
    "EqualNullSafe": "in",
    "In": "in",
    "IsNull": "in",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
"""Operators by the class of a filter; by its name, because Spark 4.0 has none of them, and pushes no filters."""


def register_spark_reader(spark: SparkSession) -> None:
    """Makes ``spark.read.format("stateflow")`` available in a session.

    Options: ``path``, a job root or the folder of a savepoint; ``snapshot``, ``operator`` and ``state``, as for
    `stateflow.read_state`; or ``table`` instead of operator and state, for a table of `stateflow.read_metadata`.
    ``columns`` names the columns of a state to read, with commas: Spark's Python data sources do not learn which
    columns a query uses. A checkpoint is pinned for ``lease_seconds`` (3600) from the planning of the query, since
    Spark does not report its end: a task that starts later may find a file gone, which is an error. This process renews
    the pins, and removes them at its end. Filters by equality or IN on all key columns, and comparisons of
    ``key_group``, reduce what is read. For this, the function enables ``spark.sql.python.filterPushdown.enabled`` in
    the session. There is one task for each subtask of the operator. The package must be installed on the executors.
    """
    spark.conf.set(_PUSHDOWN, "true")
    # Spark sends the class to the processes that plan queries: by its content, since no module has it.
    attributes = {"pins_folder": str(session_pins().folder)}
    spark.dataSource.register(type("SessionDataSource", (StateDataSource,), attributes))


_session_lock = threading.Lock()


def session_pins() -> SessionPins:
    """Returns the pins of this process's queries."""
    with _session_lock:
        return _session_pins()


@cache
def _session_pins() -> SessionPins:
    pins = SessionPins()
    pins.start()
    return pins


class StateDataSource(DataSource):
    """The data source ``stateflow``; see `register_spark_reader` for its options.

    Attributes:
        pins_folder: folder of the driver's `SessionPins`; empty without one.
    """

    pins_folder: ClassVar[str] = ""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Returns the columns as Spark's types."""
        request = ReadRequest.of(self.options)
        if request.table:
            return _spark_schema(read_metadata(request.path, request.table, request.snapshot).schema)
        with open_snapshot(request.path, request.snapshot) as snapshot:
            table = request.table_in(snapshot, ALL_ROWS)
            return _spark_schema(_selected(table, request.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader of one query."""
        return QueryReader(ReadRequest.of(self.options), schema, self.pins_folder)


@dataclass(frozen=True)
class ReadRequest:
    """The options of a DataFrame.

    Attributes:
        path: a job root, or the folder of a savepoint.
        snapshot: id or name; None for the newest checkpoint.
        operator, state: name the state; empty for a table of metadata.
        columns: the columns to read; None for all.
        table: name of a table of metadata; empty for state.
        lease_seconds: how long a checkpoint is pinned.
    """

    path: str
    snapshot: str | None
    operator: str
    state: str
    columns: tuple[str, ...] | None
    table: str
    lease_seconds: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadRequest:
        """Returns the checked options; raises ConfigError for an unknown, missing or invalid one."""
        for name in options:
            if name.lower() not in _OPTIONS:
                raise ConfigError("the option does not exist", hint=did_you_mean(name, _OPTIONS), option=name)
        needed = ("path",) if options.get("table") else ("path", "operator", "state")
        missing = [name for name in needed if not options.get(name)]
        if missing:
            hint = "set path, and either operator and state, or table"
            raise ConfigError("an option is missing", hint=hint, missing=missing)
        columns = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
        lease = options.get("lease_seconds", str(_LEASE_SECONDS))
        if not (lease.isascii() and lease.isdigit() and 0 < int(lease) <= 7 * 24 * _LEASE_SECONDS):
            raise ConfigError("lease_seconds must be between 1 and 604800", value=lease)
        return cls(
            options["path"],
            options.get("snapshot"),
            options.get("operator", ""),
            options.get("state", ""),
            tuple(columns) or None,
            options.get("table", ""),
            int(lease),
        )

    def table_in(self, snapshot: Snapshot, rows: Rows) -> StateTable:
        """Returns the state of a snapshot as a table."""
        return table_of(snapshot.operator(self.operator), self.state, rows, snapshot.max_parallelism)


@dataclass(frozen=True)
class _Part:
    """The part of a state that one task reads.

    Attributes:
        storage: URI of the storage with the files.
        operator: the operator's state, of one subtask only, as msgpack.
        rows: the rows.
        max_parallelism: number of key groups.
    """

    storage: str
    operator: bytes
    rows: Rows
    max_parallelism: int


class QueryReader(DataSourceReader):
    """The reader of one query.

    Args:
        request: the options.
        schema: the columns.
        pins_folder: folder of the driver's `SessionPins`; empty without one.
    """

    def __init__(self, request: ReadRequest, schema: StructType, pins_folder: str = "") -> None:
        self._request = request
        self._schema = schema
        self._pins_folder = pins_folder
        self._comparisons: list[ColumnComparison] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Notes the filters that reduce what is read; Spark evaluates all of them."""
        for each in filters:
            kind = type(each).__name__
            operator = _OPERATORS.get(kind)
            path: tuple[str, ...] = getattr(each, "attribute", ())
            if operator is not None and len(path) == 1:
                value = getattr(each, "value", None)
                values = tuple(value) if kind == "In" and value is not None else (value,)
                if kind in ("EqualTo", "In"):
                    values = tuple(value for value in values if value is not None)  # null is equal to nothing
                self._comparisons.append(ColumnComparison(path[0], operator, values))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Pins the checkpoint, and returns the parts of its subtasks."""
        request = self._request
        if request.table:
            return [InputPartition(None)]
        with open_snapshot(request.path, request.snapshot) as snapshot:
            operator, rows = snapshot.operator(request.operator), self._rows(snapshot)
            subtasks = request.table_in(snapshot, rows).subtasks
            if subtasks and not snapshot.name:
                self._pin(snapshot.checkpoint_id)
        return [
            InputPartition(_Part(snapshot.storage.uri, _encoded(operator, number), rows, snapshot.max_parallelism))
            for number in subtasks
        ]

    def _pin(self, checkpoint_id: int) -> None:
        """Pins a checkpoint, which is pinned already, until no query needs it."""
        root = open_root(self._request.path, SystemClock())
        target = find_kept_checkpoint(root, root.head(), checkpoint_id, "use one of the ids kept")
        if target.ref is not None:
            needed = timedelta(seconds=self._request.lease_seconds)
            pin_for_query(root, target.ref, needed, self._pins_folder)

    def _rows(self, snapshot: Snapshot) -> Rows:
        if self._request.state.startswith("_") and self._request.state != "_timers":
            return ALL_ROWS
        columns = [field.name for field in key_fields(snapshot.operator(self._request.operator))]
        rows = rows_of(self._comparisons, columns)
        try:
            self._request.table_in(snapshot, rows)
        except ConfigError:
            # A filter compares a key with a value of another type: Spark converts one of them, so all keys are read.
            return Rows(groups=rows.groups)
        return rows

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a part."""
        target, request = arrow_schema(self._schema), self._request
        if request.table:
            found = read_metadata(request.path, request.table, request.snapshot)
            yield from (_cast(batch, target) for batch in found.to_batches())
            return
        # What Spark passes when `partitions` has returned none: no subtask has rows of the query. Before 4.2, None.
        if partition is None or partition.value is None:
            return
        part = partition.value
        assert isinstance(part, _Part)
        operator = msgpack_decoder(OperatorState).decode(part.operator)
        table = table_of(operator, request.state, part.rows, part.max_parallelism)
        try:
            for batch in table.batches(open_storage(part.storage), SystemClock(), target.names):
                yield _cast(batch, target)
        except MissingFile as e:
            raise MissingFile(
                "a file of the snapshot no longer exists: the pin of the query has ended, or a user deleted the file",
                hint="read the state with a new DataFrame, or set lease_seconds to more than the query takes",
                lease_ms=1000 * request.lease_seconds,
                **e.facts,
            ) from e


def _encoded(operator: OperatorState, subtask: int) -> bytes:
    """Returns the state of one subtask of an operator as msgpack."""
    only = msgspec.structs.replace(
        operator,
        subtasks=[state for state in operator.subtasks if state.subtask == subtask],
        parts=[part for part in operator.parts if part.subtask == subtask],
    )
    return msgspec.msgpack.encode(only)


def _selected(table: StateTable, columns: Sequence[str] | None) -> pa.Schema:
    return pa.schema([table.schema.field(name) for name in select_columns(columns, table.schema)])


def _spark_schema(schema: pa.Schema) -> StructType:
    """Returns a schema as Spark's types: unsigned integers of 64 bits are decimals, which Spark can represent."""
    fields = [pa.field(each.name, with_scalars(each.type, _for_spark), each.nullable) for each in schema]
    found: StructType = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
    return found


def _for_spark(scalar: pa.DataType) -> pa.DataType:
    return pa.decimal128(20, 0) if pa.types.is_uint64(scalar) else scalar


def _cast(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Returns a batch with Spark's types, which differ in units and in names of parts."""
    arrays = [batch.column(each.name).cast(each.type) for each in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


_RENEWALS = 3
"""Renewals within a lease: two may fail."""
_LOCK = "lock"


class QueryPin(msgspec.Struct, frozen=True, kw_only=True):
    """A pin that queries need.

    Attributes:
        root: location of the job root.
        pin: id of the pin.
        until: time after which no query needs it, in ISO 8601.
    """

    root: str
    pin: str
    until: str


def open_root(location: str, clock: Clock) -> JobRoot:
    """Opens a job root under the name of this process."""
    return JobRoot.open(open_storage(location), clock, f"{socket.gethostname()}:{os.getpid()}")


def pin_for_query(root: JobRoot, ref: EntryRef, needed: timedelta, folder: str) -> None:
    """Pins a checkpoint for a query; queries of a session that read the same checkpoint share a pin.

    Args:
        root: the job root.
        ref: the checkpoint, which the caller has pinned.
        needed: how long the query needs it.
        folder: folder of the session's `SessionPins`; empty, or not writable on this host, without one.
    """
    if not (folder and os.access(folder, os.W_OK | os.X_OK)):
        root.admin.pin(ref, by_process(root.writer), "a query of Spark", lease=needed)
        return
    lease = min(LEASE, needed)
    file = Path(folder) / f"{hashlib.sha256(f'{root.storage.uri} {ref.id}'.encode()).hexdigest()[:32]}.json"
    until = root.clock.now() + needed
    with _locked(Path(folder)):
        known = _read(file)
        if known is None or not root.admin.renew(known.pin, lease):
            pin = root.admin.pin(ref, by_process(root.writer), "queries of a Spark session", lease=lease)
            known = QueryPin(root=root.storage.uri, pin=pin.id, until=until.isoformat())
        later = max(until, datetime.fromisoformat(known.until)).isoformat()
        _write(file, msgspec.structs.replace(known, until=later))


class SessionPins:
    """The pins of a driver's queries, which a thread renews until no query needs them.

    Attributes:
        folder: where the processes that plan queries write their pins.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._scratch = ScratchFolder()
        self._ended = threading.Event()
        self._process = os.getpid()
        self.folder = self._scratch.path

    def start(self) -> None:
        """Starts the thread; the pins are removed at the end of the process."""
        threading.Thread(target=self._work, name="stateflow-session-pins", daemon=True).start()
        atexit.register(self.end)

    def _work(self) -> None:
        while not self._ended.wait((LEASE / _RENEWALS).total_seconds()):
            try:
                self.renew()
            except OSError as e:
                log.warning("could not read the pins of the session's queries, trying again: %s", e)

    def renew(self) -> None:
        """Renews the pins that queries still need, and removes the others."""
        now = self._clock.now()
        for file in sorted(self.folder.glob("*.json")):
            with _locked(self.folder):
                known = _read(file)
                if known is not None and not self._renewed(known, now):
                    file.unlink()

    def _renewed(self, known: QueryPin, now: datetime) -> bool:
        """Returns whether the pin is to be renewed again later."""
        left = datetime.fromisoformat(known.until) - now
        try:
            admin = open_root(known.root, self._clock).admin
            if left > timedelta(0):
                return admin.renew(known.pin, min(LEASE, left))
            admin.unpin(known.pin)
        except StateflowError as e:
            log.warning("could not renew a pin of the session's queries, trying again: %s", e)
            return True
        return False

    def end(self) -> None:
        """Removes all pins; one that cannot be removed ends with its lease. Does nothing in a forked process."""
        if self._ended.is_set() or self._process != os.getpid():
            return
        self._ended.set()
        for file in sorted(self.folder.glob("*.json")):
            with _locked(self.folder):
                known = _read(file)
                if known is not None:
                    self._remove(known)
        self._scratch.remove()

    def _remove(self, known: QueryPin) -> None:
        try:
            open_root(known.root, self._clock).admin.unpin(known.pin)
        except StateflowError as e:
            log.warning("could not remove a pin of the session's queries, which ends by itself: %s", e)


def _read(file: Path) -> QueryPin | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=QueryPin)
    except (FileNotFoundError, msgspec.DecodeError):
        # A process that was killed while it wrote the file: its pin ends with its lease.
        return None


def _write(file: Path, pin: QueryPin) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(pin))
    new.replace(file)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which ends with the process."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


_MOST_KEYS = 10_000
"""Keys that are looked up; for more, the state is read as a whole."""
GROUP_COLUMN = "key_group"


@dataclass(frozen=True)
class ColumnComparison:
    """A filter of a query: a comparison of a column with values.

    Attributes:
        column: name of the column.
        operator: ``in`` for one of the values, of which None is null; ``>``, ``>=``, ``<`` or ``<=`` for a comparison
            with the only value.
        values: the values.
    """

    column: str
    operator: str
    values: tuple[object, ...]


def rows_of(comparisons: Iterable[ColumnComparison], key_columns: Sequence[str]) -> Rows:
    """Returns rows that include all rows for which every comparison holds.

    Args:
        comparisons: the filters.
        key_columns: names of the key columns; none for a table without keys.
    """
    found = list(comparisons)
    return Rows(_keys(found, key_columns), _groups(found))


def _keys(comparisons: Sequence[ColumnComparison], key_columns: Sequence[str]) -> tuple[object, ...] | None:
    of_columns = []
    for column in key_columns:
        given = [c.values for c in comparisons if (c.column, c.operator) == (column, "in")]
        if not given:
            return None
        # The shortest list: Spark still evaluates all filters.
        of_columns.append(min(given, key=len))
    if not of_columns or prod(map(len, of_columns)) > _MOST_KEYS:
        return None
    return tuple(product(*of_columns))


def _groups(comparisons: Sequence[ColumnComparison]) -> KeyGroupRange | None:
    first, last = 0, MAX_PARALLELISM_LIMIT - 1
    for comparison in comparisons:
        numbers = [value for value in comparison.values if isinstance(value, int)]
        if comparison.column != GROUP_COLUMN or len(numbers) < len(comparison.values) or not numbers:
            continue
        if comparison.operator in ("in", ">", ">="):
            first = max(first, min(numbers) + (comparison.operator == ">"))
        if comparison.operator in ("in", "<", "<="):
            last = min(last, max(numbers) - (comparison.operator == "<"))
    return None if (first, last) == (0, MAX_PARALLELISM_LIMIT - 1) else KeyGroupRange(first, last)
