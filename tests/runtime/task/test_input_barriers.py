"""A task's input has ended when a barrier of its batch has come from each task before."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from stateflow.errors import BatchFailed
from stateflow.runtime.executor import (
    CONTROL,
    BatchId,
    BatchInfo,
    ChainSpec,
    LevelSpec,
    TaskEnvironment,
    TaskSettings,
    TaskSpec,
)
from stateflow.runtime.task.outputs import BarrierMessage, InputBarriers
from tests.support.errors import raises

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
OF_DRIVER = BarrierMessage(1, 2)
FIRST, SECOND = (BarrierMessage(1, 2, "before", n, "a") for n in range(2))
OLDER, OF_OTHER_RUN = BarrierMessage(1, 1, "before", 1, "a"), BarrierMessage(2, 2, "before", 1, "a")


def _received(upstream: int, *barriers: BarrierMessage) -> InputBarriers:
    """The barriers that a task of batch 2 has received from that many tasks."""
    batch = BatchInfo(BatchId("job", 1, 2, NOW), TaskSettings(8), TaskEnvironment("unused", Path()))
    before = tuple(("before", n) for n in range(upstream))
    level = LevelSpec(batch, 1, (ChainSpec("op", (), None, (), ()),), before, 0, pa.schema([]))
    received = InputBarriers(TaskSpec(level, 0, "a"))
    received.receive(pa.RecordBatch.from_pydict({CONTROL: list(map(msgspec.msgpack.encode, barriers))}))
    return received


def test_an_input_ends_with_the_barrier_of_the_driver_or_of_each_task_before() -> None:
    _received(0, OF_DRIVER).check()
    received = _received(2, SECOND, FIRST)
    received.check()
    assert [each.subtask for each in received.consumed] == [1, 0]


@pytest.mark.parametrize(
    ("upstream", "barriers"),
    [(2, [FIRST]), (2, [FIRST, SECOND, SECOND]), (2, [FIRST, OLDER]), (2, [FIRST, OF_OTHER_RUN]), (0, [])],
    ids=["missing", "too-many", "older-batch", "other-run", "none"],
)
def test_other_barriers_fail_the_batch(upstream: int, barriers: list[BarrierMessage]) -> None:
    with raises(BatchFailed, uid="op", expected=max(1, upstream), found=len(barriers)):
        _received(upstream, *barriers).check()
