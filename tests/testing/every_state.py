"""A function with every kind of state, which executes the steps of its rows and emits the results."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stateflow import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointedFunction,
    Context,
    FoldingStateDescriptor,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OnTimerContext,
    ReducingStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    ValueStateDescriptor,
)
from stateflow.testing import BroadcastInput, KeyedInput

KINDS = ("value", "list", "map", "reducing", "aggregating", "folding")
CELLS = ("value", "reducing", "aggregating", "folding")
LAST_TIMER = 150
"""Timers from this time on set no others, so that each chain of timers ends."""
SETS_TIMERS = 2
"""Remainder, modulo four, of the times of timers that set others."""

Step = tuple[Any, ...]
"""Namespace; state, timer or other subject; verb; arguments."""
Ttls = Mapping[str, StateTtlConfig | None]

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode


class Row(msgspec.Struct):
    """Packed steps for a key; `number` is that of the row in its push."""

    key: str
    number: int
    steps: bytes


class Rule(msgspec.Struct):
    """Sets a word of the broadcast state, or removes it when the number is 0."""

    word: str
    number: int


class Seen(msgspec.Struct):
    """Packed results of a row's steps, or with the number -1 of a timer's."""

    key: str
    subtask: int
    number: int
    results: bytes


INPUTS = KeyedInput(Row, "key"), BroadcastInput(Rule)
RULES = MapStateDescriptor("rules", str, int)


class Broken(Exception):
    """Raised by a row that has to fail."""


class Joined(AggregateFunction[str, list[str], str]):
    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: str, accumulator: list[str]) -> list[str]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[str]) -> str:
        return "+".join(accumulator)

    def merge(self, acc_a: list[str], acc_b: list[str]) -> list[str]:
        return acc_a + acc_b


def concatenated(first: str, second: str) -> str:
    """The reduce and the fold function; the result shows the order."""
    return f"{first}+{second}"


class EveryState(KeyedBroadcastProcessFunction[Row, Rule, Seen], CheckpointedFunction):
    """Executes the steps of a row.

    Args:
        ttls: times to live by the state's name.
        default: of the value state.
    """

    def __init__(self, ttls: Ttls, default: str | None) -> None:
        self.ttls = dict(ttls)
        self.default = default

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        store = ctx.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split", str))
        self.union = store.get_union_list_state(ListStateDescriptor("union", str))

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        """All data is in state already."""

    def open(self, ctx: RuntimeContext) -> None:
        ttl = self.ttls
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            folding = FoldingStateDescriptor("folding", "fold", concatenated, str, ttl=ttl["folding"])
        reducing = ReducingStateDescriptor("reducing", concatenated, str, ttl=ttl["reducing"])
        aggregating = AggregatingStateDescriptor("aggregating", Joined(), list[str], ttl=ttl["aggregating"])
        self.states: dict[str, Any] = {
            "value": ctx.get_state(ValueStateDescriptor("value", str, ttl=ttl["value"], default=self.default)),
            "list": ctx.get_list_state(ListStateDescriptor("list", str, ttl=ttl["list"])),
            "map": ctx.get_map_state(MapStateDescriptor("map", str, str, ttl=ttl["map"])),
            "reducing": ctx.get_reducing_state(reducing),
            "aggregating": ctx.get_aggregating_state(aggregating),
            "folding": ctx.get_folding_state(folding),
        }
        # Functions cannot choose a namespace; windows will, in this way.
        self.keyed = ctx.keyed_state
        self.subtask = ctx.info.subtask

    def process_element(self, row: Row, ctx: Context) -> Iterable[Seen]:
        results = [self._do(ctx, *step) for step in unpack(row.steps)]
        return [Seen(row.key, self.subtask, row.number, pack(results))]

    def process_broadcast_element(self, row: Rule, ctx: Context) -> None:
        rules = ctx.get_broadcast_state(RULES)
        if row.number:
            rules.put(row.word, row.number)
        else:
            rules.remove(row.word)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Seen]:
        namespace = self.keyed.namespace
        steps = steps_of_timer(namespace, ctx.time_domain().value, timestamp)
        results = [self._do(ctx, *step) for step in steps]
        seen = [namespace, ctx.time_domain().value, timestamp, results]
        return [Seen(ctx.get_current_key(), self.subtask, -1, pack(seen))]

    def _do(self, ctx: Context, namespace: Any, about: str, verb: str, *arguments: Any) -> Any:
        self.keyed.set_namespace(namespace)
        if about == "fail":
            raise Broken
        if about == "timer":
            domain, time = arguments
            return getattr(ctx.timer_service(), f"{verb}_{domain}_time_timer")(time)
        if about == "rules":
            return dict(ctx.get_broadcast_state(RULES).items())
        if about in ("split", "union"):
            listed = self.split if about == "split" else self.union
            return listed.add(*arguments) if verb == "add" else list(listed.get())
        state = self.states[about]
        if verb == "is_empty":
            return [state.is_empty(), list(state.items())]
        if verb == "add" and about in CELLS:
            return [state.add(*arguments), state.get()][1]
        result = getattr(state, verb)(*arguments)
        return list(result) if verb in ("items", "keys", "values") or (about, verb) == ("list", "get") else result


def steps_of_timer(namespace: Any, domain: str, time: int) -> list[Step]:
    """The steps of a timer, by its time: reads, adds, sets timers, or deletes them and clears."""
    other = "processing" if domain == "event" else "event"
    word = f"{domain[0]}{time}"
    match time % 4:
        case 0:
            return [(namespace, kind, "value" if kind == "value" else "get") for kind in CELLS]
        case 1:
            return [(namespace, "list", "add", word), (namespace, "list", "get"), (namespace, "reducing", "add", word)]
        case _ if time % 4 == SETS_TIMERS and time < LAST_TIMER:
            times = [(domain, time + 40), (other, time + 3), (domain, time - 1)]
            return [*((namespace, "timer", "register", *each) for each in times), (namespace, "map", "put", word, word)]
        case 3:
            return [
                (namespace, "timer", "delete", domain, time + 1), (namespace, "timer", "delete", other, time),
                (namespace, "map", "items"), (namespace, "value", "clear"),
            ]  # fmt: skip
    return []
