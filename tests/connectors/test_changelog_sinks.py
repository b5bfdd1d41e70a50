"""Sinks by key apply the rows of a changelog by their kind."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from stateflow import KafkaSink, RowKind
from stateflow.api.changelog import Changelog
from stateflow.api.schema import RowSchema
from stateflow.connectors.kafka.formats import RecordLayout
from stateflow.errors import JobDefinitionError
from tests.support.errors import raises

INSERT, BEFORE, AFTER, DELETE = RowKind


class Change(msgspec.Struct):
    id: int
    text: str
    kind: RowKind


CHANGELOG = Changelog(row_kind="kind", retracts=True)
CHECKPOINTS = [
    [Change(1, "a", INSERT), Change(2, "b", INSERT), Change(3, "c", INSERT), Change(4, "d", INSERT)],
    [
        Change(1, "a", BEFORE),
        Change(1, "A", AFTER),
        Change(2, "b", DELETE),
        # The key of a row changes.
        Change(3, "c", BEFORE),
        Change(5, "c", AFTER),
        # A row that comes and goes within a checkpoint.
        Change(6, "f", INSERT),
        Change(6, "f", DELETE),
    ],
]


class MaybeNamed(msgspec.Struct):
    name: str | None
    kind: RowKind


def test_the_key_of_records_identifies_a_deleted_row() -> None:
    with raises(JobDefinitionError, column="kind"):
        RecordLayout("t", key=("kind",), row_kind="kind").check(RowSchema.of(MaybeNamed))


def test_records_of_kafka_have_no_value_for_rows_that_are_retracted() -> None:
    sink = KafkaSink("localhost:1", topic="t", key="id").for_changelog(CHANGELOG)
    layout = RecordLayout("t", key=("id",), row_kind="kind")
    rows = [msgspec.to_builtins(row) for row in CHECKPOINTS[1]]
    records = [(record.key, record.value) for record in layout.records(pa.RecordBatch.from_pylist(rows))]
    assert isinstance(sink, KafkaSink) and records == [
        (b"1", None), (b"1", b'{"id":1,"text":"A"}'), (b"2", None), (b"3", None), (b"5", b'{"id":5,"text":"c"}'),
        (b"6", b'{"id":6,"text":"f"}'), (b"6", None),
    ]  # fmt: skip
