"""Errors for entries of state that are larger than the settings allow.

The limits are checked when a function writes, never when it reads: entries that were stored with higher limits stay
readable, and timers of such keys fire.
"""

from __future__ import annotations

from collections.abc import Iterable

from stateflow.config.state_settings import EntryLimits
from stateflow.errors import EntryTooLarge


def largest(encoded: Iterable[bytes | None]) -> int:
    """Returns the size of the largest element in bytes; None has no size."""
    return max(map(len, filter(None, encoded)), default=0)


def key_too_large(size: int, limits: EntryLimits) -> EntryTooLarge:
    """Returns the error for a key of `size` bytes."""
    return EntryTooLarge(
        "a key is too large",
        hint="filter such rows in a transform, key by a hash of the column, or raise the setting",
        size=size,
        limit=limits.key_bytes,
        setting="state.max_key_bytes",
    )


def map_key_too_large(state: str, size: int, limits: EntryLimits) -> EntryTooLarge:
    """Returns the error for a key of `size` bytes in a map of the state named `state`."""
    return EntryTooLarge(
        "a key of a map is too large",
        hint="use a hash of it as the key, or raise the setting",
        state=state,
        size=size,
        limit=limits.map_key_bytes,
        setting="state.max_map_key_bytes",
    )


def value_too_large(state: str, size: int, limits: EntryLimits) -> EntryTooLarge:
    """Returns the error for a value of `size` bytes in the state named `state`."""
    return EntryTooLarge(
        "a value of state is too large",
        hint="divide it into elements of a list or entries of a map, remove what is old, or raise the setting",
        state=state,
        size=size,
        limit=limits.value_bytes,
        setting="state.max_value_bytes",
    )
