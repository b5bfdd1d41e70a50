"""Values in Avro: plain, or in the wire format of Confluent with a schema registry."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from stateflow.api.schema import Column
from stateflow.connectors.kafka.avro.avro_schema import AvroSchema, Decoded, NotDecodable, UnusableSchema
from stateflow.connectors.kafka.avro.avro_values import misfits, record_converter, to_struct
from stateflow.connectors.kafka.avro.schema_registry import SchemaRegistry, check_installed
from stateflow.connectors.kafka.formats import ValueFormat, decoded_in_tasks
from stateflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HEADER = struct.Struct(">BI")
"""Confluent's header of a value: a zero byte, and the id of its schema."""
_MOST_IDS = 10_000
"""Ids of schemas that a task remembers; a hostile producer can send any number of them."""


@dataclass(frozen=True)
class AvroFormat(ValueFormat):
    """Values that are records of Avro, with a field per column. Further fields are ignored; missing ones are null.

    Fields are matched by name, and types by Avro's rules: an int is also a float or a Decimal, a union with null is
    ``… | None``, and a named type is a class or an Enum. A union of several types is decoded as the one that the value
    has. Recursive schemas are not supported.

    Args:
        schema: without `registry`, the schema that all values were written with, as JSON. With `registry`, the schema
            that values are converted to by Avro's rules of schema resolution, with its defaults and aliases; by default
            each value has the fields that it was written with.
        registry: where the schemas of values in the wire format of Confluent are registered. Without it, a value has
            no header.

    Raises:
        EnvironmentUnsupported: packages for Avro are not installed.
        JobDefinitionError: there is neither a schema nor a registry, or the schema is not valid.
    """

    schema: str | Mapping[str, object] = ""
    registry: SchemaRegistry | None = None

    def __post_init__(self) -> None:
        check_installed()
        if not self.schema and self.registry is None:
            raise JobDefinitionError(
                "values in Avro need a schema or a schema registry",
                hint='pass AvroFormat(schema="…") for plain values, or AvroFormat(registry=SchemaRegistry("https://…"))',
            )
        try:
            self.declared()
        except UnusableSchema as e:
            raise JobDefinitionError(
                "a schema of Avro cannot be used", hint="correct the schema of AvroFormat", reason=str(e)
            ) from e

    def declared(self) -> AvroSchema | None:
        """Returns the parsed `schema`; None without one. Raises UnusableSchema."""
        if not self.schema:
            return None
        schema = AvroSchema.of(self.schema)
        _ = schema.fields
        return schema

    def check(self, columns: Sequence[Column]) -> None:
        declared = self.declared()
        found = list(misfits(declared, columns)) if declared else []
        if found:
            raise JobDefinitionError(
                "columns cannot be read from values of the Avro schema",
                hint="declare fields of the types in the schema, or … | None for a field that it does not have",
                problems=found[:10],
            )

    def decode(self, records: DataFrame, columns: Sequence[Column]) -> DataFrame:
        return decoded_in_tasks(records, columns, partial(ValueDecoder, self, tuple(columns)))


class ValueDecoder:
    """Decodes the values of one task."""

    def __init__(self, value_format: AvroFormat, columns: Sequence[Column]) -> None:
        self._format = value_format
        self._columns = columns
        self._convert = record_converter(columns)
        self._registered: dict[int, AvroSchema | str] = {}

    @cached_property
    def _declared(self) -> AvroSchema | None:
        return self._format.declared()

    def columns_of(self, values: Sequence[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Returns the column of decoded values, and that of the reasons for which others cannot be decoded.

        Raises:
            StorageError, ConfigError: as `SchemaRegistry.schema` does.
        """
        decoded: list[dict[str, Decoded] | None] = []
        errors: list[str | None] = []
        for value in values:
            record, error = self._decoded(value)
            decoded.append(record)
            errors.append(error)
        try:
            column = to_struct(self._columns, decoded)
        except (ValueError, TypeError, OverflowError):
            column = self._without_refused(decoded, errors)
        return column, pa.array(errors, pa.string())

    def _without_refused(self, decoded: list[dict[str, Decoded] | None], errors: list[str | None]) -> pa.Array:
        """Returns the column without the records that Arrow refuses, whose reasons are added to `errors`."""
        for at, record in enumerate(decoded):
            try:
                to_struct(self._columns, [record])
            except (ValueError, TypeError, OverflowError) as e:
                decoded[at], errors[at] = None, f"the value has no column: {e}"[:500]
        return to_struct(self._columns, decoded)

    def _decoded(self, value: bytes | None) -> tuple[dict[str, Decoded] | None, str | None]:
        if value is None:
            return None, None
        try:
            return self._convert(self._record(value)), None
        except NotDecodable as e:
            return None, str(e)

    def _record(self, value: bytes) -> dict[str, Decoded]:
        if self._format.registry is None:
            assert self._declared is not None
            return self._declared.decode(value)
        if len(value) < _HEADER.size or value[0] != 0:
            raise NotDecodable("the value does not begin with a zero byte and the id of its schema")
        _, number = _HEADER.unpack_from(value)
        schema = self._registered.get(number)
        if schema is None:
            schema = self._remember(number, self._format.registry)
        if isinstance(schema, str):
            raise NotDecodable(f"schema {number}: {schema}")
        return schema.decode(value[_HEADER.size :], self._declared)

    def _remember(self, number: int, registry: SchemaRegistry) -> AvroSchema | str:
        """Returns the schema with an id, or the reason for which values with this id cannot be decoded."""
        if len(self._registered) >= _MOST_IDS:
            self._registered.clear()
        try:
            found: AvroSchema | str = registry.schema(number)
        except UnusableSchema as e:
            found = str(e)
        self._registered[number] = found
        return found
