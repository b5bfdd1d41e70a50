"""A function with state of every kind, the same state in plain dictionaries, and its tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from stateflow import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointedFunction,
    Context,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OnTimerContext,
    ReducingStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.clock import SystemClock
from stateflow.query.reader import state_table
from stateflow.query.snapshot import Snapshot
from stateflow.query.state_table import Rows
from stateflow.state.backends import canonical_file, hash_maps
from stateflow.state.backends.entry_stream import select_key_groups
from stateflow.state.backends.factory import open_store_location, read_blocks
from stateflow.state.handles import CANONICAL, Base, StateFile, StateSchema, SubtaskState
from stateflow.state.schema import type_schema
from stateflow.storage import MemoryStorage, Storage, open_storage
from stateflow.testing import BroadcastInput, KeyedHarness, KeyedInput
from stateflow.testing.harness.job import OPERATOR
from stateflow.types.key_groups import KeyGroupRange

KEY_GROUPS = 16
RULES = MapStateDescriptor("rules", str, float)


class Row(msgspec.Struct):
    key: str
    item: int
    number: int


class Rule(msgspec.Struct):
    name: str
    limit: float


class Pair(msgspec.Struct):
    item: int
    text: str | None = None


class Mean(AggregateFunction[int, Pair, float]):
    """Keeps the number of values, and their sum as text."""

    def create_accumulator(self) -> Pair:
        return Pair(0, "0")

    def add(self, value: int, accumulator: Pair) -> Pair:
        return Pair(accumulator.item + 1, str(int(accumulator.text or 0) + value))

    def get_result(self, accumulator: Pair) -> float:
        return int(accumulator.text or 0) / accumulator.item

    def merge(self, acc_a: Pair, acc_b: Pair) -> Pair:
        return Pair(acc_a.item + acc_b.item, str(int(acc_a.text or 0) + int(acc_b.text or 0)))


def largest(first: int, second: int) -> int:
    return max(first, second)


class EveryKind(KeyedBroadcastProcessFunction[Row, Rule, Row], CheckpointedFunction):
    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        store = ctx.get_operator_state_store()
        self.seen = store.get_list_state(ListStateDescriptor("seen", Pair))

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        """All data is in state already."""

    def open(self, ctx: RuntimeContext) -> None:
        ttl = StateTtlConfig.new_builder(Time.hours(1)).build()
        self.last = ctx.get_state(ValueStateDescriptor("last", int))
        self.pair = ctx.get_state(ValueStateDescriptor("pair", Pair, ttl=ttl))
        self.largest = ctx.get_reducing_state(ReducingStateDescriptor("largest", largest, int))
        self.mean = ctx.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), Pair))
        self.all = ctx.get_list_state(ListStateDescriptor("all", int))
        self.items = ctx.get_map_state(MapStateDescriptor("items", int, str))

    def process_element(self, row: Row, ctx: Context) -> Iterable[Row]:
        self.last.update(row.number)
        self.pair.update(Pair(row.item, None if row.item % 2 else "é" * row.item))
        self.largest.add(row.number)
        self.mean.add(row.number)
        self.all.add(row.number)
        self.items.put(row.item, f"{row.number}")
        self.seen.add(Pair(row.number))
        ctx.timer_service().register_event_time_timer(row.number)
        return []

    def process_broadcast_element(self, row: Rule, ctx: Any) -> Iterable[Row]:
        ctx.get_broadcast_state(RULES).put(row.name, row.limit)
        return []

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Row]:
        return []


@dataclass
class PlainState:
    """The same state, as sorted rows of its tables, without key groups."""

    keys: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    limits: dict[str, float] = field(default_factory=dict)

    def add(self, rows: Sequence[Row], rules: Sequence[Rule]) -> None:
        for row in rows:
            self.keys[row.key].append(row)
        self.limits |= {rule.name: rule.limit for rule in rules}

    def rows(self, state: str, keys: Sequence[str] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a state's table: key and the columns that the kind of state has."""
        found = {key: rows for key, rows in self.keys.items() if keys is None or key in keys}
        return sorted(row for key, rows in found.items() for row in getattr(self, f"_{state.strip('_')}")(key, rows))

    def _last(self, key: str, rows: list[Row]) -> Iterable[tuple[Any, ...]]:
        yield key, rows[-1].number

    def _pair(self, key: str, rows: list[Row]) -> Iterable[tuple[Any, ...]]:
        item = rows[-1].item
        yield key, {"item": item, "text": None if item % 2 else "é" * item}, 0

    def _largest(self, key: str, rows: list[Row]) -> Iterable[tuple[Any, ...]]:
        yield key, max(row.number for row in rows)

    def _mean(self, key: str, rows: list[Row]) -> Iterable[tuple[Any, ...]]:
        yield key, {"item": len(rows), "text": str(sum(row.number for row in rows))}

    def _all(self, key: str, rows: list[Row]) -> Iterable[tuple[Any, ...]]:
        yield from ((key, position, row.number) for position, row in enumerate(rows))

    def _items(self, key: str, rows: list[Row]) -> Iterable[tuple[Any, ...]]:
        yield from ((key, item, text) for item, text in {row.item: str(row.number) for row in rows}.items())

    def _timers(self, key: str, rows: list[Row]) -> Iterable[tuple[Any, ...]]:
        yield from ((key, number, "event") for number in {row.number for row in rows})


