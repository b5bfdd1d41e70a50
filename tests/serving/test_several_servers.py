"""Several servers divide the key groups of a job, while some join, some die, and the job commits checkpoints.

Nothing runs by itself: a test chooses which server looks at the job next, and the clock advances while a client waits.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Generator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TypeVar, Unpack

import httpx
import pytest

from stateflow.clock import Clock, ManualClock, SystemClock
from stateflow.errors import CheckpointNotServed, NotYetAvailable
from stateflow.serving.app import AppSettings, StateApp
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
from tests.serving.shops_job import SHOPS, ShopsJob, Total
from tests.support.errors import raises

R = TypeVar("R")
LEASE = timedelta(seconds=9)
KEYS = [(shop, day) for shop in SHOPS for day in range(-3, 4)]
TYPED: QueryOptions = {"value_type": Total}


class Server:
    """A server without a thread or a socket."""

    def __init__(self, jobs: ShopsJob, clock: Clock, number: int) -> None:
        self.url = f"http://server-{number}"
        self.follower = Follower(jobs.storage, jobs.folder / f"server-{number}", SystemClock(), FollowSettings(keep=2))
        self.membership = Membership(jobs.storage, self.follower, clock, self.url, LEASE)
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
    def __init__(self, jobs: ShopsJob, number: int) -> None:
        self.jobs = jobs
        self.clock = ManualClock()
        self.alive: list[Server] = []
        self._numbers = count()
        self._registry = Registry(jobs.storage, self.clock)
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
def jobs(tmp_path: Path) -> ShopsJob:
    jobs = ShopsJob(tmp_path)
    jobs.sell(40)
    return jobs


_MORE = pytest.mark.slow(reason="asks some twenty times for all keys")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=_MORE) for seed in (2, 3, 4))])
def test_answers_are_right_while_servers_join_and_die_and_the_job_runs(jobs: ShopsJob, seed: int) -> None:
    rng = random.Random(seed)
    servers = Servers(jobs, 2)
    newest = max(jobs.expected)
    for step in range(40):
        chosen = rng.choice(servers.alive)
        action = rng.choice(["sell", "step", "step", "query", "query", "start", "kill", "list", "exactly"])
        if action == "sell" and step % 3 == 0:
            newest = jobs.sell(rng.randrange(1, 9))
        elif action == "step":
            servers.clock.sleep(LEASE / rng.randrange(2, 9))
            chosen.step()
        elif action == "start" and len(servers.alive) < 4:
            servers.start()
        elif action == "kill" and len(servers.alive) > 1:
            servers.kill(chosen)
        elif action == "list":
            known = set(jobs.expected[newest].totals)
            assert set(servers.listed()) <= known
        elif action == "exactly":
            known_ids = sorted(jobs.expected)[-2:]
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
    assert Counter(servers.listed()) == Counter(jobs.expected[newest].totals.keys())
    shares = servers.shares()
    assert sorted(group for share in shares for group in share) == list(range(16))
    assert not jobs.storage.list("log/") == []
    assert servers.query(servers._protocol.states()).checkpoint_id == newest


def test_servers_divide_the_key_groups_evenly_and_take_over_after_a_lease(jobs: ShopsJob) -> None:
    servers = Servers(jobs, 2)
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
    assert {blob.key.split("/")[1][:32] for blob in jobs.storage.list("servers/")} == {
        last.membership.registration.lease.id
    }
