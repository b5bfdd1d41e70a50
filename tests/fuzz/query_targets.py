"""The fuzz targets for state servers: requests, leases, and answers to a client."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec

from stateflow import errors
from stateflow.clock import ManualClock, SystemClock
from stateflow.serving.app import AppSettings, StateApp, describe
from stateflow.serving.client import FAILURES
from stateflow.serving.follower import (
    Follower,
    FollowSettings,
    OpenSubtask,
    QueryableState,
    ServedCheckpoint,
    SharedStore,
)
from stateflow.serving.lookups import MsgpackPage, MsgpackValues, ScanRequest
from stateflow.serving.protocol import QueryProtocol
from stateflow.serving.registry import Membership, Registry, ServerLease
from stateflow.serving.steps import HttpCall, HttpReply, ListingPosition, ReadLeases, Result, WaitStep
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.handles import StateSchema
from stateflow.state.schema import type_schema
from stateflow.state.stored_key import state_id
from stateflow.storage import MemoryStorage
from stateflow.storage.paths import server_key
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import ValueSerializer
from tests.fuzz.mutations import changed_bytes, changed_document, changed_json, sealed
from tests.fuzz.target import Target

_GROUPS = KeyGroupRange(0, 15)
_TYPES = ("string", "bigint", "decimal(10,2)", "timestamp")
_NAMES = ("shop", "day", "price", "at")
_KEY = ["north", 1, "1.50", "2026-01-01T00:00:00Z"]
_STATES = {
    name: QueryableState(
        "op",
        StateSchema(name=name, kind=kind, value_type="int", type=type_schema(int), key_type=key_type),
        _NAMES,
        _TYPES,
        0,
    )
    for name, kind, key_type in (("values", "value", ""), ("maps", "map", "str"))
}
_LEASE = ServerLease(
    id="a" * 32,
    url="http://127.0.0.1:1",
    groups=[(0, 15)],
    since="2026-01-01T00:00:00+00:00",
    until="2099-01-01T00:00:00+00:00",
    seconds=10.0,
)
_REQUESTS = [
    ("get", {"state": "values", "keys": [_KEY, ["", -1, 0, "1969-12-31T23:59:59.5+05:00"]], "exactly": 7}),
    ("get", {"state": "maps", "keys": [_KEY, _KEY], "map_keys": ["a", "b"], "namespace": None}),
    ("scan", {"state": "maps", "key": _KEY, "prefix": "a", "limit": 2, "at_least": 1}),
    ("scan", {"state": "maps", "key": _KEY, "after": base64.urlsafe_b64encode(b"\x02a\0").decode()}),
    ("keys", {"state": "values", "first_group": 0, "last_group": 15, "limit": 2}),
    ("keys", {"state": "maps", "after": base64.urlsafe_b64encode(b"\0\1abcd\x02a").decode()}),
]


def _checkpoint() -> ServedCheckpoint:
    values: ValueSerializer[int] = ValueSerializer(int)
    entries = {}
    for number in range(40):
        key = encode_key((f"n{number}", number, Decimal("1.50"), datetime(2026, 1, 1, tzinfo=UTC)))
        group = (number % 16).to_bytes(2)
        entries[group + state_id("values") + key + b"\0"] = values.encode(number)
        entries[group + state_id("maps") + key + b"\0" + encode_key(("a",))] = values.encode(number)
    subtask = OpenSubtask("one", _GROUPS, SharedStore(DictBackend(entries)))
    return ServedCheckpoint(7, 16, _STATES, {"op": [subtask]}, [_GROUPS])


class _Served(Follower):
    """A follower with one checkpoint, whatever a request does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(MemoryStorage(), folder / "served", SystemClock(), FollowSettings())
        self._open.append(_checkpoint())


@contextmanager
def query_request(folder: Path) -> Iterator[Target]:
    """Sends changed requests to the ASGI application."""
    app = StateApp(_Served(folder), AppSettings(token="token")).asgi()
    bodies = [json.dumps(body).encode() for _, body in _REQUESTS]

    def mutate(rng: random.Random) -> tuple[str, bytes, bytes]:
        path, body = rng.choice(_REQUESTS)
        token = b"Bearer token" if rng.random() < 0.95 else changed_bytes(rng, b"Bearer token", [b"token"])
        return path, changed_json(rng, json.dumps(body).encode(), bodies), token

    def ask(request: tuple[str, bytes, bytes]) -> None:
        status, answer = asyncio.run(_answer(app, *request))
        if status == 200:
            assert json.loads(answer)["checkpoint_id"] == 7
            return
        found = json.loads(answer)
        assert 400 <= status < 500 or (status, found["code"]) == (503, "not-yet-available"), answer
        kind = next(k for k in vars(errors).values() if getattr(k, "code", "") == found["code"])
        raise kind(found["message"])

    yield Target(mutate, ask)


