"""Records of Kafka as rows, and rows as records: decoding, encoding and rejection, without a broker."""

from __future__ import annotations

import base64
import enum
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import DeadLetters, Json, KafkaHeader, KafkaSecurity, KafkaSource, RowKind, precision
from stateflow.api.changelog import Changelog
from stateflow.api.schema import REJECTED, RowSchema, parse_rejection
from stateflow.api.sink import SinkContext
from stateflow.connectors.kafka.client import KafkaClient, Partition, format_offsets, parse_offsets
from stateflow.connectors.kafka.formats import KafkaRecord, RecordLayout
from stateflow.connectors.kafka.sink import KafkaSink
from stateflow.errors import ConfigError, DataError, JobDefinitionError, StorageError
from stateflow.runtime.task.row_conversion import to_batch
from tests.servers.running import CANARY
from tests.support.errors import raises

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


_RECORD = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
_AT = datetime(2026, 1, 1)  # noqa: DTZ001 - what a column without a time zone contains
Value = bytes | None


class Item(msgspec.Struct):
    name: str
    size: int | None


class Order(msgspec.Struct, kw_only=True):
    id: int
    first: Item | None
    items: list[Item]
    sizes: dict[str, int]
    note: str | None


def _rows(spark: SparkSession, source: KafkaSource, values: Sequence[Value], key: Value = None) -> list[Row]:
    records: list[tuple[Any, ...]] = [(key, value, "t", 3, n, _AT, 0, []) for n, value in enumerate(values)]
    return source.rows(spark.createDataFrame(records, _RECORD)).collect()


def _source(row_class: type[object], **more: Any) -> KafkaSource:
    return KafkaSource("localhost:1", schema=row_class, topics="t", **more)


_GOOD: dict[str, Any] = {"id": 1, "first": None, "items": [], "sizes": {}, "note": None}
_REASONS: list[tuple[dict[str, Any], str]] = [
    ({"id": None}, "id is null"),
    ({"first": {"name": None}}, "first.name is null"),
    ({"items": [{"name": "a"}, {"size": 1}]}, "items[].name is null"),
    ({"items": [None]}, "items[] is null"),
    ({"sizes": {"a": 1, "b": None}}, "sizes[] is null"),
    ({"sizes": {"a": "x"}}, "not a JSON object of the declared columns"),
    ({"id": 1 << 70}, "not a JSON object of the declared columns"),
    ({"id": 1.5}, "not a JSON object of the declared columns"),
    ({"id": "1"}, "not a JSON object of the declared columns"),
    ({"note": "\ud800"}, "not a JSON object of the declared columns"),
]


@pytest.mark.spark
def test_a_value_with_a_null_where_none_may_be_is_rejected_with_its_path(spark_session: SparkSession) -> None:
    source = _source(Order, on_error=DeadLetters(10))
    values = [json.dumps({**_GOOD, **change}).encode() for change, _ in _REASONS]
    good: list[dict[str, Any]] = [
        {},
        {"note": "x", "first": {"name": "a"}},
        {"items": [{"name": "b", "size": 2}], "more": 1},
    ]
    values += [json.dumps({**_GOOD, **change}).encode() for change in good]
    rows = _rows(spark_session, source, values)
    joined = json.dumps(_GOOD).encode()
    (two, trailing, *others) = _rows(
        spark_session,
        source,
        [joined + joined, joined + b" x", joined[:-1] + b', "id": 1}', b'{"note": "\xff"}', b"[]", b"", b"null"],
    )
    assert all("not a JSON object of the declared columns" in row[REJECTED].reason for row in others)
    assert "more after its first" in two[REJECTED].reason and "more after its first" in trailing[REJECTED].reason
    for row, value, (_, reason) in zip(rows, values, _REASONS, strict=False):
        rejected = row[REJECTED]
        assert (rejected.topic, rejected.partition, rejected.value) == ("t", 3, value.decode())
        assert reason in rejected.reason
    assert [row[REJECTED] for row in rows[len(_REASONS) :]] == [None] * len(good)
    assert rows[-1]["items"][0].asDict() == {"name": "b", "size": 2}


class Colour(enum.Enum):
    RED = "red"


class Typed(msgspec.Struct, kw_only=True):
    id: uuid.UUID
    colours: list[Colour]
    number: Annotated[int, msgspec.Meta(ge=0)] | None


