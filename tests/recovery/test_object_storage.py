"""A job root in a bucket: a run killed at each step of the protocol, and a driver that another one has overtaken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.azure import azure_server
from tests.servers.hdfs import hdfs_server
from tests.servers.running import s3_server
from tests.support.job_fixture import AccountsJob, mostly_slow

_POINTS = (
    "claim.before",
    "claim.after",
    "start.published",
    "batch.begin",
    "task.processed",
    "task.uploaded",
    "batch.reported",
    "commit.manifest",
    "log.created",
    "commit.after",
    "publish.before",
    "publish.after",
    "batch.end",
    "gc.listed",
    "gc.deleting",
    "run.end",
)
KILLED = -9


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("s3")
    with s3_server(folder, "bucket") as variables:
        yield folder / "data" / "bucket", variables


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as server:
        yield server.address


@pytest.fixture
def box(server: tuple[Path, dict[str, str]], tmp_path: Path) -> Iterator[AccountsJob]:
    bucket, variables = server
    # The server keeps an object as a file: what is stored is looked at without the code under test.
    name = tmp_path.name.replace("[", "-").replace("]", "")
    made = AccountsJob(tmp_path / "job", root_folder=bucket / name, address=f"s3://bucket/{name}", variables=variables)
    yield made
    made.end_all()


_QUICK = ("commit.manifest", "log.created", "gc.deleting")


@pytest.mark.parametrize("point", mostly_slow(_POINTS, _QUICK))
def test_a_run_that_is_killed_leaves_nothing_wrong(box: AccountsJob, point: str) -> None:
    box.deliver(60)
    assert box.run(f"{point}:1:kill", checkpoints__collect_every=2).code == KILLED
    assert box.marker.exists()
    box.deliver(90)
    box.finish()
    box.check_results()
    box.check_clean()


def test_a_driver_that_was_overtaken_is_fenced(box: AccountsJob) -> None:
    box.deliver(60)
    first = box.start("batch.reported:2:stop")
    first.wait_stopped()
    box.finish()
    first.resume()
    assert first.wait().code == 3
    box.check_results()
    box.check_clean()


def test_two_jobs_of_a_host_share_a_limit_of_what_it_keeps(server: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """Each start removes what the other job's process may be about to link."""
    bucket, variables = server
    shared = {"local_dir": tmp_path / "local", "state__cache_limit_bytes": 1}
    boxes = [
        AccountsJob(
            tmp_path / name, shared, root_folder=bucket / name, address=f"s3://bucket/{name}", variables=variables
        )
        for name in ("one-job", "other-job")
    ]
    for round_ in range(1, 6):
        for box in boxes:
            box.deliver(40 * round_)
        for ended in [box.start() for box in boxes]:
            assert ended.wait().code == 0, str(ended)
    for box in boxes:
        box.check_results()
        box.check_clean()
    boxes[0].deliver(240)
    boxes[0].finish()
    kept = [path for path in (tmp_path / "local").glob("*/*/*/cache/*") if path.stat().st_nlink == 1]
    jobs = {path.parents[3].name for path in kept}
    assert len(jobs) <= 1, "the other job's files are there, and nobody has them open"


@pytest.mark.parametrize("point", ["commit.manifest", "commit.after", "upload.before"])
def test_a_job_root_in_azure(tmp_path: Path, point: str) -> None:
    with azure_server(tmp_path / "azure", "container") as variables:
        settings = {"checkpoints__asynchronous": "yes", "checkpoints__collect_every": 2}
        _check_killed(
            AccountsJob(tmp_path / "job", settings, address="az://container/jobs/accounts", variables=variables), point
        )


@pytest.mark.slow
@pytest.mark.parametrize("point", ["commit.manifest", "commit.after", "upload.before"])
def test_a_job_root_in_hdfs(hdfs: str, tmp_path: Path, point: str) -> None:
    settings = {"checkpoints__asynchronous": "yes", "checkpoints__collect_every": 2}
    _check_killed(AccountsJob(tmp_path / "job", settings, address=f"{hdfs}/jobs/{point}"), point)


def _check_killed(box: AccountsJob, point: str) -> None:
    box.deliver(60)
    assert box.run(f"{point}:2:kill").code == KILLED
    box.deliver(90)
    box.finish()
    box.check_tables()
    assert box.command("verify", "--deep").code == 0
    box.collect()