COLUMNS = {
    "last": ["key", "value"], "pair": ["key", "value", "written_at"], "largest": ["key", "value"],
    "mean": ["key", "value"], "all": ["key", "position", "value"], "items": ["key", "map_key", "value"],
    "_timers": ["key", "time", "domain"],
}  # fmt: skip
"""The columns of each table that `PlainState.rows` has."""


def harness(backend: Any, **settings: Any) -> KeyedHarness:
    inputs = KeyedInput(Row, "key"), BroadcastInput(Rule)
    return KeyedHarness(
        EveryKind(), *inputs, output=Row, backend=backend, max_parallelism=KEY_GROUPS, parallelism=3, **settings
    )


def snapshot_of(given: KeyedHarness) -> Snapshot:
    return snapshot_with(open_storage(given.root), given.snapshot().position.operators[OPERATOR])


def snapshot_with(storage: Storage, operator: OperatorState) -> Snapshot:
    class _OfOne(Snapshot):
        def operator(self, uid: str) -> OperatorState:
            return operator

    return _OfOne(storage, None, "j", "u", KEY_GROUPS, 1)  # type: ignore[arg-type]


def as_canonical(given: Snapshot) -> Snapshot:
    """The same keyed state in canonical files, two of each subtask."""
    operator = given.operator(OPERATOR)
    subtasks = [_canonical(given.storage, operator, subtask) for subtask in operator.subtasks]
    return snapshot_with(given.storage, msgspec.structs.replace(operator, subtasks=subtasks))


def _canonical(storage: Storage, operator: OperatorState, subtask: SubtaskState) -> SubtaskState:
    middle = (subtask.first_group + subtask.last_group) // 2
    files = []
    for first, last in ((subtask.first_group, middle), (middle + 1, subtask.last_group)):
        header = canonical_file.CanonicalHeader(
            uid=operator.uid, key_types=operator.key_types, max_parallelism=KEY_GROUPS, first_group=first,
            last_group=last, states=operator.states,
        )  # fmt: skip
        with open_store_location(storage, SystemClock()) as location:
            blocks = select_key_groups(read_blocks(location, Base.of(subtask)), KeyGroupRange(first, last))
            content = b"".join(canonical_file.encode_file(header, blocks))
        handle = write_bytes(storage, f"data/canonical/{subtask.subtask}-{first}", content)
        files.append(StateFile(handle=handle, local_name="entries"))
    return msgspec.structs.replace(subtask, backend=CANONICAL, files=files, inline=None, store_manifest=b"")


def read_table(given: Snapshot, state: str, columns: Sequence[str] | None = None, **rows: Any) -> pa.Table:
    table = state_table(given, OPERATOR, state, Rows(**rows))
    names = columns or table.schema.names
    schema = pa.schema([table.schema.field(name) for name in names])
    found = pa.Table.from_batches(table.batches(given.storage, SystemClock(), names), schema)
    found.validate(full=True)
    return found


def read_rows(given: Snapshot, state: str, **rows: Any) -> list[tuple[Any, ...]]:
    """The rows of a table as `PlainState.rows` returns them."""
    found = read_table(given, state, COLUMNS[state], **rows).to_pylist()
    return sorted(tuple(row.values()) for row in found)


def snapshot_with_entries(
    entries: Mapping[bytes, bytes],
    value_type: object = int,
    key_names: Sequence[str] = ("key",),
    key_type: str = "string",
) -> Snapshot:
    """A snapshot of the value state ``last`` whose stored entries are these, inline."""
    content = b"".join(hash_maps.encode_snapshot(iter(sorted(entries.items()))))
    subtask = SubtaskState(
        subtask=0, first_group=0, last_group=KEY_GROUPS - 1, snapshot="s", backend="memory", inline=content
    )
    state = StateSchema(name="last", kind="value", value_type="", type=type_schema(value_type))
    operator = OperatorState(
        uid=OPERATOR, parallelism=1, key_types=[key_type], key_names=list(key_names), states=[state], subtasks=[subtask]
    )
    return snapshot_with(MemoryStorage(), operator)
