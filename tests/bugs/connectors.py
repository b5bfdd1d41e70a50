"""Bugs of sources and sinks, and of windows, joins, rankings, patterns and SQL functions."""

from __future__ import annotations

from tests.bugs.bug import Bug

BUGS: tuple[Bug, ...] = ()
