"""Rows as records of Kafka, without a broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import precision
from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext
from stateflow.connectors.kafka.client import KafkaSecurity, Partition, format_offsets, parse_offsets
from stateflow.connectors.kafka.formats import KafkaHeader, KafkaRecord, RecordLayout
from stateflow.connectors.kafka.sink import KafkaSink
from stateflow.connectors.kafka.source import KafkaSource
from stateflow.errors import ConfigError, DataError, JobDefinitionError
from stateflow.runtime.task.row_conversion import to_batch


class Order(msgspec.Struct):
    number: int
    shop: str
    price: Annotated[Decimal, precision(9, scale=2)]
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    tags: dict[str, int]
    target: str | None
    sent: list[KafkaHeader]


_ORDER = Order(
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
        layout.check(RowSchema.of(Order))


def test_rows_of_an_earlier_version_without_a_column_are_refused() -> None:
    rows = to_batch([Blob(b"k", b"v")], RowSchema.of(Blob))
    with pytest.raises(DataError) as caught:
        list(RecordLayout("t", key=("number",)).records(rows))
    assert caught.value.facts["missing"] == ["number"]


def test_arguments_that_do_not_fit_are_refused() -> None:
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
