"""Checks of arguments that sources and sinks have in common."""

from __future__ import annotations

from stateflow.errors import ConfigError


def check_choice(name: str, given: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError if an argument is not one of its values."""
    if given not in choices:
        raise ConfigError(
            f"the value of {name} is not supported", hint=f"use {' or '.join(map(repr, choices))}", given=given
        )
