"""Names and string literals of Spark SQL."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x1f\x7f$]")


def quoted(name: str) -> str:
    """Returns a quoted column name."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Returns a string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    # Before it parses a text, Spark replaces ${env:NAME}, also in a literal.
    return f"'{_CONTROLS.sub(_escaped, escaped)}'"


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
