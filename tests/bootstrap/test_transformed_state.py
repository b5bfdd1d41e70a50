"""Changed copies of savepoints: states, timers and operator state of every kind, against plain rows."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from stateflow import (
    KeyedStateFrame,
    ListStateDescriptor,
    MapStateDescriptor,
    SavepointWriter,
    StateTtlConfig,
    ValueStateDescriptor,
    read_state,
)
from stateflow.checkpoint.log.documents import PublishedOutput, SavepointFormat
from stateflow.checkpoint.log.manifest_files import seal
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.errors import ConfigError, DataError, SchemaMismatch, StateError, StateflowError, UserCodeError
from stateflow.operations import SavepointRequest, create_savepoint_into
from stateflow.state.key_columns import KEY_PART, parts_column
from tests.bootstrap import given_state
from tests.bootstrap.test_restored_values import Story
from tests.support import moved_state, root_files
from tests.support.errors import raises

TTL = StateTtlConfig.new_builder(datetime.timedelta(hours=1)).build()
_INT_OR_TEXT: Any = int | str
ONE = ValueStateDescriptor("one", int, ttl=TTL)
ITEMS = ListStateDescriptor("items", int)
ENTRIES = MapStateDescriptor("entries", _INT_OR_TEXT, int)
KEPT = ListStateDescriptor("kept", int, ttl=TTL)
NUMBERS, UNION, OTHER = (ListStateDescriptor(name, int) for name in ("numbers", "union", "other"))
RULES = MapStateDescriptor("rules", _INT_OR_TEXT, int)
AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

NAMESPACES: list[Any] = [None, 7, "7", 7.0, True, b"7", "", "7\0", datetime.date(2026, 1, 2), datetime.timedelta(1), -1]
MAP_KEYS: list[Any] = [7, "7", "", -1, "x\0"]
_NAMESPACES, _MAP_KEYS = (parts_column(parts, KEY_PART).to_pylist() for parts in (NAMESPACES, MAP_KEYS))
_INT, _TEXT = pa.int64(), pa.string()
_PLACE = (("key", _TEXT), ("namespace", KEY_PART))
COLUMNS: dict[str, tuple[tuple[str, pa.DataType], ...]] = {
    "one": (*_PLACE, ("value", _INT), ("written_at", _INT)), "items": (*_PLACE, ("value", _INT)),
    "entries": (*_PLACE, ("map_key", KEY_PART), ("value", _INT)),
    "kept": (*_PLACE, ("value", _INT), ("written_at", _INT)), "_timers": (*_PLACE, ("time", _INT), ("domain", _TEXT)),
    "_operator/numbers": (("value", _INT),), "_operator/union": (("value", _INT),),
    "_operator/other": (("value", _INT),), "_operator/rules": (("map_key", KEY_PART), ("value", _INT)),
}  # fmt: skip

_ORDER = ("key", "namespace", "map_key", "time", "domain")

Row = dict[str, Any]
Rows = dict[str, list[Row]]


CHANGES: dict[str, Callable[[SavepointWriter, Any], SavepointWriter]] = {
    "one": lambda writer, function: writer.transform_state("op", ONE, function),
    "items": lambda writer, function: writer.transform_state("op", ITEMS, function),
    "entries": lambda writer, function: writer.transform_state("op", ENTRIES, function),
    "timers": lambda writer, function: writer.transform_timers("op", function),
    "numbers": lambda writer, function: writer.transform_operator_state("op", NUMBERS, function),
    "union": lambda writer, function: writer.transform_operator_state("op", UNION, function),
    "rules": lambda writer, function: writer.transform_broadcast_state("op", RULES, function),
}


def _write(folder: Path, given: Rows) -> str:
    tables = {n: pa.Table.from_pylist(given.get(n, []), pa.schema(columns)) for n, columns in COLUMNS.items()}
    states = [KeyedStateFrame(each, tables[each.name]) for each in (ONE, ITEMS, ENTRIES, KEPT)]
    writer = SavepointWriter.new("job", max_parallelism=16, parallelism=3)
    writer.with_operator("op", key="key", states=states, timers=tables["_timers"])
    for each in (NUMBERS, UNION, OTHER):
        writer.with_operator_state("op", each, tables[f"_operator/{each.name}"], union=each is UNION)
    writer.with_broadcast_state("op", RULES, tables["_operator/rules"])
    writer.with_raw_state("op", partitions=pa.table({"value": [b"raw"]}))
    return writer.write(folder / "written", at=AT)


def _place(key: str, namespace: int) -> Row:
    return {"key": key, "namespace": _NAMESPACES[namespace]}


def _every_row() -> Rows:
    places = [_place(key, n) for key, n in product(["", "b\0", "é"], range(len(NAMESPACES)))]
    numbers = [{"value": number} for number in range(7)]
    return {
        "one": [{**place, "value": n, "written_at": 1000 + n} for n, place in enumerate(places)],
        "items": [{**place, "value": n} for n in (3, 1, 2) for place in places],
        "entries": [{**place, "map_key": key, "value": n} for n, key in enumerate(_MAP_KEYS) for place in places],
        "kept": [{**_place("k", n), "value": v, "written_at": v} for n in (0, 1, 2) for v in (3, 1)],
        "_timers": [
            {**place, "time": n, "domain": d} for d in ("event", "processing") for n, place in enumerate(places)
        ],
        "_operator/numbers": numbers,
        "_operator/union": numbers,
        "_operator/other": numbers[:3],
        "_operator/rules": [{"map_key": key, "value": n} for n, key in enumerate(_MAP_KEYS)],
    }


def _turned(row: Row) -> list[Row]:
    """A row with another key, namespace, key of a map and value; without each third value, and without any expired."""
    name = "time" if "time" in row else "value"
    turned = {**row, name: row[name] + 1000}
    if "key" in row:
        turned["key"] += "\0z"
        turned["namespace"] = _NAMESPACES[_NAMESPACES.index(row["namespace"]) - 1]
    if "map_key" in row:
        turned["map_key"] = _MAP_KEYS[_MAP_KEYS.index(row["map_key"]) - 1]
    return [turned] if row[name] % 3 else []


def _turn(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([new for row in batch.to_pylist() for new in _turned(row)], schema=batch.schema)


def _stored(savepoint: str) -> Rows:
    """The rows of each state, without numbers that depend on where they are stored; the elements of lists in order."""
    savepoint_at(savepoint).verify()
    found = {}
    for name, columns in COLUMNS.items():
        rows = read_state(savepoint, "op", name).read_all().to_pylist()
        rows.sort(key=lambda row: (row.get("subtask", 0), row.get("position", 0)))
        found[name] = [{column: row[column] for column, _ in columns} for row in rows]
    return found


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """Rows in an order of their keys, which keeps that of the elements of a list."""
    return sorted(rows, key=lambda row: repr([row.get(name) for name in _ORDER]))


@contextmanager
def _small_batches() -> Iterator[None]:
    """Batches of one block of a file, which has entries of one key group only, or of one element of operator state."""
    with patch("stateflow.query.state_table.BATCH_ROWS", 1):
        yield


def test_transformed_states_are_what_plain_rows_become(tmp_path: Path) -> None:
    """Namespaces and keys of maps keep their types, entries their times; other states keep their rows."""
    given = _every_row()
    written = _write(tmp_path, given)
    writer = SavepointWriter.from_savepoint(written)
    for change in CHANGES.values():
        change(writer, _turn)
    with _small_batches():
        changed = writer.write(tmp_path / "changed", at=AT + datetime.timedelta(1))
    before, after = _stored(written), _stored(changed)
    kept = ("kept", "_operator/other")
    for name, rows in given.items():
        assert _sorted(before[name]) == _sorted(rows), name
        wanted = rows if name in kept else [new for row in rows for new in _turned(row)]
        assert _sorted(after[name]) == _sorted(wanted), name
    assert read_state(changed, "op", "_raw").read_all().equals(read_state(written, "op", "_raw").read_all())


MODEL: Rows = {
    "one": [{**_place("a", 1), "value": 1, "written_at": 5}],
    "entries": [{**_place("a", 0), "map_key": _MAP_KEYS[n], "value": n + 1} for n in (0, 1)],
    "_timers": [{**_place("a", 2), "time": 7, "domain": "event"}],
    "_operator/numbers": [{"value": 1}, {"value": 2}],
    "_operator/union": [{"value": 3}],
    "_operator/rules": [{"map_key": _MAP_KEYS[n], "value": n + 1} for n in (0, 1)],
}


def _set(name: str, value: object) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that sets a column in the last row."""

    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.to_pylist()
        rows[-1][name] = value
        fields = [field.with_nullable(True) for field in batch.schema]
        return pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))

    return function


