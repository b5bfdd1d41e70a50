"""Values of settings: types that annotate their fields, and checks."""

from __future__ import annotations

from datetime import timedelta

from stateflow.errors import ConfigError

Count = int
"""Annotation of an integer that may be 0; ``int`` is at least 1."""
Delay = timedelta
"""Annotation of a duration that may be zero; ``timedelta`` is positive."""
Choice = str
"""Annotation of an enumerated value. Case is ignored, and underscores equal hyphens, as in Flink's constants."""

EndCondition = str
"""Annotation of ``run.until``; a duration or a time of day is converted to text."""


def check_one_of(name: str, value: str, known: tuple[str, ...], what: str) -> None:
    """Raises ConfigError unless the value is a known one."""
    if value not in known:
        raise ConfigError(f"unknown {what}", hint=f"known: {', '.join(known)}", name=name, value=value)


def check_at_most(name: str, value: int, limit: int, why: str) -> None:
    """Raises ConfigError when the value exceeds the limit."""
    if value > limit:
        raise ConfigError("a setting exceeds its limit", hint=why, name=name, value=value, limit=limit)
