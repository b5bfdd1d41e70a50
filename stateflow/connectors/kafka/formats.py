"""Formats of the values of Kafka's records."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stateflow.api.hidden_columns import RejectedRecord
from stateflow.api.schema import Column
from stateflow.connectors.kafka.columns import VALUE, VALUE_ERROR
from stateflow.errors import JobDefinitionError
from stateflow.types.spark_sql import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CORRUPT = "_sf_corrupt"


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


@dataclass(frozen=True)
class Json(ValueFormat):
    """Values that are JSON objects, with a field per column. Further fields are ignored; missing ones are null.

    Args:
        options: options of Spark's JSON reader, such as ``timestampFormat``.
    """

    options: Mapping[str, str] = field(default_factory=dict)

    def check(self, columns: Sequence[Column]) -> None:
        given = sorted(o for o in self.options if o.lower() in ("mode", "columnnameofcorruptrecord", "multiline"))
        if given:
            raise JobDefinitionError(
                "an option of the JSON format is not supported",
                hint="on_error of the source determines what happens to records that cannot be decoded",
                options=given,
            )

    def decode(self, records: DataFrame, columns: Sequence[Column]) -> DataFrame:
        schema = ", ".join([*(f"{quoted(c.name)} {c.spark_type}" for c in columns), f"{_CORRUPT} string"])
        options = {**self.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        given = ", ".join(literal(text) for pair in options.items() for text in pair)
        value = f"from_json(CAST(value AS STRING), {literal(schema)}, map({given}))"
        wrong = f"{VALUE} IS NULL OR {VALUE}.{_CORRUPT} IS NOT NULL"
        error = (
            f"CASE WHEN value IS NULL THEN NULL "
            f"WHEN {wrong} THEN 'the value is not a JSON object of the declared columns' "
            f"WHEN {self._has_more} THEN 'the value has more after its first JSON object' END"
        )
        return records.selectExpr("*", f"{value} AS {VALUE}").selectExpr("*", f"{error} AS {VALUE_ERROR}")

    @property
    def _has_more(self) -> str:
        """The condition that text follows the first object, such as another one, which Spark would ignore."""
        if any(option.lower().startswith("allow") for option in self.options):
            # Spark counts the elements of an array without these options.
            return "FALSE"
        return "coalesce(json_array_length(concat('[', CAST(value AS STRING), ']')), 0) <> 1"

    def reason(self, record: RejectedRecord) -> str:
        if record.value is None:
            return ""
        try:
            json.loads(record.value)
        except (ValueError, RecursionError) as e:
            return f"the value is not valid JSON: {e}"
        return ""


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
