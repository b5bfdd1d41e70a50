"""Rows that a function fails on: the run fails and leaves nothing, or they become dead letters of their batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow import DeadLetters, ListStateDescriptor, OutputTag, RichMapFunction, RuntimeContext
from stateflow.api.functions.connected import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.functions.process import Context, KeyedProcessFunction
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import BatchFailed, JobDefinitionError, UserCodeError
from stateflow.testing.sinks import FolderSink
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor
from tests.runtime.jobs import letters
from tests.support.errors import raises
from tests.support.graphs import Nowhere, Row
from tests.support.local_jobs import LocalJobs

ROOT = Path(__file__).parents[2]
SIDE = OutputTag("side", Row)


@pytest.fixture
def box(tmp_path: Path) -> LocalJobs:
    return LocalJobs(tmp_path)


class Tally(KeyedProcessFunction[Row, Row]):
    """Adds up numbers; does all that it can do before it fails on every number that 3 divides."""

    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", int))
        self.all = ctx.get_list_state(ListStateDescriptor("all", int))
        self.last = ctx.get_map_state(MapStateDescriptor("last", str, int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        self.sum.update((self.sum.value() or 0) + row.number)
        self.all.add(row.number)
        self.last.put("last", row.number)
        seen = len(list(self.all.get()))
        ctx.output(SIDE, row)
        yield Row(row.key, self.sum.value() or 0, float(seen))
        if row.number % 3 == 0:
            raise ValueError(f"{row.number} is divided by 3")


ROWS = [Row("ab"[n % 2], n) for n in range(1, 13)]


def _tally(box: LocalJobs, budget: int = 100) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection(ROWS, Row, uid="rows").key_by("key", order_by=("number",))
        tally = stream.process(Tally(), output=Row, uid="tally", on_error=DeadLetters(budget))
        tally.sink_to(box.sink("out"), uid="out")
        tally.get_side_output(SIDE).sink_to(box.sink("side"), uid="side")
        tally.get_dead_letters().sink_to(box.sink("letters"), uid="letters")

    return build


def test_a_bad_row_leaves_a_letter_and_nothing_else(box: LocalJobs) -> None:
    box.run(_tally(box), parallelism="2")
    good = [row for row in ROWS if row.number % 3]
    expected, sums, counts = [], Counter[str](), Counter[str]()
    for row in good:
        sums[row.key] += row.number
        counts[row.key] += 1
        expected.append((row.key, sums[row.key], float(counts[row.key])))
    assert Counter(box.rows("out")) == Counter(expected)
    assert Counter(box.rows("side")) == Counter((r.key, r.number, None) for r in good)
    found = sorted(box.letters(), key=lambda letter: letter.error)
    assert sorted(json.loads(letter.row)["number"] for letter in found) == [3, 6, 9, 12]
    last = next(letter for letter in found if "12 is" in letter.error)
    assert (last.operator, last.error, last.batch) == ("tally", "ValueError: 12 is divided by 3", 3)
    assert json.loads(last.key) == {"key": "a"}
    assert json.loads(last.row) == {"key": "a", "number": 12, "other": None}
    assert last.where.startswith(f"{__file__}:")


def test_a_batch_beyond_the_budget_leaves_nothing_behind(box: LocalJobs) -> None:
    """Two of its subtasks have one bad row each: neither is beyond the budget alone."""
    rows = [Row("a", 1), Row("b", 2), Row("a", 4), Row("b", 5), *[Row(k, 3) for k in "abcd"]]

    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection(rows, Row, uid="rows").key_by("key")
        tally = stream.process(Tally(), output=Row, uid="tally", on_error=DeadLetters(3))
        tally.sink_to(box.sink("out"), uid="out")
        tally.get_dead_letters().sink_to(box.sink("letters"), uid="letters")

    with raises(UserCodeError, operator="tally", failed=4, budget=3) as raised:
        box.run(build, parallelism="4")
    facts = raised.value.facts
    assert "divided by 3" in str(facts["error"]) and "number=3" in str(facts["row"])
    assert len(box.results) == 1 and len(box.rows("out")) == 4 and box.letters() == []


def test_a_task_stops_at_the_budget(box: LocalJobs) -> None:
    with raises(UserCodeError, operator="tally", failed="2", budget="1"):
        box.run(_tally(box, budget=1), **{"source.max_rows_per_batch": "12"})


def test_a_batch_s_budget_is_its_own(box: LocalJobs) -> None:
    box.run(_tally(box, budget=2))
    assert len(box.letters()) == 4


def test_without_dead_letters_a_failing_row_is_named_and_its_batch_leaves_nothing(box: LocalJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection(ROWS[:1] + ROWS[3:5] + ROWS[6:8] + ROWS[8:], Row, uid="rows")
        tally = stream.key_by("key", order_by=("number",)).process(Tally(), output=Row, uid="tally")
        tally.sink_to(box.sink("out"), uid="out")

    row = "Row(key='b', number=9, other=None)"
    with raises(UserCodeError, operator="tally", key="{'key': 'b'}", row=row) as raised:
        box.run(build)
    assert all(word in raised.value.message for word in ("process_element", "ValueError", "9 is divided by 3"))
    assert len(box.results) == 1 and len(box.rows("out")) == 4


def test_a_wrong_name_of_a_policy_is_refused(box: LocalJobs) -> None:
    stream = StreamExecutionEnvironment({}).from_collection(ROWS, Row, uid="rows")
    for wrong in ("dead_letter", None, 7):
        with raises(JobDefinitionError, given=repr(wrong)):
            stream.key_by("key").process(Tally(), output=Row, uid="t", on_error=wrong)  # type: ignore[arg-type]
    for budget in (0, -1, True, 1.5):
        with raises(JobDefinitionError, budget=budget):
            DeadLetters(budget)  # type: ignore[arg-type]


def test_dead_letters_that_go_nowhere_are_refused() -> None:
    env = StreamExecutionEnvironment({})
    rows = env.from_collection(ROWS, Row, uid="rows")
    tally = rows.key_by("key").process(Tally(), output=Row, uid="tally", on_error=DeadLetters(1))
    tally.sink_to(Nowhere(), uid="out")
    twos = rows.flat_map(_twos, on_error=DeadLetters(1))
    twos.sink_to(Nowhere(), uid="twos")
    with raises(JobDefinitionError, of=["tally", "_twos"]):
        env.graph.check()
    tally.get_dead_letters().union(twos.get_dead_letters()).sink_to(Nowhere(), uid="letters")
    env.graph.check()


def test_a_stream_without_dead_letters_has_none_to_give() -> None:
    stream = StreamExecutionEnvironment({}).from_collection(ROWS, Row, uid="rows")
    for without in (stream, stream.map(lambda row: row), stream.key_by("key").process(Tally(), output=Row, uid="t")):
        with raises(JobDefinitionError) as raised:
            without.get_dead_letters()
        assert "on_error" in raised.value.hint


# -- functions of two streams ---------------------------------------------------------------------------------------


class Both(KeyedCoProcessFunction[Row, Row, Row]):
    """Fails on odd numbers of the first stream and even ones of the second."""

    def process_element1(self, row: Row, ctx: Context) -> Iterator[Row]:
        if row.number % 2:
            raise ValueError("odd")
        yield row

    def process_element2(self, row: Row, ctx: Context) -> Iterator[Row]:
        if row.number % 2 == 0:
            raise ValueError("even")
        yield row


def test_rows_of_both_connected_streams_can_become_letters(box: LocalJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        first, second = (env.from_collection(ROWS[:4], Row, uid=uid).key_by("key") for uid in ("first", "second"))
        both = first.connect(second).process(Both(), output=Row, uid="both", on_error=DeadLetters(9))
        both.sink_to(box.sink("out"), uid="out")
        both.get_dead_letters().sink_to(box.sink("letters"), uid="letters")

    box.run(build)
    assert Counter((letter.error, json.loads(letter.row)["number"]) for letter in box.letters()) == Counter(
        [("ValueError: odd", 1), ("ValueError: even", 2), ("ValueError: odd", 3), ("ValueError: even", 4)]
    )
    assert len(box.rows("out")) == 4


class Rules(KeyedBroadcastProcessFunction[Row, Row, Row]):
    """Fails on every broadcast row."""

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        yield row

    def process_broadcast_element(self, row: Row, ctx: Context) -> None:
        raise ValueError("no such rule")


def test_a_broadcast_row_becomes_a_letter_of_each_subtask(box: LocalJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rules = env.from_collection(ROWS[:1], Row, uid="rules").broadcast()
        rows = env.from_collection(ROWS[:4], Row, uid="rows").key_by("key")
        ruled = rows.connect(rules).process(Rules(), output=Row, uid="ruled", on_error=DeadLetters(9))
        ruled.sink_to(box.sink("out"), uid="out")
        ruled.get_dead_letters().sink_to(box.sink("letters"), uid="letters")

    box.run(build, parallelism="3")
    assert [(letter.key, letter.error) for letter in box.letters()] == [("", "ValueError: no such rule")] * 3
    assert len(box.rows("out")) == 4


# -- row functions --------------------------------------------------------------------------------------------------


class Counting(RichMapFunction[Row, Row]):
    """Fails on every third row that it sees: a copy must see the same rows."""

    def open(self, ctx: RuntimeContext) -> None:
        self.seen = 0

    def map(self, row: Row) -> Row:
        self.seen += 1
        if self.seen % 3 == 0:
            raise ValueError("third")
        return row


def _twos(row: Row) -> Iterator[Row]:
    yield row
    if row.number % 2 == 0:
        raise ValueError("two")


def _stays(row: Row) -> bool:
    return 10 // (row.number - 7) != 0


def test_row_functions_in_front_of_a_key_and_behind_one_keep_bad_rows_apart(box: LocalJobs) -> None:
    policy = DeadLetters(9)

    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_collection(ROWS, Row, uid="rows")
        before = rows.filter(_stays, on_error=policy)
        passed = before.key_by("key", order_by=("number",)).map(lambda row: row, uid="pass")
        third = passed.map(Counting(), on_error=policy)
        odd = third.flat_map(_twos, on_error=policy)
        odd.sink_to(box.sink("out"), uid="out")
        letters = [stream.get_dead_letters() for stream in (before, third, odd)]
        letters[0].union(*letters[1:]).sink_to(box.sink("letters"), uid="letters")

    box.run(build, **{"source.max_rows_per_batch": "12"})
    filtered = [row for row in ROWS if row.number != 7 and 10 // (row.number - 7)]
    found = {letter.operator: [] for letter in box.letters()}
    for letter in box.letters():
        found[letter.operator].append(json.loads(letter.row)["number"])
    out = [number for _, number, _ in box.rows("out")]
    assert sorted(found) == [Counting.__qualname__, "_stays", "_twos"]
    assert found["_stays"] == [7] and len(found["Counting"]) == len(filtered) // 3
    # Every row is in one place, and in no other.
    assert sorted([*found["Counting"], *found["_twos"], *out]) == sorted(row.number for row in filtered)
    assert all(n % 2 == 0 for n in found["_twos"]) and all(n % 2 for n in out)


def test_a_row_function_has_its_budget_in_each_task(box: LocalJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        twos = env.from_collection(ROWS, Row, uid="rows").flat_map(_twos, on_error=DeadLetters(2))
        twos.sink_to(box.sink("out"), uid="out")
        twos.get_dead_letters().sink_to(box.sink("letters"), uid="letters")

    box.run(build)
    assert len(box.letters()) == 6
    other = LocalJobs(box.folder / "other")
    with raises(UserCodeError, operator="_twos", failed=3, budget=2):
        other.run(build, **{"source.max_rows_per_batch": "6"})
    assert other.results == []


# -- what is no fault of the row -------------------------------------------------------------------------------------


class Broken(KeyedProcessFunction[Row, Row]):
    """Meets an error of the system."""

    def process_element(self, row: Row, ctx: Context) -> None:
        raise BatchFailed("a disk is full", disk="sda")


def test_an_error_of_the_system_is_no_dead_letter(box: LocalJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_collection(ROWS, Row, uid="rows").key_by("key")
        broken = rows.process(Broken(), output=Row, uid="broken", on_error=DeadLetters(99))
        broken.get_dead_letters().sink_to(box.sink("letters"), uid="letters")

    with raises(BatchFailed, disk="sda"):
        box.run(build)


# -- once -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failpoint", ["batch.reported:2", "commit.after:2", "publish.before:2", "publish.after:2"])
def test_a_kill_loses_no_letter_and_repeats_none(tmp_path: Path, failpoint: str) -> None:
    assert _killed_or_done(tmp_path, failpoint) == -9
    assert _killed_or_done(tmp_path) == 0
    found = [json.loads(row["row"])["number"] for row in FolderSink(tmp_path / "letters").rows()]
    assert sorted(found) == letters.BAD
    totals = Counter(tuple(row.values()) for row in FolderSink(tmp_path / "out").rows())
    assert totals == letters.expected()


def _killed_or_done(home: Path, failpoint: str = "") -> int:
    settings = {"job.home": str(home), "local_dir": str(home / "local"), "parallelism": "2"}
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "STATEFLOW_FAILPOINT": failpoint}
    command = [sys.executable, "-m", "stateflow", "run", letters.__file__, "--job-root", str(home / "root")]
    done = subprocess.run([*command, *assignments], env=environment, capture_output=True, check=False)
    return done.returncode
