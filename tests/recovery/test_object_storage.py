"""A job root in a bucket or in HDFS: a run killed at each step of the protocol, and a driver that was overtaken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.azure import azure_server
from tests.servers.hdfs import hdfs_server
from tests.servers.running import s3_server
from tests.support.job_fixture import KILLED, AccountsJob


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


@pytest.mark.slow(reason="starts a server and two drivers")
def test_a_driver_resumed_after_another_run_on_object_storage_is_fenced(job: AccountsJob) -> None:
    job.deliver(60)
    first = job.start("batch.reported:2:stop").wait_stopped()
    job.finish()
    first.resume().wait().check_error(3, "fenced")
    job.check()


@pytest.mark.slow(reason="runs jobs many times")
def test_two_jobs_of_a_host_share_the_limit_of_the_host_cache(
    bucket: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """Each start removes what the other job's process may be about to link."""
    shared = {"local_dir": tmp_path / "local", "state__cache_limit_bytes": 1}
    boxes = [AccountsJob(tmp_path / name, shared) for name in ("one-job", "other-job")]
    for job in boxes:
        _move(job, bucket, job.folder.name)
    for round_ in range(1, 4):
        for job in boxes:
            job.deliver(40 * round_)
        for running in [job.start() for job in boxes]:
            running.wait().check()
    for job in boxes:
        job.check()
    boxes[0].run_to(160)
    kept = [path for path in (tmp_path / "local").glob("*/*/*/cache/*") if path.stat().st_nlink == 1]
    jobs = {path.parents[3].name for path in kept}
    assert len(jobs) <= 1, "the other job's files exist, and no process has them open"


@pytest.mark.parametrize("store", ["azure", pytest.param("hdfs", marks=pytest.mark.slow(reason="starts HDFS"))])
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
