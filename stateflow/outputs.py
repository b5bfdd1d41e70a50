"""Values that commands print as JSON and Airflow tasks return, and their JSON Schemas.

An output is a frozen dataclass, or a stored document. Its fields are encoded by their types, which may be one of the
types below: they are plain texts and numbers in Python, and say how a value looks in JSON. The rules are the same for
every output (CONTRIBUTING.md, *JSON*); ``docs/reference/json.md`` is generated from the same types.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Annotated, TypeVar, get_args, get_origin

import msgspec

from stateflow.clock import is_timestamp, parse_timestamp
from stateflow.errors import StateflowError
from stateflow.requesters import Requester

T = TypeVar("T")


class _Form(StrEnum):
    """How a text or number is encoded."""

    TEXT = "text"
    ID = "id"
    TIME = "time"
    EVENT_TIME = "event time"
    PERSON = "person"
    OFFSET = "offset"
    INLINE = "inline"


OptionalText = Annotated[str, _Form.TEXT]
"""A text; null if it is empty."""
OptionalId = Annotated[int, _Form.ID]
"""The id of a checkpoint, a log entry or a generation; null if it is 0."""
Timestamp = Annotated[str, _Form.TIME]
"""A stored time in ISO 8601; in JSON in UTC with milliseconds and ``Z``, null if it is empty."""
EventTime = Annotated[int, _Form.EVENT_TIME]
"""Milliseconds since 1970, such as a watermark; in JSON a time as `Timestamp`, between the years 1 and 9999."""
Person = Annotated[str, _Form.PERSON]
"""A requester as `stateflow.requesters` stores it; in JSON an object, null if it is empty."""
Offset = Annotated[str, _Form.OFFSET]
"""The position of a source, as the source writes it; in JSON what the text encodes, null for none."""
Inline = Annotated[T, _Form.INLINE]
"""Another output, whose fields are fields of this one; a field of this one replaces the other's of the same name."""

_NO_OFFSET = ("", "-")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def utc_text(moment: datetime) -> str:
    """Returns a time in UTC with milliseconds: ``2026-01-31T03:00:00.000Z``."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def offset_value(text: str) -> object:
    """Returns the JSON value of a source's position; None for none, and the text if it is in another format."""
    if text in _NO_OFFSET:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def encode_json(value: object) -> str:
    """Returns an output as one line of JSON."""
    return json.dumps(to_plain(value), allow_nan=False)


def to_object(output: object) -> dict[str, object]:
    """Returns a dataclass or stored document as the object that `encode_json` encodes: what an Airflow task returns."""
    return _record(output)


def from_object(kind: type[T], found: object) -> T:
    """Returns the output that `to_object` has encoded, which has no inlined fields, positions or event times.

    Raises ValueError, such as msgspec.ValidationError, for another object.
    """
    return msgspec.convert(_decoded(found, kind), kind)


def to_plain(value: object) -> object:
    """Returns an output as objects, lists, texts, numbers and nulls: what `encode_json` encodes.

    Raises TypeError for a value that has no form in JSON.
    """
    if is_record(type(value)):
        return _record(value)
    if isinstance(value, Mapping):
        return {_key(name): to_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(each) for each in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, datetime):
        return utc_text(value)
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # JSON has neither infinite numbers nor NaN.
        return value if value - value == 0 else None
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


