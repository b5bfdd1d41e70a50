"""Every kind of operator state, on Spark or without.

Parameters: ``job.folder``, as in ``accounts.py``; ``job.pad``, bytes that are added to each list element;
``job.spark``. The events are broadcast as well: the rate of a shop is the sum of its amounts.
"""

import json
from pathlib import Path

import msgspec

from stateflow import (
    CheckpointedFunction,
    Context,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StreamExecutionEnvironment,
)
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource
from stateflow.types.key_groups import key_hash
from tests.support.jobs.accounts import Event

KEY_GROUPS = 128


class Rated(msgspec.Struct):
    number: int
    rate: int


class Element(msgspec.Struct):
    """An element of the list: the number of an event, and bytes that only make the state larger."""

    number: int
    pad: bytes


class Collect(KeyedProcessFunction[Event, Rated], CheckpointedFunction):
    """Keeps the numbers of its events in a list, a union list, raw partitions and raw key groups."""

    def __init__(self, pad: int) -> None:
        self.pad = bytes(pad)

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        store = ctx.get_operator_state_store()
        self.numbers = store.get_list_state(ListStateDescriptor("numbers", Element))
        self.union = store.get_union_list_state(ListStateDescriptor("union", int))
        self.raw = [int(piece.read()) for piece in ctx.get_raw_operator_state_inputs()]
        self.groups = {group: json.load(piece) for group, piece in ctx.get_raw_keyed_state_inputs()}

    def process_element(self, row: Event, ctx: Context) -> list[Rated]:
        self.numbers.add(Element(row.number, self.pad))
        self.union.add(row.number)
        self.raw.append(row.number)
        group = key_hash((row.account,), ("string",)) % KEY_GROUPS
        self.groups.setdefault(group, []).append(row.number)
        return []

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        out = ctx.get_raw_operator_state_output()
        for number in self.raw:
            out.start_new_partition()
            out.write(str(number).encode())
        keyed = ctx.get_raw_keyed_state_output()
        for group, numbers in self.groups.items():
            keyed.start_new_key_group(group)
            keyed.write(json.dumps(numbers).encode())


class Rate(KeyedBroadcastProcessFunction[Event, Event, Rated]):
    rates = MapStateDescriptor("rates", str, int)

    def process_broadcast_element(self, row: Event, ctx: Context) -> None:
        rates = ctx.get_broadcast_state(self.rates)
        rates.put(row.shop, (rates.get(row.shop) or 0) + row.amount)

    def process_element(self, row: Event, ctx: Context) -> list[Rated]:
        return [Rated(row.number, ctx.get_broadcast_state(self.rates).get(row.shop) or 0)]


def build(env: StreamExecutionEnvironment) -> None:
    env.configure(max_parallelism=KEY_GROUPS)
    folder = Path(env.parameter("folder"))
    script = [Event(**json.loads(line)) for line in (folder / "events.jsonl").read_text().splitlines()]
    source = ScriptedSource(Event, script, folder / "ledger.jsonl", slice_rows=10)
    if env.parameter("spark", "no") == "yes":
        from stateflow.connectors.python import PythonSource

        events = env.from_source(PythonSource(source), uid="events")
    else:
        events = env.from_source(source, uid="events")
    keyed = events.key_by("account", order_by=("number",))
    collected = keyed.process(Collect(int(env.parameter("pad", "0"))), output=Rated, uid="collect")
    collected.sink_to(FolderSink(folder / "tables" / "collected"), uid="collected")
    rated = keyed.connect(events.broadcast()).process(Rate(), output=Rated, uid="rate")
    rated.sink_to(FolderSink(folder / "tables" / "rated"), uid="rated")
