"""A job root in a bucket or in HDFS: a run killed at each step of the protocol, and a driver that was overtaken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.failpoints import NAMES
from tests.servers.azure import azure_server
from tests.servers.hdfs import hdfs_server
from tests.servers.running import s3_server
from tests.support import root_files
from tests.support.job_fixture import ASYNCHRONOUS, KILLED, ON_REQUEST, AccountsJob, mostly_slow
from tests.support.restores import execute, plan

_POINTS = sorted(NAMES.keys() - ON_REQUEST - ASYNCHRONOUS - {"start.seeded"})
_QUICK = ("commit.manifest", "log.created", "gc.deleting")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folder where an S3 server keeps the objects of a bucket as files, and the environment of its clients."""
    folder = tmp_path_factory.mktemp("s3")
    with s3_server(folder, "bucket") as variables:
        yield folder / "data" / "bucket", variables


@pytest.fixture
def job(job: AccountsJob, bucket: tuple[Path, dict[str, str]], tmp_path: Path) -> AccountsJob:
    _move(job, bucket, tmp_path.name.replace("[", "-").replace("]", ""))
    return job


def _move(job: AccountsJob, bucket: tuple[Path, dict[str, str]], name: str) -> None:
    """What is stored is looked at without the code under test."""
    folder, job.variables = bucket
    job.root_folder, job.address = folder / name, f"s3://bucket/{name}"


@pytest.mark.parametrize("point", mostly_slow(_POINTS, _QUICK))
def test_a_job_on_object_storage_recovers_from_a_kill(job: AccountsJob, point: str) -> None:
    job.deliver(60)
    job.reach(f"{point}:1", checkpoints__collect_every=2)
    job.run_to(90)
    job.check()


def test_a_driver_resumed_after_another_run_on_object_storage_is_fenced(job: AccountsJob) -> None:
    job.deliver(60)
    first = job.start("batch.reported:2:stop").wait_stopped()
    job.finish()
    first.resume().wait().check_error(3, "fenced")
    job.check()


def test_a_claimed_savepoint_in_a_bucket_is_deleted_although_claim_and_deletion_are_killed(job: AccountsJob) -> None:
    job.settings = {"checkpoints__retained": 1}
    job.run_to(50)
    job.create_savepoint("mine")
    plan(job, "mine", "--claim-mode", "claim")
    assert execute(job, failpoint="savepoint.claimed").code == KILLED
    execute(job).check()
    assert job.savepoints.keys() == {"mine"}
    job.deliver(120)
    job.reach("savepoint.disposed")
    job.run_to(150)
    left = [key for key in root_files.files_below(job.root) if key.startswith("savepoints/")]
    assert (job.head.doc["claimed_savepoints"], left) == ([], [])
    job.check_results()
    job.collect()


def test_two_jobs_of_a_host_share_the_limit_of_the_host_cache(
    bucket: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """Each start removes what the other job's process may be about to link."""
    shared = {"local_dir": tmp_path / "local", "state__cache_limit_bytes": 1}
    boxes = [AccountsJob(tmp_path / name, shared) for name in ("one-job", "other-job")]
    for job in boxes:
        _move(job, bucket, job.folder.name)
    for round_ in range(1, 6):
        for job in boxes:
            job.deliver(40 * round_)
        for running in [job.start() for job in boxes]:
            running.wait().check()
    for job in boxes:
        job.check()
    boxes[0].run_to(240)
    kept = [path for path in (tmp_path / "local").glob("*/*/*/cache/*") if path.stat().st_nlink == 1]
    jobs = {path.parents[3].name for path in kept}
    assert len(jobs) <= 1, "the other job's files exist, and no process has them open"


@pytest.mark.parametrize("store", ["azure", pytest.param("hdfs", marks=pytest.mark.slow)])
def test_jobs_on_azure_and_hdfs_recover_from_kills(job: AccountsJob, tmp_path: Path, store: str) -> None:
    job.root_folder = None
    if store == "azure":
        with azure_server(tmp_path / "azure", "container") as variables:
            job.variables = variables
            _check_kills(job, "az://container/jobs")
    else:
        with hdfs_server(tmp_path / "hdfs") as server:
            job.variables = server.variables
            _check_kills(job, f"{server.address}/jobs")


def _check_kills(job: AccountsJob, folder: str) -> None:
    job.settings = {"checkpoints__asynchronous": "yes", "checkpoints__collect_every": 2}
    job.address = f"{folder}/accounts"
    for number, point in enumerate(("commit.manifest", "commit.after", "upload.before")):
        job.deliver(60 + 60 * number)
        assert job.run(f"{point}:2:kill").code == KILLED
        job.run_to(90 + 60 * number)
    job.check_tables()
    job.command("verify", "--deep").check()
    job.collect()
