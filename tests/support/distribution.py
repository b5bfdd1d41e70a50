"""How tests are distributed to workers."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling


def is_distributed_alone(nodeid: str) -> bool:
    """Returns whether a test is one of those that take minutes each, and share nothing with others of their file."""
    return nodeid.startswith("tests/fuzz/") and nodeid.endswith("-100000]")


def files_and_long_tests(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Returns a scheduler that gives a worker all tests of a file, but long tests one by one."""
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = _scope
    return scheduler


def _scope(nodeid: str) -> str:
    return nodeid if is_distributed_alone(nodeid) else nodeid.split("::", 1)[0]
