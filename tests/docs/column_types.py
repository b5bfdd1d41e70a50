"""Types of fields as the guides write them."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Annotated

import msgspec

from stateflow.types.columns.precision import precision
from stateflow.types.columns.shapes import Shape, shape_of

NAMES: dict[str, object] = {
    "date": datetime.date,
    "datetime": datetime.datetime,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "Decimal": decimal.Decimal,
    "UUID": uuid.UUID,
    "Annotated": Annotated,
    "msgspec": msgspec,
    "precision": precision,
}
"""The names that the types need, which the guides do not import."""


def declared_shape(text: str) -> Shape:
    """The shape of a column whose type is written in this way."""
    return shape_of(eval(text, dict(NAMES)))
