"""Values of templated operator arguments: Airflow renders templates to text, or passes what the DAG file gave."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import reprlib
from collections import ChainMap
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from stateflow_airflow.failures import config_failure

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
    from stateflow.config.settings import SavepointSettings
    from stateflow.config.sources import SettingsLayer
    from stateflow.operations import JobCode


E = TypeVar("E", bound=StrEnum)

_COUNT = re.compile(r"([0-9]{1,309})(?:\.0+)?|[0-9](?:\.[0-9]+)?e\+[0-9]{1,3}")
"""A number of things, as a template renders it: 5.0 is an integer to JSON as well, and 1e16 is 1e+16 in Python. A text
of more digits than a number may have in JSON is not one: Python cannot compare it with all numbers."""


def to_text(value: object) -> str:
    """Returns a setting in the form that the command line takes."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def to_settings(name: str, value: object) -> dict[str, object]:
    """Returns the settings in a rendered argument: a mapping, or a JSON object as text; empty for None or no text.

    Raises PermanentFailure for any other value, and for a setting without a value.

    Args:
        name: name of the argument, for the error.
        value: the rendered argument.
    """
    found = {} if value is None or value == "" else value
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            pass  # refused below
    if not isinstance(found, Mapping) or not all(isinstance(key, str) and key for key in found):
        raise config_failure(
            f"{name} is not a mapping of names to values",
            "pass a dict, the output of a task that returns one, or a template that renders a JSON object: "
            "{{ … | tojson }}",
            **{name: reprlib.repr(value)},
        )
    if empty := sorted(key for key, each in found.items() if each is None):
        raise config_failure(
            f"{name} has names without a value", "omit them, or give them values", **{name: ", ".join(empty)}
        )
    return dict(found)


def to_bool(name: str, value: bool | str) -> bool:
    """Returns the boolean in `value`. Raises PermanentFailure for any other value.

    Args:
        name: name of the argument, for the error.
        value: a boolean, or the text ``true`` or ``false`` in any case.
    """
    if str(value).lower() not in ("true", "false"):
        raise config_failure(f"{name}={value!r} is neither true nor false", "pass true or false", **{name: value})
    return str(value).lower() == "true"


def to_member(name: str, value: str, members: type[E]) -> E:
    """Returns the member of an enumeration that has a value. Raises PermanentFailure if none has it.

    Args:
        name: name of the argument, for the error.
        value: the value.
        members: the enumeration.
    """
    known = [member.value for member in members]
    if value not in known:
        raise config_failure(
            f"{name} must be {' or '.join(known)}, not {value!r}", f"pass one of {', '.join(known)}", **{name: value}
        )
    return members(value)


def to_claim_mode(value: str) -> ClaimMode:
    """Returns the claim mode; raises as `to_member`."""
    from stateflow.checkpoint.savepoints.claim_slots import ClaimMode

    return to_member("claim_mode", value, ClaimMode)


def to_count(name: str, value: int | str | None, things: str) -> int | None:
    """Returns the positive number in `value`; None for None or an empty text. Raises PermanentFailure."""
    if value is None or value in ("", "None"):
        return None
    found = _COUNT.fullmatch(str(value))
    number = math.nan if found is None else int(found[1]) if found[1] else float(found[0])
    if not 1 <= number < math.inf or number % 1:
        raise config_failure(
            f"{name}={value!r} is not a number of {things}", "pass 1 or more, or None", **{name: value}
        )
    return int(number)


