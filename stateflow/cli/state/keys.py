"""Keys of a state from the command line, by the recorded types of the key columns."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence

import pyarrow as pa

from stateflow.errors import ConfigError

_EXAMPLES = {
    "bool": "true",
    "date32[day]": "2026-01-31",
    "timestamp[us]": "2026-01-31T03:00:00",
    "timestamp[us, tz=UTC]": "2026-01-31T03:00:00Z",
    "time64[us]": "03:00:00",
    "binary": "Base64, AAEC",
}


def parse_key(text: str, columns: Sequence[pa.Field]) -> tuple[object, ...]:
    """Returns the values of the key columns.

    Args:
        text: the value of the only key column; of several, a JSON array of their values, in their order, or a JSON
            object with their names. Dates and times are in ISO 8601, binary values are Base64.
        columns: the key columns.

    Raises:
        ConfigError: the text does not have the values of these columns.
    """
    if len(columns) == 1:
        return (_value(text, columns[0]),)
    names = [column.name for column in columns]
    values = _parsed(text, names)
    if isinstance(values, dict) and values.keys() == set(names):
        values = [values[name] for name in names]
    if not isinstance(values, list) or len(values) != len(columns):
        raise _malformed(text, names)
    return tuple(_value(value, column) for value, column in zip(values, columns, strict=True))


def _parsed(text: str, names: Sequence[str]) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise _malformed(text, names) from e


def _malformed(text: str, names: Sequence[str]) -> ConfigError:
    return ConfigError(
        "the key is not JSON with a value for each key column",
        hint="""pass an array of the values in this order, or an object, such as '["a", 7]'""",
        key=text[:200],
        columns=list(names),
    )


def _of_json(given: object, kind: pa.DataType) -> object:
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    wanted = bool if pa.types.is_boolean(kind) else int | float if is_number else ()
    if not isinstance(given, wanted) or (is_number and isinstance(given, bool)):
        raise TypeError("the value of JSON has another type")
    # A cast fails where a digit would be lost, unlike a conversion.
    return pa.scalar(given).cast(kind).as_py()


def _value(given: object, column: pa.Field) -> object:
    """Returns a value of the column's type, from a text or a value of JSON."""
    kind = column.type
    try:
        if not isinstance(given, str):
            return _of_json(given, kind)
        if pa.types.is_binary(kind):
            return base64.b64decode(given, validate=True)
        return pa.array([given], pa.string()).cast(kind)[0].as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError, binascii.Error) as e:
        example = _EXAMPLES.get(str(kind))
        raise ConfigError(
            "the key does not have the type of its column",
            hint="pass a value of the type" + (f", such as {example}" if example else ""),
            column=column.name,
            type=str(kind),
            value=str(given)[:200],
            reason=str(e)[:200],
        ) from e
