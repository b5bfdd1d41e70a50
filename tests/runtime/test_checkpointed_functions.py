"""Functions with operator state: when they are called, what they may do, and what their errors contain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stateflow import (
    CheckpointedFunction,
    CheckpointListener,
    DeadLetters,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)
from stateflow.api.functions.connected import KeyedBroadcastProcessFunction
from stateflow.api.functions.process import Context, KeyedProcessFunction
from stateflow.environment import StreamExecutionEnvironment
from tests.support import root_files
from tests.support.graphs import Row
from tests.support.local_jobs import LocalJobs

ROWS = [Row("a", n) for n in range(6)]
RULES = MapStateDescriptor("rules", str, int)


class Calls(KeyedProcessFunction[Row, Row], CheckpointedFunction, CheckpointListener):
    """Records its calls in an operator list at the end of a batch; each row of the next batch emits the list."""

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self.calls = ["initialize, restored" if ctx.is_restored else "initialize"]
        self.count = ctx.get_keyed_state_store().get_state(ValueStateDescriptor("count", int))
        self.log = ctx.get_operator_state_store().get_list_state(ListStateDescriptor("log", str))

    def open(self, ctx: RuntimeContext) -> None:
        self.calls.append("open")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(f"complete {checkpoint_id}")

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        self.count.update((self.count.value() or 0) + 1)
        yield Row(json.dumps(list(self.log.get())), self.count.value() or 0)

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        self.log.update([*self.calls, "snapshot"])


def test_each_batch_initializes_opens_notifies_and_snapshots(jobs: LocalJobs) -> None:
    # With synchronous checkpoints, each batch receives the notification about the checkpoint before it.
    jobs.apply(
        ROWS,
        lambda rows: rows.key_by("key", order_by=("number",)).process(Calls(), output=Row, uid="op"),
        source__max_rows_per_batch=2, checkpoints__retained=9, checkpoints__asynchronous="no",
    )  # fmt: skip
    first = ["initialize", "open", "snapshot"]
    committed = root_files.kept_refs(jobs.folder / "root")[0]["id"]
    later = ["initialize, restored", "open", f"complete {committed}", "snapshot"]
    calls = [(json.loads(log), count) for log, count, _ in jobs.rows()]
    assert calls == [([], 1), ([], 2), (first, 3), (first, 4), (later, 5), (later, 6)]


class Rules(KeyedBroadcastProcessFunction[Row, Row, Row]):
    """Sets a rule, then fails on odd ones; gives each row the sum of the rules, and may try to change them there."""

    def __init__(self, writes: bool = False) -> None:
        self.writes = writes

    def process_broadcast_element(self, row: Row, ctx: Context) -> None:
        rules = ctx.get_broadcast_state(RULES)
        rules.put(str(row.number), row.number)
        if row.number % 2:
            raise ValueError("odd")

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        rules = ctx.get_broadcast_state(RULES)
        if self.writes:
            rules.put("new", 1)
        yield Row(row.key, sum(rules.values()))


def _rule(jobs: LocalJobs, function: Rules, **settings: Any) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rules = env.from_collection(ROWS[:4], Row, uid="rules").broadcast()
        rows = env.from_collection([Row(f"k{n}", n) for n in range(6)], Row, uid="rows").key_by("key")
        ruled = rows.connect(rules).process(function, output=Row, uid="ruled", on_error=DeadLetters(20))
        ruled.sink_to(jobs.sink("out"), uid="out")
        ruled.get_dead_letters().sink_to(jobs.sink("letters"), uid="letters")

    jobs.run(build, **settings)


def test_broadcast_state_is_kept_and_a_dead_letter_does_not_change_broadcast_state(jobs: LocalJobs) -> None:
    _rule(jobs, Rules(), source__max_rows_per_batch=1, parallelism=3)
    assert [number for _, number, _ in jobs.rows()] == [0, 0, 2, 2, 2, 2]
    # One letter of each subtask for each odd rule.
    assert [(letter.key, letter.error) for letter in jobs.letters()] == [("", "ValueError: odd")] * 6


def test_the_keyed_side_cannot_change_broadcast_state(jobs: LocalJobs) -> None:
    _rule(jobs, Rules(writes=True))
    [error] = {letter.error for letter in jobs.letters() if letter.key}
    assert error.startswith("StateError: ") and "state='rules'" in error
    assert jobs.rows() == []