def _odd_part(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _set("namespace", {"type": "int", "value": "x"})(batch)


def _raising(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.column("no such column")


@pytest.mark.parametrize(
    ("name", "function", "kind", "facts"),
    [
        ("one", _raising, UserCodeError, {"state": "one"}),
        ("timers", _raising, UserCodeError, {"state": "_timers"}),
        ("rules", _raising, UserCodeError, {"state": "rules"}),
        ("union", lambda batch: batch.to_pylist(), SchemaMismatch, {"state": "union", "type": "list"}),
        ("one", _set("value", None), DataError, {"state": "one", "key": "key='a'"}),
        ("one", _odd_part, DataError, {"state": "one", "key": "key='a'", "column": "namespace"}),
        ("entries", _set("map_key", None), StateError, {"state": "entries", "key": "key='a'"}),
        ("timers", _set("time", None), DataError, {"state": "_timers", "key": "key='a'"}),
        ("timers", _set("domain", "noon"), DataError, {"state": "_timers", "key": "key='a'", "domain": "noon"}),
        ("timers", lambda batch: batch.drop_columns(["time"]), ConfigError, {"missing": ["time"]}),
        ("one", lambda batch: batch.append_column("key", batch.column("key")), ConfigError, {"state": "one"}),
        ("union", _set("value", None), DataError, {"state": "union", "row": 0, "subtask": 0}),
        ("numbers", _set("value", None), DataError, {"state": "numbers", "row": 0, "subtask": 0}),
        (
            "numbers",
            lambda batch: _raising(batch) if batch["value"][0].as_py() == 2 else batch,
            UserCodeError,
            {"state": "numbers", "subtask": 1},
        ),
        ("rules", _set("map_key", _MAP_KEYS[1]), DataError, {"state": "rules", "map_key": "'7'"}),
        ("rules", _set("value", None), DataError, {"state": "rules", "map_key": str(_MAP_KEYS[0])}),
    ],
)
def test_errors_of_transformations_name_operator_state_and_row(
    tmp_path: Path, name: str, function: Any, kind: type[StateflowError], facts: Row
) -> None:
    writer = SavepointWriter.from_savepoint(_write(tmp_path, MODEL))
    CHANGES[name](writer, function)
    with raises(kind, operator="op", **facts):
        writer.write(tmp_path / "changed")
    with raises(ConfigError):
        savepoint_at(str(tmp_path / "changed"))


@pytest.mark.parametrize("name", ["items", "timers", "numbers"])
@pytest.mark.parametrize("kind", [SchemaMismatch, UserCodeError])
def test_errors_of_later_batches_name_operator_and_state(tmp_path: Path, name: str, kind: type[StateflowError]) -> None:
    keys = [_place(key, 0) for key in "abcdefgh"]
    model: Rows = {
        "items": [{**key, "value": 1} for key in keys],
        "_timers": [{**key, "time": 1, "domain": "event"} for key in keys],
        "_operator/numbers": [{"value": 1}] * 8,
    }
    seen = []

    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch)
        if len(seen) == 1:
            return batch
        return batch.append_column("more", batch.columns[-1]) if kind is SchemaMismatch else _raising(batch)

    writer = SavepointWriter.from_savepoint(_write(tmp_path, model))
    CHANGES[name](writer, function)
    with _small_batches(), raises(kind, operator="op", state="_timers" if name == "timers" else name):
        writer.write(tmp_path / "changed")
    assert len(seen) == 2


def test_states_that_an_operator_does_not_have_cannot_be_transformed(tmp_path: Path) -> None:
    numbers = pa.table({"value": [1]})
    new = SavepointWriter.new("job").with_operator("op", key={"key": "string"})
    writer = SavepointWriter.from_savepoint(new.with_operator_state("op", NUMBERS, numbers).write(tmp_path / "w"))
    with raises(ConfigError, uid="op", state="one"):
        writer.transform_state("op", ONE, _raising)
    with raises(ConfigError, uid="op", state="numbers"):
        writer.transform_state("op", NUMBERS, _raising)
    with raises(ConfigError, uid="op", state="union"):
        writer.transform_operator_state("op", UNION, _raising)
    with raises(ConfigError, uid="op", state="numbers"):
        writer.transform_broadcast_state("op", MapStateDescriptor("numbers", str, int), _raising)
    with raises(ConfigError, uid="other"):
        writer.transform_timers("other", _raising)
    with raises(StateError, name="numbers"):
        writer.transform_operator_state("op", ListStateDescriptor("numbers", int, ttl=TTL), _raising)
    writer.transform_operator_state("op", NUMBERS, _raising).transform_timers("op", _raising)
    with raises(ConfigError, uid="op", state="numbers"):
        writer.transform_operator_state("op", NUMBERS, _raising)
    with raises(ConfigError, uid="op", state="_timers"):
        writer.transform_timers("op", _raising)


def test_operator_state_can_get_another_type(tmp_path: Path) -> None:
    writer = SavepointWriter.from_savepoint(_write(tmp_path, MODEL))
    texts = pa.field("value", pa.string())

    def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index("value")
        return batch.set_column(at, texts, batch.column("value").cast(pa.string()))

    writer.transform_operator_state("op", ListStateDescriptor("numbers", str), as_text)
    writer.transform_broadcast_state("op", MapStateDescriptor("rules", _INT_OR_TEXT, str), as_text)
    written = writer.write(tmp_path / "changed")
    assert sorted(read_state(written, "op", "_operator/numbers").read_all()["value"].to_pylist()) == ["1", "2"]
    assert sorted(read_state(written, "op", "_operator/rules").read_all()["value"].to_pylist()) == ["1", "2"]
    assert read_state(written, "op", "_operator/union").read_all()["value"].to_pylist() == [3]


# -- changed copies of savepoints: operators removed and added, states transformed ------------------------------------

RATES = MapStateDescriptor("rates", str, int)


def _savepoint(story: Story, format: SavepointFormat) -> str:
    old = story.jobs("old")
    story.rows.append(moved_state.Row(0, "a", 7, "collect"))
    story.expected.apply(story.rows, timedelta(0))
    story.process(old)
    story.process(old)
    request = SavepointRequest("made", from_head=True, format=format)
    return create_savepoint_into(old.storage.uri, request, str(story.folder / "savepoints")).path


def _plus(batch: pa.RecordBatch, number: int, name: str = "value") -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), name, pc.add(batch.column(name), number))


