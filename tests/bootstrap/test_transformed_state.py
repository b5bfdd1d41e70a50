"""Transformations of states with namespaces, timers, operator state and broadcast state, against dictionaries."""

from __future__ import annotations

import datetime
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow import (
    KeyedStateFrame,
    ListStateDescriptor,
    MapStateDescriptor,
    SavepointWriter,
    StateTtlConfig,
    ValueStateDescriptor,
    read_state,
)
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, DataError, SchemaMismatch, StateError, StateflowError, UserCodeError
from stateflow.query.state import stored_entries
from stateflow.state.handles import OperatorContent
from stateflow.state.key_columns import KEY_PART, parts_column
from stateflow.state.kinds.timers import timers_in
from stateflow.state.operator_content import read_parts
from stateflow.state.stored_key import TIMER_IDS, TimeDomain
from stateflow.types.key_encoding import decode_key
from stateflow.types.serializers import decode_untyped, timestamp_of
from tests.support.errors import raises
from tests.support.stored_state import state_id

TTL = StateTtlConfig.new_builder(datetime.timedelta(hours=1)).build()
_INT_OR_TEXT: Any = int | str
ONE = ValueStateDescriptor("one", int, ttl=TTL)
ITEMS = ListStateDescriptor("items", int)
ENTRIES = MapStateDescriptor("entries", _INT_OR_TEXT, int)
KEPT = ListStateDescriptor("kept", int, ttl=TTL)
NUMBERS, UNION, OTHER = (ListStateDescriptor(name, int) for name in ("numbers", "union", "other"))
RULES = MapStateDescriptor("rules", _INT_OR_TEXT, int)
AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
KEY = ("key", pa.string())

NAMESPACES: list[Any] = [None, 7, "7", 7.0, True, b"7", "", "7\0", datetime.date(2026, 1, 2), datetime.timedelta(1), -1]
MAP_KEYS: list[Any] = [7, "7", "", -1, "x\0"]
_NAMESPACES, _MAP_KEYS = (parts_column(parts, KEY_PART).to_pylist() for parts in (NAMESPACES, MAP_KEYS))

Place = tuple[str, int]
Row = dict[str, Any]


@dataclass
class Model:
    """The state of an operator in plain dictionaries.

    Namespaces and keys of maps are their numbers in `NAMESPACES` and `MAP_KEYS`: 7, 7.0 and True are equal in Python.
    """

    one: dict[Place, tuple[int, int]] = field(default_factory=dict)
    items: dict[Place, list[int]] = field(default_factory=dict)
    entries: dict[tuple[str, int, int], int] = field(default_factory=dict)
    timers: set[tuple[str, int, int, str]] = field(default_factory=set)
    numbers: list[int] = field(default_factory=list)
    union: list[int] = field(default_factory=list)
    rules: dict[int, int] = field(default_factory=dict)


_KEYS, _SPACES = st.sampled_from(["", "a", "b\0", "é"]), st.integers(0, len(NAMESPACES) - 1)
_PARTS, _VALUES = st.integers(0, len(MAP_KEYS) - 1), st.integers(-5, 300)
_DOMAINS = st.sampled_from([domain.value for domain in TimeDomain])
MODELS = st.builds(
    Model,
    one=st.dictionaries(st.tuples(_KEYS, _SPACES), st.tuples(_VALUES, st.integers(0, 1000))),
    items=st.dictionaries(st.tuples(_KEYS, _SPACES), st.lists(_VALUES, min_size=1, max_size=4)),
    entries=st.dictionaries(st.tuples(_KEYS, _SPACES, _PARTS), _VALUES),
    timers=st.sets(st.tuples(_KEYS, _SPACES, _VALUES, _DOMAINS)),
    numbers=st.lists(_VALUES, max_size=9),
    union=st.lists(_VALUES, max_size=9),
    rules=st.dictionaries(_PARTS, _VALUES),
)


