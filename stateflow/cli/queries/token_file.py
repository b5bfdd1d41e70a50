"""Reads the file with the token of state servers."""

from __future__ import annotations

from pathlib import Path

import click

from stateflow.errors import ConfigError

TOKEN_FILE = click.Path(path_type=Path)
_LARGEST = 10_000


def read_token(file: Path | None) -> str:
    """Returns the token in a file; an empty text without a file.

    Raises:
        ConfigError: the file cannot be read, or is empty.
    """
    if file is None:
        return ""
    try:
        with file.open() as opened:
            token = opened.read(_LARGEST).strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(
            "the file with the token cannot be read",
            hint="check the path and its permissions",
            file=str(file),
            reason=str(e),
        ) from e
    if not token:
        raise ConfigError("the file with the token is empty", hint="write a long random text into it", file=str(file))
    return token
