"""Reads the file with the token of state servers."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import click

from stateflow.errors import ConfigError

TOKEN_FILE = click.Path(path_type=Path)
_LARGEST = 10_000
_OTHERS = stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH


def read_token(file: Path | None) -> str:
    """Returns the token in a file; an empty text without a file.

    Raises:
        ConfigError: the file cannot be read, is empty, or other users may read or write it.
    """
    if file is None:
        return ""
    try:
        with file.open() as opened:
            mode = os.fstat(opened.fileno()).st_mode
            token = opened.read(_LARGEST).strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(
            "the file with the token cannot be read",
            hint="check the path and its permissions",
            file=str(file),
            reason=str(e),
        ) from e
    # A group may read it, as a secret that is mounted for a group.
    if mode & _OTHERS:
        raise ConfigError(
            "other users may read or write the file with the token",
            hint=f"chmod 600 {file}, and write a new token into it",
            file=str(file),
            mode=oct(stat.S_IMODE(mode)),
        )
    if not token:
        raise ConfigError("the file with the token is empty", hint="write a long random text into it", file=str(file))
    return token