def to_duration(name: str, value: timedelta | str | None) -> timedelta | None:
    """Returns the duration in `value`, such as ``36h``; None for None or an empty text.

    Raises PermanentFailure for any other value, and for a negative one.
    """
    from stateflow.config.settings import parse_duration

    if value is None or value in ("", "None"):
        return None
    try:
        found = value if isinstance(value, timedelta) else parse_duration(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise config_failure(f"{name}={value!r} is not a duration", "such as 36h or 30d", **{name: value}) from error
    if found < timedelta(0):
        raise config_failure(f"{name}={value!r} is negative", "such as 36h or 30d", **{name: str(value)})
    return found


def to_names(value: str | Iterable[str] | None) -> frozenset[str]:
    """Returns the names in a list, or in a text where whitespace or commas separate them. Raises PermanentFailure."""
    return frozenset(to_words(value))


def to_words(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Returns the texts in a list, or in a text where whitespace or commas separate them, in their order.

    Raises PermanentFailure for anything else; None is an empty list.
    """
    return _texts(re.split(r"[\s,]+", value) if isinstance(value, str) else value)


def to_lines(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Returns the texts in a list, or the lines of a text: JSON has blanks and commas. Raises as `to_words`."""
    return _texts(value.splitlines() if isinstance(value, str) else value)


def as_list(value: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the texts in a list of the DAG file; one text is a list of one, not of its letters."""
    return (value,) if isinstance(value, str) else tuple(value)


def _texts(values: Iterable[str] | None) -> tuple[str, ...]:
    found: object = () if values is None else values
    is_list = isinstance(found, Iterable) and not isinstance(found, Mapping | bytes)
    texts = tuple(cast("Iterable[str]", found)) if is_list else ()
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise config_failure(
            f"{reprlib.repr(values)} is neither a text nor a list of texts",
            "pass a list, the output of a task that returns one, or a text",
            value=reprlib.repr(values),
        )
    return tuple(text.strip() for text in texts if text.strip())


def check_texts(operator: BaseOperator) -> None:
    """Removes blanks around the rendered arguments of an operator that are texts; None becomes an empty text.

    Arguments are found by their annotation. Raises PermanentFailure for one that is not a text, such as the output of
    another task, and for a blank one that has no default.
    """
    for name, is_required in _text_arguments(type(operator)).items():
        value = getattr(operator, name)
        if not isinstance(value, str | os.PathLike | None):
            raise config_failure(f"{name}={reprlib.repr(value)} is not a text", "pass a text", **{name: repr(value)})
        text = "" if value is None else str(value).strip()
        # As a template renders None.
        text = "" if text == "None" else text
        if is_required and not text:
            raise config_failure(f"{name} is empty", "pass a text", **{name: str(value)})
        setattr(operator, name, text)


@cache
def _text_arguments(kind: type[BaseOperator]) -> dict[str, bool]:
    """Returns the templated arguments of an operator class that are texts, and whether they have no default."""
    own = [
        each for each in kind.__mro__ if each.__module__.startswith("stateflow_airflow") and "__init__" in vars(each)
    ]
    given = ChainMap(*(dict(inspect.signature(vars(each)["__init__"]).parameters) for each in own))
    return {
        name: parameter.default is parameter.empty
        for name, parameter in given.items()
        if parameter.annotation == "str" and name in kind.template_fields
    }


def check_job_root(job_root: str) -> str:
    """Returns the job root. Raises PermanentFailure for a relative path, which differs from worker to worker."""
    return check_task_location("job_root", job_root)


def check_task_location(argument: str, location: str) -> str:
    """Returns the path or URI that was passed as `argument`. Raises PermanentFailure for a relative path."""
    if "://" not in location and not Path(location).is_absolute():
        raise config_failure(
            f"{argument}={location!r} is neither a URI nor an absolute path",
            "relative paths differ from worker to worker: pass an absolute path, such as /data/jobs/flights",
            **{argument: location},
        )
    return location


def job_code(file: str, settings: object) -> JobCode:
    """Returns the job file and its settings. Raises PermanentFailure if the file does not exist on this worker."""
    from stateflow.operations import JobCode

    check_job_file(file)
    return JobCode(Path(file), (_layer(settings),))


def savepoint_settings(settings: object) -> SavepointSettings:
    """Returns the settings for savepoints, of all settings of a job. Raises ConfigError for an invalid setting."""
    from stateflow.config.sources import resolve

    return resolve(_layer(settings)).savepoint


def _layer(settings: object) -> SettingsLayer:
    from stateflow.config.sources import parse_assignments

    given = to_settings("settings", settings)
    return parse_assignments(tuple(f"{key}={to_text(value)}" for key, value in given.items()))


def check_job_file(file: str) -> None:
    """Raises PermanentFailure unless `file` is the absolute path of a file on this worker."""
    if not Path(file).is_absolute() or not Path(file).is_file():
        raise config_failure(f"the job file {file!r} does not exist on this worker", "pass its absolute path", job=file)
