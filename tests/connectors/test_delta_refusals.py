"""Tables that the sink must not write to, made without Spark; ``test_delta_features.py`` has those that need it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import entry_path
from stateflow.errors import SchemaMismatch, SinkRefused, StateflowError
from tests.support.delta_tables import Pair, context, pairs, put, snapshot, visible
from tests.support.errors import raises

_ABOUT = context()
_INVARIANT = json.dumps({"expression": {"expression": "text > 'a'"}})
_PAIR = [pa.field("id", pa.int64()), pa.field("text", pa.string())]


def _make(table: Path, fields: list[pa.Field], **options: Any) -> Path:
    DeltaTable.create(str(table), pa.schema(fields), **options)
    return table


def _refused(table: Path, error: type[StateflowError], remedy: str = "", **facts: object) -> StateflowError:
    """Each call is refused with these facts and a hint, which has this SQL in it; returns the last error."""
    before = snapshot(table)
    for call in (DeltaSink(table).check, DeltaSink(table).prepare, DeltaSink(table).open_table):
        with raises(error, table=str(table), **facts) as caught:
            call(_ABOUT)
        assert caught.value.hint and remedy in caught.value.hint
    assert snapshot(table) == before
    return caught.value


def test_partitions(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR, partition_by="text")
    _refused(table, SinkRefused, property="PARTITIONED BY", column="text")


def test_not_null(tmp_path: Path) -> None:
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())]
    _refused(_make(tmp_path / "t", fields), SinkRefused, "DROP NOT NULL", property="NOT NULL", column="id")


def test_a_table_that_forgets_tokens(tmp_path: Path) -> None:
    forgets = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    table = _make(tmp_path / "t", _PAIR, configuration=forgets, raise_if_key_not_exists=False)
    _refused(table, SinkRefused, "UNSET TBLPROPERTIES", property="delta.setTransactionRetentionDuration")


def test_a_constraint(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    DeltaTable(str(table)).alter.add_constraint({"positive": "id > 0"})
    _refused(table, SinkRefused, "DROP CONSTRAINT positive", property="delta.constraints.positive")


@pytest.mark.parametrize("feature", ["rowTracking", "clustering", "icebergCompatV2", "neverHeardOf"])
def test_a_feature_that_is_not_known_to_be_harmless(tmp_path: Path, feature: str) -> None:
    table = _make(tmp_path / "t", _PAIR)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", feature]}
    entry_path(table, 1).write_text(json.dumps({"protocol": protocol}))
    _refused(table, SinkRefused, f"DROP FEATURE {feature}", feature=feature)


def test_a_feature_that_deltalake_cannot_read(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    features = {"readerFeatures": ["neverHeardOf"], "writerFeatures": ["neverHeardOf"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    entry_path(table, 1).write_text(json.dumps({"protocol": protocol}))
    assert "neverHeardOf" in str(_refused(table, SinkRefused).facts["reason"])


def test_a_protocol_of_the_future(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    entry_path(table, 1).write_text(json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 8}}))
    with raises(SinkRefused, minReaderVersion=1, minWriterVersion=8):
        sink.open_table(_ABOUT)


@pytest.mark.parametrize("key", ["delta.somethingNew", "__SOMETHING", "delta.invariants"])
def test_a_column_property(tmp_path: Path, key: str) -> None:
    table = _make(tmp_path / "t", [_PAIR[0], pa.field("text", pa.string(), metadata={key: _INVARIANT})])
    _refused(table, SinkRefused, property=key, column="text")


def test_a_note_on_a_column_is_harmless(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", [_PAIR[0], pa.field("text", pa.string(), metadata={"comment": "x", "owner": "y"})])
    assert DeltaSink(table).prepare(_ABOUT)


@pytest.mark.parametrize(
    ("fields", "declared", "found"),
    [
        ([_PAIR[0]], {"text": "string"}, {"text": None}),
        ([_PAIR[0], pa.field("Text", pa.string())], {"text": "string"}, {"Text": "string"}),
        ([pa.field("id", pa.int32()), _PAIR[1]], {"id": "long"}, {"id": "integer"}),
        ([_PAIR[0], pa.field("text", pa.list_(pa.string()))], {"text": "string"}, {"text": "array"}),
        ([pa.field("id", pa.string())], {"id": "long", "text": "string"}, {"id": "string", "text": None}),
    ],
)
def test_all_columns_that_differ_are_named(
    tmp_path: Path, fields: list[pa.Field], declared: dict[str, str], found: dict[str, str | None]
) -> None:
    _refused(_make(tmp_path / "t", fields), SchemaMismatch, declared=declared, found=found)


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
    with raises(SinkRefused, property="delta.constraints.positive"):
        sink.open_table(_ABOUT)


def test_another_row_class_is_refused_by_an_older_table(tmp_path: Path) -> None:
    DeltaSink(tmp_path / "t").prepare(_ABOUT)

    class Wider(Pair):
        more: float = 0.0

    with raises(SchemaMismatch, declared={"more": "double"}, found={"more": None}):
        DeltaSink(tmp_path / "t").prepare(context(Wider))