@pytest.mark.parametrize("format", list(SavepointFormat))
def test_a_job_continues_from_transformed_state(tmp_path: Path, format: SavepointFormat) -> None:
    story = Story(9, tmp_path)
    savepoint = _savepoint(story, format)
    before = root_files.digests(Path(savepoint.removeprefix("file://")))
    writer = SavepointWriter.from_savepoint(savepoint, clock=story.clock)
    writer.transform_timers("every", lambda batch: _plus(batch, 60_000, "time"))
    writer.transform_operator_state("every", UNION, lambda batch: _plus(batch, 1000))
    if format is SavepointFormat.NATIVE:
        writer.without_operator("rates")
    else:
        writer.transform_broadcast_state("rates", RATES, lambda batch: _plus(batch, 5))
    writer.transform_state("every", given_state.ONE, lambda batch: _plus(batch, 1000))
    writer.transform_state(
        "every", given_state.ITEMS, lambda batch: batch.filter(pc.greater(batch.column("value"), 100))
    )
    writer.transform_state("every", given_state.ENTRIES, lambda batch: batch.slice(0, 0))
    writer.transform_state("every", given_state.BRIEF_ENTRIES, lambda batch: _plus(batch, 1))
    written = writer.write(tmp_path / "written")
    assert root_files.digests(Path(savepoint.removeprefix("file://"))) == before
    savepoint_at(written).verify()
    for of in story.expected.keys.values():
        of.one = None if of.one is None else of.one + 1000
        of.items = [item for item in of.items if item > 100]
        of.entries = {}
        for brief in of.brief_entries.values():
            brief.value += 1
    story.expected.timers = {(place, _later(text)) for place, text in story.expected.timers}
    story.expected.collected = [replace(row, number=row.number + 1000) for row in story.expected.collected]
    is_kept = format is SavepointFormat.CANONICAL
    story.expected.rates = Counter({name: rate + 5 for name, rate in story.expected.rates.items() if is_kept})
    new = story.begin(written)
    story.check(new)
    story.process(new)
    story.check(new)
    if is_kept:
        rates = read_state(new.storage.uri, "rates", "_operator/rates").read_all().to_pylist()
        assert {row["map_key"]: row["value"] for row in rates} == dict(story.expected.rates)
    story.check_timers(new)


