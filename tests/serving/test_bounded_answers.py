"""Answers of a state server have a largest size, and a client reuses its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stateflow.errors import QueryTooLarge
from stateflow.serving import lookups
from stateflow.serving.client import QueryableStateClient
from stateflow.serving.connections import BoundedProtocol
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
