"""Formats of the values of Kafka's records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from stateflow.api.hidden_columns import RejectedRecord
from stateflow.api.schema import Column
from stateflow.checkpoint.barrier.task_report import message_with
from stateflow.connectors.json_values import JsonObjects
from stateflow.connectors.kafka.columns import VALUE, VALUE_ERROR
from stateflow.connectors.text_values import FORM_OPTIONS, TextForms
from stateflow.errors import JobDefinitionError, StateflowError
from stateflow.types.columns.conversion import NULL, misfit_of
from stateflow.types.columns.shapes import without_classes
from stateflow.types.spark_sql import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ValueFormat(ABC):
    """A format of the values of records."""

    @abstractmethod
    def check(self, columns: Sequence[Column]) -> None:
        """Raises JobDefinitionError if the format cannot have these columns."""

    @abstractmethod
    def decode(self, records: DataFrame, columns: Sequence[Column]) -> DataFrame:
        """Returns the records with two further columns: `VALUE` and `VALUE_ERROR`.

        Args:
            records: the columns of Spark's Kafka source.
            columns: the columns that the value consists of.
        """

    def reason(self, record: RejectedRecord) -> str:
        """Returns why a value cannot be decoded, more precisely than `VALUE_ERROR`; empty if that says all."""
        return ""


class ValueColumns(Protocol):
    """Decodes the values of one task."""

    def columns_of(self, values: Sequence[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Returns the structs of decoded values, and the reasons for which others cannot be decoded.

        Raises:
            StateflowError: an error that is not one of a value.
        """
        ...


def decoded_in_tasks(records: DataFrame, columns: Sequence[Column], decoder: Callable[[], ValueColumns]) -> DataFrame:
    """Returns records with `VALUE` and `VALUE_ERROR`, which tasks decode in Python.

    Args:
        decoder: creates what decodes the values of a task.
    """
    given = [f"{quoted(f.name)} {f.dataType.simpleString()}" for f in records.schema.fields]
    value = ", ".join(f"{quoted(c.name)}: {c.spark_type}" for c in columns)
    ddl = ", ".join([*given, f"{VALUE} struct<{value}>", f"{VALUE_ERROR} string"])
    # Not a function of columns, which Spark might call twice for a record.
    return records.mapInArrow(partial(_with_values, decoder, _without_user_classes(columns)), ddl)


def _without_user_classes(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Returns columns whose unpickling imports no module of the job."""
    return tuple(Column(column.name, without_classes(column.shape)) for column in columns)


def _with_values(
    decoder: Callable[[], ValueColumns], columns: Sequence[Column], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a Spark partition with `VALUE` and `VALUE_ERROR`.

    Raises:
        RuntimeError: an error that is not one of a record. Its message contains the encoded error.
    """
    found = decoder()
    try:
        for batch in batches:
            values, errors = found.columns_of(batch.column("value").to_pylist())
            errors = _with_misfits(values, errors, columns)
            names = [*batch.schema.names, VALUE, VALUE_ERROR]
            yield pa.RecordBatch.from_arrays([*batch.columns, values, errors], names=names)
    except StateflowError as e:
        raise RuntimeError(message_with(e)) from e


def _with_misfits(values: pa.StructArray, errors: pa.Array, columns: Sequence[Column]) -> pa.Array:
    """Returns the reasons, with one for each value that has a part of another type than declared.

    Not for nulls, whose reasons `KafkaColumns.reason` has.
    """
    present = values.drop_null()
    parts = [present.field(at) for at in range(len(columns))]
    if all(misfit_of(column.shape, part) is None for column, part in zip(columns, parts, strict=True)):
        return errors
    reasons: list[str | None] = errors.to_pylist()
    for at, row in enumerate(np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)).tolist()):
        for column, part in zip(columns, parts, strict=True):
            found = misfit_of(column.shape, part.slice(at, 1))
            if found is not None and found[1] != NULL and reasons[row] is None:
                path, why = found
                reasons[row] = f"the value is not of the declared type: {column.name}{path}: {why}"
    return pa.array(reasons, pa.string())


@dataclass(frozen=True)
class Json(ValueFormat):
    """Values that are JSON objects, with a field per column. Further fields are ignored; missing ones are null.

    They are decoded as strictly as JSON files.

    Args:
        options: patterns of times, as for JSON files: ``dateFormat``, ``timestampFormat``, ``timestampNTZFormat`` and
            ``timeFormat``.
    """

    options: Mapping[str, str] = field(default_factory=dict)

    def check(self, columns: Sequence[Column]) -> None:
        given = sorted(o for o in self.options if o.lower() not in FORM_OPTIONS)
        if given:
            raise JobDefinitionError(
                "an option of the JSON format is not supported",
                hint="values are decoded strictly, as RFC 8259; on_error of the source determines what happens to "
                "records that cannot be decoded",
                options=given,
            )
        self.forms()

    def forms(self) -> TextForms:
        """Returns the forms of times. Raises ConfigError."""
        return TextForms.of({name.lower(): value for name, value in self.options.items()})

    def decode(self, records: DataFrame, columns: Sequence[Column]) -> DataFrame:
        plain = _without_user_classes(columns)
        return decoded_in_tasks(records, columns, partial(_JsonValues, plain, self.forms()))


class _JsonValues:
    """`ValueColumns` of JSON."""

    def __init__(self, columns: Sequence[Column], forms: TextForms) -> None:
        self._objects = JsonObjects(columns, forms)
        self._fields = [pa.field(column.name, column.arrow_type) for column in columns]

    def columns_of(self, values: Sequence[bytes | None]) -> tuple[pa.Array, pa.Array]:
        columns, errors = self._objects.decode([b"{}" if value is None else value for value in values])
        is_null = [value is None or at in errors for at, value in enumerate(values)]
        structs = pa.StructArray.from_arrays(columns, fields=self._fields, mask=pa.array(is_null, pa.bool_()))
        reasons = {at: f"the value is not a JSON object of the declared columns: {why}" for at, why in errors.items()}
        return structs, pa.array([reasons.get(at) for at in range(len(values))], pa.string())


@dataclass(frozen=True)
class Raw(ValueFormat):
    """Values that are not decoded: one column, declared as bytes, or as str for text in UTF-8."""

    def check(self, columns: Sequence[Column]) -> None:
        if len(columns) != 1 or columns[0].spark_type not in ("binary", "string"):
            raise JobDefinitionError(
                "a raw value needs exactly one field that takes no metadata, of type bytes or str",
                hint="declare it, with … | None if records have no value",
                fields=[f"{c.name}: {c.spark_type}" for c in columns],
            )

    def decode(self, records: DataFrame, columns: Sequence[Column]) -> DataFrame:
        (column,) = columns
        is_text = column.spark_type == "string"
        value = "CAST(value AS STRING)" if is_text else "value"
        wrong = f"NOT is_valid_utf8({value})" if is_text else "FALSE"
        error = f"CASE WHEN {wrong} THEN 'the value is not UTF-8' END"
        struct = f"named_struct({literal(column.name)}, {value})"
        return records.selectExpr("*", f"{struct} AS {VALUE}", f"{error} AS {VALUE_ERROR}")
