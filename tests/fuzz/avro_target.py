"""The fuzz target for Avro: schemas that a registry returns, and values that claim to be of one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from stateflow.api.schema import RowSchema
from stateflow.connectors.kafka.avro import AvroFormat, AvroSchema, NotDecodable, ValueDecoder
from stateflow.errors import CorruptInput
from tests.fuzz.mutations import changed_bytes, changed_json
from tests.fuzz.target import Target
from tests.support.avro_values import BY_HAND, Order, order_schema

_COLUMNS = RowSchema.of(Order).columns
_LENGTHS = (b"\xff" * 8 + b"\x01", b"\xfe" + b"\xff" * 7 + b"\x01", b"\x80\x80\x80\x80\x08", b"\x00", b"\x02" * 5000)


@contextmanager
def avro_value(_: Path) -> Iterator[Target]:
    """Changes a value, its schema or both; a value that is rejected counts as refused."""
    schema, reader = msgspec.json.encode(order_schema()), AvroSchema.of(order_schema())

    def mutate(rng: random.Random) -> tuple[bytes, bytes]:
        changes = rng.random()
        text = changed_json(rng, schema, [schema]) if changes < 0.5 else schema
        return text, changed_bytes(rng, BY_HAND, [BY_HAND, *_LENGTHS]) if changes > 0.3 else BY_HAND

    def read(given: tuple[bytes, bytes]) -> None:
        text, value = given[0].decode(errors="replace"), given[1]
        value_format = AvroFormat(text or "{}")
        rows, reasons = ValueDecoder(value_format, _COLUMNS).columns_of([value, BY_HAND])
        rows.validate(full=True)
        with suppress(NotDecodable):
            AvroSchema.of(text).decode(value, reader)
        # Also with the schema that it was written with, and columns that may not fit.
        value_format.check(_COLUMNS)
        if reasons[0].is_valid:
            raise CorruptInput("a value is rejected", reason=reasons[0].as_py())

    yield Target(mutate, read)
