"""Accounts and shops, for runs without Spark: two keyed operators one after the other, value state and map state.

Parameters: ``job.folder``, which holds ``events.jsonl`` and gets ``ledger.jsonl`` and ``tables/``; ``job.tables``,
another folder for the tables; ``job.parts``; ``job.version``, 2 for the same job under other names. A line of the
events is an event, or ``{"pause": NAME}`` or ``{"crash": NAME}`` with the name of a gate or marker in the folder.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from stateflow import (
    Context,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.api.sink import Sink
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import Crash, Pause, ScriptedSource


class Event(msgspec.Struct):
    number: int
    account: str
    shop: str
    amount: int


class Movement(msgspec.Struct):
    number: int
    account: str
    shop: str
    amount: int
    count: int
    balance: int
    spent_here: int


class Total(msgspec.Struct):
    shop: str
    batch: int
    turnover: int
    customers: int


class Account(msgspec.Struct, array_like=True):
    count: int = 0
    balance: int = 0


class Balances(KeyedProcessFunction[Event, Movement]):
    def __init__(self, state: str = "account") -> None:
        self.state = state

    def open(self, ctx: RuntimeContext) -> None:
        self.account = ctx.get_state(ValueStateDescriptor(self.state, Account))
        self.shops = ctx.get_map_state(MapStateDescriptor("shops", str, int))

    def process_element(self, row: Event, ctx: Context) -> Iterator[Movement]:
        account = self.account.value() or Account()
        account = Account(account.count + 1, account.balance + row.amount)
        self.account.update(account)
        spent = (self.shops.get(row.shop) or 0) + row.amount
        if spent:
            self.shops.put(row.shop, spent)
        else:
            self.shops.remove(row.shop)
        yield Movement(row.number, row.account, row.shop, row.amount, account.count, account.balance, spent)


class Turnovers(KeyedProcessFunction[Movement, Total]):
    def open(self, ctx: RuntimeContext) -> None:
        self.turnover = ctx.get_state(ValueStateDescriptor("turnover", int))
        self.batches = ctx.get_state(ValueStateDescriptor("batches", int))
        self.customers = ctx.get_map_state(MapStateDescriptor("customers", str, int))

    def process_element(self, row: Movement, ctx: Context) -> None:
        self.turnover.update((self.turnover.value() or 0) + row.amount)
        self.customers.put(row.account, row.balance)

    def on_batch_end(self, ctx: Context) -> Iterator[Total]:
        batch = (self.batches.value() or 0) + 1
        self.batches.update(batch)
        customers = sum(1 for _ in self.customers.keys())
        yield Total(ctx.get_current_key(), batch, self.turnover.value() or 0, customers)


def build(env: StreamExecutionEnvironment) -> None:
    tables = Path(env.parameter("tables", str(Path(env.parameter("folder")) / "tables")))
    declare(env, lambda name: FolderSink(tables / name))


def declare(env: StreamExecutionEnvironment, sink: Callable[[str], Sink]) -> None:
    env.configure(max_parallelism=128)
    folder = Path(env.parameter("folder"))
    source = ScriptedSource(Event, _script(folder), folder / "ledger.jsonl", slice_rows=10)
    is_renamed = env.parameter("version", "1") == "2"
    events, balances, turnovers = (
        ("orders", "turnovers", "shops") if is_renamed else ("events", "balances", "turnovers")
    )
    movements = (
        env.from_source(source, uid=events)
        .key_by("account", order_by=("number",))
        .process(Balances("figures" if is_renamed else "account"), output=Movement, uid=balances)
    )
    movements.sink_to(sink("movements"), uid="movements")
    if env.parameter("parts", "both") == "movements":
        return
    totals = movements.key_by("shop", order_by=("number",)).process(Turnovers(), output=Total, uid=turnovers)
    totals.sink_to(sink("totals"), uid="totals")


def _script(folder: Path) -> list[Any]:
    return [_item(folder, json.loads(line)) for line in (folder / "events.jsonl").read_text().splitlines()]


def _item(folder: Path, line: dict[str, Any]) -> Event | Crash | Pause:
    if "pause" in line:
        return Pause(folder / line["pause"])
    if "crash" in line:
        return Crash(folder / line["crash"])
    return Event(**line)
