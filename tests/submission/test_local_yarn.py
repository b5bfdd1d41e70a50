"""Drivers of a job without Spark on a stand-in for YARN; they, and the processes that submit them, are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.local_yarn import LocalYarn, local_yarn
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for
from tests.support.submissions import stopped_driver, submit_to_stand_in


@pytest.fixture
def yarn(tmp_path: Path) -> Iterator[LocalYarn]:
    with local_yarn(tmp_path / "yarn") as server:
        yield server


@pytest.fixture
def job(tmp_path: Path) -> Iterator[AccountsJob]:
    job = AccountsJob(tmp_path / "job", {"checkpoints__retained": 3})
    yield job
    job.end_all()


def commits(job: AccountsJob) -> int:
    """The number of checkpoints; 0 before the job exists."""
    return len(job.commits) if any((job.root / "log").glob("*")) else 0


@pytest.mark.long(reason="starts a driver in a process of its own, as all tests here do")
def test_a_driver_runs_to_its_end_and_its_result_is_that_of_client_mode(job: AccountsJob, yarn: LocalYarn) -> None:
    job.deliver(40)
    ended = submit_to_stand_in(job, yarn, "one").wait().check()
    assert ended.result["rows_in"] == 40
    assert "checkpoint" in ended.err and "accounts:" in ended.out
    assert [app["finalStatus"] for app in yarn.applications()] == ["SUCCEEDED"]
    assert yarn.staged() == []
    job.deliver_more(20)
    in_client_mode = job.finish()
    assert ended.result.keys() == in_client_mode.result.keys()
    job.check_results()


@pytest.mark.long(reason="starts a driver")
def test_an_error_of_the_job_is_that_of_client_mode(job: AccountsJob, yarn: LocalYarn) -> None:
    job.deliver(10)
    ended = submit_to_stand_in(job, yarn, "one", parallelism="many").wait()
    in_client_mode = job.run(parallelism="many")
    assert ended.code == in_client_mode.code == 2
    assert ended.result == in_client_mode.result
    assert yarn.staged() == []


@pytest.mark.slow(reason="starts several drivers")
@pytest.mark.parametrize("point", ["batch.begin:2", "commit.after:3", "batch.end:3"])
@pytest.mark.parametrize("victim", ["submitter", "driver"])
def test_a_killed_process_is_replaced_and_nothing_is_lost(
    job: AccountsJob, yarn: LocalYarn, victim: str, point: str
) -> None:
    job.deliver(30)
    first = submit_to_stand_in(job, yarn, "one", failpoint=f"{point}:stop")
    driver = stopped_driver(yarn, first)
    if victim == "submitter":
        first.kill()
        first.wait()
    else:
        yarn.kill_driver(yarn.applications()[0]["id"])
        ended = first.wait()
        assert (ended.code, ended.failure["code"]) == (5, "cluster-failed")
    second = submit_to_stand_in(job, yarn, "one")
    if victim == "submitter":
        # It follows the driver, although that has not published its newest checkpoint yet.
        wait_for(lambda: "found the driver of this launch" in second.errors, lambda: str(second))
        assert second.poll() is None
        driver.resume()
    second.wait().check()
    assert len(yarn.applications()) == (1 if victim == "submitter" else 2)
    assert yarn.staged() == []
    job.check_results()


@pytest.mark.long(reason="starts a driver")
def test_a_driver_that_does_not_stop_is_killed_by_the_cluster(job: AccountsJob, yarn: LocalYarn) -> None:
    job.deliver(20)
    # Otherwise the run may end before its processes are suspended.
    running = submit_to_stand_in(job, yarn, "one", "--end-timeout", "1s", run__until="stopped")
    wait_for(lambda: commits(job) > 0, lambda: str(running))
    container = yarn.driver(yarn.applications()[0]["id"])
    assert container is not None
    for process in container.children(recursive=True):
        process.suspend()
    os.kill(running.pid, signal.SIGTERM)
    ended = running.wait()
    assert (ended.code, ended.failure["code"]) == (130, "interrupted")
    assert [app["finalStatus"] for app in yarn.applications()] == ["KILLED"]
    assert yarn.staged() == []


@pytest.mark.long(reason="starts a driver")
def test_a_signal_ends_the_run_with_a_checkpoint(job: AccountsJob, yarn: LocalYarn) -> None:
    job.deliver(20)
    running = submit_to_stand_in(job, yarn, "one", run__until="stopped")
    wait_for(lambda: commits(job) > 1, lambda: str(running))
    os.kill(running.pid, signal.SIGTERM)
    ended = running.wait().check()
    assert ended.result["stopped_because"] == "stopped"
    assert yarn.staged() == []
    job.check_results()
