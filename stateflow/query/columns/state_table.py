"""The table of one state: its columns, and its batches from the files of a snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import pyarrow as pa

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.clock import Clock
from stateflow.errors import ConfigError
from stateflow.similar_names import did_you_mean
from stateflow.state.columnar.key_encoding import encode_keys
from stateflow.state.columnar.key_reader import key_column_type
from stateflow.storage import Storage
from stateflow.types.key_encoding import has_key_at
from stateflow.types.key_groups import KeyGroupRange, key_group

TIMERS = "_timers"
"""Name of the table of timers."""
OPERATOR_PREFIX = "_operator/"
"""Prefix of the names of operator states."""
RAW, RAW_KEYED = "_raw", "_raw_keyed"
"""Names of raw operator state and raw keyed state."""

BATCH_ROWS = 1 << 15
"""Most rows of a batch: the columns of more would not stay in a processor's cache."""
BATCH_BYTES = 8 << 20
"""Size of keys and values at which a batch ends."""

_RESERVED = {"key_group", "namespace", "map_key", "position", "value", "written_at", "time", "domain"}


class StateTable(ABC):
    """A state as a table."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns."""

    @property
    @abstractmethod
    def subtasks(self) -> Sequence[int]:
        """The subtasks that may have rows, in order; each has files of its own."""

    @abstractmethod
    def batches(
        self, storage: Storage, clock: Clock, columns: Sequence[str], subtasks: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows, with the files of one subtask on local disk at a time.

        Args:
            storage: the storage with the snapshot's files; the caller keeps them from deletion.
            clock: gives the timestamps of copies of files.
            columns: names of the columns in their order; values are not decoded if ``value`` is not among them.
            subtasks: the subtasks to read; all by default.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged, or a key or value does not decode.
            StateError: a value has no representation in its column.
        """


@dataclass(frozen=True)
class Rows:
    """The rows to read.

    Attributes:
        keys: rows of these keys only, each a tuple, or the value of the only key column, with None for null; None for
            all.
        groups: rows of these key groups only; None for all.
    """

    keys: tuple[object, ...] | None = None
    groups: KeyGroupRange | None = None


ALL_ROWS = Rows()


def key_fields(operator: OperatorState) -> list[pa.Field]:
    """Returns the key columns.

    They have the names that the job gives them. In checkpoints that did not record these, they are called ``key``, or
    ``key_1``, ``key_2``, …. A name that another column has gets the prefix ``key_``.

    Raises:
        CorruptFile: a recorded type is none that a key has.
    """
    count = len(operator.key_types)
    names = operator.key_names if len(operator.key_names) == count else _numbered(count)
    fields, taken = [], set(_RESERVED)
    for name, kind in zip(names, operator.key_types, strict=True):
        # Spark does not distinguish case.
        while name.lower() in taken:
            name = f"key_{name}"
        taken.add(name.lower())
        fields.append(pa.field(name, key_column_type(kind)))
    return fields


def _numbered(count: int) -> list[str]:
    return ["key"] if count == 1 else [f"key_{number}" for number in range(1, count + 1)]


@dataclass(frozen=True)
class EncodedKey:
    """A key of a query as it is stored.

    Attributes:
        group: its key group.
        data: the encoded key columns.
    """

    group: int
    data: bytes

    def is_at(self, stored: bytes, offset: int) -> bool:
        """Returns whether a stored key has this key at an offset."""
        return has_key_at(stored, self.data, offset)


def encode_query_keys(keys: Iterable[object], operator: OperatorState, max_parallelism: int) -> list[EncodedKey]:
    """Returns keys as they are stored, each once, in the order of key groups and stored keys.

    Args:
        keys: tuples of the values of the key columns, or plain values if there is one key column.
        operator: the operator with the key columns.
        max_parallelism: number of key groups.

    Raises:
        ConfigError: a key has another number of values, or a value that does not have the type of its column.
    """
    fields = key_fields(operator)
    found = set()
    for key in keys:
        values = key if isinstance(key, tuple | list) else (key,)
        if len(values) != len(fields):
            raise ConfigError(
                "a key does not have one value for each key column",
                hint="give tuples with the values in the order of the key columns",
                key=repr(key)[:200],
                columns=[field.name for field in fields],
            )
        scalars = [_typed(value, field) for value, field in zip(values, fields, strict=True)]
        group = key_group([scalar.as_py() for scalar in scalars], operator.key_types, max_parallelism)
        (data,) = encode_keys([pa.array([scalar.as_py()], scalar.type) for scalar in scalars])
        found.add((group, data))
    return [EncodedKey(group, data) for group, data in sorted(found)]


def _typed(value: object, field: pa.Field) -> pa.Scalar:
    try:
        if isinstance(value, bool) and not pa.types.is_boolean(field.type):
            raise TypeError(f"it is {value}")
        if pa.types.is_integer(field.type) and not isinstance(value, SupportsIndex | None):
            # A scalar of an integer type drops a fraction without an error.
            raise TypeError("it is not an integer")
        return pa.scalar(value, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        raise ConfigError(
            "a value of a key does not have the type of its column",
            hint="convert the value",
            column=field.name,
            type=str(field.type),
            value=repr(value)[:200],
            reason=str(e)[:200],
        ) from e


def check_columns(columns: Sequence[str] | None, schema: pa.Schema) -> list[str]:
    """Returns the names of the columns to read; raises ConfigError for one that the state does not have."""
    if columns is None:
        return list(schema.names)
    for name in columns:
        if name not in schema.names:
            raise ConfigError(
                "the state has no such column", hint=did_you_mean(name, schema.names), column=name, found=schema.names
            )
    if not columns or len(set(columns)) < len(columns):
        raise ConfigError("no column is named, or one twice", hint="name each column once", columns=list(columns))
    return list(columns)
