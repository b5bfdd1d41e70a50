"""A job with state of every kind, which its rows change, and the plain dictionaries that the state must equal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from stateflow import (
    AggregatingStateDescriptor,
    CheckpointedFunction,
    Context,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OnTimerContext,
    ReducingStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from stateflow.checkpoint.log.documents import Manifest
from stateflow.clock import ManualClock
from stateflow.runtime.restore.new_job_root import InitialSavepoint, create_job_root
from stateflow.state.handles import OperatorContent
from stateflow.state.operator_content import read_parts
from stateflow.storage import Storage
from stateflow.types.key_encoding import decode_key
from stateflow.types.key_groups import key_hash, subtask_of
from stateflow.types.serializers import decode_untyped
from tests.support.local_jobs import Build, Growing, LocalJobs
from tests.support.operators import Mean

TTL = timedelta(hours=1)
KEY_TYPES = ("string", "bigint")
Key = tuple[str, int]


class Row(msgspec.Struct, frozen=True):
    """What to do with the state of a key; `number` is its position, which operator state collects."""

    number: int
    key: str
    shop: int
    action: str
    name: str = ""
    value: int = 0
    at: int = 0

    @property
    def place(self) -> Key:
        return self.key, self.shop


class Seen(msgspec.Struct):
    """The state of a key as JSON, or a timer that has fired."""

    key: str
    shop: int
    text: str


class EveryState(KeyedProcessFunction[Row, Seen], CheckpointedFunction):
    """Changes state as its rows say, and emits all of it.

    Args:
        groups: max parallelism, for raw keyed state; 0 for none.
    """

    def __init__(self, groups: int) -> None:
        self.groups = groups

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        store = ctx.get_operator_state_store()
        self.numbers = store.get_list_state(ListStateDescriptor("numbers", int))
        self.union = store.get_union_list_state(ListStateDescriptor("union", int))
        self.raw = [bytes(piece.read()) for piece in ctx.get_raw_operator_state_inputs()]
        self.raw_keyed = {group: json.load(piece) for group, piece in ctx.get_raw_keyed_state_inputs()}

    def open(self, ctx: RuntimeContext) -> None:
        ttl = StateTtlConfig.new_builder(TTL).build()
        self.one = ctx.get_state(ValueStateDescriptor("one", int))
        self.tags = ctx.get_state(ValueStateDescriptor("tags", dict[str, set[int]]))
        self.items = ctx.get_list_state(ListStateDescriptor("items", int))
        self.entries = ctx.get_map_state(MapStateDescriptor("entries", str, int))
        self.sum = ctx.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, int))
        self.mean = ctx.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), list[int]))
        self.brief = ctx.get_state(ValueStateDescriptor("brief", int, ttl=ttl))
        self.brief_items = ctx.get_list_state(ListStateDescriptor("brief items", int, ttl=ttl))
        self.brief_entries = ctx.get_map_state(MapStateDescriptor("brief entries", str, int, ttl=ttl))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Seen]:
        if row.action == "read":
            yield Seen(row.key, row.shop, json.dumps(self._all(), sort_keys=True))
        elif row.action == "collect":
            self.numbers.add(row.number)
            self.union.add(row.number)
            self.raw.append(str(row.number).encode())
            if self.groups:
                self.raw_keyed.setdefault(group_of(row.place, self.groups), []).append(row.number)
        elif "timer" in row.action:
            self._set_timer(row, ctx)
        elif row.action != "rate":
            self._change(row)

    def _change(self, row: Row) -> None:
        match row.action:
            case "update":
                self.one.update(row.value)
                self.brief.update(row.value)
            case "clear":
                self.one.clear()
                self.items.clear()
            case "add":
                self.items.add(row.value)
                self.brief_items.add(row.value)
                self.sum.add(row.value)
                self.mean.add(row.value)
            case "put":
                self.entries.put(row.name, row.value)
                self.brief_entries.put(row.name, row.value)
            case "remove":
                self.entries.remove(row.name)
            case "tag":
                tags = self.tags.value() or {}
                tags.setdefault(row.name, set()).add(row.value)
                self.tags.update(tags)
            case _:
                raise AssertionError(row.action)

    def _set_timer(self, row: Row, ctx: Context) -> None:
        timers = ctx.timer_service()
        match row.action:
            case "timer":
                timers.register_processing_time_timer(timer_time(row.value))
            case "no timer":
                timers.delete_processing_time_timer(timer_time(row.value))
            case "event timer":
                timers.register_event_time_timer(event_time(row.value))

    def _all(self) -> dict[str, Any]:
        return {
            "one": self.one.value(),
            "tags": {name: sorted(found) for name, found in (self.tags.value() or {}).items()},
            "items": list(self.items.get()), "entries": dict(self.entries.items()), "sum": self.sum.get(),
            "mean": self.mean.get(), "brief": self.brief.value(), "brief items": list(self.brief_items.get()),
            "brief entries": dict(self.brief_entries.items()), "union": sorted(self.union.get()),
        }  # fmt: skip

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Seen]:
        key, shop = ctx.get_current_key()
        yield Seen(key, shop, f"{ctx.time_domain().value} {timestamp}")

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        out, keyed = ctx.get_raw_operator_state_output(), ctx.get_raw_keyed_state_output()
        for piece in self.raw:
            out.start_new_partition()
            out.write(piece)
        for group, numbers in sorted(self.raw_keyed.items()):
            keyed.start_new_key_group(group)
            keyed.write(json.dumps(numbers).encode())


class Rates(KeyedBroadcastProcessFunction[Row, Row, Seen]):
    rates = MapStateDescriptor("rates", str, int)

    def process_broadcast_element(self, row: Row, ctx: Context) -> None:
        if row.action == "rate":
            rates = ctx.get_broadcast_state(self.rates)
            rates.put(row.name, (rates.get(row.name) or 0) + row.value)

    def process_element(self, row: Row, ctx: Context) -> None: ...


def build_job(jobs: LocalJobs, rows: Sequence[Row], raw_groups: int) -> Build:
    """Returns the job over `rows`; its raw keyed state has `raw_groups` key groups, or does not exist."""

    def build(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
        events = env.from_source(Growing(rows, Row), uid="rows").assign_timestamps_and_watermarks(strategy)
        keyed = events.key_by("key", "shop", order_by=("number",))
        keyed.process(EveryState(raw_groups), output=Seen, uid="every").sink_to(jobs.sink("seen"), uid="seen")
        rated = keyed.connect(events.broadcast()).process(Rates(), output=Seen, uid="rates")
        rated.sink_to(jobs.sink("rated"), uid="rated")

    return build


def timer_time(value: int) -> int:
    """A processing time after those of all batches of a test: its manual clock begins in 2026."""
    return 1_900_000_000_000 + value


def event_time(value: int) -> int:
    """An event time after the watermark, which stays below 0."""
    return 1000 + value


def group_of(key: Key, groups: int) -> int:
    return key_hash(key, KEY_TYPES) % groups


@dataclass
class Brief:
    value: Any
    since: timedelta


@dataclass
class OneKey:
    one: int | None = None
    tags: dict[str, set[int]] = field(default_factory=dict)
    items: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)
    entries: dict[str, int] = field(default_factory=dict)
    brief: Brief | None = None
    brief_items: list[Brief] = field(default_factory=list)
    brief_entries: dict[str, Brief] = field(default_factory=dict)

    def apply(self, row: Row, now: timedelta) -> None:
        brief = Brief(row.value, now)
        match row.action:
            case "update":
                self.one, self.brief = row.value, brief
            case "clear":
                self.one, self.items = None, []
            case "add":
                self.items.append(row.value)
                self.added.append(row.value)
                self.brief_items.append(brief)
            case "put":
                self.entries[row.name], self.brief_entries[row.name] = row.value, brief
            case "remove":
                self.entries.pop(row.name, None)
            case "tag":
                self.tags.setdefault(row.name, set()).add(row.value)


@dataclass
class Expected:
    keys: dict[Key, OneKey] = field(default_factory=dict)
    timers: set[tuple[Key, str]] = field(default_factory=set)
    collected: list[Row] = field(default_factory=list)
    rates: Counter[str] = field(default_factory=Counter)

    def apply(self, rows: Iterable[Row], now: timedelta) -> None:
        for row in rows:
            self.keys.setdefault(row.place, OneKey()).apply(row, now)
            match row.action:
                case "timer":
                    self.timers.add((row.place, f"processing {timer_time(row.value)}"))
                case "no timer":
                    self.timers.discard((row.place, f"processing {timer_time(row.value)}"))
                case "event timer":
                    self.timers.add((row.place, f"event {event_time(row.value)}"))
                case "collect":
                    self.collected.append(row)
                case "rate":
                    self.rates[row.name] += row.value

    def seen(self, key: Key, now: timedelta) -> dict[str, Any]:
        of = self.keys.get(key, OneKey())

        def lives(brief: Brief | None) -> bool:
            return brief is not None and now < brief.since + TTL

        return {
            "one": of.one,
            "tags": {name: sorted(found) for name, found in of.tags.items()},
            "items": of.items,
            "entries": of.entries,
            "sum": sum(of.added) if of.added else None,
            "mean": sum(of.added) / len(of.added) if of.added else None,
            "brief": of.brief.value if of.brief is not None and lives(of.brief) else None,
            "brief items": [each.value for each in of.brief_items if lives(each)],
            "brief entries": {name: each.value for name, each in of.brief_entries.items() if lives(each)},
            "union": sorted(row.number for row in self.collected),
        }


def check_operator_state(manifest: Manifest, storage: Storage, expected: Expected, raw_groups: int) -> None:
    """Operator state is stored once, by the subtask that owns it."""
    operators = {operator.uid: operator for operator in manifest.operators}
    every = _contents(operators["every"].parts, storage)
    numbers = sorted(row.number for row in expected.collected)
    for kept in (
        [decode_untyped(each) for _, content in every for each in content.lists.get("numbers", [])],
        [decode_untyped(each) for _, content in every for each in content.unions.get("union", [])],
        [int(piece) for _, content in every for piece in content.raw],
    ):
        assert sorted(kept) == numbers
    found = [(subtask, group, n) for subtask, c in every for group, piece in c.raw_keyed for n in json.loads(piece)]
    places = []
    for row in expected.collected if raw_groups else ():
        group = group_of(row.place, raw_groups)
        places.append((subtask_of(group, operators["every"].parallelism, raw_groups), group, row.number))
    assert sorted(found) == sorted(places)
    rates: dict[Any, Any] = {}
    for _, content in _contents(operators["rates"].parts if "rates" in operators else [], storage):
        rates |= {decode_key(k)[0]: decode_untyped(v) for k, v in content.broadcasts.get("rates", {}).items()}
    assert rates == expected.rates


def _contents(parts: Any, storage: Storage) -> list[tuple[int, OperatorContent]]:
    return [(part.subtask, content) for part, content in read_parts(storage, parts)]


# -- stories ----------------------------------------------------------------------------------------------------------

PLACES: list[Key] = [("", 0), ("a", -1), ("a\0", 2), ("é", 2**40), ("a", 7), ("b" * 300, 1)]
NAMES = ["", "x", "x\0", "é"]
BACKENDS = ["rocksdb", "filesystem", "memory"]


@dataclass
class Story:
    """Jobs one after another, the rows so far, and the state that they must lead to.

    Attributes:
        raw_groups: key groups of raw keyed state; 0 without any.
    """

    folder: Path
    raw_groups: int = 0
    clock: ManualClock = field(default_factory=ManualClock)
    rows: list[Row] = field(default_factory=list)
    expected: Expected = field(default_factory=Expected)

    def build(self, jobs: LocalJobs) -> Build:
        return build_job(jobs, self.rows, self.raw_groups)

    def add(self, commands: Iterable[Sequence[Any]]) -> list[Row]:
        """Appends rows, each a key and what to do with its state; returns them."""
        first = len(self.rows)
        self.rows += [Row(first + n, *place, *command) for n, (place, *command) in enumerate(commands)]
        return self.rows[first:]

    def apply(self, jobs: LocalJobs, commands: Iterable[Sequence[Any]]) -> None:
        """Runs a batch of commands, here and in the job."""
        self.expected.apply(self.add(commands), self._elapsed)
        jobs.run(self.build(jobs))

    def start(self, jobs: LocalJobs, savepoint: str) -> LocalJobs:
        """Makes a job root that begins with the savepoint."""
        create_job_root(jobs.new_root(self.build(jobs)), InitialSavepoint(savepoint))
        return jobs

    def check(self, jobs: LocalJobs) -> None:
        """Reads the state of every key in a batch of the job, and compares it."""
        known = len(_seen(jobs))
        self.add([(place, "read") for place in PLACES])
        jobs.run(self.build(jobs))
        found = {(key, shop): json.loads(text) for key, shop, text in _seen(jobs)[known:]}
        assert found == {place: self.expected.seen(place, self._elapsed) for place in PLACES}

    def check_timers(self, jobs: LocalJobs) -> None:
        """Fires all timers: each fires once, at its time."""
        known = len(_seen(jobs))
        self.clock.sleep(timedelta(days=5000))
        jobs.run(self.build(jobs), run__drain=True)
        assert Counter(((key, shop), text) for key, shop, text in _seen(jobs)[known:]) == Counter(self.expected.timers)

    @property
    def _elapsed(self) -> timedelta:
        return timedelta(seconds=self.clock.monotonic())


def _seen(jobs: LocalJobs) -> list[tuple[Any, ...]]:
    return jobs.rows("seen") if (jobs.folder / "seen").exists() else []
