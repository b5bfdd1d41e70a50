"""A state server and its clients over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import pyarrow as pa
import pytest
import uvicorn
from uvicorn.server import ServerState

from stateflow.checkpoint.log.manifest_files import seal
from stateflow.clock import SystemClock
from stateflow.errors import (
    CheckpointNotServed,
    ConfigError,
    NotYetAvailable,
    QueryError,
    QueryTooLarge,
    Unauthorized,
    UnknownJob,
    UnknownKey,
    UnknownState,
    WrongKeyType,
)
from stateflow.serving import client as client_module
from stateflow.serving import lookups
from stateflow.serving.app import AppSettings, StateApp
from stateflow.serving.client import AsyncQueryableStateClient, QueryableStateClient
from stateflow.serving.connections import LARGEST_HEAD, SECONDS, BoundedProtocol, Phase
from stateflow.serving.follower import Follower, FollowSettings
from stateflow.serving.lookups import KeysRequest, MsgpackPage, MsgpackValues, StateDescription
from stateflow.serving.protocol import entries_of, error_of, keys_of, states_of, values_of
from stateflow.serving.registry import LIMIT, Registration, Registry, ServerLease
from stateflow.serving.server import ServerSettings, StateServer, uvicorn_config
from stateflow.serving.steps import HttpReply, QueryOptions
from stateflow.storage import MemoryStorage, open_storage
from stateflow.storage.paths import server_key
from stateflow.types.serializers import ValueSerializer
from tests.servers.hostile import Asked, hostile_server
from tests.servers.listening import Certificate, certificate
from tests.serving.shops_job import TOKEN, ShopsJob, Total, serving
from tests.support.errors import raises

AT_ONCE = timedelta(0)
POST = b"POST /v1/get HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
GET = b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> ShopsJob:
    jobs = ShopsJob(tmp_path_factory.mktemp("job"))
    jobs.sell(60)
    return jobs


@pytest.fixture(scope="module")
def server(jobs: ShopsJob) -> Iterator[StateServer]:
    with serving(jobs.root) as server:
        with QueryableStateClient(jobs.root, token=TOKEN) as client:
            client.states()
        yield server


@pytest.fixture
def client(jobs: ShopsJob, server: StateServer) -> Iterator[QueryableStateClient]:
    with QueryableStateClient(jobs.root, token=TOKEN) as client:
        yield client


def test_a_client_gets_values_of_the_stated_checkpoint(jobs: ShopsJob, client: QueryableStateClient) -> None:
    ((newest, wanted),) = jobs.expected.items()
    for key, total in wanted.totals.items():
        found = client.get("totals", key, value_type=Total)
        assert (found.checkpoint_id, found.value) == (newest, total)
        assert {e.key: e.value for e in client.scan("sold-items", key)} == wanted.items.get(key, {})
    keys = [*wanted.totals, ("nowhere", 1)]
    many = client.get_many("largest", keys, exactly=newest)
    assert [r.value for r in many] == [wanted.largest.get(key) for key in keys]
    assert [r.found for r in many] == [True] * len(wanted.totals) + [False]
    assert {e.key for e in client.keys("totals")} == set(wanted.totals)
    assert [(s.name, s.kind, s.key_types) for s in client.states()] == [
        ("largest", "reducing", ["string", "bigint"]),
        ("sold-items", "map", ["string", "bigint"]),
        ("totals", "value", ["string", "bigint"]),
    ]


def test_the_asynchronous_client_gets_the_same(jobs: ShopsJob, server: StateServer) -> None:
    ((newest, wanted),) = jobs.expected.items()

    async def query() -> None:
        async with AsyncQueryableStateClient(jobs.root, token=TOKEN) as client:
            key, total = next(iter(wanted.totals.items()))
            found = await asyncio.gather(*(client.get("totals", key, value_type=Total) for _ in range(20)))
            assert all((f.checkpoint_id, f.value) == (newest, total) for f in found)
            assert {e.key async for e in client.keys("totals")} == set(wanted.totals)
            items = {e.key: e.value async for e in client.scan("sold-items", key, "te")}
            assert items == {i: a for i, a in wanted.items.get(key, {}).items() if i.startswith("te")}
            assert len(await client.states()) == 3

    asyncio.run(query())


def test_each_failure_is_an_error_of_its_own(jobs: ShopsJob, server: StateServer, tmp_path: Path) -> None:
    ((newest, wanted),) = jobs.expected.items()
    key = next(iter(wanted.totals))
    with QueryableStateClient(jobs.root, token=TOKEN, timeout=AT_ONCE) as client:
        with raises(UnknownKey, name="totals", checkpoint_id=newest):
            client.get("totals", ("nowhere", 1))
        with raises(UnknownKey, map_key="'nothing'"):
            client.get("sold-items", key, "nothing")
        with raises(UnknownState, name="secret", found=["largest", "sold-items", "totals"]):
            client.get("secret", key)
        for wrong in ("north", ("north", "1"), ("north", 1.0), (1, 1), ("north", 1, 1)):
            with raises(WrongKeyType):
                client.get("totals", wrong)
        for name, map_key in (("totals", "tea"), ("sold-items", None), ("sold-items", 1)):
            with raises(WrongKeyType):
                client.get(name, key, map_key)
        with raises(WrongKeyType):
            list(client.scan("totals", key))
        with raises(NotYetAvailable):
            client.get("totals", key, at_least=newest + 1)
        with raises(NotYetAvailable):
            client.get("totals", key, exactly=newest + 1)
        with raises(CheckpointNotServed, wanted_checkpoint_id=str(newest - 1)):
            client.get("totals", key, exactly=newest - 1)
        large = [("x" * 3_000, day) for day in range(1_000)]
        # Several requests: one would exceed the limit.
        assert not any(result.found for result in client.get_many("totals", large))
        with raises(QueryTooLarge, limit_bytes=1 << 20):
            client.get("totals", ("x" * (1 << 20), 1))
    for token in ("", "wrong", f"{TOKEN}x"):
        with QueryableStateClient(jobs.root, token=token, timeout=AT_ONCE) as client, raises(Unauthorized):
            client.get("totals", key)
    with QueryableStateClient(str(tmp_path / "none"), timeout=AT_ONCE) as client, raises(UnknownJob):
        client.get("totals", key)


def test_queries_in_json_need_no_client(jobs: ShopsJob, server: StateServer) -> None:
    ((newest, wanted),) = jobs.expected.items()
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {TOKEN}"}) as http:
        keys = [[shop, day] for shop, day in wanted.totals]
        answer = http.post("/v1/get", json={"state": "totals", "keys": [*keys, ["nowhere", 1]]}).json()
        values = [{"found": True, "value": {"count": t.count, "amount": t.amount}} for t in wanted.totals.values()]
        assert answer == {"checkpoint_id": newest, "values": [*values, {"found": False}]}
        key = max(wanted.items, key=lambda k: len(wanted.items[k]))
        scanned = http.post("/v1/scan", json={"state": "sold-items", "key": list(key), "limit": 100}).json()
        assert {e["key"]: e["value"] for e in scanned["entries"]} == wanted.items[key]
        listed = http.post("/v1/keys", json={"state": "totals"}).json()
        assert sorted(map(tuple, listed["keys"])) == sorted(wanted.totals) and not listed["next"]
        metrics = http.get("/metrics").text
        assert f"stateflow_server_checkpoint_id {newest}" in metrics.splitlines()
        http.headers["accept"] = "application/vnd.apache.arrow.stream"
        body = http.post("/v1/get", json={"state": "totals", "keys": [["nowhere", 1], *keys]}).content
        with pa.ipc.open_stream(body) as stream:
            assert (stream.schema.metadata or {})[b"checkpoint_id"] == str(newest).encode()
            read = stream.read_all().to_pydict()
        assert read == {"found": [False, *[True] * len(keys)], "value": [None, *(v["value"] for v in values)]}
        with pa.ipc.open_stream(
            http.post("/v1/scan", json={"state": "sold-items", "key": list(key)}).content
        ) as stream:
            entries = stream.read_all().to_pylist()
            assert {e["map_key"]: e["value"] for e in entries} == wanted.items[key]
        with pa.ipc.open_stream(http.post("/v1/keys", json={"state": "totals"}).content) as stream:
            assert {(row["shop"], row["day"]) for row in stream.read_all().to_pylist()} == set(wanted.totals)
    assert httpx.get(f"{server.url}/v1/health").json() == {"status": "ok", "checkpoint_id": newest}


def test_hostile_requests_are_refused(jobs: ShopsJob, server: StateServer) -> None:
    good = {"state": "totals", "keys": [["north", 1]]}
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {TOKEN}"}) as http:
        bodies = [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"state":"totals","keys":[[[]]]}', b"null"]
        bodies += [b'{"state":"totals","keys":' + b"[" * 5_000 + b"]" * 5_000 + b"}"]
        assert {http.post("/v1/get", content=body).status_code for body in bodies} == {422}
        changes: list[dict[str, object]] = [{"state": ""}, {"state": "x" * 101}, {"keys": [[]]}, {"other": 1}]
        changes += [{"at_least": 0}, {"exactly": -1}, {"exactly": 1 << 64}, {"map_keys": ["tea"]}]
        changes += [
            {"keys": [["north", 1]] * 10_001},
            {"keys": [["\ud800".encode("utf-8", "surrogatepass").hex(), 1.5]]},
        ]
        assert {http.post("/v1/get", json=good | change).status_code for change in changes} == {422}
        assert http.post("/v1/get", content=b'{"state":"totals","keys":[["\\ud800",1]]}').status_code == 422
        assert http.post("/v1/get", json=good | {"keys": [["x" * (1 << 20), 1]]}).status_code == 413
        for after in ("!", "é", "AA", "_" * 1000):
            assert http.post("/v1/keys", json={"state": "totals", "after": after}).status_code in (200, 422)
        paths = ("/", "/v1/get/../../etc/passwd", "/v1/get%2f..", "//v1/get", "/v1/states/../health/x")
        assert {http.get(path).status_code for path in paths} <= {404, 405}
        assert http.get("/v1/get").status_code == 405
    for header in ("", "Bearer", f"bearer {TOKEN}", f"Basic {TOKEN}", "Bearer e"):
        for path in ("/v1/states", "/metrics"):
            assert httpx.get(f"{server.url}{path}", headers={"authorization": header}).status_code == 401


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /v1/get HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: 9\r\n\r\n{", b"400"),
        (b"POST /v1/get HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n", b""),
        (b"GET /v1/states HTTP/1.1\r\nx-%b: " + b"x" * LARGEST_HEAD, b""),
        (b"\0%b", b"400"),
        # A body that never comes keeps no connection, whether or not the endpoint reads it.
        (b"POST /v1/get HTTP/1.1\r\nhost: x%b\r\ncontent-length: 1000000\r\n\r\n", b"401"),
        (b"POST /nowhere HTTP/1.1\r\nhost: x%b\r\ncontent-length: 1000000\r\n\r\n", b"404"),
        (b"PUT /v1/get HTTP/1.1\r\nhost: x%b\r\ntransfer-encoding: chunked\r\n\r\n1\r\n", b"405"),
        (b"GET /v1/get/ HTTP/1.1\r\nhost: evil.example\r\nx: %b\r\ncontent-length: 9\r\n\r\n", b"404"),
        # Trailers without an end.
        (CHUNKED + b"0\r\nx: y\r\n", b"400"),
        # A second request before the answer to the first one.
        (b"POST /v1/get HTTP/1.1\r\nhost: x%b\r\ncontent-length: 0\r\n\r\n" + GET, b"400"),
    ],
)
def test_a_slow_or_endless_request_ends(
    jobs: ShopsJob, monkeypatch: pytest.MonkeyPatch, sent: bytes, status: bytes
) -> None:
    monkeypatch.setitem(SECONDS, Phase.HEAD, 0.05)
    monkeypatch.setitem(SECONDS, Phase.BODY, 2)
    with serving(jobs.root, app={"read_seconds": 0.05}) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as raw:
            received = b""
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                raw.sendall(sent % TOKEN.encode())
                while piece := raw.recv(1 << 16):
                    received += piece
    assert received.split(b" ")[1:2] == ([status] if status else [])


def test_trailers_without_an_end_are_not_read(jobs: ShopsJob) -> None:
    with serving(jobs.root) as server:
        address = urlsplit(server.url)
        trailers = b"x: y\r\n" * 1_000_000
        with socket.create_connection((address.hostname, address.port), timeout=10) as raw:
            raw.sendall(CHUNKED % TOKEN.encode() + b"0\r\n")
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                while True:
                    raw.sendall(trailers)


def test_connections_that_send_nothing_do_not_keep_others_out(jobs: ShopsJob) -> None:
    with serving(jobs.root, connections=4) as server, contextlib.ExitStack() as silent:
        address = urlsplit(server.url)
        for sent in (b"", b"GET", b"POST /v1/get HTTP/1.1\r\n", b"") * 4:
            raw = silent.enter_context(socket.create_connection((address.hostname, address.port), timeout=10))
            raw.sendall(sent)
        with QueryableStateClient(jobs.root, token=TOKEN) as client:
            assert client.states()


class StuckTransport(asyncio.Transport):
    """A connection whose client reads nothing."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.aborted = asyncio.Event()
        self.protocol: BoundedProtocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.protocol.pause_writing()

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@pytest.mark.parametrize("request_bytes", [GET, b"POST /v1/get HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nxx"])
def test_an_answer_that_is_not_read_ends_the_connection(
    jobs: ShopsJob, server: StateServer, monkeypatch: pytest.MonkeyPatch, request_bytes: bytes
) -> None:
    monkeypatch.setitem(SECONDS, Phase.ANSWER, 0.05)
    monkeypatch.setitem(SECONDS, Phase.BODY, 0.05)

    async def serve() -> None:
        config = uvicorn_config(server.follower, ServerSettings())
        config.load()
        transport = StuckTransport()
        protocol = transport.protocol = BoundedProtocol(config, ServerState(), {})
        protocol.connection_made(transport)
        protocol.data_received(request_bytes)
        await asyncio.wait_for(transport.aborted.wait(), 10)
        protocol.connection_lost(None)

    asyncio.run(serve())


