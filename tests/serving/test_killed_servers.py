"""State servers that are killed: nothing of the job changes, and another server takes over."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path

import pytest

from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.failpoints import NAMES
from stateflow.serving.client import QueryableStateClient
from tests.serving.running_server import TOKEN, serve_process, serving
from tests.serving.shops_job import ShopsJob, Total
from tests.support.job_fixture import KILLED

POINTS = sorted(name for name in NAMES if name.startswith("serve."))


@pytest.mark.slow(reason="waits for the lease of a server that was killed in a process of its own")
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_server_leaves_no_pin_and_another_one_takes_over(tmp_path: Path, point: str) -> None:
    jobs = ShopsJob(tmp_path, state__backend="rocksdb")
    jobs.sell(20)
    with serve_process(jobs.folder, jobs.root, failpoint=point) as killed:
        assert killed.wait(120) == KILLED
    newest = jobs.sell(5)
    root = JobRoot.open(jobs.storage, jobs.clock)
    assert root.head().entry.pinned == []
    Collector(root).collect()
    with (
        serving(jobs.root, lease=timedelta(seconds=3)) as server,
        QueryableStateClient(jobs.root, token=TOKEN) as client,
    ):
        wanted = jobs.expected[newest].totals
        # The lease of the killed server still counts for its second: its half of the key groups is taken over then.
        found = client.get_many("totals", list(wanted), at_least=newest, value_type=Total)
        assert [r.value for r in found] == list(wanted.values())
        assert {r.checkpoint_id for r in found} == {newest}
        assert server.follower.problem is None


@pytest.mark.long(reason="starts and kills processes")
def test_the_command_serves_until_a_signal_arrives(tmp_path: Path) -> None:
    jobs = ShopsJob(tmp_path, state__backend="rocksdb")
    newest = jobs.sell(20)
    with serve_process(jobs.folder, jobs.root) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("serving ")
        with QueryableStateClient(jobs.root, token=TOKEN) as client:
            for _ in range(2):
                wanted = jobs.expected[newest].totals
                found = client.get_many("totals", list(wanted), at_least=newest, value_type=Total)
                assert [r.value for r in found] == list(wanted.values())
                newest = jobs.sell(5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not jobs.storage.list("servers/")
