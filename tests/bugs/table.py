"""The planted bugs, by the package in which they are."""

from __future__ import annotations

from tests.bugs import api, checkpoint, connectors, runtime, state
from tests.bugs.bug import Bug

BUGS: tuple[Bug, ...] = (*api.BUGS, *checkpoint.BUGS, *connectors.BUGS, *runtime.BUGS, *state.BUGS)
