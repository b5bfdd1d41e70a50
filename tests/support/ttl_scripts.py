"""Lives of one entry of state with a time to live, as scripts of timed steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.ttl_config import StateTtlConfig, StateTtlConfigBuilder, Time
from tests.support.operators import Mean
from tests.support.stores import CountingStore, DictStoreFixture, StoreFixture, address, set_key

GROUPS = KeyGroupRange(0, 15)
AHEAD = 1 << 41
"""Milliseconds by which processing time is ahead of the watermark: decades."""


def ttl_builder(milliseconds: int = 100) -> StateTtlConfigBuilder:
    return StateTtlConfig.new_builder(Time.milliseconds(milliseconds))


HUNDRED, EVENT = ttl_builder().build(), ttl_builder().use_event_time().build()
RELAXED = ttl_builder().return_expired_if_not_cleaned_up().build()
ON_READ = ttl_builder().update_ttl_on_read_and_write().build()
TTLS: dict[str, StateTtlConfig | None] = {
    "none": None,
    "30": ttl_builder(30).build(),
    "100": HUNDRED,
    "500": ttl_builder(500).build(),
    "longest": StateTtlConfig.new_builder(timedelta.max).build(),
    "on-read": ON_READ,
    "event": EVENT,
}


@dataclass(frozen=True)
class Kind:
    declare: Callable[[KeyedState, StateTtlConfig | None], Any]
    write: Callable[[Any, int], object]
    read: Callable[[Any], int | None]


def _map(state: KeyedState, ttl: StateTtlConfig | None) -> Any:
    return state.map_state(MapStateDescriptor("s", str, int, ttl=ttl))


KINDS = {
    "value": Kind(
        lambda s, ttl: s.value_state(ValueStateDescriptor("s", int, ttl=ttl)),
        lambda state, n: state.update(n),
        lambda state: state.value(),
    ),
    "list": Kind(
        lambda s, ttl: s.list_state(ListStateDescriptor("s", int, ttl=ttl)),
        lambda state, n: state.update([n]),
        lambda state: next(iter([*state.get()]), None),
    ),
    "map": Kind(_map, lambda state, n: state.put("k", n), lambda state: state.get("k")),
    "map-entries": Kind(_map, lambda state, n: state.put("k", n), lambda state: dict(state.items()).get("k")),
    "reducing": Kind(
        lambda s, ttl: s.reducing_state(ReducingStateDescriptor("s", lambda a, b: b, int, ttl=ttl)),
        lambda state, n: state.add(n),
        lambda state: state.get(),
    ),
    "aggregating": Kind(
        lambda s, ttl: s.aggregating_state(AggregatingStateDescriptor("s", Mean(), list[int], ttl=ttl)),
        lambda state, n: (state.clear(), state.add(n)),
        lambda state: state.get(),
    ),
}


@dataclass
class Life:
    """An operator's batches at given times, each restored from the one before."""

    kind: Kind
    ttl: StateTtlConfig | None = field(default_factory=lambda: HUNDRED)
    stores: StoreFixture = field(default_factory=DictStoreFixture)
    known: list[StateSchema] = field(default_factory=list)
    epoch: int = 0
    prefetch: bool = True
    ahead: int = AHEAD

    def __post_init__(self) -> None:
        self.store = CountingStore(self.stores.new())

    def at(self, now: int | None, limit: int = 0) -> Batch:
        """The batch at this watermark; processing time is `ahead` of it. `limit` is for the batch's cleanup."""
        self.epoch += 1
        return Batch(self, BatchTime(self.epoch, (now or 0) + self.ahead, now), limit)

    def write(self, now: int | None, number: int = 1, key: str = "a") -> None:
        with self.at(now) as batch:
            set_key(batch.owner, key)
            self.kind.write(batch.state, number)

    def read(self, now: int | None, key: str = "a") -> int | None:
        with self.at(now) as batch:
            set_key(batch.owner, key)
            return self.kind.read(batch.state)

    def clean(self, now: int | None, limit: int = 1000) -> None:
        with self.at(now, limit):
            pass

    def full_snapshot(self, now: int | None) -> None:
        with self.at(now) as batch:
            batch.owner.end_key_batch()
            batch.owner.ttl_cleanup(GROUPS).remove_all()

    @property
    def entries(self) -> list[bytes]:
        return [key for key, _ in self.store.inside.scan(b"")]

    def play(self, script: str, **ttls: StateTtlConfig) -> None:
        """Does the steps of a script. Each batch has its time and one step: write or read a number, of key "a" unless
        the step ends with another one; clean, with a limit; take a full snapshot; nothing. `left` counts entries."""
        for step in script.split(", "):
            match step.split():
                case ["ttl", name]:
                    self.ttl = ttls[name] if name in ttls else TTLS[name]
                case ["left", number]:
                    assert len(self.entries) == int(number), step
                case [time, *action]:
                    self._do(None if time == "unknown" else int(time), action, step)

    def _do(self, now: int | None, action: list[str], step: str) -> None:
        match action:
            case ["write", number, *key]:
                self.write(now, int(number), *key)
            case ["read", wanted, *key]:
                assert self.read(now, *key) == (None if wanted == "none" else int(wanted)), step
            case ["clean", *limit]:
                self.clean(now, *map(int, limit))
            case ["nothing"]:
                self.clean(now, limit=0)
            case ["full", "snapshot"]:
                self.full_snapshot(now)
            case _:
                raise AssertionError(step)


@dataclass
class Batch:
    life: Life
    time: BatchTime
    limit: int

    def __enter__(self) -> Batch:
        life = self.life
        self.owner = KeyedState(life.store, life.known, self.time)
        self.state = life.kind.declare(self.owner, life.ttl)
        self.owner.begin_key_batch([address("a"), address("b")] if life.prefetch else [])
        return self

    def __exit__(self, *failed: object) -> None:
        self.owner.end_key_batch()
        if self.limit:
            self.owner.ttl_cleanup(GROUPS).remove_some(self.limit)
        life = self.life
        life.known = self.owner.registry.schemas
        life.store = CountingStore(life.stores.reopened(life.store.inside))


def scripts(text: str) -> dict[str, str]:
    """The scripts of a text: a name, then the steps, which may continue in an indented line."""
    lines = text.strip().replace("\n   ", "").splitlines()
    return {name: steps for name, _, steps in (line.partition(" | ") for line in lines)}
