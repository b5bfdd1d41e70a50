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
_RETENTION = "delta.setTransactionRetentionDuration"
_NESTED = pa.struct([pa.field("a", pa.struct([pa.field("b", pa.string(), metadata={"delta.invariants": _INVARIANT})]))])
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


@pytest.mark.parametrize(
    ("fields", "options", "remedy", "facts"),
    [
        (_PAIR, {"partition_by": "text"}, "partition_by", {"property": "PARTITIONED BY", "column": "text"}),
        (
            [*_PAIR, pa.field("more", pa.int64(), nullable=False)],
            {},
            "DROP NOT NULL",
            {"property": "NOT NULL", "column": "more"},
        ),
        (
            _PAIR,
            {"configuration": {_RETENTION: "interval 1 day"}, "raise_if_key_not_exists": False},
            "UNSET TBLPROPERTIES",
            {"property": _RETENTION},
        ),
        *(
            (
                [_PAIR[0], pa.field("text", pa.string(), metadata={key: _INVARIANT})],
                {},
                "",
                {"property": key, "column": "text"},
            )
            for key in ("delta.somethingNew", "__SOMETHING", "delta.invariants")
        ),
        *(
            ([*_PAIR, pa.field("more", kind)], {}, "", {"property": "delta.invariants", "column": "more.a.b"})
            for kind in (_NESTED, pa.list_(_NESTED), pa.map_(pa.string(), _NESTED))
        ),
    ],
)
def test_a_property_with_an_effect_on_rows_is_refused(
    tmp_path: Path, fields: list[pa.Field], options: dict[str, Any], remedy: str, facts: dict[str, str]
) -> None:
    _refused(_make(tmp_path / "t", fields, **options), SinkRefused, remedy, **facts)


def test_a_constraint_is_refused_also_after_the_sink_has_opened_the_table(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    stale = sink.open_table(_ABOUT)
    DeltaTable(str(table)).alter.add_constraint({"positive": "id > 0"})
    assert stale.commit(1, []) is None
    with raises(SinkRefused, property="delta.constraints.positive"):
        sink.open_table(_ABOUT)
    _refused(table, SinkRefused, "DROP CONSTRAINT positive", property="delta.constraints.positive")


def _set_protocol(table: Path, reader: int, writer: int, **features: list[str]) -> None:
    protocol = {"minReaderVersion": reader, "minWriterVersion": writer, **features}
    entry_path(table, 1).write_text(json.dumps({"protocol": protocol}))


@pytest.mark.parametrize("feature", ["rowTracking", "clustering", "icebergCompatV2", "neverHeardOf"])
def test_a_feature_that_is_not_known_to_be_harmless_is_refused(tmp_path: Path, feature: str) -> None:
    table = _make(tmp_path / "t", _PAIR)
    _set_protocol(table, 1, 7, writerFeatures=["appendOnly", feature])
    _refused(table, SinkRefused, f"DROP FEATURE {feature}", feature=feature)


def test_a_feature_or_a_protocol_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    _set_protocol(table, 1, 8)
    with raises(SinkRefused, minReaderVersion=1, minWriterVersion=8):
        sink.open_table(_ABOUT)
    _set_protocol(table, 3, 7, readerFeatures=["neverHeardOf"], writerFeatures=["neverHeardOf"])
    assert "neverHeardOf" in str(_refused(table, SinkRefused).facts["reason"])


# -- columns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "declared", "found"),
    [
        ([_PAIR[0]], {"text": "string"}, {"text": None}),
        ([_PAIR[0], pa.field("Text", pa.string())], {"text": "string"}, {"Text": "string"}),
        ([pa.field("id", pa.float64()), _PAIR[1]], {"id": "long"}, {"id": "double"}),
        ([_PAIR[0], pa.field("text", pa.list_(pa.string()))], {"text": "string"}, {"text": "array<string>"}),
        ([pa.field("id", pa.string())], {"id": "long", "text": "string"}, {"id": "string", "text": None}),
    ],
)
def test_all_columns_that_differ_are_named(
    tmp_path: Path, fields: list[pa.Field], declared: dict[str, str], found: dict[str, str | None]
) -> None:
    _refused(_make(tmp_path / "t", fields), SchemaMismatch, declared=declared, found=found)


def test_additional_columns_another_order_and_notes_on_columns_are_accepted(tmp_path: Path) -> None:
    text = pa.field("text", pa.string(), metadata={"comment": "x", "owner": "y"})
    table = _make(tmp_path / "t", [pa.field("more", pa.int32()), text, _PAIR[0]])
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(3, 1))
    assert visible(table) == [{"id": 3, "text": "row 3"}]


def test_a_row_class_with_an_additional_column_is_refused_by_an_older_table(tmp_path: Path) -> None:
    DeltaSink(tmp_path / "t").prepare(_ABOUT)

    class Wider(Pair):
        more: float = 0.0

    with raises(SchemaMismatch, declared={"more": "double"}, found={"more": None}):
        DeltaSink(tmp_path / "t").prepare(context(Wider))
