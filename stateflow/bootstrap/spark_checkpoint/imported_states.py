"""States of Spark's queries, given as text, as frames of the states that a job declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stateflow.bootstrap.encoding.frames import DOMAIN, MAP_KEY, NAMESPACE, TIME, VALUE, KeyedStateFrame
from stateflow.bootstrap.spark_checkpoint.addresses import BATCH, OPERATOR, STORE, VARIABLE, QueryAddress
from stateflow.bootstrap.spark_checkpoint.checkpoint import SparkCheckpoint
from stateflow.errors import ConfigError
from stateflow.runtime.planning.declared_descriptors import DeclaredOperator
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.types.descriptors import MapStateDescriptor
from stateflow.types.spark_sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import SparkSession as SparkSession

    from stateflow.bootstrap.spark_checkpoint.state import SparkState

OpenSpark = Callable[[], "SparkSession"]
_KEY = "key"
"""Column of `SparkState.rows` with the columns that the query groups by."""


@dataclass(frozen=True)
class ImportedState:
    """A state, and where it is in the checkpoint of a query.

    Attributes:
        operator: uid of the operator.
        state: name of the state, as for `stateflow.read_state`.
        address: the state of the query.
        columns: expressions of Spark's SQL over the columns of `SparkState.rows`, by column of the state.
    """

    operator: str
    state: str
    address: QueryAddress
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The state's name with its operator: ``sum.total``."""
        return f"{self.operator}.{self.state}"


class SparkQueries:
    """The checkpoints of the queries that states and positions are imported from.

    Args:
        open_spark: returns the session that reads the states; called when the first one is read.
    """

    def __init__(self, open_spark: OpenSpark) -> None:
        self._open_spark = open_spark
        self._spark: SparkSession | None = None
        self._found: dict[str, tuple[int | None, SparkCheckpoint]] = {}

    def checkpoint(self, address: QueryAddress) -> SparkCheckpoint:
        """Returns the checkpoint of a query. Position and states are of one batch.

        Raises:
            ConfigError, CorruptFile: as `SparkCheckpoint` does; or another batch of the query was read before.
        """
        batch = address.numbers.get(BATCH)
        if address.path not in self._found:
            self._found[address.path] = batch, SparkCheckpoint(address.path, batch=batch)
        before, found = self._found[address.path]
        if before != batch:
            raise ConfigError(
                "state and positions of a query are of different batches",
                hint="name the same batch for all of them, or none",
                path=address.path,
                batches=[before, batch],
            )
        return found

    def frame(self, given: ImportedState, operator: DeclaredOperator) -> KeyedStateFrame:
        """Returns the rows of a keyed state that a job declares.

        Raises:
            ConfigError: the query has no such state, or an expression is not valid.
            SchemaMismatch: the values are not of the types of the state.
        """
        descriptor, columns = operator.keyed[given.state], dict(given.columns)
        key = _key(operator, columns)
        map_key = columns.pop(MAP_KEY, MAP_KEY) if isinstance(descriptor, MapStateDescriptor) else MAP_KEY
        namespace, value = columns.pop(NAMESPACE, ""), columns.pop(VALUE, VALUE)
        if columns and VALUE in given.columns:
            raise ConfigError(
                "a state has an expression for its values and others for their fields",
                hint="name the column value, or the columns of its fields",
                columns=sorted(columns),
            )
        rows = self._rows_of(given)
        return rows.frame(descriptor, key=key, value=columns or value, map_key=map_key, namespace=namespace)

    def timers(self, given: ImportedState, operator: DeclaredOperator) -> DataFrame:
        """Returns timers: those of transformWithState; or with an expression for their time, one for each entry.

        Raises:
            ConfigError: the query has no such operator, it has no timers, or an expression is not valid.
        """
        columns = dict(given.columns)
        key = _key(operator, columns)
        unknown = sorted(columns.keys() - {TIME, DOMAIN, NAMESPACE})
        if unknown or (columns and TIME not in columns):
            raise ConfigError(
                "timers have other columns",
                hint="name the key columns; and time, namespace and domain, for a timer of each entry",
                columns=unknown,
            )
        if TIME in columns:
            return self._rows_of(given).timers(
                columns[TIME],
                key=key,
                namespace=columns.get(NAMESPACE, ""),
                domain=columns.get(DOMAIN, TimeDomain.EVENT_TIME.value),
            )
        number = given.address.numbers.get(OPERATOR)
        return self.checkpoint(given.address).timers(self._session(), key=key, operator=number)

    def _rows_of(self, given: ImportedState) -> SparkState:
        texts, numbers = given.address.texts, given.address.numbers
        return self.checkpoint(given.address).state(
            self._session(), texts.get(VARIABLE, ""), operator=numbers.get(OPERATOR), store=texts.get(STORE, "")
        )

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = self._open_spark()
        return self._spark


def _key(operator: DeclaredOperator, columns: dict[str, str]) -> dict[str, str]:
    """Takes the expressions of the key columns from `columns`, and returns those of all key columns."""
    return {name: columns.pop(name, f"{_KEY}.{quoted(name)}") for name in operator.key}
