"""The table that a sink by key makes of a changelog."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stateflow import RowKind


def materialized(rows: Iterable[Any], *keys: str, kind: str = "", retracts: bool = False) -> dict[tuple[Any, ...], Any]:
    """Returns the rows by their key, after all changes; checks that only existing rows are retracted."""
    table: dict[tuple[Any, ...], Any] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in keys)
        if kind and RowKind(getattr(row, kind)).is_retraction:
            before = table.pop(key)
            assert all(getattr(before, name) == getattr(row, name) for name in row.__struct_fields__ if name != kind)
        else:
            if kind:
                replaces = getattr(row, kind) is RowKind.UPDATE_AFTER and not retracts
                assert (key in table) == replaces, row
            table[key] = row
    return table
