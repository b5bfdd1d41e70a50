"""Bugs of state, timers, backends and stored types."""

from __future__ import annotations

from tests.bugs.bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "keys-are-hashed-with-another-seed",
        "stateflow/types/key_groups.py",
        "SPARK_SEED = 42",
        "SPARK_SEED = 43",
        ("tests/types/test_key_groups.py",),
    ),
)
