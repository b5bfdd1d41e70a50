"""Settings in files of a launch folder: a program's arguments, with passwords in them, are visible to all users."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from stateflow_airflow.failures import misconfigured

_CONF, _FILE = "--conf", "--properties-file"
_NAME = "spark.conf"
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
SETTINGS = "settings.toml"
"""Name of the file with a job's settings."""


def hide_conf(options: Sequence[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Moves Spark's settings from the options of spark-submit to a file.

    Args:
        options: the options, without the executable and the program.
        folder: the folder of the launch, in which the program finds the file.

    Returns:
        The options, and the file's content by its name; no file if there are no settings.

    Raises:
        PermanentFailure: the options have a file of settings that cannot be read.
    """
    pairs = list(_pairs(options))
    conf = [value or "" for name, value in pairs if name == _CONF]
    given = [value or "" for name, value in pairs if name == _FILE]
    if not conf:
        return list(options), {}
    kept = [word for name, value in pairs if name not in (_CONF, _FILE) for word in (name, value) if word is not None]
    # Without a file of the user, spark-submit reads spark-defaults.conf, with one it does not.
    loading = [] if given else ["--load-spark-defaults"]
    content = "".join(map(_read, given[-1:])) + "".join(f"{_property(text)}\n" for text in conf)
    return [*kept, _FILE, str(folder / _NAME), *loading], {_NAME: content}


def settings_file(settings: Mapping[str, str]) -> str:
    """Returns settings by dotted name as TOML."""
    return "".join(f"{_toml(name)} = {_toml(value)}\n" for name, value in settings.items())


def _toml(text: str) -> str:
    # A string of JSON is one of TOML, except for DEL, which TOML does not permit as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _pairs(options: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yields each option with its value; None for an option without one."""
    words = iter(options)
    name = next(words, None)
    while name is not None:
        following = next(words, None)
        if following is None or following.startswith("--"):
            yield name, None
            name = following
        else:
            yield name, following
            name = next(words, None)


def _property(conf: str) -> str:
    """Returns ``NAME=VALUE`` as a line of a Java properties file."""
    name, _, value = conf.partition("=")
    name = "".join(f"\\{c}" if c in " :=#!" else _ESCAPED.get(c, c) for c in name)
    value = "".join(_ESCAPED.get(c, c) for c in value)
    return f"{name}=\\{value}" if value.startswith(" ") else f"{name}={value}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text() + "\n"
    except (OSError, UnicodeDecodeError) as error:
        raise misconfigured(
            f"the file of Spark settings {path!r} cannot be read on this worker",
            "check the option properties_file",
            properties_file=path,
            reason=str(error),
        ) from error