@pytest.mark.spark
def test_a_value_that_is_not_of_its_declared_type_is_rejected_with_its_path(spark_session: SparkSession) -> None:
    good = {"id": str(uuid.UUID(int=7)), "colours": ["red"], "number": None}
    changes: list[dict[str, Any]] = [
        {"id": "x"},
        {"colours": ["red", "pink"]},
        {"number": -1},
        {"number": -1, "id": None},
    ]
    values = [json.dumps({**good, **change}).encode() for change in ({}, *changes, {})]
    rows = _rows(spark_session, _source(Typed, on_error=DeadLetters(10)), [*values, None])
    rejected = {row[REJECTED]["offset"]: row[REJECTED]["reason"] for row in rows if row[REJECTED]}
    assert sorted(rejected) == [1, 2, 3, 4, 6]
    for offset, path in ((1, "id"), (2, "colours[]"), (3, "number"), (4, "number")):
        assert f"declared type: {path}: " in rejected[offset]


@pytest.mark.spark
def test_without_dead_letters_the_first_such_value_fails_the_frame(spark_session: SparkSession) -> None:
    values = [json.dumps(_GOOD).encode(), b'{"id": "' + b"x" * 2000 + b'"}']
    with pytest.raises(Exception) as failed:
        _rows(spark_session, _source(Order), values)
    error = parse_rejection(str(failed.value))
    assert error is not None
    assert (error.facts["topic"], error.facts["partition"], error.facts["offset"]) == ("t", 3, 1)
    assert len(str(error.facts["value"])) == 500


@pytest.mark.spark
def test_each_record_is_decoded_once(spark_session: SparkSession) -> None:
    frame = _source(Order).rows(spark_session.createDataFrame([], _RECORD))
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("MapInArrow") == 1, plan


class Text(msgspec.Struct):
    text: str | None
    key: str | None


@pytest.mark.spark
def test_raw_values_are_not_decoded(spark_session: SparkSession) -> None:
    source = _source(Text, value="raw", metadata={"key": "key"}, on_error=DeadLetters(10))
    rows = _rows(spark_session, source, [b"{", b"", None, b"\xff"], key=b"k")
    assert [(row.text, row.key) for row in rows[:3]] == [("{", "k"), ("", "k"), (None, "k")]
    assert [row[REJECTED] is None for row in rows] == [True, True, True, False]
    assert (rows[3][REJECTED].value, rows[3][REJECTED].reason) == ("base64:/w==", "the value is not UTF-8")
    (long,) = _rows(spark_session, source, [b"\xff" * 100], key=b"k")
    assert base64.b64decode(long[REJECTED].value.removeprefix("base64:"), validate=True) == b"\xff" * 100
    (wrong_key,) = _rows(spark_session, source, [b"a"], key=b"\xff")
    assert wrong_key[REJECTED].reason == "the key is not UTF-8"


class Timed(msgspec.Struct):
    id: int
    zoned: Annotated[datetime, msgspec.Meta(tz=True)]
    naive: datetime
    millis: int
    headers: list[KafkaHeader]


class Bad(msgspec.Struct):
    offset: str


