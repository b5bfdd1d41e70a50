"""Every kind of operator state, on Spark or without.

Parameters: ``job.folder``, as in ``accounts.py``; ``job.pad``, bytes that are added to each list element;
``job.spark``. The events are also the rules: a shop's rate is the sum of its amounts.
"""

import json
from pathlib import Path

import msgspec

from stateflow import (
    CheckpointedFunction,
    CheckpointListener,
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

KEY_GROUPS = 128


class Event(msgspec.Struct):
    """Something with a number."""

    number: int
    account: str
    shop: str
    amount: int


class Rated(msgspec.Struct):
    """An event, with the rate of its shop."""

    number: int
    rate: int


class CollectedRow(msgspec.Struct):
    """What a subtask knew when an event came."""

    number: int
    restored: bool
    mine: int
    everybody: int
    notified: int


class Element(msgspec.Struct):
    """A number with some weight."""

    number: int
    pad: bytes


class Collect(KeyedProcessFunction[Event, CollectedRow], CheckpointedFunction, CheckpointListener):
    """Keeps the numbers of its events in a list, a union list, raw partitions and raw key groups."""

    def __init__(self, pad: int) -> None:
        self.pad = bytes(pad)
        self.notified = 0

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        """Reads what there is."""
        store = ctx.get_operator_state_store()
        self.mine = store.get_list_state(ListStateDescriptor("mine", Element))
        self.everybody = store.get_union_list_state(ListStateDescriptor("everybody", int))
        self.restored = ctx.is_restored
        self.raw = [int(piece.read()) for piece in ctx.get_raw_operator_state_inputs()]
        self.groups = {group: json.load(piece) for group, piece in ctx.get_raw_keyed_state_inputs()}

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notes it."""
        self.notified = checkpoint_id

    def process_element(self, row: Event, ctx: Context) -> list[CollectedRow]:
        """Adds the event's number everywhere."""
        self.mine.add(Element(row.number, self.pad))
        self.everybody.add(row.number)
        self.raw.append(row.number)
        group = key_hash((row.account,), ("string",)) % KEY_GROUPS
        self.groups.setdefault(group, []).append(row.number)
        counts = len(list(self.mine.get())), len(list(self.everybody.get()))
        return [CollectedRow(row.number, self.restored, *counts, self.notified)]

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        """Writes the raw states."""
        out = ctx.get_raw_operator_state_output()
        for number in self.raw:
            out.start_new_partition()
            out.write(str(number).encode())
        keyed = ctx.get_raw_keyed_state_output()
        for group, numbers in self.groups.items():
            keyed.start_new_key_group(group)
            keyed.write(json.dumps(numbers).encode())


class Rate(KeyedBroadcastProcessFunction[Event, Event, Rated]):
    """Adds up rates; gives each event that of its shop."""

    rates = MapStateDescriptor("rates", str, int)

    def process_broadcast_element(self, row: Event, ctx: Context) -> None:
        """Another rule."""
        rates = ctx.get_broadcast_state(self.rates)
        rates.put(row.shop, (rates.get(row.shop) or 0) + row.amount)

    def process_element(self, row: Event, ctx: Context) -> list[Rated]:
        """An event, by all rules up to its batch."""
        return [Rated(row.number, ctx.get_broadcast_state(self.rates).get(row.shop) or 0)]


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
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
    collected = keyed.process(Collect(int(env.parameter("pad", "0"))), output=CollectedRow, uid="collect")
    collected.sink_to(FolderSink(folder / "tables" / "collected"), uid="collected")
    rated = keyed.connect(events.broadcast()).process(Rate(), output=Rated, uid="rate")
    rated.sink_to(FolderSink(folder / "tables" / "rated"), uid="rated")
