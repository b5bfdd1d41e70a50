"""The process that fetches files for a server, and a server that does without it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stateflow.clock import SystemClock
from stateflow.serving.fetch_process import FetchProcess
from stateflow.serving.follower import Follower, FollowSettings
from stateflow.state.handles import SubtaskState
from stateflow.storage import PosixStorage
from tests.serving.shops_job import ShopsJob
from tests.serving.test_follower import plain, served

_SECONDS = 120.0


class CountingStorage(PosixStorage):
    fetched = 0

    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        self.fetched += 1
        super().fetch(key, target, limit)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        self.fetched += 1
        super().fetch_part(key, offset, size, target)


@pytest.fixture
def jobs(tmp_path: Path) -> ShopsJob:
    return ShopsJob(tmp_path, state__backend="rocksdb")


class Preparing:
    """A follower whose files are fetched by what `prepare` is set to."""

    def __init__(self, jobs: ShopsJob) -> None:
        self.storage = CountingStorage(jobs.root)
        self.given: list[list[str]] = []
        self.results: list[object] = []
        self.process: FetchProcess | None = None
        self.follower = Follower(
            self.storage, jobs.folder / "server", SystemClock(), FollowSettings(keep=2), self._prepare
        )

    def _prepare(self, states: Sequence[SubtaskState]) -> None:
        self.given.append([state.snapshot for state in states])
        if self.process is not None:
            self.results.append(self.process.prepare(states))

    def start(self, *program: str) -> FetchProcess:
        options = {"program": program} if program else {}
        self.process = FetchProcess(self.storage.uri, self.follower.files, **options)
        return self.process

    def check(self, jobs: ShopsJob, newest: int) -> None:
        """Checks that the follower opens the newest checkpoint, and that it is as committed."""
        assert self.follower.poll(), self.follower.problem
        with self.follower.checkpoint() as opened:
            assert opened.checkpoint_id == newest
            assert served(opened) == plain(jobs.expected[newest])


@pytest.fixture
def preparing(jobs: ShopsJob) -> Iterator[Preparing]:
    found = Preparing(jobs)
    yield found
    if found.process is not None:
        found.process.close()
    found.follower.close()


def test_the_follower_fetches_nothing_that_the_process_has_fetched(jobs: ShopsJob, preparing: Preparing) -> None:
    process = preparing.start()
    assert process.wait(_SECONDS)
    for number in (20, 3):
        preparing.check(jobs, jobs.sell(number))
    assert preparing.results == [True, True]
    assert preparing.storage.fetched == 0
    assert not list(jobs.folder.glob("server/files.*"))


def test_the_follower_does_not_wait_for_a_process_that_is_not_ready(jobs: ShopsJob, preparing: Preparing) -> None:
    preparing.start(sys.executable, "-c", "import sys; sys.stdin.read()")
    preparing.check(jobs, jobs.sell(20))
    assert preparing.results == [False]
    assert preparing.storage.fetched > 0


@pytest.mark.long(reason="starts and kills processes")
def test_a_server_does_without_a_process_that_was_killed_and_starts_another_one(
    jobs: ShopsJob, preparing: Preparing
) -> None:
    process = preparing.start()
    assert process.wait(_SECONDS)
    killed = process.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    preparing.check(jobs, jobs.sell(20))
    assert process.pid not in (None, killed)
    assert process.wait(_SECONDS)
    preparing.check(jobs, jobs.sell(3))
    assert preparing.results == [False, True]


def test_a_process_that_ends_each_time_is_no_longer_started(jobs: ShopsJob, preparing: Preparing) -> None:
    program = "import sys; print('ready', flush=True); sys.stdin.readline(); sys.stdout.write('something else')"
    process = preparing.start(sys.executable, "-c", program)
    for number in range(4):
        process.wait(_SECONDS)
        preparing.check(jobs, jobs.sell(number + 1))
    assert not any(preparing.results)
    assert process.pid is None


@pytest.mark.slow(reason="starts a process that starts another one")
def test_the_process_ends_with_the_server(jobs: ShopsJob) -> None:
    jobs.sell(20)
    module = "stateflow.serving.fetch_process"
    program = f"""
from pathlib import Path
from {module} import FetchProcess
process = FetchProcess({jobs.root!r}, Path({str(jobs.folder / "cache")!r}))
print(process.wait({_SECONDS}), process.pid, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        is_ready, pid = server.stdout.readline().split()
        assert is_ready == "True"
        process = os.pidfd_open(int(pid))
        server.kill()
        server.wait(_SECONDS)
    # The descriptor is readable once the process has ended.
    assert select.select([process], [], [], _SECONDS)[0]
    os.close(process)