def test_a_server_without_a_token_listens_at_loopback_only(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.com"):
        with raises(ConfigError, host=host):
            StateServer(str(tmp_path), ServerSettings(host=host))
    for token in ("a b", "a\n", "é", "x" * 5000):
        with raises(ConfigError):
            with serving(str(tmp_path), token):
                pass


def test_a_server_may_start_before_the_job_and_leaves_no_lease(tmp_path: Path) -> None:
    jobs = ShopsJob(tmp_path)
    with serving(jobs.root, "") as server:
        with QueryableStateClient(jobs.root, timeout=AT_ONCE) as client, raises(UnknownJob):
            client.states()
        assert httpx.get(f"{server.url}/v1/health").status_code == 503
        first = jobs.sell()
        key = next(iter(jobs.expected[first].totals))
        with QueryableStateClient(jobs.root) as client:
            assert client.get("totals", key, at_least=first).checkpoint_id == first
            second = jobs.sell()
            assert client.get("totals", key, at_least=second).checkpoint_id == second
            assert client.get("totals", key, exactly=first).checkpoint_id == first
        assert jobs.storage.list("servers/")
    assert not jobs.storage.list("servers/")


# -- bounds of answers, and connections -------------------------------------------------------------------------------


@pytest.mark.long(reason="asks again and again for fewer keys")
def test_a_client_asks_for_fewer_keys_if_an_answer_would_be_too_large(
    jobs: ShopsJob, server: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, wanted),) = jobs.expected.items()
    monkeypatch.setattr(lookups, "LARGEST_ANSWER", 50)
    with QueryableStateClient(jobs.root, token=TOKEN) as client:
        found = client.get_many("totals", list(wanted.totals), value_type=Total)
        assert [result.value for result in found] == list(wanted.totals.values())
        assert {entry.key for entry in client.keys("totals")} == set(wanted.totals)
        for key, items in wanted.items.items():
            assert {entry.key: entry.value for entry in client.scan("sold-items", key)} == items