def _later(timer: str) -> str:
    domain, time = timer.split()
    return f"{domain} {int(time) + 60_000}"


def test_the_copy_has_the_savepoint_s_job_positions_and_new_operators(tmp_path: Path) -> None:
    story = Story(8, tmp_path)
    savepoint = _savepoint(story, SavepointFormat.CANONICAL)
    before = savepoint_at(savepoint).document
    table = pa.table({"shop": [1, 2], "value": [1.5, 2.5]})
    rating = KeyedStateFrame(ValueStateDescriptor("rating", float), table)
    writer = SavepointWriter.from_savepoint(savepoint).with_operator("ratings", key="shop", states=[rating])
    writer.with_source("more", given_state.source_of(story.rows), {"row": 3})
    after = savepoint_at(writer.write(tmp_path / "written")).document
    assert (after.job, after.job_uuid, after.checkpoint_id) == (before.job, before.job_uuid, before.checkpoint_id)
    assert after.id != before.id and after.manifest.epoch == before.manifest.epoch
    offsets = {position.uid: position.offset for position in after.manifest.sources}
    assert offsets == {"more": '{"row": 3}', "rows": f'{{"row": {len(story.rows)}}}'}
    assert [operator.uid for operator in after.manifest.operators] == ["every", "rates", "ratings"]
    assert after.manifest.operators[:2] == before.manifest.operators


