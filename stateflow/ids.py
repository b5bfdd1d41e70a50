"""Validation of names that become part of a storage path.

`check_name` checks every such name, so that no uid, savepoint name or attempt id can escape its folder.
"""

from __future__ import annotations

import re

from stateflow.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(kind: str, name: str) -> str:
    """Returns `name` if it can be a segment of a path.

    Args:
        kind: what the name identifies, for the error's message.

    Raises:
        ConfigError: `name` is not a valid name.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{kind} is not a valid name",
            hint="use 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit",
            name=name,
        )
    return name
