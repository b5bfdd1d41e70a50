"""A request to an endpoint, with its parameters checked."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

import msgspec
from starlette.requests import Request as HttpRequest

from stateflow.clock import parse_timestamp
from stateflow.config.settings import parse_duration
from stateflow.errors import ConfigError, UnknownJob
from stateflow.outputs import utc_text
from stateflow.ui.access import Viewer
from stateflow.ui.openapi import Parameter
from stateflow.ui.roots import CatalogJob

K = TypeVar("K")
E = TypeVar("E", bound=StrEnum)
D = TypeVar("D")

TEXT, TIME, FLAG = {"type": "string"}, {"type": "string", "format": "date-time"}, {"type": "boolean"}
CURSOR = Parameter("cursor", TEXT, "the next_cursor of the page before")
TIMES = (
    Parameter("since", TIME, "earliest time at which it ended"),
    Parameter("until", TIME, "latest time at which it ended"),
)
KIND = Parameter("kind", TEXT, "kind of the entry, such as checkpoint or restore")


def limit_parameter(default: int, largest: int) -> Parameter:
    """Returns the parameter for the largest number of entries of a page."""
    return Parameter("limit", {"type": "integer", "minimum": 1, "maximum": largest, "default": default}, "how many")


LIMIT = limit_parameter(50, 500)
PAGE = CURSOR, LIMIT
"""The parameters of a list that has pages."""


@dataclass(frozen=True)
class Call:
    """A request to an endpoint.

    Attributes:
        viewer: who has sent it.
        jobs: the jobs that its viewer may read, by id.
        path: parameters of the path.
        query: parameters of the query, of which the endpoint knows the names.
    """

    viewer: Viewer
    jobs: Mapping[str, CatalogJob]
    path: Mapping[str, str]
    query: Mapping[str, str]

    @property
    def job(self) -> CatalogJob:
        """The job that the path names. Raises UnknownJob also for one that the viewer may not read."""
        found = self.jobs.get(self.path["id"])
        if found is None:
            raise UnknownJob("there is no such job", hint="the list of jobs has the ids", id=self.path["id"][:100])
        return found

    def flag(self, name: str) -> bool | None:
        """Returns a parameter that is true or false. Raises ConfigError."""
        text = self.query.get(name)
        if text not in (None, "true", "false"):
            raise wrong_value(name, "true or false")
        return None if text is None else text == "true"

    def number(self, parameter: Parameter) -> int | None:
        """Returns a parameter that is a whole number within its bounds, or its default. Raises ConfigError."""
        text, schema = self.query.get(parameter.name), parameter.schema
        if text is None:
            default = schema.get("default")
            return default if isinstance(default, int) else None
        least, most = schema.get("minimum", 0), schema.get("maximum", 1 << 62)
        assert isinstance(least, int) and isinstance(most, int)
        if not (text.isascii() and text.isdigit() and len(text) < 19 and least <= int(text) <= most):
            raise wrong_value(parameter.name, f"a whole number between {least} and {most}")
        return int(text)

    def id(self, name: str) -> int:
        """Returns the number in the path. Raises ConfigError."""
        text = self.path[name]
        if not (text.isascii() and text.isdigit() and 0 < len(text) < 19 and int(text) > 0):
            raise wrong_value(name, "a whole number above 0")
        return int(text)

    def member(self, name: str, members: type[E], default: D) -> E | D:
        """Returns a parameter that is a value of an enumeration, or its default. Raises ConfigError."""
        known = {member.value: member for member in members}
        text = self.query.get(name)
        if text is None:
            return default
        if text not in known:
            raise wrong_value(name, " or ".join(known))
        return known[text]

    def words(self, name: str) -> tuple[str, ...]:
        """Returns the texts of a parameter, which commas or blanks separate."""
        return tuple(each for each in re.split(r"[\s,]+", self.query.get(name, "")) if each)

    def time(self, name: str) -> str | None:
        """Returns a parameter that is a time, in UTC. Raises ConfigError."""
        text = self.query.get(name)
        if text is None:
            return None
        try:
            return utc_text(parse_timestamp(text))
        except (ValueError, OverflowError) as e:
            raise wrong_value(name, "a time such as 2026-01-31T03:00:00Z") from e

    def duration(self, name: str) -> timedelta | None:
        """Returns a parameter that is a duration above 0. Raises ConfigError."""
        text = self.query.get(name)
        if text is None:
            return None
        try:
            found = parse_duration(text)
        except (ValueError, OverflowError):
            found = timedelta()
        if not found:
            raise wrong_value(name, "a duration such as 36h or 30d")
        return found

    def cursor(self, kind: type[K]) -> K | None:
        """Returns the place that a cursor states. Raises ConfigError."""
        text = self.query.get("cursor")
        if text is None:
            return None
        try:
            data = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
            return msgspec.json.decode(data, type=kind)
        except (binascii.Error, UnicodeError, msgspec.DecodeError, RecursionError) as e:
            raise wrong_value("cursor", "the next_cursor of a page") from e


def wrong_value(name: str, wanted: str) -> ConfigError:
    """Returns the error about a parameter of the query or the path."""
    return ConfigError(f"the parameter {name} has a wrong value", hint=f"pass {wanted}", parameter=name)


def to_cursor(place: tuple[object, ...] | None) -> str:
    """Returns the cursor of a place; empty for none. `Call.cursor` reads it."""
    return "" if place is None else base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def read_query(request: HttpRequest, names: set[str]) -> dict[str, str]:
    """Returns the parameters of a query. Raises ConfigError for an unknown one, and for one that is given twice."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in names or name in found:
            raise ConfigError(
                "the query has a parameter that is unknown or given twice",
                hint=f"the parameters are: {', '.join(sorted(names)) or 'none'}",
                parameter=name[:100],
            )
        found[name] = value
    return found


def comparable_time(text: str) -> str:
    """Returns a stored time as a text that compares as the time does; an empty text if it is not valid."""
    try:
        return utc_text(parse_timestamp(text))
    except (ValueError, OverflowError):
        return ""