@pytest.mark.parametrize(
    "given",
    [
        {"topics": ()}, {"topics": "t", "pattern": "t"}, {"value": "xml"}, {"on_error": "drop"},
        {"metadata": {"offset": "offset"}}, {"metadata": {"offset": "position"}}, {"metadata": {"other": "offset"}},
        {"value": "raw", "schema": Order}, {"value": Json({"mode": "FAILFAST"})},
        {"value": Json({"allowComments": "true"})}, {"options": {"failOnDataLoss": "false"}},
        {"options": {"kafka.sasl.jaas.config": "x"}},
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(given: dict[str, Any]) -> None:
    with raises(JobDefinitionError):
        KafkaSource("localhost:1", **{"schema": Bad, "topics": "t", **given})


def test_values_that_do_not_exist_are_refused() -> None:
    with raises(ConfigError, given="newest"):
        _source(Bad, start="newest")
    with raises(ConfigError, name="on_data_loss", value="ignore"):
        _source(Bad, on_data_loss="ignore")


def test_offsets_of_a_start_that_are_not_those_of_all_partitions_are_explained() -> None:
    reason = (
        "[STREAM_FAILED] assertion failed: If startingOffsets contains specific offsets, you must specify all "
        "TopicPartitions.\nUse -1 for latest.\nSpecified: Set(t-0) Assigned: Set(t-0, t-1) SQLSTATE: XXKST\n=== "
    )
    error = _source(Bad).explain_failure(reason)
    assert isinstance(error, ConfigError) and not error.retryable
    assert (error.facts["given"], error.facts["existing"]) == ("t-0", "t-0, t-1")
    assert _source(Bad).explain_failure("[STREAM_FAILED] another") is None


def test_a_plan_can_be_made_while_kafka_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*_: object) -> NoReturn:
        raise StorageError("Kafka did not answer")

    monkeypatch.setattr(KafkaClient, "existing", no_answer)
    assert _source(Bad).holds('{"t":{"0":1}}', []) is None


@pytest.mark.spark
def test_a_timestamp_without_zone_is_in_utc_in_every_session(spark_session: SparkSession) -> None:
    spark_session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        times = dict.fromkeys(("zoned", "naive", "millis"), "timestamp")
        source = _source(Timed, metadata={**times, "headers": "headers"})
        record: tuple[Any, ...] = (
            None, b'{"id": 1}', "t", 0, 0, datetime(2026, 1, 1, 9, tzinfo=UTC), 0, [],
        )  # fmt: skip
        (row,) = source.rows(spark_session.createDataFrame([record], _RECORD)).collect()
    finally:
        spark_session.conf.set("spark.sql.session.timeZone", "UTC")
    assert row.naive == datetime(2026, 1, 1, 9)  # noqa: DTZ001 - a column without a time zone


def test_a_login_is_given_to_both_clients_and_shown_by_none() -> None:
    security = KafkaSecurity("SASL_SSL", "PLAIN", 'na"me', CANARY + "\\")
    java = security.for_java()
    assert java["sasl.jaas.config"].endswith(f'required username="na\\"me" password="{CANARY}\\\\";')
    assert security.for_client()["sasl.password"] == CANARY + "\\"
    source = _source(Bad, security=security)
    assert CANARY not in repr(security) + repr(source) + source.description
    for wrong in (("SSL", "PLAIN", "a", "b"), ("SASL_SSL",), ("TLS",), ("SASL_SSL", "GSSAPI", "a", "b")):
        with raises(JobDefinitionError):
            KafkaSecurity(*wrong)
    with raises(JobDefinitionError, path="/none"):
        KafkaSecurity("SSL", ca_file="/none")


# -- rows as records --------------------------------------------------------------------------------------------------


class Sold(msgspec.Struct):
    number: int
    shop: str
    price: Annotated[Decimal, precision(9, scale=2)]
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    tags: dict[str, int]
    target: str | None
    sent: list[KafkaHeader]


_ORDER = Sold(
    7, "north", Decimal("1.50"), datetime(2026, 1, 2, 3, 4, 5, 6000, UTC), {"a": 1}, None, [KafkaHeader("h", b"x")]
)


def _records(layout: RecordLayout, *rows: Any) -> list[KafkaRecord]:
    schema = RowSchema.of(type(rows[0]))
    layout.check(schema)
    return list(layout.records(to_batch(list(rows), schema)))


def test_a_value_is_an_object_with_the_columns_that_are_no_metadata() -> None:
    layout = RecordLayout("t", key=("shop",), topic_column="target", headers="sent", timestamp="at")
    (record,) = _records(layout, _ORDER)
    assert (record.topic, record.key, record.headers) == ("t", b"north", [("h", b"x")])
    assert record.timestamp == 1767323045006
    value = json.loads(record.value or b"", parse_float=Decimal)
    assert value.pop("at").startswith("2026-01-02T03:04:05.006")
    assert value == {"number": 7, "shop": "north", "price": Decimal("1.50"), "tags": {"a": 1}}


@pytest.mark.parametrize(
    ("key", "expected"), [((), None), (("number",), b"7"), (("shop", "number"), b'{"shop":"north","number":7}')]
)
def test_a_key_is_text_or_json(key: tuple[str, ...], expected: bytes | None) -> None:
    assert _records(RecordLayout("t", key=key), _ORDER)[0].key == expected


def test_a_topic_column_names_the_topic_of_each_row() -> None:
    layout = RecordLayout("t", topic_column="target", suffix="_shadow")
    rows = [_ORDER, msgspec.structs.replace(_ORDER, target="other")]
    assert [r.topic for r in _records(layout, *rows)] == ["t", "other_shadow"]


class Blob(msgspec.Struct):
    key: bytes
    content: bytes | None


def test_a_raw_value_is_the_bytes_of_the_only_other_column() -> None:
    layout = RecordLayout("t", "raw", key=("key",))
    found = _records(layout, Blob(b"\xff", b"\x00\xfe"), Blob(b"k", None))
    assert [(r.key, r.value) for r in found] == [(b"\xff", b"\x00\xfe"), (b"k", None)]


@pytest.mark.parametrize(
    "layout",
    [
        RecordLayout("t", "raw"), RecordLayout("t", key=("missing",)), RecordLayout("t", topic_column="number"),
        RecordLayout("t", headers="tags"), RecordLayout("t", timestamp="shop"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused(layout: RecordLayout) -> None:
    with pytest.raises(JobDefinitionError):
        layout.check(RowSchema.of(Sold))


def test_rows_of_an_earlier_version_without_a_column_are_refused() -> None:
    rows = to_batch([Blob(b"k", b"v")], RowSchema.of(Blob))
    with pytest.raises(DataError) as caught:
        list(RecordLayout("t", key=("number",)).records(rows))
    assert caught.value.facts["missing"] == ["number"]


def test_arguments_of_a_sink_that_do_not_fit_are_refused() -> None:
    with pytest.raises(JobDefinitionError):
        KafkaSink("b:1", topic="t", options={"transactional.id": "x"})
    with pytest.raises(JobDefinitionError):
        KafkaSink("b:1", topic="")
    with pytest.raises(ConfigError):
        KafkaSink("b:1", topic="t", value="xml")  # type: ignore[arg-type]


@pytest.mark.parametrize("brokers", ["", " ", "b:1,", "b", ":9092", "b:port", "b:1 c:2", "[::1]", "https://"])
def test_an_address_without_a_host_or_port_is_refused_by_source_and_sink(brokers: str) -> None:
    for refused in (lambda: KafkaSink(brokers, topic="t"), lambda: KafkaSource(brokers, schema=Blob, topics="t")):
        with pytest.raises(ConfigError) as caught:
            refused()
        assert caught.value.facts["bootstrap_servers"] == brokers


@pytest.mark.parametrize("brokers", ["b:1", "b-1.example.org:9092, 10.0.0.1:9093", "[::1]:9092", "SASL_SSL://b:1"])
def test_addresses_are_passed_as_they_are(brokers: str) -> None:
    assert KafkaSource(brokers, schema=Blob, topics="t").bootstrap_servers == brokers


def test_no_secret_is_shown() -> None:
    security = KafkaSecurity("SASL_SSL", mechanism="PLAIN", username="me", password="secret")
    sink = KafkaSink("b:1", topic="t", security=security)
    assert "secret" not in repr(sink) + sink.location + repr(sink.__dict__)
    assert SinkContext("j", "u", RowSchema.of(Blob)).application == "j/u"


# -- positions in kafka as spark writes them --------------------------------------------------------------------------


_PARTITIONS = st.tuples(st.sampled_from(["a", "b.c", "Ä"]), st.integers(0, 3))
_OFFSETS = st.dictionaries(_PARTITIONS, st.integers(0, 1 << 40))


@given(_OFFSETS)
def test_offsets_survive_and_have_the_form_of_spark(offsets: dict[Partition, int]) -> None:
    text = format_offsets(offsets)
    assert parse_offsets(text) == offsets
    assert {(t, int(n)): o for t, numbers in json.loads(text).items() for n, o in numbers.items()} == offsets


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "1", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"-1": 1}}', '{"a": {"0": -2}}', '{"a": {"0": 1.5}}',
     '{"a": {"\u0661": 1}}', '{"a":' * 100_000],
)  # fmt: skip
def test_other_texts_are_no_positions(text: str) -> None:
    with pytest.raises(ValueError):
        parse_offsets(text)