def is_record(kind: object) -> bool:
    """Returns whether a class is a dataclass or a stored document."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def _key(name: object) -> str:
    return str(name.value if isinstance(name, Enum) else name)


def _record(value: object) -> dict[str, object]:
    found: dict[str, object] = {}
    own = _encodings_of(type(value))
    for name, encoding in own.items():
        field = getattr(value, name)
        if encoding.form is _Form.INLINE:
            found |= {inner: each for inner, each in _record(field).items() if inner not in own}
        else:
            found[name] = _encoded(field, encoding)
    return found


def fields_of(kind: type[object]) -> dict[str, object]:
    """Returns the type of each field of an output, in their order; names that begin with ``_`` are not fields."""
    found = _FIELDS.get(kind)
    if found is None:
        found = _FIELDS[kind] = _read_fields(kind)
    return found


_FIELDS: dict[type[object], dict[str, object]] = {}


def _read_fields(kind: type[object]) -> dict[str, object]:
    hints = typing.get_type_hints(kind, include_extras=True)
    if issubclass(kind, msgspec.Struct):
        names: Sequence[str] = kind.__struct_fields__
    else:
        names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return {name: hints[name] for name in names if not name.startswith("_")}


def _form(hint: object) -> _Form | None:
    forms = (each for each in getattr(hint, "__metadata__", ()) if isinstance(each, _Form))
    return next(forms, None)


def _arms(hint: object) -> tuple[object, ...]:
    """Returns the types of a union; the type itself if it is not a union."""
    return get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


@dataclasses.dataclass(frozen=True)
class _Encoding:
    """How values of a type are encoded; computed once for each type, since a page has thousands of values.

    Attributes:
        form: how a text or number is encoded; None for other values.
        values: of the values of a mapping; None if they show it themselves.
        items: the same of the items of a list or tuple.
    """

    form: _Form | None = None
    values: _Encoding | None = None
    items: _Encoding | None = None


def _encoding(hint: object) -> _Encoding:
    arms = [arm for arm in _arms(hint) if arm is not type(None)]
    if len(arms) != 1:
        return _Encoding()
    form, of = _form(arms[0]), get_args(arms[0])
    items = [each for each in of if each is not Ellipsis]
    if form is not None or get_origin(arms[0]) is Annotated:
        return _Encoding(form)
    return _Encoding(None, _encoding(of[-1]) if of else None, _encoding(items[0]) if len(items) == 1 else None)


def _encodings_of(kind: type[object]) -> dict[str, _Encoding]:
    found = _ENCODINGS.get(kind)
    if found is None:
        found = _ENCODINGS[kind] = {name: _encoding(hint) for name, hint in fields_of(kind).items()}
    return found


_ENCODINGS: dict[type[object], dict[str, _Encoding]] = {}


def _encoded(value: object, encoding: _Encoding | None) -> object:
    if value is None or (type(value) in _PLAIN and (encoding is None or encoding.form is None)):
        return value
    if encoding is None:
        return to_plain(value)
    if encoding.form is not None:
        return _formed(value, encoding.form)
    if isinstance(value, Mapping):
        return {_key(name): _encoded(each, encoding.values) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(each, encoding.items) for each in value]
    return to_plain(value)


_PLAIN = frozenset({str, int, bool})


def _decoded(value: object, hint: object) -> object:
    if value is None and type(None) in _arms(hint):
        return None
    arms = [arm for arm in _arms(hint) if arm is not type(None)]
    hint = arms[0] if len(arms) == 1 else None
    form = _form(hint)
    if value is None and form is not None:
        return 0 if form is _Form.ID else ""
    if form is _Form.TIME and isinstance(value, str):
        # As times are stored: two events about the same moment have the same text.
        return parse_timestamp(value).isoformat(timespec="milliseconds")
    if form is _Form.PERSON:
        return msgspec.convert(value, Requester).to_stored()
    if is_record(hint) and isinstance(value, Mapping):
        assert isinstance(hint, type)
        of = fields_of(hint)
        return {name: _decoded(each, of[name]) for name, each in value.items() if name in of}
    if isinstance(value, Mapping):
        return {name: _decoded(each, (get_args(hint) or (object,))[-1]) for name, each in value.items()}
    if isinstance(value, list):
        return [_decoded(each, (get_args(hint) or (object,))[0]) for each in value]
    return value


def _formed(value: object, form: _Form) -> object:
    if form is _Form.EVENT_TIME:
        assert isinstance(value, int)
        return utc_text(event_time(value))
    if form in (_Form.TEXT, _Form.ID):
        return to_plain(value) if value else None
    assert isinstance(value, str)
    if form is _Form.PERSON:
        return _record(Requester.parse(value)) if value else None
    return _time(value) if form is _Form.TIME else offset_value(value)


def _time(text: str) -> str | None:
    try:
        return utc_text(parse_timestamp(text))
    except (ValueError, OverflowError):
        return None


def event_time(milliseconds: int) -> datetime:
    """Returns an event time in milliseconds since 1970, such as a watermark; between the years 1 and 9999."""
    first, last = ((limit - _EPOCH) // timedelta(milliseconds=1) for limit in (_FIRST, _LAST))
    return _EPOCH + timedelta(milliseconds=min(max(milliseconds, first), last))


@dataclasses.dataclass(frozen=True)
class ErrorReport:
    """An error of a command or a request.

    Attributes:
        code: code of the error, as in the list of error codes; ``usage`` for a wrong command line.
        message: what failed and why.
        facts: values that help to find the cause.
        hint: what the user can do.
        exit_code: exit code of a command that ends with it.
        retryable: whether the same command or request may succeed later.
    """

    code: str
    message: str
    facts: dict[str, object]
    hint: OptionalText
    exit_code: int
    retryable: bool


def error_report(error: StateflowError) -> ErrorReport:
    """Returns an error for JSON; a fact without a form in JSON is a text."""
    facts = {name: plain_fact(name, value) for name, value in error.facts.items()}
    return ErrorReport(error.code, error.message, facts, error.hint, error.exit_code, error.retryable)


def plain_fact(name: str, value: object) -> object:
    """Returns a fact of an error or a log line for JSON; a text if it has no form in JSON."""
    if name.endswith("_at") and isinstance(value, str) and is_timestamp(value):
        return utc_text(parse_timestamp(value))
    try:
        return to_plain(value)
    except TypeError:
        return str(value)


# -- schemas ----------------------------------------------------------------------------------------------------------

Schema = dict[str, object]

_ANY: Schema = {"description": "any JSON value"}
_TIME: Schema = {
    "type": "string",
    "format": "date-time",
    "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$",
}
_SCALARS: dict[object, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    datetime: _TIME,
    object: _ANY,
    type(None): {"type": "null"},
}


def json_schema(kind: object) -> Schema:
    """Returns the JSON Schema (2020-12) of an output: a class, or a type such as ``list[SavepointReport]``.

    Every field of an object is required: a value that is absent is null.
    """
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema(kind)}
    classes = sorted(output_classes(kind), key=lambda each: each.__name__)
    return {**found, "$defs": {each.__name__: _object(each) for each in classes}} if classes else found


def output_classes(kind: object) -> set[type]:
    """Returns the classes of the objects in an output, itself included; not those whose fields are inlined."""
    found = set[type]()
    _reach(kind, found)
    return found


def inlined_classes(kind: type) -> list[type]:
    """Returns the classes whose fields are fields of this one."""
    return [get_args(hint)[0] for hint in fields_of(kind).values() if _form(hint) is _Form.INLINE]


def _reach(kind: object, found: set[type]) -> None:
    if isinstance(kind, type) and is_record(kind):
        if kind not in found:
            found.add(kind)
            for hint in fields_of(kind).values():
                inline = _form(hint) is _Form.INLINE
                for each in fields_of(get_args(hint)[0]).values() if inline else (hint,):
                    _reach(each, found)
    elif _form(kind) is _Form.PERSON:
        _reach(Requester, found)
    else:
        for each in get_args(kind):
            _reach(each, found)


def _object(kind: type) -> Schema:
    properties = {name: _schema(hint) for name, hint in _properties(kind)}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _properties(kind: type) -> Iterator[tuple[str, object]]:
    own = fields_of(kind)
    for name, hint in own.items():
        if _form(hint) is _Form.INLINE:
            inlined = get_args(hint)[0]
            yield from ((each, of) for each, of in _properties(inlined) if each not in own)
        else:
            yield name, hint


def _schema(hint: object) -> Schema:
    form, origin, arguments = _form(hint), get_origin(hint), get_args(hint)
    if form is not None:
        return _form_schema(form)
    if isinstance(hint, type) and is_record(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if len(arms := _arms(hint)) > 1:
        return _any_of([_schema(arm) for arm in arms])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if isinstance(origin, type) and issubclass(origin, Sequence | Set):
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is Annotated:
        return _schema(arguments[0])
    return dict(_SCALARS[hint])


def _form_schema(form: _Form) -> Schema:
    null: Schema = {"type": "null"}
    schemas: dict[_Form, Schema] = {
        _Form.TEXT: {"type": ["string", "null"]},
        _Form.ID: {"type": ["integer", "null"]},
        _Form.TIME: _any_of([_TIME, null]),
        _Form.EVENT_TIME: _TIME,
        _Form.PERSON: _any_of([_schema(Requester), null]),
        _Form.OFFSET: {"description": "the source's position: an object for most sources; null for none"},
    }
    return schemas[form]


def _any_of(schemas: Sequence[Schema]) -> Schema:
    flat: list[Schema] = []
    for each in schemas:
        nested = each.get("anyOf")
        flat += nested if isinstance(nested, list) else [each]
    if any(each == _ANY for each in flat):
        return _ANY
    return {"anyOf": [each for at, each in enumerate(flat) if each not in flat[:at]]}
