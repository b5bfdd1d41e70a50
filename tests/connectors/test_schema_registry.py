"""The client of schema registries: references, logins, and servers that answer as none should."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateflow import AvroFormat, SchemaRegistry
from stateflow.api.schema import RowSchema
from stateflow.checkpoint.barriers import error_in_text
from stateflow.connectors.kafka import avro as client
from stateflow.connectors.kafka import formats
from stateflow.connectors.kafka.avro import UnusableSchema, ValueDecoder
from stateflow.errors import ConfigError, JobDefinitionError, StateflowError, StorageError
from tests.servers.certificates import certificate
from tests.servers.hostile import answer, hostile_server
from tests.servers.running import CANARY
from tests.servers.schema_registry import schema_registry as running_registry
from tests.support.avro_values import Pair
from tests.support.errors import raises

_COLUMNS = RowSchema.of(Pair).columns


@pytest.fixture(autouse=True)
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_RETRIES", 0)
    monkeypatch.setattr(client, "_TIMEOUT", (2, 2))


def _record(name: str, **types: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in types.items()]}


def test_a_schema_with_references_is_asked_for_once_per_process() -> None:
    with running_registry() as server:
        server.register_version("t/Leaf", 3, _record("shop.Leaf", id="long"))
        leaf = {"name": "shop.Leaf", "subject": "t/Leaf", "version": 3}
        server.register_version("t-Node", 1, _record("shop.Node", leaf="shop.Leaf"), references=[leaf])
        node = {"name": "shop.Node", "subject": "t-Node", "version": 1}
        server.register(5, _record("shop.Root", node="shop.Node", leaf="shop.Leaf"), references=[node, leaf])
        for _ in range(2):
            schema = SchemaRegistry(server.address + "/").schema(5)
            assert schema.decode(b"\x02\x04") == {"node": {"leaf": {"id": 1}}, "leaf": {"id": 2}}
        assert [path for path, _ in server.asked] == [
            "/schemas/ids/5",
            "/subjects/t-Node/versions/1",
            "/subjects/t/Leaf/versions/3",
        ]


def test_references_in_a_circle_end() -> None:
    with running_registry() as server:
        this = {"name": "A", "subject": "a", "version": 1}
        for name, other in (("A", "B"), ("B", "A")):
            reference = {**this, "name": other, "subject": other.lower()}
            server.register_version(name.lower(), 1, _record(name, x=other), references=[reference])
        server.register(1, _record("R", a="A"), references=[this])
        with pytest.raises(UnusableSchema):
            SchemaRegistry(server.address).schema(1)
        assert len(server.asked) < 100


def test_values_are_converted_to_the_declared_schema_by_the_rules_of_avro() -> None:
    reader = _record("Row", number="long", text="string")
    reader["fields"][0]["aliases"] = ["old"]
    reader["fields"][1]["default"] = "none"
    with running_registry() as server:
        server.register(1, _record("Row", old="int"))
        server.register(2, _record("Row", more="double", number="long", text="string"))
        server.register(3, _record("Row", number="string"))
        decoder = ValueDecoder(AvroFormat(reader, SchemaRegistry(server.address)), _COLUMNS)
        values = [b"\0\0\0\0\1\x04", b"\0\0\0\0\2" + bytes(8) + b"\x06\x02a", b"\0\0\0\0\3\x02a"]
        rows, reasons = decoder.columns_of(values)
    assert rows.to_pylist() == [{"number": 2, "text": "none"}, {"number": 3, "text": "a"}, None]
    assert reasons.to_pylist()[:2] == [None, None] and "SchemaResolutionError" in reasons.to_pylist()[2]


@pytest.mark.parametrize("login", [{"username": "me", "password": CANARY}, {"token": CANARY}])
def test_the_login_is_sent_and_shown_nowhere(login: dict[str, str]) -> None:
    with running_registry() as server:
        server.register(1, _record("Row", number="int"))
        registry = SchemaRegistry(server.address, **login)
        registry.schema(1)
        ((_, sent),) = server.asked
        assert sent == (f"Bearer {CANARY}" if "token" in login else "Basic bWU6Y2FuYXJ5LXNlY3JldC1rZXk=")
        assert CANARY not in repr(registry) + repr(AvroFormat(registry=registry))


_ENDLESS = b"HTTP/1.1 200 Any\r\nTransfer-Encoding: chunked\r\n\r\n"
_ANSWERS: dict[str, tuple[Callable[[], Any], type[StateflowError]]] = {
    "no schema registry": (lambda: answer(404, b"<h1>not found</h1>"), ConfigError),
    "another document": (lambda: answer(200, b'{"id": 1}'), ConfigError),
    "deep": (lambda: answer(200, b"[" * 100_000), ConfigError),
    "login refused": (lambda: answer(401), ConfigError),
    "redirected": (lambda: answer(302, Location="http://127.0.0.1:1/stolen"), ConfigError),
    "overloaded": (lambda: answer(429), StorageError),
    "failed": (lambda: answer(503, CANARY.encode()), StorageError),
    "no HTTP": (lambda: b"\0" * 100, StorageError),
    "dropped": (lambda: b"", StorageError),
    "endless": (
        lambda: itertools.chain([_ENDLESS], itertools.repeat(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")),
        StorageError,
    ),
    "too short": (lambda: answer(200, b"{}", Content_Length=100), StorageError),
}


@pytest.mark.parametrize("kind", _ANSWERS)
def test_an_answer_that_is_no_schema_ends_the_task_and_rejects_no_record(kind: str) -> None:
    given, error = _ANSWERS[kind]
    with hostile_server(lambda _: given()) as server:
        registry = SchemaRegistry(f"http://{server.host}", token=CANARY)
        with raises(error, registry=registry.url) as failed:
            ValueDecoder(AvroFormat(registry=registry), _COLUMNS).columns_of([b"\0\0\0\0\1x"])
        assert len(server.asked) == 1
    assert CANARY not in str(failed.value)
    assert failed.value.retryable == (error is StorageError)


def test_spark_forwards_the_error_of_a_registry_that_does_not_answer() -> None:
    value_format = AvroFormat(registry=SchemaRegistry("http://127.0.0.1:1"))
    batch = pa.RecordBatch.from_pydict({"value": [b"\0\0\0\0\1x"]})
    with pytest.raises(RuntimeError) as failed:
        list(formats._with_values(partial(ValueDecoder, value_format, _COLUMNS), _COLUMNS, [batch]))
    assert isinstance(error_in_text(f"PythonException: {failed.value}\n\tat org.apache"), StorageError)


@pytest.mark.parametrize(
    "given",
    [
        {"url": "ftp://h"},
        {"url": "registry:8081"},
        {"url": f"http://me:{CANARY}@h"},
        {"url": f"http://h?token={CANARY}"},
        {"url": "http://h", "username": "me"},
        {"url": "http://h", "username": "me", "password": CANARY, "token": CANARY},
        {"url": "http://h", "ca_file": "/none"},
    ],
)
def test_arguments_that_do_not_fit_are_refused(given: dict[str, str]) -> None:
    with raises(JobDefinitionError) as refused:
        SchemaRegistry(**given)
    assert CANARY not in str(refused.value)


def test_a_server_without_a_trusted_certificate_gets_no_login(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    with running_registry(tls) as server:
        server.register(1, _record("Row", number="int"))
        with raises(StorageError, reason="SSLError"):
            SchemaRegistry(server.address, token=CANARY).schema(1)
        assert server.asked == []
        trusting = SchemaRegistry(server.address, token=CANARY, ca_file=tls.ca_file, key_file=tls.key_file)
        assert trusting.schema(1).decode(b"\x02") == {"number": 1}
