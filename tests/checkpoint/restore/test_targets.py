"""Which checkpoint a restore target means."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stateflow.checkpoint.log.entry_lists import RetentionLimits
from stateflow.checkpoint.restore.targets import is_at_or_before, resolve_target
from tests.checkpoint.log.memory_job import MemoryJob


@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [
        (7, 7, True),
        (8, 7, False),
        ({"0": 7, "1": 3}, {"0": 7, "1": 3}, True),
        ({"0": 7, "1": 4}, {"0": 7, "1": 3}, False),
        ({"0": 7, "1": 3}, {"0": 7}, False),
        ([7, 8], 8, True),
        ({"log": "a", "done": True, "at": 1}, 1, True),
    ],
)
def test_an_offset_is_before_a_limit_that_none_of_its_numbers_exceeds(offset: Any, limit: Any, expected: bool) -> None:
    assert is_at_or_before(offset, limit) is expected


def test_before_a_time_is_the_newest_checkpoint_that_was_committed_earlier() -> None:
    job = MemoryJob()
    for _ in range(3):
        job.commit(RetentionLimits(5))
        job.root.clock.sleep(timedelta(seconds=1))
    first, second, third = job.root.checkpoints.restorable(job.head)
    assert resolve_target(job.root, job.head, f"before:{third.at}").ref == second
    assert resolve_target(job.root, job.head, f"before:{second.at}").ref == first
