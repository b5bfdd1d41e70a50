"""Publishing a job's checkpoints in a Delta table: the real log, the real table, several processes, kills."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.sink_commit import SinkOutput, publish
from stateflow.connectors import DeltaSink
from stateflow.errors import Fenced, MissingFile, SinkDiverged
from stateflow.runtime.publisher import BoundSink
from tests.support.delta_tables import Job, Process, commit_elsewhere, ids, pairs
from tests.support.errors import raises

_FENCED = Fenced.exit_code


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path / "root", tmp_path / "out")
    made.sink.prepare(made.about)
    return made


def _pending(job: Job, checkpoints: int = 1) -> Head:
    head = job.root.claim()
    for i in range(checkpoints):
        head = job.commit(head, pairs(10 * i, 3))
    return head


def _process(job: Job, failpoint: str = "") -> Process:
    return Process("publish", job.folder, job.sink.table, failpoint=failpoint)


def _paused_before_publishing(job: Job) -> Process:
    paused = _process(job, failpoint="publish.before:1:stop")
    paused.go()
    paused.stopped()
    return paused


def test_checkpoints_are_published_in_order_and_once(job: Job) -> None:
    head = _pending(job, checkpoints=3)
    first = job.publish(head)
    assert [p.checkpoint_id for p in first] == [2, 3, 4]
    assert [p.version for p in first] == [1, 2, 3]
    assert [p.version for p in job.publish(head)] == [3, 3, 3]
    assert ids(job.sink.table) == [*range(3), *range(10, 13), *range(20, 23)]


def test_processes_that_publish_the_same_checkpoints_publish_them_once(job: Job) -> None:
    _pending(job, checkpoints=5)
    ends = Process.race(*(_process(job) for _ in range(3)))
    assert [end[0] for end in ends] == [0, 0, 0]
    assert ids(job.sink.table) == [10 * i + j for i in range(5) for j in range(3)]


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("point", ["publish.before", "publish.after"])
def test_a_kill_while_publishing_neither_loses_nor_doubles(job: Job, point: str, hit: int) -> None:
    _pending(job, checkpoints=2)
    assert [Process.race(_process(job, failpoint))[0][0] for failpoint in (f"{point}:{hit}", "")] == [-9, 0]
    assert ids(job.sink.table) == [0, 1, 2, 10, 11, 12]


def test_a_driver_that_was_paused_during_a_newer_run_is_fenced_and_publishes_nothing(job: Job) -> None:
    _pending(job)
    paused = _paused_before_publishing(job)
    newer = job.root.claim()
    job.publish(newer)
    job.publish(job.commit(newer, pairs(50, 1)))
    paused.resume()
    code, output, _ = paused.end()
    assert (code, output) == (_FENCED, "fenced\n")
    assert ids(job.sink.table) == [0, 1, 2, 50]


def test_a_driver_that_was_paused_while_the_table_was_recreated_changes_nothing(job: Job) -> None:
    head = _pending(job)
    paused = _paused_before_publishing(job)
    shutil.rmtree(job.sink.table)
    DeltaSink(job.sink.table).prepare(job.about)
    paused.resume()
    assert paused.end()[1] == "missing-file\n"
    files = head.entry.pending[0].committables
    assert files is not None
    with raises(MissingFile, sink="out", files=[files[0].path]):
        job.publish(head)
    assert ids(job.sink.table) == []


def test_a_table_recreated_between_checkpoints_is_refused(job: Job) -> None:
    head = _pending(job, checkpoints=2)
    [first, _] = job.publish(head)
    shutil.rmtree(job.sink.table)
    other = DeltaSink(job.sink.table).prepare(job.about)
    assert other != first.table_id
    with raises(SinkDiverged, sink="out", known=first.table_id, found=other):
        publish(BoundSink(job.sink, job.about), SinkOutput(3, [], first), job.root.log, head)


def test_commits_of_others_do_not_prevent_publishing(job: Job) -> None:
    _pending(job)
    paused = _paused_before_publishing(job)
    for i in range(3):
        commit_elsewhere(job.sink.table, pairs(1000 + i, 1), "other", i)
    paused.resume()
    assert paused.end()[0] == 0
    assert ids(job.sink.table) == [0, 1, 2, 1000, 1001, 1002]


def test_a_copy_of_the_job_root_does_not_publish_over_the_original(job: Job, tmp_path: Path) -> None:
    first = _pending(job)
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    second = job.commit(first, pairs(50, 1))
    job.publish(second)
    with raises(SinkDiverged, token=second.checkpoint_id, newest=first.checkpoint_id):
        Job(tmp_path / "copy", tmp_path / "out").publish(first)
