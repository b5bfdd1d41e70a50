"""What a client does with answers and leases that no state server of this version writes."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import msgspec
import pytest

from stateflow.checkpoint.log.manifest_files import seal
from stateflow.clock import SystemClock
from stateflow.errors import NotYetAvailable, QueryError, UnknownKey
from stateflow.serving.client import AsyncQueryableStateClient, QueryableStateClient
from stateflow.serving.lookups import KeysRequest, MsgpackPage, MsgpackValues, StateDescription
from stateflow.serving.protocol import entries_of, error_of, keys_of, states_of, values_of
from stateflow.serving.registry import LIMIT, Registry, ServerLease
from stateflow.serving.steps import HttpReply, QueryOptions
from stateflow.storage import MemoryStorage, open_storage
from stateflow.storage.paths import server_key
from stateflow.types.serializers import ValueSerializer
from tests.servers.hostile import Asked, hostile_server
from tests.support.errors import raises

VALUE = ValueSerializer[int](int).encode(1)
MAP = StateDescription(
    name="m",
    operator="op",
    state="m",
    kind="map",
    value_type="int",
    key_names=["k"],
    key_types=["string"],
    map_key_type="str",
)


def _position(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


@pytest.mark.parametrize("options", [QueryOptions(exactly=6), QueryOptions(exactly=8), QueryOptions(at_least=8)])
def test_an_answer_of_another_checkpoint_than_requested_is_an_error(options: QueryOptions) -> None:
    values = msgspec.msgpack.encode(MsgpackValues(7, [VALUE]))
    page = msgspec.msgpack.encode(MsgpackPage(7, ["a"], [VALUE], ""))
    listing = msgspec.msgpack.encode(MsgpackPage(7, [["a"]], [], ""))
    request = KeysRequest(state="m", first_group=0, last_group=3)
    queries: list[Callable[[], object]] = [
        lambda: values_of(values, 1, options),
        lambda: entries_of(page, "", MAP, options),
        lambda: keys_of(listing, request, ["string"], options),
    ]
    for query in queries:
        with raises(QueryError, checkpoint_id=7):
            query()


@pytest.mark.parametrize("following", [b"\0\1a", b"\0\1", b"\0\0z", b"\0\4"])
def test_a_page_that_is_not_followed_by_a_later_one_of_the_same_key_groups_is_an_error(following: bytes) -> None:
    page = msgspec.msgpack.encode(MsgpackPage(7, [["a"]], [], _position(following)))
    request = KeysRequest(state="m", first_group=1, last_group=3, after=_position(b"\0\1a"))
    with raises(QueryError):
        keys_of(page, request, ["string"], {})


def test_a_page_with_another_number_of_keys_than_values_is_an_error() -> None:
    with raises(QueryError):
        entries_of(msgspec.msgpack.encode(MsgpackPage(7, ["a"], [], "")), "", MAP, {})
    with raises(QueryError):
        states_of(b'{"checkpoint_id":1,"max_parallelism":0,"states":[]}')


def test_facts_of_an_error_may_have_the_names_of_its_arguments() -> None:
    body = {
        "code": "unknown-key",
        "message": "m",
        "hint": "h",
        "facts": {"message": "x", "hint": "y", "self": "z", "a": "b"},
    }
    found = error_of(HttpReply(404, json.dumps(body).encode()))
    assert (type(found), found.message, found.hint, found.facts) == (UnknownKey, "m", "h", {"a": "b"})


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"url": url}
            for url in (
                "ftp://h",
                "http://",
                "http://a b",
                "http://u@h",
                "http://h/\n",
                "http://h:99999",
                f"http://{'a' * 300}",
            )
        ),
        *({"groups": groups} for groups in ([(3, 1)], [(0, 4), (4, 5)], [(-1, 2)], [(0, 1 << 15)], [(5, 6), (0, 1)])),
        {"until": "tomorrow"},
        {"id": "b" * 32},
    ],
)
def test_a_lease_that_no_server_writes_is_skipped(changes: dict[str, object]) -> None:
    intact = ServerLease(
        id="a" * 32,
        url="http://h:1",
        groups=[(0, 3), (5, 5)],
        since="2026-01-01",
        until="9999-12-31T23:59:59+00:00",
        seconds=1,
    )
    for lease, wanted in ((intact, [intact]), (msgspec.structs.replace(intact, **changes), [])):
        storage = MemoryStorage()
        storage.put_new(server_key("a" * 32, 1), seal(lease, LIMIT)[0])
        assert Registry(storage, SystemClock()).read() == wanted


def _states(job_root: str, is_async: bool) -> None:
    if not is_async:
        with QueryableStateClient(job_root, timeout=timedelta(0)) as client:
            client.states()
        return

    async def query() -> None:
        async with AsyncQueryableStateClient(job_root, timeout=timedelta(0)) as client:
            await client.states()

    asyncio.run(query())


def _registered(url: str) -> str:
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    now = SystemClock().now().isoformat()
    lease = ServerLease(id="a" * 32, url=url, groups=[(0, 3)], since=now, until=now, seconds=9)
    storage.put_new(server_key("a" * 32, 1), seal(lease, LIMIT)[0])
    return storage.uri


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("host", ["xn--a", "a" * 80])
def test_a_host_that_cannot_be_used_is_a_server_that_cannot_be_reached(host: str, is_async: bool) -> None:
    with raises(NotYetAvailable) as caught:
        _states(_registered(f"http://{host}"), is_async)
    assert caught.value.facts["reason"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", b"HTTP/1.1 200 OK\r\nx-slow: "]
)
def test_an_answer_that_does_not_end_ends_with_the_time_of_the_query(head: bytes, is_async: bool) -> None:
    ended = threading.Event()

    def drip(_: Asked) -> Iterator[bytes]:
        yield head
        while not ended.wait(0.05):
            yield b"x" if head else b""

    with hostile_server(drip) as server:
        with raises(NotYetAvailable) as caught:
            _states(_registered(f"http://{server.host}"), is_async)
        ended.set()
    assert caught.value.facts["reason"] and len(server.asked) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_that_is_too_large_is_not_read_to_its_end(is_async: bool) -> None:
    def flood(_: Asked) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n"
        while True:
            yield bytes(1 << 20)

    with hostile_server(flood) as server, raises(NotYetAvailable):
        _states(_registered(f"http://{server.host}"), is_async)
