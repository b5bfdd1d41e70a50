"""Values in Avro as columns: what is decoded, and what is rejected with which reason."""

from __future__ import annotations

import datetime
import io
import itertools
import json
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import fastavro
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import AvroFormat, DeadLetters, KafkaSource, SchemaRegistry, precision
from stateflow.api.schema import REJECTED, RowSchema
from stateflow.checkpoint.barriers import error_in_text
from stateflow.connectors.kafka import avro as client
from stateflow.connectors.kafka import formats
from stateflow.connectors.kafka.avro import AvroSchema, UnusableSchema, ValueDecoder, record_converter
from stateflow.connectors.kafka.formats import VALUE, VALUE_ERROR, _with_values
from stateflow.errors import ConfigError, JobDefinitionError, StateflowError, StorageError
from tests.servers.hostile import answer, hostile_server
from tests.servers.listening import certificate, schema_registry
from tests.servers.running import CANARY
from tests.support.avro_values import BY_HAND, PART, ROW, TYPES, Order, Pair, avro_bytes, avro_long, order_schema
from tests.support.errors import raises
from tests.support.examples import one_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = RowSchema.of(Order).columns


def _written(schema: dict[str, Any], record: Mapping[str, object]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return stream.getvalue()


def _decoded(schema: object, *values: bytes | None, row_class: type[object] = Order) -> list[tuple[Any, Any]]:
    """Rows and reasons."""
    value_format = AvroFormat(schema=json.dumps(schema))
    rows, reasons = ValueDecoder(value_format, RowSchema.of(row_class).columns).columns_of(values)
    return list(zip(rows.to_pylist(), reasons.to_pylist(), strict=True))


def test_bytes_that_are_encoded_by_hand_are_decoded_to_all_types() -> None:
    AvroFormat(schema=order_schema()).check(_COLUMNS)
    assert _decoded(order_schema(), BY_HAND, None) == [(ROW, None), (None, None)]


_RECORDS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**31), 2**31 - 1), "ratio": st.floats(width=32, allow_nan=False),
        "total": st.decimals(-(10**9), 10**9, places=2, allow_nan=False), "day": st.dates(),
        "time": st.times().map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)),
        "local": st.datetimes(), "color": st.sampled_from(["RED", "BLUE"]),
        "first": st.none() | st.fixed_dictionaries({"name": st.text(), "size": st.none()}),
        "sizes": st.dictionaries(st.text(), st.floats(allow_nan=False)), "raw": st.binary(),
    }
)  # fmt: skip


@one_in(3)
@given(_RECORDS)
def test_records_that_fastavro_writes_are_decoded_as_they_are(record: dict[str, Any]) -> None:
    whole = {**ROW, "key": uuid.UUID(int=5), "more": Decimal("1.00"), **record}
    ((row, reason),) = _decoded(order_schema(), _written(order_schema(), whole))
    assert reason is None
    expected = {**ROW, **record, "sizes": list(record["sizes"].items())}
    assert row == expected


class Text(msgspec.Struct):
    id: int
    text: str | None


_WRONG = {
    "cut": (BY_HAND[:-1], "EOFError"),
    "more": (BY_HAND + b"x", "1 bytes after its record"),
    "empty": (b"", "EOFError"),
}


@pytest.mark.parametrize("name", _WRONG)
def test_a_value_that_is_not_one_of_its_schema_is_rejected(name: str) -> None:
    value, reason = _WRONG[name]
    before, (row, found), after = _decoded(order_schema(), BY_HAND, value, BY_HAND)
    assert row is None and reason in found
    assert before == after == (ROW, None)


def test_a_value_that_a_column_cannot_have_is_rejected_with_its_path() -> None:
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3}
    either = ["null", "string", "long"]
    schema = order_schema({**TYPES, "total": wide, "parts": {"type": "array", "items": {**PART, "name": "Other"}}})
    schema = order_schema({**TYPES, "total": wide, "color": ["string", "int"], "key": either})
    good = {**ROW, "sizes": {}, "more": Decimal("1.00"), "key": str(uuid.UUID(int=5)), "total": Decimal("-1.250")}
    changes: list[dict[str, Any]] = [
        {"total": Decimal("0.001")}, {"total": Decimal(10) ** 30}, {"color": "GREEN"}, {"color": 1}, {"key": "5"},
        {"key": 5},
    ]  # fmt: skip
    found = _decoded(schema, *[_written(schema, {**good, **change}) for change in [{}, *changes]])
    assert found[0] == ({**ROW, "sizes": []}, None)
    assert [row for row, _ in found[1:]] == [None] * len(changes)
    assert [reason.split(" ")[0] for _, reason in found[1:]] == [next(iter(change)) for change in changes]


