"""Upserts into a Delta table: the rows of each checkpoint replace those of their keys, and plain dictionaries agree."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow import KafkaSink, PostgresSink
from stateflow.api.changelog import Changelog
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, Writing
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta import versions
from stateflow.errors import JobDefinitionError, SchemaMismatch, SinkDiverged, SinkRefused
from stateflow.runtime.task.row_conversion import check_required, to_batch
from stateflow.state.handles import Committable
from tests.support.delta_tables import Every, context, put, write
from tests.support.errors import raises


class Position(msgspec.Struct, kw_only=True):
    carrier: str
    number: int
    at: int | None = None
    place: str | None = None
    gone: bool | None = None


KEYS = ("carrier", "number")
_ROWS = st.builds(
    Position,
    carrier=st.sampled_from(["A", "B", "Ä" * 40]),
    number=st.integers(-2, 2),
    at=st.none() | st.integers(0, 3),
    place=st.none() | st.text(max_size=2),
    gone=st.none() | st.booleans(),
)


def _sink(folder: Path, **more: Any) -> DeltaSink:
    return DeltaSink(folder, **{"mode": "upsert", "keys": KEYS, "deletes": "gone", **more})


def _table(rows: dict[tuple[Any, ...], Position]) -> list[dict[str, Any]]:
    kept = [msgspec.to_builtins(row) for row in rows.values() if not row.gone]
    return _sorted([{name: value for name, value in row.items() if name != "gone"} for row in kept])


def _visible(folder: Path) -> list[dict[str, Any]]:
    return _sorted(_rows(folder))


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [row for uri in DeltaTable(str(folder)).file_uris() for row in pq.read_table(uri).to_pylist()]


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["carrier"], row["number"]))


def _files(sink: DeltaSink, about: SinkContext, token: int, parts: list[list[Position]]) -> list[Committable]:
    writings = (Writing(1, token, subtask, "a") for subtask in range(len(parts)))
    return [file for rows, writing in zip(parts, writings, strict=True) for file in write(sink, about, rows, writing)]


@given(st.lists(st.lists(st.lists(_ROWS, max_size=6), max_size=2), max_size=5), st.booleans(), st.booleans())
@settings(max_examples=40)
def test_a_table_has_the_last_row_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[list[Position]]], ordered: bool, large: bool
) -> None:
    folder: Path = tmp_path_factory.mktemp("upsert") / "table"
    about = context(Position)
    sink = _sink(folder, order_by="at" if ordered else ())
    sink.prepare(about)
    expected: dict[tuple[Any, ...], Position] = {}
    with pytest.MonkeyPatch.context() as patch:
        # Each data file is written again by itself, or all of them together.
        patch.setattr(versions, "_COMBINED_BYTES", 0 if large else 1 << 30)
        for token, parts in enumerate(batches, 1):
            files = _files(sink, about, token, parts)
            assert sink.open_table(about).commit(token, files) == token
            rows = [row for part in parts for row in part]
            if ordered:
                rows.sort(key=lambda row: -1 if row.at is None else row.at)
            expected |= {(row.carrier, row.number): row for row in rows}
            assert _visible(folder) == _table(expected)
            assert not [file for file in files if (folder / file.path).exists()]
    names = {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}
    assert sink.sweep(about, lambda *_: True) == []
    assert names <= {path.name for path in folder.glob("*.parquet")}


def test_only_files_with_a_key_are_written_again(tmp_path: Path) -> None:
    # Names of folders are no columns.
    folder = tmp_path / "number=7" / "t"
    sink, about = _sink(folder), context(Position)
    sink.prepare(about)
    for token, carrier in enumerate("ABC", 1):
        put(sink, about, token, [Position(carrier=carrier, number=n) for n in range(4)])
    before = set(DeltaTable(str(folder)).file_uris())
    put(sink, about, 4, [Position(carrier="B", number=2, place="x"), Position(carrier="A", number=9)])
    after = set(DeltaTable(str(folder)).file_uris())
    assert (len(before - after), len(before & after), len(after - before)) == (1, 2, 1)
    found = [row for uri in after for row in pq.read_table(uri, partitioning=None).to_pylist()]
    assert len(found) == 13 and {row["number"] for row in found if row["carrier"] == "A"} == {0, 1, 2, 3, 9}


def test_a_commit_of_another_writer_makes_the_handle_stale_and_leaves_no_file(tmp_path: Path) -> None:
    sink, about = _sink(tmp_path / "t"), context(Position)
    sink.prepare(about)
    put(sink, about, 1, [Position(carrier="A", number=1)])
    stale, newer = sink.open_table(about), sink.open_table(about)
    files = _files(sink, about, 2, [[Position(carrier="A", number=1, place="x")]])
    DeltaTable(str(tmp_path / "t")).alter.set_table_description("another version")
    known = set((tmp_path / "t").glob("*.parquet"))
    assert stale.commit(2, files) is None and newer.commit(2, files) is None
    assert set((tmp_path / "t").glob("*.parquet")) == known
    assert sink.open_table(about).commit(2, files) is not None
    assert [row["place"] for row in _visible(tmp_path / "t")] == ["x"]


class Wide(Every, kw_only=True):
    key: datetime.date


def test_rows_of_every_type_are_written_again_unchanged(tmp_path: Path) -> None:
    sink, about = DeltaSink(tmp_path / "t", mode="upsert", keys=["key"]), context(Wide)
    sink.prepare(about)
    days = [datetime.date(2026, 1, day) for day in range(1, 4)]
    time, lasting = datetime.time(1, 2, 3, 4), datetime.timedelta(microseconds=5)
    given: dict[str, Any] = {"text": "a", "time": time, "lasting": lasting, "numbers": [1.5, None]}
    rows = [Wide(key=day, id=n, **given) for n, day in enumerate(days)]
    put(sink, about, 1, rows)
    before = {row["key"]: row for row in _rows(tmp_path / "t")}
    put(sink, about, 2, [Wide(key=days[0], id=9)])
    after = {row["key"]: row for row in _rows(tmp_path / "t")}
    assert after[days[0]]["id"] == 9
    assert [after[day] for day in days[1:]] == [before[day] for day in days[1:]]


@pytest.mark.parametrize(
    "given",
    [
        {"mode": "append"}, {"keys": ()}, {"keys": "nothing"}, {"deletes": "place"}, {"deletes": "carrier"},
        {"order_by": "nothing"},
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], tmp_path: Path) -> None:
    with raises(JobDefinitionError):
        _sink(tmp_path / "t", **given).check(context(Position))


class MaybeKeyed(msgspec.Struct):
    key: str | None
    number: int


@pytest.mark.parametrize(
    "sink",
    [
        DeltaSink("t", mode="upsert", keys=["number", "key"]),
        PostgresSink("postgresql://localhost/d", table="t", mode="upsert", keys=["number", "key"]),
        KafkaSink("localhost:1", topic="t", key=["number", "key"]).for_changelog(
            Changelog(("number", "key"), "kind", retracts=True)
        ),
    ],
    ids=lambda sink: type(sink).__name__,
)
def test_a_null_in_the_key_of_a_sink_ends_the_run(sink: Sink) -> None:
    """As in Flink, whose primary keys are NOT NULL: columns of a query may be nullable, if no value is null."""
    rows = to_batch([MaybeKeyed("a", 1), MaybeKeyed(None, 2)], RowSchema.of(MaybeKeyed))
    check_required(rows.slice(0, 1), sink.required_columns)
    with raises(SchemaMismatch, column="key", row="{'key': None, 'number': 2}"):
        check_required(rows, sink.required_columns)


@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_a_table_whose_files_must_not_be_written_again_is_refused(name: str, tmp_path: Path) -> None:
    sink, about = _sink(tmp_path / "t"), context(Position)
    sink.prepare(about)
    DeltaTable(str(tmp_path / "t")).alter.set_table_properties({name: "true"})
    with raises(SinkRefused):
        sink.open_table(about)


def test_a_table_with_other_columns_or_without_a_file_is_refused(tmp_path: Path) -> None:
    sink, about = _sink(tmp_path / "t", deletes=""), context(Position)
    sink.prepare(about)
    with raises(SchemaMismatch, columns=["gone"]):
        _sink(tmp_path / "t").check(about)
    put(sink, about, 1, [Position(carrier="A", number=1)])
    for path in (tmp_path / "t").glob("*.parquet"):
        path.unlink()
    with raises(SinkDiverged):
        put(sink, about, 2, [Position(carrier="A", number=1)])
