"""Reads settings from dictionaries, TOML files and ``KEY=VALUE`` arguments, and converts their values.

Precedence, lowest first: code, TOML file, command line or Airflow.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from datetime import time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from stateflow.config.settings import LIMITS, Settings, SourceSettings, parse_duration
from stateflow.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SettingsLayer: TypeAlias = Mapping[str, object]
"""Settings from one place: values by dotted name, such as ``checkpoints.retained``."""

D = TypeVar("D", bound="DataclassInstance")

_ALIASES = {"state.backend.incremental": "state.incremental"}
"""Flink's names of settings that cannot be names here, because a setting cannot have a value and be a group."""
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_LARGEST_FILE = 64 << 10
"""Size of the largest settings file, in bytes."""
_MOST_DOTS = 500
"""Dots of a line of a settings file: a list of packages for Spark may have some hundred."""
_EXPECTED = {
    "int": "a whole number, at least 1",
    "Count": "a whole number, at least 0",
    "timedelta": "a duration above zero, such as 500ms, 90s, 10 min, 2h or 1d",
    "Delay": "a duration, such as 0s, 500ms, 90s, 10 min, 2h or 1d",
    "Choice": "text",
    "EndCondition": "text",
    "bool": "true or false",
    "str": "text",
}
"""Descriptions of the accepted values, by the beginning of a field's annotation."""


def resolve(*layers: SettingsLayer) -> Settings:
    """Merges layers of settings; a later layer overrides an earlier one.

    Raises:
        ConfigError: a name is unknown or a value is invalid.
    """
    merged: dict[str, object] = {}
    for layer in layers:
        merged.update({_ALIASES.get(name, name): value for name, value in layer.items()})
    return _build(Settings, "", merged)


def read_toml(path: Path) -> SettingsLayer:
    """Reads a TOML file; tables become dotted names.

    Raises:
        ConfigError: the file does not exist, cannot be read, is too large or is not TOML.
    """
    return parse_toml(read_settings_file(path), path)


def read_settings_file(path: Path) -> bytes:
    """Returns the text of a settings file, or its first bytes if it is too large.

    Raises:
        ConfigError: the file does not exist or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE + 1)
    except FileNotFoundError as e:
        raise ConfigError("the settings file does not exist", hint="check --config", path=str(path)) from e
    except OSError as e:
        raise ConfigError(
            "the settings file cannot be read", hint="check its permissions", path=str(path), reason=str(e.strerror)
        ) from e


def parse_toml(text: bytes, path: Path) -> SettingsLayer:
    """Returns the settings in the text of a TOML file; tables become dotted names.

    Args:
        text: the text, or its first bytes if it is too large.
        path: where the text was read from, for errors.

    Raises:
        ConfigError: the text is too large or is not TOML.
    """
    try:
        _check_size(text)
        return dict(_flatten(tomllib.loads(text.decode()), ""))
    except (ValueError, RecursionError) as e:
        raise ConfigError(
            "the settings file is not valid TOML", hint="correct the named line", path=str(path), reason=str(e)
        ) from e


def _check_size(text: bytes) -> None:
    """Raises ValueError for a text that would take long to parse."""
    if len(text) > _LARGEST_FILE:
        raise ValueError(f"it is larger than {_LARGEST_FILE} bytes")
    for number, line in enumerate(text.splitlines(), start=1):
        # The time for a key grows with the square of the number of its parts.
        if line.count(b".") > _MOST_DOTS:
            raise ValueError(f"line {number} has more than {_MOST_DOTS} dots")


def parse_assignments(assignments: tuple[str, ...]) -> dict[str, str]:
    """Parses ``KEY=VALUE`` arguments; the last one of a key wins.

    Raises:
        ConfigError: an argument has no key or no equals sign.
    """
    result = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(
                "a setting must have the form key=value", hint="such as --set run.max_batches=3", given=text
            )
        result[key.strip()] = value
    return result


def _flatten(table: Mapping[str, object], prefix: str) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        rows += _flatten(value, f"{name}.") if isinstance(value, dict) else [(name, value)]
    return rows


def _build(cls: type[D], prefix: str, values: Mapping[str, object]) -> D:
    """Creates a settings dataclass from values by dotted name; `prefix` is the group's own name with a dot."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    arguments: dict[str, object] = {}
    groups: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        head, dot, rest = name.partition(".")
        if head not in fields:
            raise ConfigError("unknown setting", hint=f"known: {', '.join(sorted(fields))}", name=f"{prefix}{name}")
        if dot:
            groups.setdefault(head, {})[rest] = value
        else:
            arguments[head] = _convert(value, str(fields[head].type), f"{prefix}{name}")
    for head, inner in groups.items():
        arguments[head] = _build_group(fields[head], f"{prefix}{head}.", inner)
    return cls(**arguments)


