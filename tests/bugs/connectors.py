"""Bugs of sources and sinks."""

from __future__ import annotations

from tests.bugs.bug import Bug

BUGS: tuple[Bug, ...] = ()
