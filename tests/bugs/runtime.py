"""Bugs of driver, planning, tasks and restores."""

from __future__ import annotations

from tests.bugs.bug import Bug

BUGS: tuple[Bug, ...] = ()