def _build_group(spec: dataclasses.Field[object], prefix: str, inner: Mapping[str, object]) -> object:
    if str(spec.type).startswith("Mapping[str, SourceSettings"):
        return _limits_by_uid(prefix, inner)
    if "Mapping" in str(spec.type):
        return {key: str(value) for key, value in inner.items()}
    default = spec.default
    if not dataclasses.is_dataclass(default) or isinstance(default, type):
        raise ConfigError(
            "the setting is a single value, not a group",
            hint=f"set {prefix.rstrip('.')}",
            name=f"{prefix}{next(iter(inner))}",
        )
    return _build(type(default), prefix, inner)


def _limits_by_uid(prefix: str, inner: Mapping[str, object]) -> dict[str, SourceSettings]:
    """Returns the limits of sources; a uid may contain dots."""
    found: dict[str, dict[str, object]] = {}
    for name, value in inner.items():
        uid, _, limit = name.rpartition(".")
        if not uid or limit not in LIMITS:
            raise ConfigError("unknown setting", hint=f"set {prefix}UID.{' or .'.join(LIMITS)}", name=prefix + name)
        found.setdefault(uid, {})[limit] = value
    return {uid: _build(SourceSettings, f"{prefix}{uid}.", limits) for uid, limits in found.items()}


def _convert(value: object, annotation: str, name: str) -> object:
    try:
        return _parse(value, annotation)
    except (ValueError, TypeError, OverflowError) as e:
        expected = next(
            (text for start, text in _EXPECTED.items() if annotation.startswith(start)), "a group of settings"
        )
        raise ConfigError("invalid value of a setting", hint=f"expected {expected}", name=name, value=value) from e


def _parse(value: object, annotation: str) -> object:
    """Converts a value to the annotated type of its field; raises ValueError, TypeError or OverflowError."""
    if annotation.startswith(("timedelta", "Delay")):
        return _parse_time(value, may_be_zero=annotation.startswith("Delay"))
    if annotation.startswith(("int", "Count")):
        return _parse_whole(value, least=1 if annotation.startswith("int") else 0)
    if annotation == "bool":
        text = str(value).lower()
        if text not in _TRUE + _FALSE:
            raise ValueError(value)
        return text in _TRUE
    if annotation == "Choice":
        return str(value).lower().replace("_", "-")
    if annotation == "EndCondition":
        return _end_condition(value)
    if annotation == "str":
        return str(value)
    raise TypeError(annotation)


def _parse_whole(value: object, least: int) -> int:
    if isinstance(value, bool | float):
        raise ValueError(value)
    number = int(str(value))
    if number < least:
        raise ValueError(value)
    return number


def _end_condition(value: object) -> str:
    """Returns the text of an end condition, which may also be given as a duration or as a time of day."""
    if isinstance(value, timedelta):
        return f"{value / timedelta(milliseconds=1):.0f}ms"
    return value.isoformat() if isinstance(value, time) else str(value)


def _parse_time(value: object, may_be_zero: bool) -> timedelta:
    duration = value if isinstance(value, timedelta) else parse_duration(str(value))
    if duration < timedelta() or (not duration and not may_be_zero):
        raise ValueError(value)
    return duration