@dataclass(frozen=True)
class Turn:
    """A transformation: removes some rows, and changes value, key, namespace and map key of the others."""

    removed: int
    added: int
    suffix: str
    turned: int

    def keeps(self, number: int) -> bool:
        return number % self.removed != 0

    def space(self, number: int) -> int:
        return (number + self.turned) % len(NAMESPACES)

    def part(self, number: int) -> int:
        return (number + self.turned) % len(MAP_KEYS)

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the savepoint's rows become."""
        name = "time" if "time" in batch.schema.names else "value"
        rows: list[Row] = [{**row, name: row[name] + self.added} for row in batch.to_pylist() if self.keeps(row[name])]
        for row in rows:
            if "key" in row:
                row["key"] += self.suffix
                row["namespace"] = _NAMESPACES[self.space(_NAMESPACES.index(row["namespace"]))]
            if "map_key" in row:
                row["map_key"] = _MAP_KEYS[self.part(_MAP_KEYS.index(row["map_key"]))]
        return pa.RecordBatch.from_pylist(rows, schema=batch.schema)

    def of_list(self, values: Iterable[int]) -> list[int]:
        return [value + self.added for value in values if self.keeps(value)]

    def of_model(self, model: Model, names: set[str]) -> Model:
        """What the dictionaries become."""
        add, end = self.added, self.suffix
        items = {(k + end, self.space(n)): self.of_list(found) for (k, n), found in model.items.items()}
        changed = Model(
            {(k + end, self.space(n)): (v + add, at) for (k, n), (v, at) in model.one.items() if self.keeps(v)},
            {place: found for place, found in items.items() if found},
            {
                (k + end, self.space(n), self.part(p)): v + add
                for (k, n, p), v in model.entries.items()
                if self.keeps(v)
            },
            {(k + end, self.space(n), at + add, d) for k, n, at, d in model.timers if self.keeps(at)},
            self.of_list(model.numbers),
            self.of_list(model.union),
            {self.part(p): v + add for p, v in model.rules.items() if self.keeps(v)},
        )
        return Model(**{name: getattr(changed if name in names else model, name) for name in vars(model)})


CHANGES: dict[str, Callable[[SavepointWriter, Any], SavepointWriter]] = {
    "one": lambda writer, function: writer.transform_state("op", ONE, function),
    "items": lambda writer, function: writer.transform_state("op", ITEMS, function),
    "entries": lambda writer, function: writer.transform_state("op", ENTRIES, function),
    "timers": lambda writer, function: writer.transform_timers("op", function),
    "numbers": lambda writer, function: writer.transform_operator_state("op", NUMBERS, function),
    "union": lambda writer, function: writer.transform_operator_state("op", UNION, function),
    "rules": lambda writer, function: writer.transform_broadcast_state("op", RULES, function),
}
TURNS = st.builds(Turn, st.integers(2, 5), st.integers(0, 400), st.sampled_from(["", "z", "\0z"]), st.integers(0, 20))
NAMES = st.sets(st.sampled_from(sorted(CHANGES)), min_size=1)


def _table(rows: Iterable[Row], *columns: tuple[str, pa.DataType]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), pa.schema(columns))


def _place(key: str, namespace: int) -> Row:
    return {"key": key, "namespace": _NAMESPACES[namespace]}


