"""Processes of ``stateflow serve`` over one job root, while the job commits and clients query.

One server joins, and one is killed or hangs. Every answer is compared with what plain dictionaries have for the
checkpoint that it names.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateflow import failpoints
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import ManualClock, SystemClock
from stateflow.errors import CheckpointNotServed, InternalError
from stateflow.serving.client import AsyncQueryableStateClient, QueryableStateClient
from stateflow.serving.registry import CLOCK_DIFFERENCE, Registry, ServerLease
from stateflow.serving.steps import QueryEntry, QueryOptions, QueryResult
from tests.serving.running_server import TOKEN, serve_process
from tests.serving.shops_job import SHOPS, ShopsJob, Total
from tests.support.errors import raises
from tests.support.processes import wait_for

KEYS = [(shop, day) for shop in SHOPS for day in range(-3, 4)]
GROUPS = set(range(16))
_SECONDS = 300
_PATIENCE = timedelta(seconds=_SECONDS)


@dataclass
class Answers:
    """What clients were answered, compared with the job once it has ended."""

    jobs: ShopsJob
    got: list[tuple[QueryOptions, list[QueryResult]]] = field(default_factory=list)
    listed: list[tuple[int, list[QueryEntry]]] = field(default_factory=list)
    scanned: list[tuple[tuple[str, int], list[QueryEntry]]] = field(default_factory=list)
    not_served: int = 0

    def add(self, asked: QueryOptions, results: list[QueryResult]) -> None:
        # An answer from a checkpoint that is committed later would show here: the log is read after the answer.
        committed = JobRoot.open(self.jobs.storage, self.jobs.clock).head().checkpoint_id
        assert max(result.checkpoint_id for result in results) <= committed
        self.got.append((asked, results))

    def check(self) -> None:
        expected = self.jobs.expected
        for asked, results in self.got:
            ids = {result.checkpoint_id for result in results}
            assert ids <= expected.keys()
            assert min(ids) >= asked.get("at_least", 1) and ids <= {asked.get("exactly", max(ids)), *ids}
            assert "exactly" not in asked or ids == {asked["exactly"]}
            for key, result in zip(KEYS, results, strict=True):
                assert result.value == expected[result.checkpoint_id].totals.get(key), (key, result)
        for wanted, entries in self.listed:
            assert Counter(entry.key for entry in entries) == Counter(expected[wanted].totals.keys())
        for key, entries in self.scanned:
            items = [expected[entry.checkpoint_id].items[key][str(entry.key)] for entry in entries]
            assert [entry.value for entry in entries] == items

    def newest_ids(self) -> list[int]:
        return sorted(self.jobs.expected)[-2:]

    def options(self, rng: random.Random) -> QueryOptions:
        choices: list[QueryOptions] = [
            {"value_type": Total},
            {"value_type": Total, "at_least": self.newest_ids()[-1]},
            {"value_type": Total, "exactly": rng.choice(self.newest_ids())},
        ]
        return rng.choice(choices)


def _query(answers: Answers, client: QueryableStateClient, stop: threading.Event, seed: int) -> None:
    rng = random.Random(seed)
    for turn in count():
        if stop.is_set():
            return
        options = answers.options(rng)
        try:
            if turn % 4 == 3:
                key = rng.choice(sorted(answers.jobs.expected[min(answers.jobs.expected)].items))
                answers.scanned.append((key, list(client.scan("sold-items", key))))
            elif turn % 4 == 2:
                wanted = answers.newest_ids()[-1]
                answers.listed.append((wanted, list(client.keys("totals", exactly=wanted))))
            else:
                answers.add(options, client.get_many("totals", KEYS, **options))
        except CheckpointNotServed:
            # The job was faster than the query.
            answers.not_served += 1


async def _query_async(answers: Answers, root: str, stop: threading.Event, seed: int) -> None:
    rng = random.Random(seed)
    async with AsyncQueryableStateClient(root, token=TOKEN, timeout=_PATIENCE) as client:
        while not stop.is_set():
            asked = [answers.options(rng) for _ in range(3)]
            queries = [client.get_many("totals", KEYS, **options) for options in asked]
            for options, results in zip(asked, await asyncio.gather(*queries, return_exceptions=True), strict=True):
                if isinstance(results, CheckpointNotServed):
                    answers.not_served += 1
                elif isinstance(results, BaseException):
                    raise results
                else:
                    answers.add(options, results)


@contextmanager
def _clients(answers: Answers) -> Iterator[Callable[[], bool]]:
    """Queries with three clients until the end of the block; yields a check that raises the first error of one."""
    stop, root = threading.Event(), answers.jobs.root
    with ThreadPoolExecutor(3) as threads, QueryableStateClient(root, token=TOKEN, timeout=_PATIENCE) as client:
        running: list[Future[Any]] = [threads.submit(_query, answers, client, stop, seed) for seed in (1, 2)]
        running.append(threads.submit(lambda: asyncio.run(_query_async(answers, root, stop, 3))))

        def check() -> bool:
            for each in running:
                if each.done():
                    each.result()
            return True

        try:
            yield check
        finally:
            stop.set()
        for each in running:
            each.result(_SECONDS)


class Processes:
    """The server processes of a job."""

    def __init__(self, jobs: ShopsJob, stack: ExitStack) -> None:
        self._jobs = jobs
        self._stack = stack
        self.urls: dict[str, subprocess.Popen[str]] = {}

    def start(self) -> str:
        """Starts a server; returns its URL."""
        process = serve_process(self._jobs.folder, self._jobs.root)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        self.urls[url] = process
        return url

    def leases(self) -> dict[str, ServerLease]:
        return {lease.url: lease for lease in Registry(self._jobs.storage, SystemClock()).read()}

    def serve_all(self, urls: Sequence[str]) -> bool:
        """Returns whether each of the servers has key groups, and none of the groups is without one of them."""
        found = self.leases()
        shares = [{g for r in found[u].ranges for g in range(r.first, r.last + 1)} for u in urls if u in found]
        return len(shares) == len(urls) and all(shares) and set().union(*shares) == GROUPS

    def keys_served(self, url: str) -> int:
        text = httpx.get(f"{url}/metrics", headers={"authorization": f"Bearer {TOKEN}"}, timeout=_SECONDS).text
        return int(next(line for line in text.splitlines() if line.startswith("stateflow_server_keys")).split()[1])


def _fail_before_commit(jobs: ShopsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a batch whose files and manifest are stored, and whose COMMIT is not."""
    monkeypatch.setattr(failpoints, "passed", Counter())
    with monkeypatch.context() as patch, raises(InternalError, name="commit.manifest"):
        patch.setenv("STATEFLOW_FAILPOINT", "commit.manifest:1:error")
        jobs.sell(29)