def test_one_value_that_is_too_large_is_an_error(
    jobs: ShopsJob, server: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, wanted),) = jobs.expected.items()
    monkeypatch.setattr(lookups, "LARGEST_ANSWER", 1)
    key = max(wanted.items, key=lambda each: len(wanted.items[each]))
    with QueryableStateClient(jobs.root, token=TOKEN) as client:
        with raises(QueryTooLarge, limit_bytes="1"):
            client.get_many("totals", list(wanted.totals))
        with raises(QueryTooLarge, limit_bytes="1"):
            list(client.scan("sold-items", key))


def test_copies_of_a_key_count_each_time(jobs: ShopsJob, server: StateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, wanted),) = jobs.expected.items()
    key, total = next(iter(wanted.totals.items()))
    with QueryableStateClient(jobs.root, token=TOKEN) as client:
        found = client.get_many("totals", [key, ("none", 0), key] * 300, value_type=Total)
        assert [result.value for result in found] == [total, None, total] * 300
        monkeypatch.setattr(lookups, "LARGEST_ANSWER", 50)
        assert [result.value for result in client.get_many("totals", [key] * 9, value_type=Total)] == [total] * 9


def test_queries_of_a_client_use_one_connection(
    jobs: ShopsJob, server: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
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
from stateflow.serving import client as client_module
from stateflow.serving import lookups
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


def test_a_process_that_was_forked_makes_connections_of_its_own(jobs: ShopsJob, server: StateServer) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKED, jobs.root, TOKEN]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_queries_of_a_closed_client_are_errors_and_none_hangs(
    jobs: ShopsJob, server: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# -- clients of a server whose proxy authenticates them by certificates -----------------------------------------------


@pytest.fixture
def trusted(tmp_path: Path) -> Certificate:
    return certificate(tmp_path)


@pytest.fixture
def certified_jobs(tmp_path: Path, trusted: Certificate) -> Iterator[ShopsJob]:
    jobs = ShopsJob(tmp_path)
    jobs.sell(20)
    follower = Follower(jobs.storage, tmp_path / "server", SystemClock(), FollowSettings())
    assert follower.poll()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            StateApp(follower, AppSettings()).asgi(), log_config=None, lifespan="off", ssl_certfile=trusted.key_file,
            ssl_keyfile=str(trusted.key_file), ssl_ca_certs=str(trusted.ca_file), ssl_cert_reqs=ssl.CERT_REQUIRED,
        )  # fmt: skip
        server = uvicorn.Server(config)
        url = f"https://localhost:{listener.getsockname()[1]}"
        Registration(jobs.storage, SystemClock(), url, timedelta(hours=1)).renew(follower.groups)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield jobs
        server.should_exit = True
        thread.join()
    follower.close()