def test_a_copy_is_repeated_only_from_the_same_savepoint(tmp_path: Path) -> None:
    story = Story(8, tmp_path)
    base = Path(_savepoint(story, SavepointFormat.CANONICAL).removeprefix("file://"))
    document = savepoint_at(str(base)).document
    written = SavepointWriter.from_savepoint(base).write(tmp_path / "written")
    assert SavepointWriter.from_savepoint(base).write(tmp_path / "written") == written
    others = (
        replace(document, drained=not document.drained),
        replace(document, checkpoint_id=document.checkpoint_id + 1),
        replace(document, sinks={**document.sinks, "more": PublishedOutput(table_id="t", version=1, checkpoint_id=1)}),
    )
    for other in others:
        (base / "_savepoint").write_bytes(seal(other)[0])
        with raises(ConfigError, path=written):
            SavepointWriter.from_savepoint(base).write(tmp_path / "written")


def test_changes_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    story = Story(9, tmp_path)
    savepoint = _savepoint(story, SavepointFormat.CANONICAL)
    with raises(ConfigError, uid="evry"):
        SavepointWriter.from_savepoint(savepoint).without_operator("evry")
    with raises(ConfigError, uid="every"):
        SavepointWriter.from_savepoint(savepoint).with_operator("every", key={"key": "string"})
    with raises(ConfigError, uid="every"):
        SavepointWriter.new("job").without_operator("every")
    writer = SavepointWriter.from_savepoint(savepoint)
    writer.transform_state("every", ValueStateDescriptor("one", str), lambda batch: batch)
    with raises(SchemaMismatch, state="one"):
        writer.write(tmp_path / "w")
    double = SavepointWriter.from_savepoint(savepoint).transform_state(
        "every",
        given_state.ONE,
        lambda b: pa.RecordBatch.from_struct_array(pa.concat_arrays([b.to_struct_array()] * 2)),
    )
    with raises(DataError, state="one", operator="every"):
        double.write(tmp_path / "w")
    with raises(ConfigError):
        savepoint_at(str(tmp_path / "w"))
