"""One operator with three states over any sources on Spark; in version 2 its states are divided among two operators.

Parameters: ``job.sources``, as in ``sources.py``; ``job.version``.
"""

from collections.abc import Iterator
from pathlib import Path

from stateflow import (
    CheckpointedFunction,
    Context,
    FunctionInitializationContext,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.testing.sinks import FolderSink
from tests.spark.jobs.sources import Row, streams


class Keep(KeyedProcessFunction[Row, Row], CheckpointedFunction):
    """Adds each row to the states that have a name, and emits the sum or the number of different numbers.

    Args:
        total: name of the value state; empty for none.
        seen: name of the map state and of the operator list; empty for none.
    """

    def __init__(self, total: str = "", seen: str = "") -> None:
        self.total_name, self.seen_name = total, seen

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        """Declares the operator state."""
        if self.seen_name:
            self.all = ctx.get_operator_state_store().get_list_state(ListStateDescriptor("all", int))

    def open(self, ctx: RuntimeContext) -> None:
        """Declares the keyed state."""
        if self.total_name:
            self.total = ctx.get_state(ValueStateDescriptor(self.total_name, int))
        if self.seen_name:
            self.seen = ctx.get_map_state(MapStateDescriptor(self.seen_name, int, int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        """Adds a row."""
        if self.total_name:
            self.total.update((self.total.value() or 0) + row.number)
            yield Row(f"total of {row.name}", self.total.value() or 0)
        if self.seen_name:
            self.seen.put(row.number, (self.seen.get(row.number) or 0) + 1)
            self.all.add(row.number)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home, rows = Path(env.parameter("home")), streams(env)
    rows.sink_to(FolderSink(home / "out"), uid="out")
    keyed = rows.key_by("name", order_by=("number",))
    if env.parameter("version", "1") == "1":
        keyed.process(Keep("total", "seen"), output=Row, uid="both").sink_to(FolderSink(home / "sums"), uid="sums")
    else:
        keyed.process(Keep("sum"), output=Row, uid="totals").sink_to(FolderSink(home / "sums"), uid="sums")
        keyed.process(Keep(seen="seen"), output=Row, uid="distinct").sink_to(FolderSink(home / "none"), uid="none")
