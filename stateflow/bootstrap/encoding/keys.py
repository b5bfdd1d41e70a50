"""The key columns of a frame, encoded as tasks encode the keys of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from stateflow.bootstrap.encoding.column_types import cast, is_binary, is_text, plain_type
from stateflow.bootstrap.encoding.frames import column_names, is_spark
from stateflow.config.state_settings import EntryLimits
from stateflow.errors import ConfigError, DataError, SchemaMismatch, StateflowError
from stateflow.state.columnar.binary_columns import largest_of
from stateflow.state.columnar.key_encoding import encode_key_columns
from stateflow.state.entry_limits import key_too_large
from stateflow.types.arrow_types import KEY_TYPES
from stateflow.types.key_groups import check_key_type

if TYPE_CHECKING:
    from stateflow.bootstrap.encoding.frames import Frame

T = TypeVar("T")

_UNFIT = (OverflowError, ValueError, KeyError, pa.ArrowInvalid)
"""What Arrow raises for values that Python's types cannot have."""
_NAMES = {arrow: name for name, arrow in KEY_TYPES.items()}


@dataclass(frozen=True)
class KeyColumns:
    """The key columns of an operator.

    Attributes:
        names: names of the columns, in the order of the job's `key_by`.
        types: Spark's names of their types.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]

    @classmethod
    def of(cls, key: str | Sequence[str] | Mapping[str, str], frame: Frame | None) -> KeyColumns:
        """Returns the key columns of an operator.

        Args:
            key: their names; or their types, as Spark names them, by name.
            frame: a frame that has them; None without one.

        Raises:
            ConfigError: a column is missing, its type is not known, or a key cannot have it.
        """
        names = tuple([key] if isinstance(key, str) else key)
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                "an operator's key needs distinct columns", hint="name them as in key_by", key=list(names)
            )
        if isinstance(key, Mapping):
            types = [key[name] for name in names]
        elif frame is None:
            raise ConfigError(
                "the types of an operator's key columns are not known",
                hint='pass them: key={"carrier": "string", "flight": "bigint"}, or a frame of a keyed state',
                key=list(names),
            )
        else:
            types = [_type_of(frame, name) for name in names]
        for name, kind in zip(names, types, strict=True):
            check_key_type(kind, name)
            _arrow_type(kind)
        return cls(names, tuple(types))

    def encode(self, batch: pa.RecordBatch, limits: EntryLimits) -> pa.LargeBinaryArray:
        """Returns the encoded key of each row.

        Raises:
            SchemaMismatch: a column has another type.
            EntryTooLarge: a key is larger than the limit.
        """
        encoded = encode_key_columns(
            [self._column(batch, name, kind) for name, kind in zip(self.names, self.types, strict=True)]
        )
        if (size := largest_of(encoded)) > limits.key_bytes:
            raise key_too_large(size, limits)
        return encoded

    def facts_of(self, batch: pa.RecordBatch, row: int) -> dict[str, object]:
        """Returns the key of a row for an error."""
        return {"key": ", ".join(f"{name}={shown(batch.column(name)[row])}"[:200] for name in self.names)}

    def _column(self, batch: pa.RecordBatch, name: str, kind: str) -> pa.Array:
        return cast(batch.column(name), _arrow_type(kind), name)


def naming_row(
    batch: pa.RecordBatch,
    encode: Callable[[pa.RecordBatch], T],
    facts_of: Callable[[pa.RecordBatch, int], dict[str, object]],
) -> T:
    """Returns the result of `encode`; adds facts of the first row that it refuses, such as its key, to its error.

    Raises:
        StateflowError: as `encode` does.
    """
    try:
        return _encoded(batch, encode)
    except StateflowError:
        first, last = 0, batch.num_rows
        # The first `first` rows are accepted; the first `last` rows are not.
        while last - first > 1:
            middle = (first + last) // 2
            try:
                _encoded(batch.slice(0, middle), encode)
                first = middle
            except StateflowError:
                last = middle
        try:
            _encoded(batch.slice(last - 1, 1), encode)
        except StateflowError as e:
            e.add_facts(**facts_of(batch, last - 1))
            raise
        raise


def shown(value: pa.Scalar) -> str:
    """Returns a value for an error; bytes for a text that is not UTF-8, and a number for a time out of range."""
    try:
        return repr(value.as_py())
    except UnicodeDecodeError:
        return repr(value.as_buffer().to_pybytes())
    except _UNFIT:
        kind = value.type
        number = value.cast(pa.int32() if kind.bit_width == 32 else pa.int64()) if pa.types.is_temporal(kind) else ""
        return f"{kind} {number}"


def _encoded(batch: pa.RecordBatch, encode: Callable[[pa.RecordBatch], T]) -> T:
    try:
        return encode(batch)
    except UnicodeDecodeError as e:
        # Arrow does not check the texts of a file.
        raise DataError("a text is not UTF-8", hint="convert the column", text=repr(e.object[:100])) from e
    except StateflowError:
        raise
    except _UNFIT as e:
        raise SchemaMismatch(
            "a row has a value that cannot be converted",
            hint="correct it, such as a time out of the range of years from 1 to 9999, or a map with a key twice",
            reason=f"{type(e).__name__}: {e}"[:200],
        ) from e


def _type_of(frame: Frame, name: str) -> str:
    """Returns Spark's name of the type of a frame's column; raises ConfigError if the frame does not have it."""
    if name not in column_names(frame):
        raise ConfigError("a frame lacks a key column", hint="rename it", column=name, columns=column_names(frame))
    if is_spark(frame):
        return str(frame.schema[name].dataType.simpleString())
    schema: pa.Schema = frame.schema
    return spark_name(schema.field(name).type)


def spark_name(kind: pa.DataType) -> str:
    """Returns Spark's name of a type of Arrow; that of Arrow for one that a key cannot have."""
    kind = plain_type(kind)
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if is_text(kind) or is_binary(kind):
        return "string" if is_text(kind) else "binary"
    if pa.types.is_time(kind):
        return "time(6)"
    if pa.types.is_duration(kind):
        return "interval day to second"
    return _NAMES.get(kind, str(kind))


def _arrow_type(kind: str) -> pa.DataType:
    """Returns the Arrow type of a key column. Raises ConfigError for a malformed decimal."""
    if kind in KEY_TYPES:
        return KEY_TYPES[kind]
    try:
        precision, scale = (int(part) for part in kind.removeprefix("decimal(").removesuffix(")").split(","))
        return pa.decimal128(precision, scale)
    except ValueError as e:
        raise ConfigError("a key column has an unknown type", hint="write decimal(12,2)", type=kind) from e
