"""Each account's numbers in a list, and the last of them for a day, for runs without Spark.

Parameter: ``job.folder``, as in ``accounts.py``. The list is only added to; the state is looked at from outside.
"""

from pathlib import Path

import msgspec

from stateflow import (
    Context,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
)
from stateflow.testing.sinks import FolderSink
from tests.support.jobs.sources import scripted


class Event(msgspec.Struct):
    number: int
    account: str
    shop: str
    amount: int


class Collect(KeyedProcessFunction[Event, Event]):
    def open(self, ctx: RuntimeContext) -> None:
        self.numbers = ctx.get_list_state(ListStateDescriptor("numbers", int))
        day = StateTtlConfig.new_builder(Time.days(1)).build()
        self.last = ctx.get_state(ValueStateDescriptor("last", int, ttl=day))

    def process_element(self, row: Event, ctx: Context) -> None:
        self.numbers.add(row.number)
        self.last.update(row.number)


def build(env: StreamExecutionEnvironment) -> None:
    env.configure(max_parallelism=128)
    folder = Path(env.parameter("folder"))
    events = env.from_source(scripted(env, Event, "events"), uid="events")
    collected = events.key_by("account", order_by=("number",))
    collected.process(Collect(), output=Event, uid="collect").sink_to(
        FolderSink(folder / "tables" / "none"), uid="none"
    )