def _write(model: Model, folder: Path) -> str:
    int64, place = pa.int64(), (KEY, ("namespace", KEY_PART))
    one = ({**_place(*at), "value": v, "written_at": since} for at, (v, since) in model.one.items())
    items = ({**_place(*at), "value": v} for at, found in model.items.items() for v in found)
    entries = ({**_place(k, n), "map_key": _MAP_KEYS[p], "value": v} for (k, n, p), v in model.entries.items())
    timers = ({**_place(k, n), "time": at, "domain": domain} for k, n, at, domain in model.timers)
    kept = [{**_place("k", n), "value": v, "written_at": v} for n in (0, 1, 2) for v in (3, 1)]
    rules = ({"map_key": _MAP_KEYS[p], "value": v} for p, v in model.rules.items())
    states = [
        KeyedStateFrame(ONE, _table(one, *place, ("value", int64), ("written_at", int64))),
        KeyedStateFrame(ITEMS, _table(items, *place, ("value", int64))),
        KeyedStateFrame(ENTRIES, _table(entries, *place, ("map_key", KEY_PART), ("value", int64))),
        KeyedStateFrame(KEPT, _table(kept, *place, ("value", int64), ("written_at", int64))),
    ]
    writer = SavepointWriter.new("job", max_parallelism=16, parallelism=3)
    writer.with_operator(
        "op", key="key", states=states, timers=_table(timers, *place, ("time", int64), ("domain", pa.string()))
    )
    writer.with_operator_state("op", NUMBERS, pa.table({"value": pa.array(model.numbers, int64)}))
    writer.with_operator_state("op", UNION, pa.table({"value": pa.array(model.union, int64)}), union=True)
    writer.with_operator_state("op", OTHER, pa.table({"value": [3, 1, 2]}))
    writer.with_broadcast_state("op", RULES, _table(rules, ("map_key", KEY_PART), ("value", int64)))
    writer.with_raw_state("op", partitions=pa.table({"value": [b"raw"]}))
    return writer.write(folder / "written", at=AT)


@dataclass
class Stored:
    """What a savepoint has of the operator, decoded one by one.

    Attributes:
        entries: stored keys and values by state id, without key groups.
        contents: operator state by subtask.
    """

    operator: OperatorState
    entries: dict[bytes, list[tuple[bytes, bytes]]]
    contents: dict[int, OperatorContent]

    @classmethod
    def of(cls, path: str) -> Stored:
        stored = savepoint_at(path)
        stored.verify()
        (operator,) = stored.document.manifest.operators
        found: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for subtask, entries in stored_entries(operator, stored.storage, SystemClock()):
            for key, value in entries:
                assert int.from_bytes(key[:2]) in subtask.groups
                found.setdefault(key[2:6], []).append((key, value))
            for domain, bound in zip(TimeDomain, (subtask.event_timer, subtask.processing_timer), strict=True):
                timers = timers_in(found.get(TIMER_IDS[domain], []), domain)
                own = [timer.time for timer in timers if int.from_bytes(timer.group) in subtask.groups]
                assert not own or (bound is not None and bound <= min(own))
        contents = {part.subtask: content for part, content in read_parts(stored.storage, operator.parts)}
        return cls(operator, found, contents)

    @property
    def model(self) -> Model:
        found = Model(numbers=self.elements("lists", "numbers"), union=self.elements("unions", "union"))
        for key, value in self._of("one"):
            (k, namespace), at = decode_key(key[6:]), timestamp_of(value, "processing")
            assert at is not None
            found.one[str(k), _number(NAMESPACES, namespace)] = decode_untyped(value), at
        for key, value in self._of("items"):
            k, namespace = decode_key(key[6:-12])
            found.items.setdefault((str(k), _number(NAMESPACES, namespace)), []).append(decode_untyped(value))
        for key, value in self._of("entries"):
            k, namespace, part = decode_key(key[6:])
            place = str(k), _number(NAMESPACES, namespace), _number(MAP_KEYS, part)
            found.entries[place] = decode_untyped(value)
        for domain, stored in TIMER_IDS.items():
            for timer in timers_in(self.entries.get(stored, []), domain):
                namespace = _number(NAMESPACES, timer.namespace)
                found.timers.add((str(timer.values[0]), namespace, timer.time, domain.value))
        for content in self.contents.values():
            for key, value in content.broadcasts.get("rules", {}).items():
                found.rules[_number(MAP_KEYS, decode_key(key)[0])] = decode_untyped(value)
        return found

    def elements(self, kind: str, name: str) -> list[int]:
        contents = [self.contents[subtask] for subtask in sorted(self.contents)]
        return [decode_untyped(each) for content in contents for each in getattr(content, kind).get(name, [])]

    def kept(self, changed: set[str]) -> tuple[Any, ...]:
        """The bytes of all but some states."""
        keyed = {"one", "items", "entries", "kept"} - changed
        ids = {state_id(name + more) for name in keyed for more in ("", "\0expiry")}
        ids |= set() if "timers" in changed else set(TIMER_IDS.values())
        names = {"numbers", "union", "rules", "other"} - changed
        states = [
            (subtask, kind, name, state)
            for subtask, content in self.contents.items()
            for kind in ("lists", "unions", "broadcasts")
            for name, state in getattr(content, kind).items()
            if name in names
        ]
        schemas = [s for s in (*self.operator.states, *self.operator.operator_states) if s.name not in changed]
        raw = [content.raw for content in self.contents.values() if content.raw]
        return {i: Counter(found) for i, found in self.entries.items() if i in ids}, states, schemas, raw

    def _of(self, name: str) -> list[tuple[bytes, bytes]]:
        return self.entries.get(state_id(name), [])


