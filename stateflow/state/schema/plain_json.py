"""JSON texts of plain values, from which the values can be restored exactly. Pure.

A value of JSON is itself. What JSON does not have is an object with one name:

====================================  ==========================================
value                                 JSON
====================================  ==========================================
NaN, an infinity                      ``{"$float": "NaN"}``, ``"Infinity"``, ``"-Infinity"``
bytes                                 ``{"$bytes": "<base64>"}``
datetime with a zone                  ``{"$datetime": "2026-01-31T10:00:00+00:00"}``
dict with keys that are no texts      ``{"$dict": [[key, value], …]}``; also one that looks like an object above
extension of msgpack                  ``{"$extension": [code, "<base64>"]}``
====================================  ==========================================
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Callable

import msgspec

_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FLOAT, _BYTES, _DATETIME, _DICT, _EXTENSION = "$float", "$bytes", "$datetime", "$dict", "$extension"
_NAMES = frozenset((_FLOAT, _BYTES, _DATETIME, _DICT, _EXTENSION))


def json_text(value: object) -> str:
    """Returns the JSON text of a value of dicts, lists, tuples and scalars, as msgpack decodes them without a type.

    Raises:
        RecursionError: it is nested some 900 levels deep.
    """
    return msgspec.json.encode(_to_json(value)).decode()


def from_json_text(text: str) -> object:
    """Returns the value of a text; tuples are lists, except in keys of dicts.

    Raises:
        ValueError, RecursionError: it is not JSON, has a name twice in an object, or has an object of the table above
            with another content.
    """
    return json.loads(text, object_pairs_hook=_from_object, parse_constant=_refuse, parse_float=_finite)


def _to_json(value: object) -> object:
    # One Python frame per level, by `map`: the interpreter limits them.
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: _name_of(value)}
    if isinstance(value, dict):
        items = list(map(_to_json, value.values()))
        if _needs_pairs(value):
            return {_DICT: list(map(list, zip(map(_to_json, value), items, strict=True)))}
        return dict(zip(value, items, strict=True))
    if isinstance(value, (list, tuple)):
        return list(map(_to_json, value))
    if isinstance(value, bytes):
        return {_BYTES: _text_of(value)}
    if isinstance(value, datetime.datetime):
        return {_DATETIME: value.isoformat()}
    if isinstance(value, msgspec.msgpack.Ext):
        return {_EXTENSION: [value.code, _text_of(bytes(value.data))]}
    return value


def _needs_pairs(value: dict[object, object]) -> bool:
    return any(not isinstance(key, str) for key in value) or (len(value) == 1 and not _NAMES.isdisjoint(value))


def _name_of(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_object(pairs: list[tuple[str, object]]) -> object:
    """Returns the value of an object, whose parts are values already."""
    if len(pairs) == 1:
        ((name, content),) = pairs
        if name in _RESTORED:
            return _restored(name, content)
    return _without_repetition(pairs)


def _without_repetition(pairs: list[tuple[object, object]] | list[tuple[str, object]]) -> dict[object, object]:
    found: dict[object, object] = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in an object")
    return found


def _restored(name: str, content: object) -> object:
    try:
        return _RESTORED[name](content)
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"an object {name} has another content: {type(e).__name__}: {e}") from e


def _bytes_of(content: object) -> bytes:
    return base64.b64decode(msgspec.convert(content, str), validate=True)


def _dict_of(content: object) -> dict[object, object]:
    pairs = msgspec.convert(content, list[tuple[object, object]])
    return _without_repetition([(_key(key), item) for key, item in pairs])


def _key(value: object) -> object:
    return tuple(map(_key, value)) if isinstance(value, list) else value


def _extension_of(content: object) -> msgspec.msgpack.Ext:
    code, data = msgspec.convert(content, tuple[int, str])
    return msgspec.msgpack.Ext(code, _bytes_of(data))


def _refuse(constant: str) -> object:
    raise ValueError(f'JSON has no {constant}; write {{"$float": "{constant}"}}')


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of the range of a float")
    return value


_RESTORED: dict[str, Callable[[object], object]] = {
    _FLOAT: lambda content: _FLOATS[msgspec.convert(content, str)],
    _BYTES: _bytes_of,
    _DATETIME: lambda content: datetime.datetime.fromisoformat(msgspec.convert(content, str)),
    _DICT: _dict_of,
    _EXTENSION: _extension_of,
}
