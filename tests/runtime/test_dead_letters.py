"""Rows for which a function raises: the run fails and leaves nothing, or they become dead letters of their batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow import DeadLetters, ListStateDescriptor, OutputTag, RichMapFunction, RuntimeContext
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
ROWS = [Row("ab"[n % 2], n) for n in range(1, 13)]


class Tally(KeyedProcessFunction[Row, Row]):
    """Adds up numbers; writes state and emits rows before it fails on every number that 3 divides."""

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


def _tally(rows: Any, on_error: Any) -> Any:
    keyed = rows.key_by("key", order_by=("number",))
    return keyed.process(Tally(), output=Row, uid="tally", on_error=on_error)


def test_a_bad_row_leaves_a_letter_and_nothing_else(jobs: LocalJobs) -> None:
    def tally(rows: Any) -> Any:
        made = _tally(rows, DeadLetters(100))
        made.get_side_output(SIDE).sink_to(jobs.sink("side"), uid="side")
        return made

    jobs.apply(ROWS, tally, parallelism=2)
    good = [row for row in ROWS if row.number % 3]
    expected, sums, counts = [], Counter[str](), Counter[str]()
    for row in good:
        sums[row.key] += row.number
        counts[row.key] += 1
        expected.append((row.key, sums[row.key], float(counts[row.key])))
    assert Counter(jobs.rows()) == Counter(expected)
    assert Counter(jobs.rows("side")) == Counter((r.key, r.number, None) for r in good)
    found = {json.loads(letter.row)["number"]: letter for letter in jobs.letters()}
    assert sorted(found) == [3, 6, 9, 12] and len(jobs.letters()) == 4
    last = found[12]
    assert (last.operator, last.error, last.batch) == ("tally", "ValueError: 12 is divided by 3", 3)
    assert json.loads(last.key) == {"key": "a"}
    assert json.loads(last.row) == {"key": "a", "number": 12, "other": None}
    assert last.where.startswith(f"{__file__}:")


def test_a_batch_beyond_the_budget_leaves_nothing(jobs: LocalJobs) -> None:
    """Each of its subtasks has one bad row only: none is beyond the budget alone."""
    rows = [Row("a", 1), Row("b", 2), Row("a", 4), Row("b", 5), *[Row(k, 3) for k in "abcd"]]
    with raises(UserCodeError, operator="tally", failed=4, budget=3) as raised:
        jobs.apply(rows, lambda rows: _tally(rows, DeadLetters(3)), parallelism=4, checkpoints__asynchronous=False)
    facts = raised.value.facts
    assert "divided by 3" in str(facts["error"]) and "number=3" in str(facts["row"])
    assert len(jobs.results) == 1 and len(jobs.rows()) == 4 and jobs.letters() == []


def test_each_task_of_each_batch_has_the_whole_budget(jobs: LocalJobs) -> None:
    one_batch = {"source__max_rows_per_batch": 12}
    with raises(UserCodeError, operator="tally", failed="2", budget="1"):
        LocalJobs(jobs.folder / "one").apply(ROWS, lambda rows: _tally(rows, DeadLetters(1)), **one_batch)
    jobs.apply(ROWS, lambda rows: _tally(rows, DeadLetters(2)))
    assert len(jobs.letters()) == 4


def test_dead_letters_need_a_sink_and_only_streams_with_the_policy_have_them() -> None:
    rows = StreamExecutionEnvironment({}).from_collection(ROWS, Row, uid="rows")
    for without in (rows, rows.map(lambda row: row), _tally(rows, "fail")):
        with raises(JobDefinitionError) as raised:
            without.get_dead_letters()
        assert "on_error" in raised.value.hint
    env = StreamExecutionEnvironment({})
    rows = env.from_collection(ROWS, Row, uid="rows")
    tally, twos = _tally(rows, DeadLetters(1)), rows.flat_map(_twos, on_error=DeadLetters(1))
    tally.sink_to(Nowhere(), uid="out")
    twos.sink_to(Nowhere(), uid="twos")
    with raises(JobDefinitionError, of=["tally", "_twos"]):
        env.graph.check()
    tally.get_dead_letters().union(twos.get_dead_letters()).sink_to(Nowhere(), uid="letters")
    env.graph.check()


class Counting(RichMapFunction[Row, Row]):
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


def test_bad_rows_of_row_functions_before_and_after_a_key_become_letters(jobs: LocalJobs) -> None:
    policy = DeadLetters(9)

    def build(env: StreamExecutionEnvironment) -> None:
        before = env.from_collection(ROWS, Row, uid="rows").filter(_stays, on_error=policy)
        passed = before.key_by("key", order_by=("number",)).map(lambda row: row, uid="pass")
        third = passed.map(Counting(), on_error=policy)
        odd = third.flat_map(_twos, on_error=policy)
        odd.sink_to(jobs.sink("out"), uid="out")
        first, *others = [stream.get_dead_letters() for stream in (before, third, odd)]
        first.union(*others).sink_to(jobs.sink("letters"), uid="letters")

    jobs.run(build, source__max_rows_per_batch=12)
    filtered = [row for row in ROWS if row.number != 7 and 10 // (row.number - 7)]
    found = defaultdict(list)
    for letter in jobs.letters():
        found[letter.operator].append(json.loads(letter.row)["number"])
    out = [number for _, number, _ in jobs.rows()]
    assert sorted(found) == [Counting.__qualname__, "_stays", "_twos"]
    assert found["_stays"] == [7] and len(found["Counting"]) == len(filtered) // 3
    # Every row is in one place, and in no other.
    assert sorted([*found["Counting"], *found["_twos"], *out]) == sorted(row.number for row in filtered)
    assert all(n % 2 == 0 for n in found["_twos"]) and all(n % 2 for n in out)


def test_a_row_function_has_its_budget_in_each_batch(jobs: LocalJobs) -> None:
    def twos(rows: Any) -> Any:
        return rows.flat_map(_twos, on_error=DeadLetters(2))

    jobs.apply(ROWS, twos)
    assert len(jobs.letters()) == 6
    other = LocalJobs(jobs.folder / "other")
    with raises(UserCodeError, operator="_twos", failed=3, budget=2):
        other.apply(ROWS, twos, source__max_rows_per_batch=6)
    assert other.results == []


class Broken(KeyedProcessFunction[Row, Row]):
    def process_element(self, row: Row, ctx: Context) -> None:
        raise BatchFailed("a disk is full", disk="sda")


def test_an_error_of_the_system_is_no_dead_letter(jobs: LocalJobs) -> None:
    def broken(rows: Any) -> Any:
        return rows.key_by("key").process(Broken(), output=Row, uid="broken", on_error=DeadLetters(99))

    with raises(BatchFailed, disk="sda"):
        jobs.apply(ROWS, broken)


@pytest.mark.long(reason="kills runs of a job")
@pytest.mark.parametrize("failpoint", ["commit.after:2", "publish.after:2"])
def test_a_kill_loses_no_letter_and_repeats_none(tmp_path: Path, failpoint: str) -> None:
    settings = {"job.home": str(tmp_path), "local_dir": str(tmp_path / "local"), "parallelism": "2"}
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "stateflow", "run", letters.__file__, "--job-root", str(tmp_path / "root")]
    for point, code in ((failpoint, -9), ("", 0)):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "STATEFLOW_FAILPOINT": point}
        done = subprocess.run([*command, *assignments], env=environment, capture_output=True, check=False)
        assert done.returncode == code
    found = [json.loads(row["row"])["number"] for row in FolderSink(tmp_path / "letters").rows()]
    assert sorted(found) == letters.BAD
    totals = Counter(tuple(row.values()) for row in FolderSink(tmp_path / "out").rows())
    assert totals == letters.expected()