def test_only_a_client_with_a_certificate_gets_answers(certified_jobs: ShopsJob, trusted: Certificate) -> None:
    ((newest, wanted),) = certified_jobs.expected.items()
    tls = ssl.create_default_context(cafile=trusted.ca_file)
    without = ssl.create_default_context(cafile=trusted.ca_file)
    tls.load_cert_chain(trusted.key_file)
    with QueryableStateClient(certified_jobs.root, tls=tls) as client:
        found = client.get_many("totals", list(wanted.totals), value_type=Total)
    assert [(r.checkpoint_id, r.value) for r in found] == [(newest, total) for total in wanted.totals.values()]

    async def query() -> None:
        async with AsyncQueryableStateClient(certified_jobs.root, tls=tls) as client:
            assert len(await client.states()) == 3

    asyncio.run(query())
    for refused in (without, None):
        with (
            QueryableStateClient(certified_jobs.root, tls=refused, timeout=timedelta(0)) as client,
            raises(NotYetAvailable),
        ):
            client.states()


# -- answers that are wrong -------------------------------------------------------------------------------------------

VALUE = ValueSerializer[int](int).encode(1)
MAP = StateDescription(
    name="m", operator="op", state="m", kind="map", value_type="int", key_names=["k"], key_types=["string"],
    map_key_type="str",
)  # fmt: skip


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
                "ftp://h", "http://", "http://a b", "http://u@h", "http://h/\n", "http://h:99999",
                f"http://{'a' * 300}",
            )
        ),
        *({"groups": groups} for groups in ([(3, 1)], [(0, 4), (4, 5)], [(-1, 2)], [(0, 1 << 15)], [(5, 6), (0, 1)])),
        {"until": "tomorrow"},
        {"id": "b" * 32},
    ],
)  # fmt: skip
def test_a_lease_that_no_server_writes_is_skipped(changes: dict[str, object]) -> None:
    intact = ServerLease(
        id="a" * 32, url="http://h:1", groups=[(0, 3), (5, 5)], since="2026-01-01", until="9999-12-31T23:59:59+00:00",
        seconds=1,
    )  # fmt: skip
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
