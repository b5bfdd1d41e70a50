"""A schema of Avro with each type, bytes of its values by hand, and row classes, which tasks of Spark import."""

from __future__ import annotations

import datetime
import enum
import struct
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from stateflow import precision

PART = {"type": "record", "name": "Part", "fields": [{"name": "name", "type": "string"}]}
PART["fields"].append({"name": "size", "type": ["null", "int"]})  # type: ignore[attr-defined]
TYPES: dict[str, Any] = {
    "id": "int", "ratio": "float", "paid": "boolean", "raw": "bytes",
    "total": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    "fixed": ["null", {"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 12, "scale": 2}],
    "day": {"type": "int", "logicalType": "date"}, "time": {"type": "int", "logicalType": "time-millis"},
    "millis": {"type": "long", "logicalType": "timestamp-millis"},
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "key": {"type": "string", "logicalType": "uuid"},
    "color": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE", "GREEN"]}, "first": [PART, "null"],
    "parts": {"type": "array", "items": ["null", "Part"]}, "sizes": {"type": "map", "values": "double"}, "more": "F",
}  # fmt: skip


def order_schema(types: Mapping[str, object] = TYPES) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}


def avro_long(value: int) -> bytes:
    """Avro's encoding of a number, by its specification."""
    left, found = (value << 1) ^ (value >> 63), b""
    while left > 127:
        found += bytes([left & 127 | 128])
        left >>= 7
    return found + bytes([left])


def avro_bytes(value: bytes) -> bytes:
    return avro_long(len(value)) + value


BY_HAND = b"".join(
    [
        avro_long(-3),
        struct.pack("<f", 0.5),
        b"\1",
        avro_bytes(b"\xff\0"),
        avro_bytes((-125).to_bytes(2, "big", signed=True)),
        avro_long(1) + (350).to_bytes(8, "big"),
        avro_long((datetime.date(2026, 1, 2) - datetime.date(1970, 1, 1)).days),
        avro_long(3_723_004),
        avro_long(-1),
        avro_long(1_000_001),
        avro_bytes(str(uuid.UUID(int=5)).encode()),
        avro_long(1),
        avro_long(0) + avro_bytes("é".encode()) + avro_long(0),
        # A block with its size, and one without.
        avro_long(-1) + avro_long(1) + avro_long(0),
        avro_long(1) + avro_long(1) + avro_bytes(b"a") + avro_long(1) + avro_long(7) + avro_long(0),
        avro_long(1) + avro_bytes(b"k") + struct.pack("<d", 1.5) + avro_long(0),
        (100).to_bytes(8, "big"),
    ]
)
ROW: dict[str, Any] = {
    "id": -3,
    "ratio": 0.5,
    "paid": True,
    "raw": b"\xff\0",
    "total": Decimal("-1.25"),
    "fixed": Decimal("3.50"),
    "day": datetime.date(2026, 1, 2),
    "time": datetime.time(1, 2, 3, 4000),
    "millis": datetime.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=datetime.UTC),
    "local": datetime.datetime(1970, 1, 1, 0, 0, 1, 1),  # noqa: DTZ001 - a local timestamp
    "key": str(uuid.UUID(int=5)),
    "color": "BLUE",
    "first": {"name": "é", "size": None},
    "parts": [None, {"name": "a", "size": 7}],
    "sizes": [("k", 1.5)],
}


class Color(enum.Enum):
    RED = "RED"
    BLUE = "BLUE"


class Part(msgspec.Struct):
    name: str
    size: int | None


class Order(msgspec.Struct):
    id: int
    ratio: float
    paid: bool
    raw: bytes
    total: Annotated[Decimal, precision(12, scale=2)]
    fixed: Annotated[Decimal, precision(12, scale=2)] | None
    day: datetime.date
    time: datetime.time
    millis: Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    local: datetime.datetime
    key: uuid.UUID
    color: Color
    first: Part | None
    parts: list[Part | None]
    sizes: dict[str, float]


class Pair(msgspec.Struct):
    number: int
    text: str | None
