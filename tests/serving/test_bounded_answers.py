"""Answers of a state server have a largest size, and a client reuses its connection, until it is closed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from stateflow.errors import NotYetAvailable, QueryError, QueryTooLarge
from stateflow.serving import client as client_module
from stateflow.serving import lookups
from stateflow.serving.client import AsyncQueryableStateClient, QueryableStateClient
from stateflow.serving.server import BoundedProtocol
from tests.serving.running_server import TOKEN, serving
from tests.serving.shops_job import ShopsJob, Total
from tests.support.errors import raises


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopsJob]:
    """A job with a state server."""
    jobs = ShopsJob(tmp_path_factory.mktemp("job"))
    jobs.sell(60)
    with serving(jobs.root):
        yield jobs


def test_a_client_asks_for_fewer_keys_if_an_answer_would_be_too_large(
    jobs: ShopsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, wanted),) = jobs.expected.items()
    monkeypatch.setattr(lookups, "LARGEST_ANSWER", 50)
    with QueryableStateClient(jobs.root, token=TOKEN) as client:
        found = client.get_many("totals", list(wanted.totals), value_type=Total)
        assert [result.value for result in found] == list(wanted.totals.values())
        assert {entry.key for entry in client.keys("totals")} == set(wanted.totals)
        for key, items in wanted.items.items():
            assert {entry.key: entry.value for entry in client.scan("sold-items", key)} == items


def test_one_value_that_is_too_large_is_an_error(jobs: ShopsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, wanted),) = jobs.expected.items()
    monkeypatch.setattr(lookups, "LARGEST_ANSWER", 1)
    key = max(wanted.items, key=lambda each: len(wanted.items[each]))
    with QueryableStateClient(jobs.root, token=TOKEN) as client:
        with raises(QueryTooLarge, limit="1"):
            client.get_many("totals", list(wanted.totals))
        with raises(QueryTooLarge, limit="1"):
            list(client.scan("sold-items", key))


def test_queries_of_a_client_use_one_connection(jobs: ShopsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, wanted),) = jobs.expected.items()
    made: list[asyncio.Transport] = []
    connect = BoundedProtocol.connection_made

    def connection_made(protocol: BoundedProtocol, transport: asyncio.Transport) -> None:
        made.append(transport)
        connect(protocol, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)
    with QueryableStateClient(jobs.root, token=TOKEN) as client:
        for key, total in wanted.totals.items():
            assert client.get("totals", key, value_type=Total).value == total
    assert len(made) == 1


_FORKED = """
import os, signal, sys
from stateflow.serving.client import QueryableStateClient

def found():
    return sorted(entry.key for entry in client.keys("totals"))

with QueryableStateClient(sys.argv[1], token=sys.argv[2]) as client:
    before = found()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(found() != before)
    assert os.waitpid(child, 0)[1] == 0
    assert before and found() == before
"""


def test_a_process_that_was_forked_makes_connections_of_its_own(jobs: ShopsJob) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKED, jobs.root, TOKEN]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_queries_of_a_closed_client_are_errors_and_none_hangs(jobs: ShopsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    client = QueryableStateClient(jobs.root, token=TOKEN)
    began = threading.Event()

    async def hang(*_: object) -> None:
        began.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(AsyncQueryableStateClient, "run", hang)
        query = pool.submit(client.states)
        assert began.wait(60)
        client.close()
        with raises(QueryError):
            query.result(60)
        patch.setattr(client_module, "_GRACE", timedelta(milliseconds=50))
        with QueryableStateClient(jobs.root, timeout=timedelta(0)) as other, raises(NotYetAvailable):
            other.states()
    client.close()
    with raises(QueryError):
        client.states()

    async def closed() -> None:
        async with AsyncQueryableStateClient(jobs.root, token=TOKEN) as other:
            assert await other.states()
        with raises(QueryError):
            await other.states()

    asyncio.run(closed())
