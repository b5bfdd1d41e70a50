"""Tables that the sink must not write to, made without Spark; ``test_delta_features.py`` has those that need it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta_log import entry_path
from stateflow.errors import SchemaMismatch, SinkRefused
from tests.connectors.kit import Pair, context, pairs, put, snapshot, visible

_ABOUT = context()
_INVARIANT = json.dumps({"expression": {"expression": "text > 'a'"}})
_PAIR = [pa.field("id", pa.int64()), pa.field("text", pa.string())]


def _make(table: Path, fields: list[pa.Field], **options: Any) -> Path:
    DeltaTable.create(str(table), pa.schema(fields), **options)
    return table


def _refused(table: Path, error: type[Exception], *facts: str) -> None:
    before = snapshot(table)
    for call in (DeltaSink(table).check, DeltaSink(table).prepare, DeltaSink(table).open_table):
        with pytest.raises(error) as caught:
            call(_ABOUT)
        assert all(fact in str(caught.value) for fact in (str(table), "hint:", *facts)), caught.value
    assert snapshot(table) == before


def test_partitions(tmp_path: Path) -> None:
    _refused(_make(tmp_path / "t", _PAIR, partition_by="text"), SinkRefused, "partition column text")


def test_not_null(tmp_path: Path) -> None:
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())]
    _refused(_make(tmp_path / "t", fields), SinkRefused, "NOT NULL column id")


def test_a_table_that_forgets_tokens(tmp_path: Path) -> None:
    forgets = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    table = _make(tmp_path / "t", _PAIR, configuration=forgets, raise_if_key_not_exists=False)
    _refused(table, SinkRefused, "delta.setTransactionRetentionDuration", "UNSET")


def test_a_constraint(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    DeltaTable(str(table)).alter.add_constraint({"positive": "id > 0"})
    _refused(table, SinkRefused, "delta.constraints.positive", "DROP CONSTRAINT positive")


@pytest.mark.parametrize("feature", ["rowTracking", "clustering", "icebergCompatV2", "neverHeardOf"])
def test_a_feature_that_is_not_known_to_be_harmless(tmp_path: Path, feature: str) -> None:
    table = _make(tmp_path / "t", _PAIR)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", feature]}
    entry_path(table, 1).write_text(json.dumps({"protocol": protocol}))
    _refused(table, SinkRefused, f"feature {feature}", f"DROP FEATURE {feature}")


def test_a_feature_that_deltalake_cannot_read(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    features = {"readerFeatures": ["neverHeardOf"], "writerFeatures": ["neverHeardOf"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    entry_path(table, 1).write_text(json.dumps({"protocol": protocol}))
    _refused(table, SinkRefused, "neverHeardOf")


def test_a_protocol_of_the_future(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    entry_path(table, 1).write_text(json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 8}}))
    with pytest.raises(SinkRefused, match=r"protocol \(1, 8\)"):
        sink.open_table(_ABOUT)


@pytest.mark.parametrize(("key", "reason"), [
    ("delta.somethingNew", "does not know"), ("__SOMETHING", "does not know"), ("delta.invariants", "invariant"),
])  # fmt: skip
def test_a_column_property(tmp_path: Path, key: str, reason: str) -> None:
    table = _make(tmp_path / "t", [_PAIR[0], pa.field("text", pa.string(), metadata={key: _INVARIANT})])
    _refused(table, SinkRefused, f"{key} of column text", reason)


def test_a_note_on_a_column_is_harmless(tmp_path: Path) -> None:
    table = _make(
        tmp_path / "t", [_PAIR[0], pa.field("text", pa.string(), metadata={"comment": "x", "owner": "y"})]
    )
    assert DeltaSink(table).prepare(_ABOUT)


@pytest.mark.parametrize(("fields", "difference"), [
    ([_PAIR[0]], "text: the table has no such column"),
    ([_PAIR[0], pa.field("Text", pa.string())], "text: the table calls it Text"),
    ([pa.field("id", pa.int32()), _PAIR[1]], "id: declared long, the table has integer"),
    ([_PAIR[0], pa.field("text", pa.list_(pa.string()))], "text: declared string, the table has array"),
])  # fmt: skip
def test_columns_that_differ(tmp_path: Path, fields: list[pa.Field], difference: str) -> None:
    _refused(_make(tmp_path / "t", fields), SchemaMismatch, difference)


def test_all_differences_are_told_at_once(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", [pa.field("id", pa.string())])
    _refused(table, SchemaMismatch, "id: declared long", "text: the table has no such column")


def test_further_columns_and_another_order_are_fine(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", [pa.field("more", pa.int32()), *reversed(_PAIR)])
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(3, 1))
    assert visible(table) == [{"id": 3, "text": "row 3"}]


def test_a_table_is_checked_again_on_the_publishing_handle(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    stale = sink.open_table(_ABOUT)
    DeltaTable(str(table)).alter.add_constraint({"positive": "id > 0"})
    assert stale.commit(1, []) is None, "committed although the table changed behind the check"
    with pytest.raises(SinkRefused, match="positive"):
        sink.open_table(_ABOUT)


def test_another_row_class_is_refused_by_an_older_table(tmp_path: Path) -> None:
    DeltaSink(tmp_path / "t").prepare(_ABOUT)

    class Wider(Pair):
        more: float = 0.0

    with pytest.raises(SchemaMismatch, match="more: the table has no such column"):
        DeltaSink(tmp_path / "t").prepare(context(Wider))