def test_digits_beyond_the_precision_of_the_schema_are_not_rounded() -> None:
    schema = order_schema({"total": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}})

    class Total(msgspec.Struct):
        total: Annotated[Decimal, precision(12, scale=2)]

    value = avro_bytes((1_234_567).to_bytes(3, "big"))
    assert _decoded(schema, value, row_class=Total) == [({"total": Decimal("12345.67")}, None)]
    # With the sign in more bytes than the number needs, as two's complement allows.
    padded = avro_bytes((-1_234_567).to_bytes(40, "big", signed=True))
    assert _decoded(schema, padded, row_class=Total) == [({"total": Decimal("-12345.67")}, None)]
    # Its conversion from base 2 to base 10 would take 20 seconds.
    (huge,) = _decoded(schema, avro_bytes(b"\x7f" * 900_000), row_class=Total)
    assert huge[0] is None and "900000" in huge[1]


class Sizes(msgspec.Struct):
    sizes: dict[str, dict[str, int]] | None
    more: dict[str, int] | None


_LONGS = {"type": "map", "values": "long"}
_SIZES = order_schema({"sizes": ["null", {"type": "map", "values": _LONGS}], "x": _LONGS, "more": _LONGS})


def _map(*blocks: dict[bytes, bytes] | list[tuple[bytes, bytes]]) -> bytes:
    """A map of Avro: blocks of entries, and an empty one."""
    found = b""
    for block in blocks:
        entries = list(block.items() if isinstance(block, dict) else block)
        found += avro_long(len(entries)) + b"".join(avro_bytes(key) + value for key, value in entries)
    return found + avro_long(0)


def test_a_key_twice_in_a_dict_is_rejected_unless_the_column_is_not_declared() -> None:
    one, two = avro_long(1), avro_long(2)
    good, twice = _map({b"a": one}, {b"b": two}), _map([(b"a", one), (b"a", one)])
    null, present = avro_long(0), avro_long(1)
    values = [
        null + twice + good, present + _map({b"x": good, b"y": good}) + good + good, null + good + twice,
        null + good + _map({b"a": one}, {b"a": two}), present + _map({b"x": good, b"y": twice}) + good + good,
        present + _map([(b"x", good), (b"x", good)]) + good + good,
    ]  # fmt: skip
    columns = RowSchema.of(Sizes).columns
    batch = pa.RecordBatch.from_pydict({"value": values})
    (found,) = _with_values(partial(ValueDecoder, AvroFormat(schema=_SIZES), columns), columns, [batch])
    assert [reason is None for reason in found.column(VALUE_ERROR).to_pylist()] == [True, True, *[False] * 4]
    read = [("a", 1), ("b", 2)]
    assert found.column(VALUE).to_pylist()[:2] == [
        {"sizes": None, "more": read},
        {"sizes": [("x", read), ("y", read)], "more": read},
    ]


def test_maps_are_converted_to_the_schema_of_the_reader_with_its_defaults() -> None:
    ints = {"type": "map", "values": "int"}
    written = AvroSchema.of(order_schema({"more": ["null", ints]}))
    fields = [{"name": "sizes", "type": {"type": "map", "values": _LONGS}, "default": {"x": {"y": 7}}}]
    reader = {**order_schema(), "fields": [*fields, {"name": "more", "type": ["null", _LONGS]}]}
    record = written.decode(avro_long(1) + _map({b"a": avro_long(1)}), AvroSchema.of(reader))
    found = record_converter(RowSchema.of(Sizes).columns)(record)
    assert found == {"sizes": [("x", [("y", 7)])], "more": [("a", 1)]}


_REFUSED: dict[str, Any] = {
    "not json": "{", "nothing": {}, "not a record": "string", "unknown type": order_schema({"id": "Other"}),
    "recursive": {**PART, "fields": [{"name": "next", "type": ["null", "Part"]}]},
    "items without bytes": order_schema({"id": {"type": "array", "items": "null"}}),
    "records without bytes": order_schema({"id": {"type": "map", "values": {**PART, "fields": []}}}),
    "deep": order_schema({"id": json.loads('{"type":"array","items":' * 40 + '"int"' + "}" * 40)}),
    "too deep to parse": '{"a":' * 5000,
}  # fmt: skip