@contextmanager
def _small_batches() -> Iterator[None]:
    """Batches of one block of a file, which has entries of one key group only, or of one element of operator state."""
    with patch("stateflow.query.state_table.BATCH_ROWS", 1):
        yield


def _number(parts: list[Any], part: object) -> int:
    """The number of a part of the same type."""
    (found,) = (at for at, each in enumerate(parts) if (type(each), each) == (type(part), part))
    return found


@given(model=MODELS, turn=TURNS, names=NAMES)
@settings(max_examples=max(1, settings().max_examples // 4))
def test_transformed_states_are_what_dictionaries_become(model: Model, turn: Turn, names: set[str]) -> None:
    """Namespaces and keys of maps keep their types, entries their times; other states keep their bytes."""
    with tempfile.TemporaryDirectory() as folder:
        written = _write(model, Path(folder))
        before = Stored.of(written)
        assert before.model == model
        writer = SavepointWriter.from_savepoint(written)
        for name in sorted(names):
            CHANGES[name](writer, turn.of_batch)
        with _small_batches():
            after = Stored.of(writer.write(Path(folder) / "changed", at=AT + datetime.timedelta(1)))
    assert after.model == turn.of_model(model, names)
    assert after.kept(names) == before.kept(names)
    for kind, name in (("lists", "numbers"), ("unions", "union")):
        # Each subtask keeps its own elements.
        for subtask, content in before.contents.items():
            own = [decode_untyped(each) for each in getattr(content, kind).get(name, [])]
            stored = getattr(after.contents.get(subtask, OperatorContent()), kind).get(name, [])
            assert [decode_untyped(each) for each in stored] == (turn.of_list(own) if name in names else own)


MODEL = Model(
    one={("a", 1): (1, 5)},
    entries={("a", 0, 0): 1, ("a", 0, 1): 2},
    timers={("a", 2, 7, "event")},
    numbers=[1, 2],
    union=[3],
    rules={0: 1, 1: 2},
)


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
    writer = SavepointWriter.from_savepoint(_write(MODEL, tmp_path))
    CHANGES[name](writer, function)
    with raises(kind, operator="op", **facts):
        writer.write(tmp_path / "changed")
    with raises(ConfigError):
        savepoint_at(str(tmp_path / "changed"))


@pytest.mark.parametrize("name", ["items", "timers", "numbers"])
@pytest.mark.parametrize("kind", [SchemaMismatch, UserCodeError])
def test_errors_of_later_batches_name_operator_and_state(tmp_path: Path, name: str, kind: type[StateflowError]) -> None:
    keys = "abcdefgh"
    timers = {(key, 0, 1, "event") for key in keys}
    model = Model(items={(key, 0): [1] for key in keys}, timers=timers, numbers=[1] * 8)
    seen = []

    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch)
        if len(seen) == 1:
            return batch
        return batch.append_column("more", batch.columns[-1]) if kind is SchemaMismatch else _raising(batch)

    writer = SavepointWriter.from_savepoint(_write(model, tmp_path))
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
    writer = SavepointWriter.from_savepoint(_write(MODEL, tmp_path))
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
