"""Settings from where users write them: code < TOML file < command line or Airflow."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from stateflow.errors import ConfigError
from stateflow.settings import Settings

_ALIASES = {"state.backend.incremental": "state.incremental"}
"""Other names of settings: one that Flink gives a value and a group cannot be both here."""
_UNITS = {
    0.001: ("ms", "milli", "millis", "millisecond", "milliseconds"),
    1.0: ("s", "sec", "secs", "second", "seconds"),
    60.0: ("m", "min", "mins", "minute", "minutes"),
    3600.0: ("h", "hour", "hours"),
    86400.0: ("d", "day", "days"),
}
"""Names of the units of a duration, by seconds."""
_SECONDS = {name: seconds for seconds, names in _UNITS.items() for name in names}
_DURATION = re.compile(r"\s*(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[a-z]+)\s*", re.IGNORECASE | re.ASCII)
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_WORDS = {
    "int": "a whole number from 1 up",
    "Count": "a whole number from 0 up",
    "float": "a number from 0 up",
    "timedelta": "a duration above zero, like 500ms, 90s, 10 min, 2h or 1d",
    "Delay": "a duration like 0s, 500ms, 90s, 10 min, 2h or 1d",
    "Choice": "text",
    "bool": "true or false",
    "str": "text",
}


def resolve(*layers: Mapping[str, Any]) -> Settings:
    """Settings from dotted names, later layers winning.

    Raises ConfigError that names a setting nobody knows, or a value that does not fit.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update({_ALIASES.get(name, name): value for name, value in layer.items()})
    settings: Settings = _build(Settings, "", merged)
    return settings


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, as dotted names."""
    try:
        return dict(_flatten(tomllib.loads(path.read_text()), ""))
    except FileNotFoundError as e:
        raise ConfigError("the settings file is not there", path=str(path)) from e
    except OSError as e:
        raise ConfigError("the settings file cannot be read", path=str(path), reason=str(e.strerror)) from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError("the settings file is no TOML", path=str(path), reason=str(e)) from e


def parse_assignments(assignments: tuple[str, ...]) -> dict[str, str]:
    """``("a.b=c", …)`` as a dictionary. Raises ConfigError for one without an equals sign."""
    result = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError("a setting must look like key=value", given=text)
        result[key.strip()] = value
    return result


def _flatten(table: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        rows += _flatten(value, f"{name}.") if isinstance(value, dict) else [(name, value)]
    return rows


def _build(cls: type[Any], prefix: str, values: Mapping[str, Any]) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    arguments: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, dot, rest = name.partition(".")
        if head not in fields:
            raise ConfigError("there is no such setting", hint=f"known here: {', '.join(sorted(fields))}",
                              name=f"{prefix}{name}")  # fmt: skip
        if dot:
            groups.setdefault(head, {})[rest] = value
        else:
            arguments[head] = _convert(value, str(fields[head].type), f"{prefix}{name}")
    for head, inner in groups.items():
        arguments[head] = _build_group(fields[head], f"{prefix}{head}.", inner)
    return cls(**arguments)


def _build_group(spec: dataclasses.Field[Any], prefix: str, inner: dict[str, Any]) -> Any:
    if "Mapping" in str(spec.type):
        return {key: str(value) for key, value in inner.items()}
    if not dataclasses.is_dataclass(spec.default):
        raise ConfigError("this setting has no parts", name=f"{prefix}{next(iter(inner))}")
    return _build(type(spec.default), prefix, inner)


def _convert(value: Any, kind: str, name: str) -> Any:
    try:
        return _parse(value, kind)
    except (ValueError, TypeError, OverflowError) as e:
        wanted = next(
            (words for start, words in _WORDS.items() if kind.startswith(start)), "a group of settings"
        )
        raise ConfigError(
            "a setting's value does not fit", hint=f"it must be {wanted}", name=name, value=value
        ) from e


def _parse(value: Any, kind: str) -> Any:
    if kind.startswith(("timedelta", "Delay")):
        return _parse_time(value, may_be_zero=kind.startswith("Delay"))
    if kind.startswith(("int", "Count")):
        least = 1 if kind.startswith("int") else 0
        if isinstance(value, bool) or isinstance(value, float) or int(value) < least:
            raise ValueError(value)
        return int(value)
    if kind.startswith("float"):
        number = float(value)
        if not 0 <= number < math.inf:
            raise ValueError(value)
        return number
    if kind == "bool":
        text = str(value).lower()
        if text not in _TRUE + _FALSE:
            raise ValueError(value)
        return text in _TRUE
    if kind == "Choice":
        return str(value).lower().replace("_", "-")
    if kind == "str":
        return str(value)
    raise TypeError(kind)


def _parse_time(value: Any, may_be_zero: bool) -> timedelta:
    duration = value if isinstance(value, timedelta) else parse_duration(str(value))
    if duration < timedelta() or (not duration and not may_be_zero):
        raise ValueError(value)
    return duration


def parse_duration(text: str) -> timedelta:
    """Parses a duration like ``90s``, ``10 min``, ``500ms``, ``2h`` or ``1 day``. Raises ValueError, OverflowError."""
    found = _DURATION.fullmatch(text)
    if found is None or found["unit"].lower() not in _SECONDS:
        raise ValueError(text)
    return timedelta(seconds=float(found["number"]) * _SECONDS[found["unit"].lower()])
