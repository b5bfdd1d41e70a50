"""Bugs of the log, barriers, savepoints, restore plans and garbage collection."""

from __future__ import annotations

from tests.bugs.bug import Bug

BUGS: tuple[Bug, ...] = ()
