"""State servers that are killed, and several servers of a job: nothing of the job changes, each key has one server."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TypeVar, Unpack

import httpx
import pytest

from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import Clock, ManualClock, SystemClock
from stateflow.errors import CheckpointNotServed, NotYetAvailable
from stateflow.failpoints import NAMES
from stateflow.serving.app import AppSettings, StateApp
from stateflow.serving.client import QueryableStateClient
from stateflow.serving.fetch_process import FetchProcess
from stateflow.serving.follower import Follower, FollowSettings
from stateflow.serving.lookups import Format
from stateflow.serving.protocol import QueryProtocol
from stateflow.serving.registry import Membership, Registry
from stateflow.serving.steps import (
    HttpCall,
    HttpReply,
    ListingPosition,
    QueryOptions,
    QueryResult,
    ReadLeases,
    Result,
    Step,
    WaitStep,
)
from stateflow.state.handles import SubtaskState
from stateflow.storage import PosixStorage
from tests.serving.shops_job import SHOPS, TOKEN, ShopsJob, Total, serve_process, serving
from tests.serving.test_follower import plain, served
from tests.support.errors import raises
from tests.support.job_fixture import KILLED
from tests.support.processes import wait_for

KEYS = [(shop, day) for shop in SHOPS for day in range(-3, 4)]
_PATIENCE = timedelta(minutes=5)
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


@pytest.mark.slow(reason="starts three processes, and waits for the lease of one that is lost")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_answers_of_processes_are_right_while_one_joins_and_one_is_lost(tmp_path: Path, end: signal.Signals) -> None:
    jobs = ShopsJob(tmp_path, state__backend="rocksdb", checkpoints__retained=1)
    jobs.sell(40)
    stop, answers = threading.Event(), list[tuple[int, list[QueryResult]]]()

    def query() -> None:
        with QueryableStateClient(jobs.root, token=TOKEN, timeout=_PATIENCE) as client:
            while not stop.is_set():
                newest = max(jobs.expected)
                answers.append((newest, client.get_many("totals", KEYS, at_least=newest, value_type=Total)))

    def start() -> tuple[str, subprocess.Popen[str]]:
        process = stack.enter_context(serve_process(jobs.folder, jobs.root))
        stack.callback(process.kill)
        assert process.stdout is not None
        return process.stdout.readline().split()[-1], process

    def serve_all(*urls: str) -> bool:
        leases = {lease.url: lease for lease in Registry(jobs.storage, SystemClock()).read()}
        shares = [{g for r in leases[u].ranges for g in range(r.first, r.last + 1)} for u in urls if u in leases]
        return len(shares) == len(urls) and all(shares) and set().union(*shares) == set(range(16))

    with ThreadPoolExecutor(2) as clients, ExitStack() as stack:
        (first, lost), (second, _) = start(), start()
        wait_for(lambda: serve_all(first, second), lambda: "two servers")
        queries = [clients.submit(query) for _ in range(2)]
        stack.callback(stop.set)
        third, _ = start()
        wait_for(lambda: serve_all(first, second, third), lambda: "three servers")
        jobs.sell(5)
        lost.send_signal(end)
        jobs.sell(4)
        wait_for(lambda: serve_all(second, third), lambda: "the others take over")
        wait_for(
            lambda: max((asked for asked, _ in answers), default=0) == max(jobs.expected),
            lambda: "the newest checkpoint",
        )
        stop.set()
        assert [each.result(_PATIENCE.total_seconds()) for each in queries] == [None, None]
    for asked, results in answers:
        assert min(result.checkpoint_id for result in results) >= asked
        assert [r.value for r in results] == [
            jobs.expected[r.checkpoint_id].totals.get(key) for key, r in zip(KEYS, results, strict=True)
        ]


# -- the process that fetches files for a server, and a server that does without it -----------------------------------

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


# -- several servers --------------------------------------------------------------------------------------------------

R = TypeVar("R")
LEASE = timedelta(seconds=9)
TYPED: QueryOptions = {"value_type": Total}


class Server:
    """A server without a thread or a socket."""

    def __init__(self, served_jobs: ShopsJob, clock: Clock, number: int) -> None:
        self.url = f"http://server-{number}"
        self.follower = Follower(
            served_jobs.storage, served_jobs.folder / f"server-{number}", SystemClock(), FollowSettings(keep=2)
        )
        self.membership = Membership(served_jobs.storage, self.follower, clock, self.url, LEASE)
        self._app = StateApp(self.follower, AppSettings()).asgi()

    def step(self) -> None:
        self.membership.step()
        self.follower.poll()

    async def answer(self, call: HttpCall) -> HttpReply:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, headers={"accept": Format.MSGPACK.value}) as http:
            found = await http.request("GET" if call.body is None else "POST", call.url, content=call.body)
        return HttpReply(found.status_code, found.content)


class Servers:
    def __init__(self, served_jobs: ShopsJob, number: int) -> None:
        self.jobs = served_jobs
        self.clock = ManualClock()
        self.alive: list[Server] = []
        self._numbers = count()
        self._registry = Registry(served_jobs.storage, self.clock)
        self._protocol = QueryProtocol(self.clock, timedelta(seconds=60))
        for _ in range(number):
            self.start()
        self.settle()

    def start(self) -> Server:
        self.alive.append(Server(self.jobs, self.clock, next(self._numbers)))
        # Servers that start at the same time divide the key groups by their random ids.
        self.clock.sleep(timedelta(milliseconds=1))
        return self.alive[-1]

    def kill(self, server: Server) -> None:
        self.alive.remove(server)
        server.follower.close()

    def settle(self) -> None:
        for _ in range(8):
            self.clock.sleep(LEASE / 3)
            for server in self.alive:
                server.step()

    def query(self, steps: Generator[Step, Result, R]) -> R:
        """Carries out the steps of a client; while it waits, the servers look at the job."""
        result: Result = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                value: R = done.value
                return value
            if isinstance(step, ReadLeases):
                result = self._registry.read()
            elif isinstance(step, WaitStep):
                self.clock.sleep(timedelta(seconds=step.seconds))
                for server in self.alive:
                    server.step()
                result = None
            else:
                result = [self._answer(call) for call in step]

    def _answer(self, call: HttpCall) -> HttpReply:
        for server in self.alive:
            if call.url.startswith(f"{server.url}/"):
                return asyncio.run(server.answer(call))
        return HttpReply(failure="the server is dead")

    def get(self, **options: Unpack[QueryOptions]) -> list[QueryResult]:
        wanted: QueryOptions = {"value_type": Total, **options}
        return self.query(self._protocol.get_many("totals", KEYS, None, wanted))

    def check(self, results: list[QueryResult]) -> None:
        """Every answer is right for the checkpoint that it names."""
        for key, result in zip(KEYS, results, strict=True):
            assert result.value == self.jobs.expected[result.checkpoint_id].totals.get(key)

    def listed(self) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        at: ListingPosition | None = ListingPosition()
        while at is not None:
            entries, at = self.query(self._protocol.keys_page("totals", at, 3, {}))
            found += [entry.key for entry in entries if isinstance(entry.key, tuple)]
        return found

    def shares(self) -> list[set[int]]:
        return [{g for r in server.follower.groups for g in range(r.first, r.last + 1)} for server in self.alive]


@pytest.fixture
def served_jobs(tmp_path: Path) -> ShopsJob:
    served_jobs = ShopsJob(tmp_path)
    served_jobs.sell(40)
    return served_jobs


_MORE = pytest.mark.slow(reason="asks some twenty times for all keys")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=_MORE) for seed in (2, 3, 4))])
def test_answers_are_right_while_servers_join_and_die_and_the_job_runs(served_jobs: ShopsJob, seed: int) -> None:
    rng = random.Random(seed)
    servers = Servers(served_jobs, 2)
    newest = max(served_jobs.expected)
    for step in range(40):
        chosen = rng.choice(servers.alive)
        action = rng.choice(["sell", "step", "step", "query", "query", "start", "kill", "list", "exactly"])
        if action == "sell" and step % 3 == 0:
            newest = served_jobs.sell(rng.randrange(1, 9))
        elif action == "step":
            servers.clock.sleep(LEASE / rng.randrange(2, 9))
            chosen.step()
        elif action == "start" and len(servers.alive) < 4:
            servers.start()
        elif action == "kill" and len(servers.alive) > 1:
            servers.kill(chosen)
        elif action == "list":
            known = set(served_jobs.expected[newest].totals)
            assert set(servers.listed()) <= known
        elif action == "exactly":
            known_ids = sorted(served_jobs.expected)[-2:]
            try:
                results = servers.get(exactly=rng.choice(known_ids))
            except (NotYetAvailable, CheckpointNotServed):
                continue
            assert {r.checkpoint_id for r in results} <= set(known_ids) and len({r.checkpoint_id for r in results}) == 1
            servers.check(results)
        else:
            results = servers.get(at_least=newest) if rng.random() < 0.5 else servers.get()
            servers.check(results)
    servers.settle()
    results = servers.get(at_least=newest)
    servers.check(results)
    assert {r.checkpoint_id for r in results} == {newest}
    assert Counter(servers.listed()) == Counter(served_jobs.expected[newest].totals.keys())
    shares = servers.shares()
    assert sorted(group for share in shares for group in share) == list(range(16))
    assert not served_jobs.storage.list("log/") == []
    assert servers.query(servers._protocol.states()).checkpoint_id == newest


def test_servers_divide_the_key_groups_evenly_and_take_over_after_a_lease(served_jobs: ShopsJob) -> None:
    servers = Servers(served_jobs, 2)
    assert servers.shares() == [set(range(8)), set(range(8, 16))]
    first, _ = servers.alive
    third = servers.start()
    third.step()
    # The others keep what the third has not opened yet.
    assert servers.shares()[:2] == [set(range(8)), set(range(8, 16))]
    servers.settle()
    assert [len(share) for share in servers.shares()] == [6, 5, 5]
    # It has the store of the subtask, and refuses what another server has, so that clients ask that one.
    with first.follower.checkpoint() as checkpoint, raises(NotYetAvailable, group=6):
        checkpoint.store_of("totals", 6, exactly=False)
    servers.check(servers.get())
    servers.kill(first)
    with raises(NotYetAvailable):
        servers.query(QueryProtocol(servers.clock, timedelta(0)).get_many("totals", KEYS, None, TYPED))
    servers.settle()
    assert servers.shares() == [set(range(8)), set(range(8, 16))]
    servers.check(servers.get())
    for server in servers.alive:
        server.membership.registration.end()
    # The lease of the dead server is deleted once it has ended by any clock.
    last = servers.start()
    servers.clock.sleep(timedelta(minutes=5))
    last.step()
    servers.clock.sleep(LEASE)
    last.step()
    assert {blob.key.split("/")[1][:32] for blob in served_jobs.storage.list("servers/")} == {
        last.membership.registration.lease.id
    }
