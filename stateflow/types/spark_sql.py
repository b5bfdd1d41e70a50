"""Names and string literals of Spark SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Returns a quoted column name."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Returns a string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
