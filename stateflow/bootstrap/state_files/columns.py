"""The columns of a file of rows by their meaning, as `stateflow.read_state` names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stateflow.bootstrap.encoding.frames import (
    DOMAIN,
    KEY_GROUP,
    MAP_KEY,
    NAMESPACE,
    POSITION,
    READ_ONLY,
    VALUE,
    WRITTEN_AT,
)
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.errors import ConfigError
from stateflow.query.columns.reader import table_of
from stateflow.query.columns.state_table import ALL_ROWS, RAW_KEYED, TIMERS, key_fields
from stateflow.runtime.planning.declared_descriptors import DeclaredOperator
from stateflow.similar_names import did_you_mean

_OPTIONAL = frozenset((NAMESPACE, POSITION, WRITTEN_AT, DOMAIN))


@dataclass(frozen=True)
class FileColumns:
    """The columns that files of a state are read with.

    Attributes:
        schema: the columns, in their order, with the types that the state declares.
        ignored: columns of the files that are not read.
        keys: the key columns.
        names: the name in the frame of each column that is no field of the values, by its name in the files, and that
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
                "the columns of a file are not those of the state",
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
