"""Frames of the states of Spark's queries, which are named as ``spark:CHECKPOINT#variable=last,operator=1``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from stateflow.bootstrap.frames import DOMAIN, MAP_KEY, NAMESPACE, TIME, VALUE, KeyedStateFrame
from stateflow.bootstrap.spark_checkpoint import SparkCheckpoint
from stateflow.errors import ConfigError
from stateflow.runtime.planning.state_discovery import DeclaredOperator
from stateflow.state.stored_key import TimeDomain
from stateflow.types.declared_types import quote_name
from stateflow.types.descriptors import MapStateDescriptor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import SparkSession as SparkSession

    from stateflow.bootstrap.spark_state import SparkState


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
                "imported timers have the wrong columns",
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
    return {name: columns.pop(name, f"{_KEY}.{quote_name(name)}") for name in operator.key}


PREFIX = "spark:"
SOURCE, VARIABLE, OPERATOR, STORE, BATCH = "source", "variable", "operator", "store", "batch"
STATE_PARTS = frozenset((VARIABLE, OPERATOR, STORE, BATCH))
SOURCE_PARTS = frozenset((SOURCE, BATCH))
_NUMBERS = frozenset((SOURCE, OPERATOR, BATCH))
_DIGITS = 18


@dataclass(frozen=True)
class QueryAddress:
    """A part of the checkpoint of a query.

    Attributes:
        path: path or URI of the checkpoint folder.
        texts: the parts that are names: ``variable`` and ``store``.
        numbers: the parts that are numbers: ``source``, ``operator`` and ``batch``.
    """

    path: str
    texts: Mapping[str, str]
    numbers: Mapping[str, int]

    @classmethod
    def of_source(cls, text: str) -> Self:
        """Returns the address of a source, in ``CHECKPOINT``, ``CHECKPOINT#N`` or ``CHECKPOINT#source=N,batch=N``.

        Raises:
            ConfigError: as `of_state` does.
        """
        path, separator, rest = text.rpartition("#")
        if separator and rest.isdecimal():
            return cls._parsed(path, f"{SOURCE}={rest}", SOURCE_PARTS)
        # Any other text after a # is a part of the path.
        return cls._parsed(path, rest, SOURCE_PARTS) if separator and "=" in rest else cls(text, {}, {})

    @classmethod
    def of_state(cls, text: str) -> Self:
        """Returns the address of a state, in ``CHECKPOINT``, ``CHECKPOINT#VARIABLE`` or ``CHECKPOINT#name=value,…``.

        Raises:
            ConfigError: a part is not known, or not a number.
        """
        path, separator, rest = text.rpartition("#")
        if not separator:
            return cls(text, {}, {})
        return cls._parsed(path, rest, STATE_PARTS) if "=" in rest else cls(path, {VARIABLE: rest}, {})

    @classmethod
    def _parsed(cls, path: str, parts: str, known: Set[str]) -> Self:
        given = [part.partition("=")[::2] for part in parts.split(",")]
        names = [name for name, _ in given]
        wrong = [name for name, value in given if name in _NUMBERS and not _is_number(value)]
        if not set(names) <= known or len(set(names)) < len(names) or wrong:
            raise ConfigError(
                "a part of a checkpoint of Spark is not valid",
                hint=f"after the #, use {', '.join(sorted(known))}, each once: for example "
                f"{OPERATOR if OPERATOR in known else SOURCE}=1,{BATCH}=7",
                path=path,
                parts=parts,
            )
        return cls(
            path,
            {name: value for name, value in given if name not in _NUMBERS},
            {name: int(value) for name, value in given if name in _NUMBERS},
        )


def _is_number(text: str) -> bool:
    # Python refuses to convert thousands of digits.
    return text.isdecimal() and len(text) <= _DIGITS
