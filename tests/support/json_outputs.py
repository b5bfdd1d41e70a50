"""Checks of JSON that commands and tasks print or return: its schema, and the rules that all outputs follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema

from stateflow.outputs import json_schema

_ZONED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*")
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def _closed(schema: Any) -> Any:
    """The schema without fields that it does not name."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in schema.items()}
    return {**closed, "additionalProperties": False} if "required" in schema else closed


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(each)


def check(output: object, value: Any) -> None:
    """Fails unless a value follows the schema of an output and the rules for all of them."""
    jsonschema.validate(value, _closed(json_schema(output)), format_checker=jsonschema.FormatChecker())
    for text in _texts(value):
        assert not _ZONED.fullmatch(text) or _UTC.fullmatch(text), text
        assert not text.startswith(("{", '["', "[{")), text
