"""Settings in files of a launch folder: a program's arguments, with passwords in them, are visible to all users."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from stateflow_airflow.failures import misconfigured

_NAME = "spark.conf"
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
    from stateflow.config import submit_options

    try:
        kept, content = submit_options.hide_conf(options, folder / _NAME)
    except (OSError, UnicodeDecodeError) as error:
        path = submit_options.option(options, submit_options.PROPERTIES_FILE)
        raise misconfigured(
            f"the file of Spark settings {path!r} cannot be read on this worker",
            "check the option properties_file",
            properties_file=path,
            reason=str(error),
        ) from error
    return kept, {} if content is None else {_NAME: content}


def settings_file(settings: Mapping[str, str]) -> str:
    """Returns settings by dotted name as TOML."""
    return "".join(f"{_toml(name)} = {_toml(value)}\n" for name, value in settings.items())


def _toml(text: str) -> str:
    # A string of JSON is one of TOML, except for DEL, which TOML does not permit as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
