"""Publishing a job's checkpoints in a Delta table: the real log, the real table, several processes, kills."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.sink_commit import Output, publish
from stateflow.connectors import DeltaSink
from stateflow.errors import Fenced, MissingFile, SinkDiverged
from tests.support.delta_tables import BoundSink, Job, Process, commit_elsewhere, ids, pairs
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


def test_checkpoints_are_published_in_order_and_once(job: Job) -> None:
    head = _pending(job, checkpoints=3)
    first = job.publish(head)
    assert [p.checkpoint_id for p in first] == [2, 3, 4]
    assert [p.version for p in first] == [1, 2, 3]
    assert [p.version for p in job.publish(head)] == [3, 3, 3]
    assert ids(job.sink.table) == [*range(3), *range(10, 13), *range(20, 23)]


def test_processes_that_publish_the_same_checkpoints_publish_them_once(job: Job) -> None:
    _pending(job, checkpoints=5)
    processes = [_process(job) for _ in range(3)]
    for process in processes:
        process.go()
    assert [process.end()[0] for process in processes] == [0, 0, 0]
    assert ids(job.sink.table) == [10 * i + j for i in range(5) for j in range(3)]


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("point", ["publish.before", "publish.after"])
def test_a_kill_while_publishing_neither_loses_nor_doubles(job: Job, point: str, hit: int) -> None:
    _pending(job, checkpoints=2)
    killed = _process(job, failpoint=f"{point}:{hit}")
    killed.go()
    assert killed.end()[0] == -9
    again = _process(job)
    again.go()
    assert again.end()[0] == 0
    assert ids(job.sink.table) == [0, 1, 2, 10, 11, 12]


def test_a_driver_that_slept_over_another_run_is_fenced_and_publishes_nothing(job: Job) -> None:
    _pending(job)
    slept = _process(job, failpoint="publish.before:1:stop")
    slept.go()
    slept.stopped()
    newer = job.root.claim()
    job.publish(newer)
    job.publish(job.commit(newer, pairs(50, 1)))
    slept.resume()
    code, output, _ = slept.end()
    assert (code, output) == (_FENCED, "fenced\n")
    assert ids(job.sink.table) == [0, 1, 2, 50]


def test_a_driver_that_slept_while_the_table_was_made_again_changes_nothing(job: Job) -> None:
    head = _pending(job)
    slept = _process(job, failpoint="publish.before:1:stop")
    slept.go()
    slept.stopped()
    shutil.rmtree(job.sink.table)
    DeltaSink(job.sink.table).prepare(job.about)
    slept.resume()
    assert slept.end()[1] == "missing-file\n"
    assert ids(job.sink.table) == []
    with raises(MissingFile, sink="out"):
        job.publish(head)


def test_a_table_made_again_between_checkpoints_is_refused(job: Job) -> None:
    head = _pending(job, checkpoints=2)
    [first, _] = job.publish(head)
    shutil.rmtree(job.sink.table)
    other = DeltaSink(job.sink.table).prepare(job.about)
    assert other != first.table_id
    with raises(SinkDiverged, sink="out", known=first.table_id, found=other):
        publish(BoundSink(job.sink, job.about), Output(3, [], first), job.root.log, head)


def test_commits_of_others_do_not_stop_publishing(job: Job) -> None:
    _pending(job)
    slept = _process(job, failpoint="publish.before:1:stop")
    slept.go()
    slept.stopped()
    for i in range(3):
        commit_elsewhere(job.sink.table, pairs(1000 + i, 1), "somebody else", i)
    slept.resume()
    assert slept.end()[0] == 0
    assert ids(job.sink.table) == [0, 1, 2, 1000, 1001, 1002]


def test_a_file_that_is_gone_before_it_is_published_is_told(job: Job) -> None:
    head = _pending(job)
    [pending] = head.entry.pending
    lost = pending.committables[0].path
    (Path(job.sink.table) / lost).unlink()
    with raises(MissingFile, sink="out", files=[lost]):
        job.publish(head)
    assert ids(job.sink.table) == []


def test_a_copy_of_the_job_root_does_not_publish_over_the_original(job: Job, tmp_path: Path) -> None:
    first = _pending(job)
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    second = job.commit(first, pairs(50, 1))
    job.publish(second)
    with raises(SinkDiverged, token=second.checkpoint_id, newest=first.checkpoint_id):
        Job(tmp_path / "copy", tmp_path / "out").publish(first)
