"""The state of a streaming query, as Spark's own reader returns it, and as frames for a savepoint."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stateflow.bootstrap.encoded_entries import LIMITS, declare, new_keyed_state
from stateflow.bootstrap.encoded_values import ValueEncoder, name_state_in_errors
from stateflow.bootstrap.frames import (
    DOMAIN,
    MAP_KEY,
    NAMESPACE,
    POSITION,
    TIME,
    VALUE,
    WRITTEN_AT,
    KeyedStateFrame,
    StateColumns,
    check_kind,
)
from stateflow.config.spark_versions import arrow_schema
from stateflow.errors import ConfigError, JobDefinitionError
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.stored_key import TimeDomain
from stateflow.types.declared_types import literal, quote_name
from stateflow.types.decoders import json_decoder
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from stateflow.types.ttl_config import StateTtlConfig

KEY, EXPIRES_AT = "key", "expires_at"
_KINDS = {"ValueState": "value", "ListState": "list", "MapState": "map"}
Columns = Mapping[str, str]
"""Expressions of Spark SQL over the columns of `SparkState.rows`, by name."""


class _Variable(msgspec.Struct, frozen=True):
    """A state variable of transformWithState, as the metadata of its operator describes it."""

    stateName: str
    stateVariableType: str
    ttlEnabled: bool = False


class Properties(msgspec.Struct, frozen=True):
    """Properties of a transformWithState operator, from the metadata of its state; the defaults for other operators."""

    timeMode: str = "NoTime"
    stateVariables: list[_Variable] = []


_properties = json_decoder(Properties)


@dataclass(frozen=True)
class StateAddress:
    """The operator and the batch whose state is read from a checkpoint.

    Attributes:
        path: the checkpoint folder, as Spark takes it.
        batch: number of the batch.
        time: Spark's time of the batch, in milliseconds since 1970.
        operator: Spark's number of the operator.
    """

    path: str
    batch: int
    time: int
    operator: int


@dataclass(frozen=True)
class SparkState:
    """The state of one operator of a streaming query, or one of its variables. Created by `SparkCheckpoint.state`.

    Attributes:
        rows: the entries, as a DataFrame. ``key`` is a struct of the columns that the query groups by, and ``value`` a
            struct of the state's columns. Entries of a map also have the struct ``map_key``, elements of a list their
            ``position``, and entries with a time to live ``expires_at``, in milliseconds since 1970; those that had
            expired at the time of the batch are left out.
        address: where it is read.
    """

    rows: DataFrame
    address: StateAddress

    def frame(
        self,
        descriptor: StateDescriptor,
        *,
        key: Columns | None = None,
        value: str | Columns = VALUE,
        map_key: str = MAP_KEY,
        namespace: str = "",
    ) -> KeyedStateFrame:
        """Returns the entries as those of a state of the job, for `SavepointWriter.with_operator`.

        All expressions are in Spark's SQL, over the columns of `rows`. A list keeps its order, and an entry with a time
        to live expires when it would have expired in Spark.

        Args:
            descriptor: the state, as the job declares it.
            key: the key columns, by name; by default, the columns of ``key``.
            value: the value; or its fields, by name, for a state of records. By default the struct ``value``.
            map_key: the key of an entry of a map; by default the struct ``map_key``, or the value of its only field.
            namespace: the namespace, as in frames; a window of Spark, such as ``key.window``, becomes one of the job.

        Raises:
            ConfigError: an expression is not valid.
            SchemaMismatch: the values, or the keys of a map, are not of the types of the state.
        """
        columns = {**(self._default_key() if key is None else key), VALUE: _value(value)}
        if isinstance(descriptor, MapStateDescriptor):
            columns[MAP_KEY] = self._only_field(MAP_KEY) if map_key == MAP_KEY else map_key
        if isinstance(descriptor, ListStateDescriptor) and POSITION in self.rows.columns:
            columns[POSITION] = POSITION
        if descriptor.ttl is not None and EXPIRES_AT in self.rows.columns:
            columns[WRITTEN_AT] = _written_at(descriptor.ttl, descriptor.name)
        frame = self._selected({**columns, NAMESPACE: namespace} if namespace else columns)
        with name_state_in_errors(descriptor.name):
            _check_types(descriptor, frame)
        return KeyedStateFrame(descriptor, frame)

    def timers(
        self, time: str, *, key: Columns | None = None, namespace: str = "", domain: str = TimeDomain.EVENT_TIME.value
    ) -> DataFrame:
        """Returns a timer for each entry, for `SavepointWriter.with_operator`: such as that which closes a window.

        All expressions are in Spark's SQL, over the columns of `rows`.

        Args:
            time: the time, in milliseconds since 1970 or a timestamp, such as ``unix_millis(key.window.end) - 1``.
            key: the key columns, by name; by default, the columns of ``key``.
            namespace: as for `frame`.
            domain: ``event`` or ``processing``.

        Raises:
            ConfigError: an expression is not valid.
        """
        columns = {**(self._default_key() if key is None else key), TIME: time, DOMAIN: literal(domain)}
        return self._selected({**columns, NAMESPACE: namespace} if namespace else columns)

    def _selected(self, columns: Columns) -> DataFrame:
        frame = _selected(self.rows, columns, self.address)
        kind = frame.schema[NAMESPACE].dataType if NAMESPACE in columns else None
        if not isinstance(kind, StructType) or kind.names != ["start", "end"]:
            return frame
        start, end = (F.unix_millis(F.col(f"{NAMESPACE}.{bound}").cast("timestamp")) for bound in kind.names)
        window = F.concat(start.cast("string"), F.lit("/"), end.cast("string"))
        return frame.withColumn(NAMESPACE, F.struct(F.lit("window").alias("type"), window.alias("value")))

    def _default_key(self) -> dict[str, str]:
        return {name: f"{KEY}.{quote_name(name)}" for name in _fields(self.rows, KEY)}

    def _only_field(self, column: str) -> str:
        fields = _fields(self.rows, column)
        return f"{column}.{quote_name(fields[0])}" if len(fields) == 1 else column


@dataclass(frozen=True)
class StateStores:
    """The state stores of a query, one for each operator with state, or several ones.

    Attributes:
        path: the checkpoint folder.
        found: number, name and properties of the operator of each store, as Spark has written them.
    """

    path: str
    found: tuple[tuple[int, str, str], ...]

    def number_of(self, operator: int | None) -> int:
        """Returns the number of an operator; for None, the number of the only one with state.

        Raises:
            ConfigError: the query has no such operator, or several ones.
        """
        numbers = {number for number, _, _ in self.found}
        if operator is None and len(numbers) > 1:
            raise ConfigError(
                "the query has several operators with state",
                hint="pass the number of one of them: operator=N, in the command spark:CHECKPOINT#operator=N",
                path=self.path,
                known=self._known(),
            )
        number = next(iter(numbers), 0) if operator is None else operator
        if number not in numbers:
            raise ConfigError(
                "the query has no operator of this number with state",
                hint="pass one of the known numbers",
                path=self.path,
                operator=number,
                known=self._known(),
            )
        return number

    def _known(self) -> list[tuple[int, str]]:
        return sorted({(number, name) for number, name, _ in self.found})


def read_stores(spark: SparkSession, path: str, batch: int) -> StateStores:
    """Returns the state stores of a query after a batch. Raises ConfigError if Spark cannot read their metadata."""
    try:
        rows = spark.read.format("state-metadata").option("batchId", batch).load(path).collect()
    except PySparkException as e:
        raise _unreadable({"path": path, "batch": batch}, e) from e
    found = ((row["operatorId"], row["operatorName"], row["operatorProperties"] or "{}") for row in rows)
    return StateStores(path, tuple(found))


def operator_properties(stores: StateStores, operator: int) -> Properties:
    """Returns the properties of an operator."""
    for number, _, text in stores.found:
        with suppress(msgspec.MsgspecError, RecursionError):
            properties = _properties.decode(text) if number == operator else Properties()
            if properties != Properties():
                return properties
    return Properties()


def read_state(spark: SparkSession, address: StateAddress, store: str) -> SparkState:
    """Returns the state of an operator that has keys and values; raises ConfigError if Spark cannot read it.

    Args:
        spark: the session.
        address: the operator.
        store: name of the state store; empty for the only one.
    """
    rows = _loaded(spark, address, {"storeName": store} if store else {})
    return SparkState(rows.drop("partition_id"), address)


def read_variable(spark: SparkSession, address: StateAddress, properties: Properties, name: str) -> SparkState:
    """Returns a state variable of transformWithState.

    Args:
        spark: the session.
        address: the operator.
        properties: its properties.
        name: name of the variable.

    Raises:
        ConfigError: the operator has no such variable, or Spark cannot read it.
    """
    known = {each.stateName: each for each in properties.stateVariables if each.stateVariableType in _KINDS}
    if name not in known:
        raise ConfigError(
            "the operator has no such state variable",
            hint="pass a variable of its StatefulProcessor, or another operator",
            path=address.path,
            operator=address.operator,
            variable=name,
            known=sorted(known),
        )
    kind = _KINDS[known[name].stateVariableType]
    # The elements of a list have an order only while they are one value.
    flat = str(kind != "list").lower()
    rows = _loaded(spark, address, {"stateVarName": name, "flattenCollectionTypes": flat})
    return SparkState(_living(_named(rows, kind), known[name].ttlEnabled, address), address)


def read_timers(spark: SparkSession, address: StateAddress, properties: Properties, key: Columns | None) -> DataFrame:
    """Returns the timers of an operator of transformWithState: the key columns, ``time`` and ``domain``."""
    mode = properties.timeMode
    if mode not in ("EventTime", "ProcessingTime"):
        raise ConfigError(
            "the operator has no timers",
            hint="leave them out; only a StatefulProcessor with a time mode has timers",
            path=address.path,
            operator=address.operator,
            time_mode=mode,
        )
    rows = _loaded(spark, address, {"readRegisteredTimers": "true"})
    columns = {name: f"{KEY}.{quote_name(name)}" for name in _fields(rows, KEY)} if key is None else dict(key)
    domain = "event" if mode == "EventTime" else "processing"
    return _selected(rows, {**columns, TIME: "expiration_timestamp_ms", DOMAIN: literal(domain)}, address)


def _loaded(spark: SparkSession, address: StateAddress, options: Mapping[str, str]) -> DataFrame:
    reader = spark.read.format("statestore").options(operatorId=address.operator, batchId=address.batch, **options)
    try:
        # Starts Spark's StateStoreCoordinator, without which tasks fail to read a state store of RocksDB.
        _ = spark.streams
        return reader.load(address.path)
    except PySparkException as e:
        raise _unreadable(
            {"path": address.path, "batch": address.batch, "operator": address.operator, **options}, e
        ) from e


def _named(rows: DataFrame, kind: str) -> DataFrame:
    """Returns the rows of a variable with the names of `SparkState.rows`."""
    if kind == "list":
        return rows.select(KEY, F.posexplode("list_value").alias(POSITION, VALUE))
    if kind == "map":
        return rows.select(KEY, F.col("user_map_key").alias(MAP_KEY), F.col("user_map_value").alias(VALUE))
    return rows.select(KEY, VALUE)


def _living(rows: DataFrame, has_ttl: bool, address: StateAddress) -> DataFrame:
    """Returns the rows of a variable without expired ones, as Spark would return them in the batch."""
    if not has_ttl:
        return rows
    others = [name for name in rows.columns if name != VALUE]
    expires = F.col(f"{VALUE}.ttlExpirationMs").alias(EXPIRES_AT)
    return rows.select(*others, F.col(f"{VALUE}.value").alias(VALUE), expires).where(
        F.col(EXPIRES_AT) > F.lit(address.time)
    )


def _fields(rows: DataFrame, column: str) -> list[str]:
    found = rows.schema[column].dataType if column in rows.columns else None
    return found.names if isinstance(found, StructType) else []


def _value(value: str | Columns) -> str:
    if isinstance(value, str):
        return value
    return f"named_struct({', '.join(f'{literal(name)}, {text}' for name, text in value.items())})"


def _written_at(ttl: StateTtlConfig, name: str) -> str:
    if ttl.ttl_time_characteristic is StateTtlConfig.TtlTimeCharacteristic.EventTime:
        raise ConfigError(
            "entries of Spark expire in processing time, entries of the state in event time",
            hint="declare the time to live of the state in processing time, or write frames of your own from rows",
            state=name,
        )
    return f"{EXPIRES_AT} - {ttl.milliseconds}L"


def _selected(rows: DataFrame, columns: Columns, address: StateAddress) -> DataFrame:
    try:
        return rows.select(*(F.expr(text).alias(name) for name, text in columns.items()))
    except PySparkException as e:
        raise ConfigError(
            "an expression over the state of Spark is not valid",
            hint="use Spark's SQL over the columns of its rows: key, value, and what a map or list adds",
            path=address.path,
            operator=address.operator,
            expressions=dict(columns),
            columns=rows.schema.simpleString()[:1000],
            reason=str(e).partition("\n")[0][:500],
        ) from e


def _check_types(descriptor: StateDescriptor, frame: DataFrame) -> None:
    """Raises SchemaMismatch unless values and keys of maps are of the types of a state."""
    state = declare(new_keyed_state(0), descriptor)
    empty = pa.RecordBatch.from_pylist([], arrow_schema(frame.schema))
    ValueEncoder(state.codec, StateColumns(VALUE), LIMITS, descriptor.name).encode(empty)
    if isinstance(state, MapState):
        with suppress(JobDefinitionError):
            check_kind(empty.schema.field(MAP_KEY).type, state.key_columns.type, MAP_KEY)


def _unreadable(facts: Mapping[str, object], error: PySparkException) -> ConfigError:
    return ConfigError(
        "the state of a streaming query cannot be read by Spark",
        hint="import a batch whose state still exists; pass the operator, variable or store that the query has, as "
        "spark.read.format('state-metadata') lists them",
        **facts,
        reason=str(error).partition("JVM stacktrace")[0][:1000],
    )
