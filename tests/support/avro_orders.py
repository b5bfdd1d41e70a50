"""A row class with a field of each type that values in Avro have; tasks of Spark import it."""

from __future__ import annotations

import datetime
import enum
import uuid
from decimal import Decimal
from typing import Annotated

import msgspec

from stateflow import precision


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
