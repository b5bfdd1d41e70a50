"""Names that identify things, validated where they enter.

Everything that becomes part of a path passes through `check_name`, so that no uid, savepoint name or attempt can
leave the folder that it belongs to.
"""

from __future__ import annotations

import re

from stateflow.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(kind: str, name: str) -> str:
    """Returns `name` when it is fit for a path segment; raises ConfigError that names `kind` otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{kind} is not a usable name",
            hint="use 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit",
            name=name,
        )
    return name