@pytest.mark.parametrize("name", _REFUSED)
def test_a_schema_that_is_wrong_or_dangerous_is_refused(name: str) -> None:
    given = _REFUSED[name]
    with raises(JobDefinitionError):
        AvroFormat(schema=given if isinstance(given, str) else json.dumps(given))


def test_a_schema_whose_types_multiply_is_refused() -> None:
    """Each type has two of the one before it: a million parts, without a byte."""
    fields: dict[str, Any] = {"t0": {"type": "record", "name": "T0", "fields": []}}
    for n in range(1, 21):
        parts = [{"name": side, "type": f"T{n - 1}"} for side in "ab"]
        fields[f"t{n}"] = {"type": "record", "name": f"T{n}", "fields": parts}
    with raises(JobDefinitionError):
        AvroFormat(schema=json.dumps({**order_schema(fields), "namespace": ""}))


class Other(msgspec.Struct):
    id: str
    missing: int
    parts: list[int]
    first: Text | None
    lasting: datetime.timedelta | None


def test_columns_that_do_not_fit_the_schema_are_refused_before_anything_is_read() -> None:
    source = {"bootstrap_servers": "localhost:1", "schema": Other, "topics": "t"}
    schema = {**order_schema({**TYPES, "lasting": "long"})}
    with raises(JobDefinitionError) as found:
        KafkaSource(**source, value=AvroFormat(schema=schema))  # type: ignore[arg-type]
    problems: Any = found.value.facts["problems"]
    assert [text.split(" ")[0] for text in problems] == ["id", "missing", "parts[]", "first.id", "lasting"]
    with raises(JobDefinitionError):
        AvroFormat()


_RECORD = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)


@pytest.mark.spark
def test_spark_has_the_rows_of_several_writers_and_the_rejected_records(spark_session: SparkSession) -> None:
    """The wire format of Confluent, from bytes to rows of the source."""
    at = datetime.datetime(2026, 1, 1)  # noqa: DTZ001 - what Spark takes as UTC
    newer = order_schema({**{name: TYPES[name] for name in reversed(TYPES) if name not in ("more", "fixed", "parts")}})
    newer["fields"].append({"name": "parts", "type": {"type": "array", "items": ["null", "Part"]}})
    with schema_registry() as registry:
        registry.register(7, order_schema())
        registry.register(2**32 - 1, newer)
        registry.register(9, {"type": "object"}, schemaType="JSON")
        value = AvroFormat(registry=SchemaRegistry(registry.address))
        source = KafkaSource("localhost:1", schema=Order, topics="t", value=value, on_error=DeadLetters(10))
        whole = {**ROW, "sizes": {"k": 1.5}, "key": uuid.UUID(int=5)}
        values = [
            b"\0\0\0\0\7" + BY_HAND, b"\0\xff\xff\xff\xff" + _written(newer, whole), b"\0\0\0\0\x09" + BY_HAND,
            b"\0\0\0\0\x08" + BY_HAND, b"\1\0\0\0\7" + BY_HAND, b"\0\0\0", None,
        ]  # fmt: skip
        records: list[tuple[Any, ...]] = [(b"k", value, "t", 3, n, at, 0, []) for n, value in enumerate(values)]
        spark_session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        try:
            rows = source.rows(spark_session.createDataFrame(records, _RECORD)).toArrow().to_pylist()
        finally:
            spark_session.conf.set("spark.sql.session.timeZone", "UTC")
    first, second, *rejected = rows
    names = list(ROW)
    assert {name: first[name] for name in names} == {**ROW, "ratio": 0.5}
    assert {name: second[name] for name in names} == {**ROW, "fixed": None}
    assert [row[REJECTED] is None for row in rows] == [True, True, *[False] * 5]
    reasons = ["not one of Avro", "has no schema", "zero byte", "zero byte", "id is null"]
    for offset, (row, reason) in enumerate(zip(rejected, reasons, strict=True), 2):
        assert (row[REJECTED]["topic"], row[REJECTED]["partition"], row[REJECTED]["offset"]) == ("t", 3, offset)
        assert reason in row[REJECTED]["reason"]
    asked = [path for path, _ in registry.asked]
    assert sorted(set(asked)) == sorted([f"/schemas/ids/{n}" for n in (7, 2**32 - 1, 9, 8)])


# -- the client of schema registries ----------------------------------------------------------------------------------


_PAIR_COLUMNS = RowSchema.of(Pair).columns