# -- rows of a changelog ----------------------------------------------------------------------------------------------

INSERT, BEFORE, AFTER, DELETE = RowKind


class Change(msgspec.Struct):
    id: int
    text: str
    kind: RowKind


# The key of the third row changes, and the last row comes and goes.
CHANGES = [
    Change(1, "a", BEFORE), Change(1, "A", AFTER), Change(2, "b", DELETE), Change(3, "c", BEFORE),
    Change(5, "c", AFTER), Change(6, "f", INSERT), Change(6, "f", DELETE),
]  # fmt: skip


class MaybeNamed(msgspec.Struct):
    name: str | None
    kind: RowKind


def test_the_key_of_records_identifies_a_deleted_row() -> None:
    with raises(JobDefinitionError, column="kind"):
        RecordLayout("t", key=("kind",), row_kind="kind").check(RowSchema.of(MaybeNamed))


def test_records_of_kafka_have_no_value_for_rows_that_are_retracted() -> None:
    sink = KafkaSink("localhost:1", topic="t", key="id").for_changelog(Changelog(row_kind="kind", retracts=True))
    layout = RecordLayout("t", key=("id",), row_kind="kind")
    rows = [msgspec.to_builtins(row) for row in CHANGES]
    records = [(record.key, record.value) for record in layout.records(pa.RecordBatch.from_pylist(rows))]
    assert isinstance(sink, KafkaSink) and records == [
        (b"1", None), (b"1", b'{"id":1,"text":"A"}'), (b"2", None), (b"3", None), (b"5", b'{"id":5,"text":"c"}'),
        (b"6", b'{"id":6,"text":"f"}'), (b"6", None),
    ]  # fmt: skip
