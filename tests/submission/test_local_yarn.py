"""Drivers of a job without Spark on a stand-in for YARN; they, and the processes that submit them, are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.servers.local_yarn import LocalYarn, local_yarn
from tests.servers.running import ROOT
from tests.support import folder_tables
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


@pytest.mark.long(reason="starts several processes")
def test_what_the_cluster_cannot_use_is_refused_before_a_driver_is_submitted(
    job: AccountsJob, yarn: LocalYarn, tmp_path: Path
) -> None:
    job.deliver(10)
    missing, broken = tmp_path / "missing.toml", tmp_path / "broken.toml"
    broken.write_text("[")
    for shared, options, facts in (
        ("yes", ["--config", str(missing)], {"path": str(missing)}),
        ("yes", ["--config", str(missing), "--from-savepoint", str(tmp_path)], {"path": str(missing)}),
        ("yes", ["--config", str(broken)], {"path": str(broken)}),
        ("no", [], {"root": job.root.as_uri(), "master": "yarn"}),
        ("no", ["--job-root", "relative"], {"root": Path("relative").absolute().as_uri()}),
    ):
        ended = submit_to_stand_in(job, yarn, "one", *options, storage__shared=shared).wait()
        assert (ended.code, ended.failure["code"]) == (2, "config"), ended
        assert ended.failure["facts"].items() >= facts.items()
    ended = submit_to_stand_in(job, yarn, "one", "--result-file", str(tmp_path / "none" / "result.json")).wait()
    assert (ended.code, "result file" in ended.err) == (2, True)
    assert yarn.applications() == [] and not job.root.exists()


@pytest.mark.long(reason="starts a driver")
def test_a_driver_continues_when_its_follower_is_replaced_by_one_that_could_not_submit_it(
    job: AccountsJob, yarn: LocalYarn, tmp_path: Path
) -> None:
    job.deliver(30)
    first = submit_to_stand_in(job, yarn, "one", failpoint="batch.begin:2:stop")
    driver = stopped_driver(yarn, first)
    first.kill()
    first.wait()
    config = str(tmp_path / "missing.toml")
    second = submit_to_stand_in(job, yarn, "one", "--config", config, storage__shared="no")
    wait_for(lambda: "found the driver of this launch" in second.errors, lambda: str(second))
    driver.resume()
    second.wait().check()
    assert len(yarn.applications()) == 1


@pytest.mark.long(reason="starts two drivers")
def test_a_driver_gets_paths_and_the_options_of_a_savepoint_to_start_from(
    job: AccountsJob, yarn: LocalYarn, tmp_path: Path
) -> None:
    """Paths relative to the working folder of the process that submits; the driver has another one."""
    job.deliver(30)
    running = submit_to_stand_in(job, yarn, "one", run__until="stopped", requests__interval="20ms")
    wait_for(lambda: commits(job) > 2, lambda: str(running))
    made = job.command("stop", "--savepoint", "--name", "last", "--json").check().document["savepoint"]
    assert running.wait().check().result["stopped_because"] == "stopped"
    folder = tmp_path / "other"
    other = replace(job, root_folder=folder / "root", address=os.path.relpath(folder / "root", ROOT))
    other.deliver_more(20)
    options = ["--from-savepoint", os.path.relpath(made["path"].removeprefix("file://"), ROOT), "--claim-mode", "claim"]
    options += ["--map=events=orders", "--map=balances=turnovers", "--map=balances.account=turnovers.figures"]
    options += ["--drop=turnovers", "--source=orders=keep", "--drain"]
    settings: dict[str, Any] = {"job__version": 2, "job__parts": "movements", "job__tables": folder / "tables"}
    ended = submit_to_stand_in(other, yarn, "two", *options, **settings).wait().check()
    assert (ended.result["rows_in"], ended.result["stopped_because"]) == (20, "drained")
    assert "last" in ended.result["start_label"]
    (begun,) = other.records("fork")
    assert begun["facts"]["claim_mode"] == "claim"
    assert len(folder_tables.rows(folder / "tables" / "movements")) == 20


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