@pytest.fixture(autouse=True)
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_RETRIES", 0)
    monkeypatch.setattr(client, "_TIMEOUT", (2, 2))


def _record(name: str, **types: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in types.items()]}


def test_a_schema_with_references_is_asked_for_once_per_process() -> None:
    with schema_registry() as server:
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
    with schema_registry() as server:
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
    with schema_registry() as server:
        server.register(1, _record("Row", old="int"))
        server.register(2, _record("Row", more="double", number="long", text="string"))
        server.register(3, _record("Row", number="string"))
        decoder = ValueDecoder(AvroFormat(reader, SchemaRegistry(server.address)), _PAIR_COLUMNS)
        values = [b"\0\0\0\0\1\x04", b"\0\0\0\0\2" + bytes(8) + b"\x06\x02a", b"\0\0\0\0\3\x02a"]
        rows, reasons = decoder.columns_of(values)
    assert rows.to_pylist() == [{"number": 2, "text": "none"}, {"number": 3, "text": "a"}, None]
    assert reasons.to_pylist()[:2] == [None, None] and "SchemaResolutionError" in reasons.to_pylist()[2]


@pytest.mark.parametrize("login", [{"username": "me", "password": CANARY}, {"token": CANARY}])
def test_the_login_is_sent_and_shown_nowhere(login: dict[str, str]) -> None:
    with schema_registry() as server:
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
    "deep": (lambda: answer(200, b"[" * 100_000), ConfigError), "login refused": (lambda: answer(401), ConfigError),
    "redirected": (lambda: answer(302, Location="http://127.0.0.1:1/stolen"), ConfigError),
    "overloaded": (lambda: answer(429), StorageError), "failed": (lambda: answer(503, CANARY.encode()), StorageError),
    "no HTTP": (lambda: b"\0" * 100, StorageError), "dropped": (lambda: b"", StorageError),
    "endless": (
        lambda: itertools.chain([_ENDLESS], itertools.repeat(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")),
        StorageError,
    ),
    "too short": (lambda: answer(200, b"{}", Content_Length=100), StorageError),
}  # fmt: skip


@pytest.mark.long(reason="starts a server for each answer")
@pytest.mark.parametrize("kind", _ANSWERS)
def test_an_answer_that_is_no_schema_ends_the_task_and_rejects_no_record(kind: str) -> None:
    given, error = _ANSWERS[kind]
    with hostile_server(lambda _: given()) as server:
        registry = SchemaRegistry(f"http://{server.host}", token=CANARY)
        with raises(error, registry=registry.url) as failed:
            ValueDecoder(AvroFormat(registry=registry), _PAIR_COLUMNS).columns_of([b"\0\0\0\0\1x"])
        assert len(server.asked) == 1
    assert CANARY not in str(failed.value)
    assert failed.value.retryable == (error is StorageError)


def test_spark_forwards_the_error_of_a_registry_that_does_not_answer() -> None:
    value_format = AvroFormat(registry=SchemaRegistry("http://127.0.0.1:1"))
    batch = pa.RecordBatch.from_pydict({"value": [b"\0\0\0\0\1x"]})
    with pytest.raises(RuntimeError) as failed:
        list(formats._with_values(partial(ValueDecoder, value_format, _PAIR_COLUMNS), _PAIR_COLUMNS, [batch]))
    assert isinstance(error_in_text(f"PythonException: {failed.value}\n\tat org.apache"), StorageError)


@pytest.mark.parametrize(
    "given",
    [
        {"url": "ftp://h"}, {"url": "registry:8081"}, {"url": f"http://me:{CANARY}@h"},
        {"url": f"http://h?token={CANARY}"}, {"url": "http://h", "username": "me"},
        {"url": "http://h", "username": "me", "password": CANARY, "token": CANARY},
        {"url": "http://h", "ca_file": "/none"},
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(given: dict[str, str]) -> None:
    with raises(JobDefinitionError) as refused:
        SchemaRegistry(**given)
    assert CANARY not in str(refused.value)


def test_a_server_without_a_trusted_certificate_gets_no_login(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    with schema_registry(tls) as server:
        server.register(1, _record("Row", number="int"))
        with raises(StorageError, reason="SSLError"):
            SchemaRegistry(server.address, token=CANARY).schema(1)
        assert server.asked == []
        trusting = SchemaRegistry(server.address, token=CANARY, ca_file=tls.ca_file, key_file=tls.key_file)
        assert trusting.schema(1).decode(b"\x02") == {"number": 1}
