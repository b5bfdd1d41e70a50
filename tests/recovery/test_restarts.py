"""A run that fails somewhere and starts again by itself, and one that is cancelled: nothing is lost or there twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow.failpoints import NAMES
from tests.servers.hdfs import hdfs_server
from tests.servers.running import azure_server
from tests.support import root_files
from tests.support.errors import reported_errors
from tests.support.job_fixture import ASYNCHRONOUS, KILLED, ON_REQUEST, SLICE, AccountsJob, mostly_slow, second_time
from tests.support.processes import spawn
from tests.support.screens import normalized

_AGAIN = {"restart__strategy": "fixed-delay", "restart__fixed_delay__delay": "1ms"}
# Without Spark nothing is seeded, and at the end there is nothing to start again for.
_POINTS = sorted(NAMES.keys() - ON_REQUEST - ASYNCHRONOUS - {"start.seeded", "run.end"})
_QUICK = ("task.uploaded", "commit.after", "gc.deleting")


@pytest.mark.parametrize("point", mostly_slow(_POINTS, _QUICK))
def test_a_run_that_failed_at_a_step_restarts_and_succeeds(job: AccountsJob, point: str) -> None:
    job.settings = _AGAIN
    job.deliver(60)
    ended = job.run(f"{second_time(point)}:error", checkpoints__collect_every=2).check()
    # A collection or an index of the history that fails is not a reason to fail a run: the next one makes up for it.
    assert job.marker.exists() and ended.result["restarts"] == (0 if point.startswith(("gc.", "history.")) else 1)
    job.check()


def test_bounds_and_figures_are_those_of_the_whole_run(job: AccountsJob, golden: SnapshotAssertion) -> None:
    job.settings = _AGAIN
    job.deliver(100)
    ended = job.run("batch.reported:3:error", run__max_batches=4).check()
    assert job.head.position == 40
    figures = {name: ended.result[name] for name in ("batches", "rows_in", "start_checkpoint_id", "restarts")}
    assert figures == {"batches": 4, "rows_in": 40, "start_checkpoint_id": None, "restarts": 1}
    assert ended.result["rows_out"] == {"movements": 40, "totals": 20}
    assert normalized(ended.out) == golden


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """A shell without job control has what it starts in the background ignore SIGINT, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
@pytest.mark.slow(reason="waits for a run to be cancelled")
def test_a_cancelled_run_keeps_its_committed_checkpoints(job: AccountsJob, number: signal.Signals, code: int) -> None:
    job.deliver(10 * SLICE)
    run = job.start("batch.begin:5:stop", launcher=spawn, restart__strategy="exponential-delay").wait_stopped()
    os.kill(run.pid, number)
    ended = run.resume().wait()
    assert ended.code == code, str(ended)
    codes = [error.code for error in reported_errors(ended.err)]
    assert codes == (["interrupted"] if number == signal.SIGINT else []), str(ended)
    assert job.head.position == 4 * SLICE
    job.finish()
    job.check()


@pytest.mark.slow(reason="waits for delays between restarts")
def test_a_job_recovers_from_a_source_that_crashes_and_pauses(job: AccountsJob) -> None:
    """The process dies inside the source; a run is caught up where the script pauses. No run asks the source for what
    is before the newest checkpoint."""
    items = [(20, {"crash": "first"}), (50, {"pause": "gate"}), (60, {"crash": "second"})]
    job.deliver(90, *items)
    committed = 0
    for code, position in ((KILLED, 20), (0, 50), (KILLED, 60), (0, 90)):
        asked = len(job.requested())
        assert job.run().code == code
        slices = job.requested()[asked:]
        assert [start for start, _ in slices] == [committed, *(end for _, end in slices[:-1])]
        committed = root_files.entries(job.root)[-1].position
        assert committed == position
        if code == 0:
            (job.folder / "gate").touch()
    job.check()


# -- job roots in Azure and HDFS --------------------------------------------------------------------------------------


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
