"""The form of values in JSON, and the schemas of outputs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.outputs import (
    EventTime,
    Inline,
    Offset,
    OptionalId,
    OptionalText,
    Person,
    Timestamp,
    encode_json,
    json_schema,
    to_object,
    to_plain,
    utc_text,
)
from stateflow.requesters import airflow_user


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    name: str
    ids: tuple[int, ...] = ()
    at: Timestamp = ""


@dataclass(frozen=True)
class Whole:
    part: Inline[Part]
    name: OptionalText
    number: OptionalId
    watermark_at: EventTime | None
    by: Person
    offsets: dict[str, Offset]
    kind: Literal["whole"]
    colour: Colour
    parts: list[Part]
    other: Part | None
    facts: dict[str, object]
    _hidden: int = 0


WHOLE = Whole(
    Part("inner", (1, 2), "2026-01-31T04:00:00.5+01:00"),
    "",
    0,
    -1,
    airflow_user("ada"),
    {"files": '{"logOffset": 4}', "new": "-", "own": "row 5"},
    "whole",
    Colour.RED,
    [Part("x", at="garbled")],
    None,
    {"list": [1, None], "text": "", "time": datetime(2026, 1, 31, tzinfo=UTC), "infinite": float("inf")},
)


def test_values_have_one_form() -> None:
    assert json.loads(encode_json(WHOLE)) == {
        "ids": [1, 2],
        "at": "2026-01-31T03:00:00.500Z",
        "name": None,
        "number": None,
        "watermark_at": "1969-12-31T23:59:59.999Z",
        "by": {"name": "ada", "source": "airflow-user", "account": None},
        "offsets": {"files": {"logOffset": 4}, "new": None, "own": "row 5"},
        "kind": "whole",
        "colour": "red",
        "parts": [{"name": "x", "ids": [], "at": None}],
        "other": None,
        "facts": {"list": [1, None], "text": "", "time": "2026-01-31T00:00:00.000Z", "infinite": None},
    }


def test_a_schema_accepts_its_output_and_requires_every_field() -> None:
    schema, found = json_schema(Whole), to_object(WHOLE)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(found, schema)
    for name in found:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({other: value for other, value in found.items() if other != name}, schema)


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": "1"},
        {"name": 1},
        {"watermark_at": 5},
        {"by": "ada"},
        {"kind": "part"},
        {"colour": "blue"},
        {"parts": [{"name": "x"}]},
        {"other": {}},
        {"at": "2026-01-31T04:00:00.000+01:00"},
    ],
)
def test_a_schema_refuses_values_of_another_form(wrong: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**to_object(WHOLE), **wrong}, json_schema(Whole))


@given(st.timedeltas(timedelta(0), timedelta(days=3_652_000)), st.integers(-12 * 60, 12 * 60))
def test_a_time_is_in_utc_with_milliseconds(after: timedelta, minutes: int) -> None:
    moment = (datetime(1, 1, 2, tzinfo=UTC) + after).astimezone(timezone(timedelta(minutes=minutes)))
    text = utc_text(moment)
    assert len(text) == 24 and text.endswith("Z")
    assert timedelta(0) <= moment - datetime.fromisoformat(text) < timedelta(milliseconds=1)


@pytest.mark.parametrize("watermark", [-(1 << 63), (1 << 63) - 1])
def test_an_event_time_beyond_the_calendar_is_its_end(watermark: int) -> None:
    @dataclass(frozen=True)
    class Output:
        reached_at: int

    Output.__annotations__["reached_at"] = EventTime
    shown = to_object(Output(watermark))["reached_at"]
    assert shown == ("0001-01-01T00:00:00.000Z" if watermark < 0 else "9999-12-31T23:59:59.999Z")


def test_a_value_without_a_form_in_json_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        to_plain([b"x"])
