"""Planted bugs: plausible mistakes in the product's code, by name. A search for faults must find the bug
planted for it; otherwise finding nothing in the real code is no evidence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.mutants import (
    canonical,
    collection,
    hostile,
    kafka,
    log,
    postgres,
    restores,
    savepoints,
    sinks,
    state,
    storage,
)
from tests.support.mutants.registry import Mutant, Mutants

__all__ = ["MUTANTS", "SIMULATED", "STATE", "VARIABLE", "Mutant", "plant_from_environment", "planted"]

MUTANTS = Mutants()
for _subject in (log, collection, sinks, kafka, postgres, savepoints, canonical, restores, state, storage, hostile):
    for _mutant in _subject.MUTANTS.values():
        MUTANTS.add(_mutant)
STATE = state.MUTANTS
"""Bugs of state, timers and time to live."""
SIMULATED = {name: mutant for name, mutant in MUTANTS.items() if mutant.rules}
"""Bugs that the simulator of the protocol finds."""
VARIABLE = "STATEFLOW_TEST_MUTANT"
"""Of the environment: the bug in the processes that the tests start."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plants a bug in this process and in those that it starts; none for an empty name."""
    with pytest.MonkeyPatch.context() as patched:
        if name:
            patched.setenv(VARIABLE, name)
            _plant(name, patched)
        yield


def plant_from_environment() -> None:
    """Plants the bug that the environment names, if any, in this process for good."""
    if name := os.environ.get(VARIABLE):
        _plant(name, pytest.MonkeyPatch())


def _plant(name: str, patched: pytest.MonkeyPatch) -> None:
    for patch in MUTANTS[name].patches:
        patched.setattr(*patch)
