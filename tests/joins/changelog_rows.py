"""Rows of changelogs, and results of their joins."""

from __future__ import annotations

from typing import Any

import msgspec

from stateflow import RowKind

ADD, UB, UA, D = RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE


class Change(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str | None
    id: int
    value: int = 0


class Joined(msgspec.Struct, frozen=True):
    left: str | None
    right: str | None
    kind: RowKind = RowKind.INSERT


def joined(left: Any, right: Any) -> Joined:
    """Returns the result of two rows, of which one may be missing."""
    return Joined(_text(left), _text(right))


def _text(row: Any) -> str | None:
    return f"{row.id}:{row.value}" if row else None