async def _answer(app: Any, path: str, body: bytes, token: bytes) -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []
    scope = {"type": "http", "method": "POST", "path": f"/v1/{path}", "query_string": b"", "root_path": ""}
    headers = [(b"authorization", token)]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({**scope, "headers": headers, "http_version": "1.1", "scheme": "http"}, receive, send)
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:])


@contextmanager
def server_lease(folder: Path) -> Iterator[Target]:
    """Reads changed leases: a damaged one is skipped, and never reaches a client with another scheme than HTTP."""
    storage, key = MemoryStorage(), server_key(_LEASE.id, 1)
    intact = sealed(msgspec.json.encode(_LEASE))
    urls = [
        "http://h",
        "https://[::1]:1/a/",
        "http://xn--a",
        f"http://{'a' * 99}",
        "http://h:99999",
        "http://a..b",
        "ftp://x",
    ]

    def mutate(rng: random.Random) -> bytes:
        if rng.random() < 0.1:
            url = changed_bytes(rng, rng.choice(urls).encode(), [b"://@:/"]).decode("latin-1")
            return sealed(msgspec.json.encode(msgspec.structs.replace(_LEASE, url=url)))
        return changed_document(rng, intact, [intact])

    def read(data: bytes) -> None:
        storage.delete([key])
        storage.put_new(key, data)
        registry = Registry(storage, ManualClock())
        found = registry.read()
        registry.remove_ended()
        # A server divides the key groups, and a client connects.
        membership = Membership(storage, follower, ManualClock(), "http://h", timedelta(seconds=1))
        membership.groups([_GROUPS], 64)
        for lease in found:
            assert lease.url.startswith(("http://", "https://")) and sum(map(len, lease.ranges)) <= 1 << 15
            with contextlib.suppress(*FAILURES):
                client.build_request("GET", f"{lease.url}/v1/states")
        if not found:
            raise errors.CorruptFile("skipped")

    follower = _Served(folder)
    with httpx.Client() as client:
        yield Target(mutate, read)


@contextmanager
def server_answer(_: Path) -> Iterator[Target]:
    """Gives changed answers to a client."""
    checkpoint = _checkpoint()
    known = msgspec.json.encode(describe(checkpoint))
    values: ValueSerializer[int] = ValueSerializer(int)
    value, following = values.encode(7), base64.urlsafe_b64encode(b"\0\1x").decode()
    answers = [
        msgspec.msgpack.encode(MsgpackValues(7, [value, None])),
        msgspec.msgpack.encode(MsgpackPage(7, [_KEY], [], following)),
        msgspec.msgpack.encode(MsgpackPage(7, ["a", "b"], [value, value], following)),
    ]
    error = {"code": "unknown-key", "message": "m", "hint": "h", "facts": {"hint": "x", "message": "y", "self": "z"}}
    failed = json.dumps(error).encode()

    def mutate(rng: random.Random) -> tuple[bytes, bytes, int]:
        status = 200 if rng.random() < 0.8 else rng.choice([0, 400, 404, 422, 500, 503])
        described = changed_json(rng, known, [known]) if rng.random() < 0.3 else known
        is_error = status != 200 and rng.random() < 0.8
        body = changed_json(rng, failed, [failed]) if is_error else changed_bytes(rng, rng.choice(answers), answers)
        return described, body, status

    def read(answer: tuple[bytes, bytes, int]) -> None:
        described, body, status = answer
        accepted = 0
        for query in _queries(QueryProtocol(ManualClock(), timedelta(0))):
            # All of them, though most answers are not for most.
            with contextlib.suppress(errors.StateflowError):
                _run(query, described, HttpReply(status, body))
                accepted += 1
        if not accepted:
            raise errors.QueryError("refused")

    yield Target(mutate, read)


def _queries(protocol: QueryProtocol) -> Iterator[Any]:
    page = ScanRequest(state="maps", key=[], after="AA==")
    yield protocol.get_many("values", [_KEY, _KEY], None, {})
    yield protocol.get_many("values", [_KEY, _KEY], None, {"value_type": int, "exactly": 7})
    yield protocol.scan_page("maps", _KEY, page, {"at_least": 7})
    yield protocol.keys_page("values", ListingPosition(), 2, {})


def _run(steps: Any, described: bytes, reply: HttpReply) -> None:
    result: Result = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration:
            return
        if isinstance(step, ReadLeases):
            result = [_LEASE]
        elif isinstance(step, WaitStep):
            result = None
        else:
            result = [HttpReply(200, described) if _is_description(call) else reply for call in step]


def _is_description(call: HttpCall) -> bool:
    return call.body is None