@pytest.mark.slow(reason="processes of servers that are killed")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_answers_of_processes_are_right_while_one_joins_and_one_is_lost(
    tmp_path: Path, end: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = ShopsJob(tmp_path, state__backend="rocksdb", checkpoints__retained=1)
    jobs.sell(40)
    answers = Answers(jobs)
    with ExitStack() as stack:
        servers = Processes(jobs, stack)
        first, second = servers.start(), servers.start()
        wait_for(lambda: servers.serve_all([first, second]), lambda: "two servers", _SECONDS)
        with _clients(answers) as clients:
            for number in range(4):
                jobs.sell(3 + number)
            third = servers.start()
            _fail_before_commit(jobs, monkeypatch)
            wait_for(lambda: clients() and servers.serve_all([first, second, third]), lambda: "three servers", _SECONDS)
            jobs.sell(5)
            wait_for(
                lambda: clients() and all(map(servers.keys_served, servers.urls)),
                lambda: "queries reach every server",
                _SECONDS,
            )
            servers.urls[first].send_signal(end)
            for number in range(3):
                jobs.sell(4 + number)
            _fail_before_commit(jobs, monkeypatch)
            wait_for(lambda: clients() and servers.serve_all([second, third]), lambda: "the others take over", _SECONDS)
            newest = jobs.sell(2)
            with QueryableStateClient(jobs.root, token=TOKEN, timeout=_PATIENCE) as client:
                answers.add({"at_least": newest}, client.get_many("totals", KEYS, at_least=newest, value_type=Total))
        servers.urls[first].kill()
        for url in (second, third):
            servers.urls[url].send_signal(signal.SIGTERM)
            assert servers.urls[url].wait(_SECONDS) == 0
        assert servers.leases().keys() <= {first}
    answers.check()
    assert {result.checkpoint_id for _, results in answers.got for result in results} >= {*answers.newest_ids()[-1:]}
    assert len(answers.got) > 20 and answers.listed and answers.scanned
    assert JobRoot.open(jobs.storage, jobs.clock).head().entry.pinned == []
    # The lease of the lost server has an end for every reader, after which any server removes it.
    assert jobs.storage.list("servers/")
    after = jobs.clock.now() + timedelta(seconds=1) + CLOCK_DIFFERENCE
    registry = Registry(jobs.storage, ManualClock(start=after))
    assert registry.read() == []
    registry.remove_ended()
    assert jobs.storage.list("servers/") == []
