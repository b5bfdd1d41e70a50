"""A function that returns a row instead of rows: the error names the user's function, what it returned, and where."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateflow import DeadLetters, RichFlatMapFunction
from stateflow.api.functions.connected import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.functions.process import Context, KeyedProcessFunction, OnTimerContext
from stateflow.api.functions.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import StateflowError
from tests.support.graphs import Row
from tests.support.local_jobs import LocalJobs

ROWS = [Row("a", 1), Row("b", 2)]


@pytest.fixture
def box(tmp_path: Path) -> LocalJobs:
    return LocalJobs(tmp_path)


class OneRow(KeyedProcessFunction[Row, Row]):
    def process_element(self, row: Row, ctx: Context) -> Any:
        return row if row.number == 2 else [row]


class OnTimer(KeyedProcessFunction[Row, Row]):
    def process_element(self, row: Row, ctx: Context) -> Any:
        ctx.timer_service().register_processing_time_timer(1)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Any:
        return Row("a", 1)


class AtBatchEnd(KeyedProcessFunction[Row, Row]):
    def process_element(self, row: Row, ctx: Context) -> Any:
        return None

    def on_batch_end(self, ctx: Context) -> Any:
        return Row("a", 1)


class FlatMap(RichFlatMapFunction[Row, Row]):
    def flat_map(self, row: Row) -> Any:
        return row


class Second(KeyedCoProcessFunction[Row, Row, Row]):
    def process_element1(self, row: Row, ctx: Context) -> Any:
        return [row]

    def process_element2(self, row: Row, ctx: Context) -> Any:
        return row


class Broadcast(KeyedBroadcastProcessFunction[Row, Row, Row]):
    def process_element(self, row: Row, ctx: Context) -> Any:
        return [row]

    def process_broadcast_element(self, row: Row, ctx: Context) -> Any:
        return row


class Columns(VectorizedKeyedFunction):
    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> Any:
        return Row("a", 1)


def no_pair(row: Row, value: Any) -> Any:
    return row


def row_and_state(row: Row, value: Any) -> Any:
    return row, value


def one_row(row: Row) -> Any:
    return row


def _error_of(box: LocalJobs, apply: Callable[[Any], Any]) -> StateflowError:
    def build(env: StreamExecutionEnvironment) -> None:
        apply(env.from_collection(ROWS, Row, uid="rows")).sink_to(box.sink("out"), uid="out")

    with pytest.raises(StateflowError) as raised:
        box.run(build)
    return raised.value


def _keyed(rows: Any) -> Any:
    return rows.key_by("key", order_by=("number",))


@pytest.mark.parametrize(
    ("apply", "written"),
    [
        (lambda s: _keyed(s).process(OneRow(), output=Row, uid="op"), OneRow.process_element),
        (lambda s: _keyed(s).process(OnTimer(), output=Row, uid="op"), OnTimer.on_timer),
        (lambda s: _keyed(s).process(AtBatchEnd(), output=Row, uid="op"), AtBatchEnd.on_batch_end),
        (lambda s: _keyed(s).flat_map(FlatMap(), uid="op"), FlatMap.flat_map),
        (lambda s: _keyed(s).connect(_keyed(s)).process(Second(), output=Row, uid="op"), Second.process_element2),
        (
            lambda s: _keyed(s).connect(s.broadcast()).process(Broadcast(), output=Row, uid="op"),
            Broadcast.process_broadcast_element,
        ),
        (lambda s: _keyed(s).process(Columns(), output=Row, uid="op"), Columns.process_batch),
        (lambda s: _keyed(s).flat_map_with_state(row_and_state, state=int, output=Row, uid="op"), row_and_state),
        (lambda s: _keyed(s).flat_map_with_state(no_pair, state=int, output=Row, uid="op"), no_pair),
        (lambda s: _keyed(s).map_with_state(no_pair, state=int, output=Row, uid="op"), no_pair),
        (lambda s: _keyed(s).filter_with_state(no_pair, state=int, uid="op"), no_pair),
    ],
)
def test_the_error_names_what_the_user_wrote(box: LocalJobs, apply: Callable[[Any], Any], written: Any) -> None:
    error = _error_of(box, apply)
    assert error.facts["operator"] == "op"
    _names(error, written)


@pytest.mark.parametrize("function", [one_row, FlatMap()])
def test_a_row_function_without_a_key_is_named(box: LocalJobs, function: Any) -> None:
    written = FlatMap.flat_map if isinstance(function, FlatMap) else one_row
    _names(_error_of(box, lambda rows: rows.flat_map(function)), written)


def _names(error: StateflowError, written: Any) -> None:
    line = inspect.getsourcelines(written)[1]
    assert error.facts["where"] == f"{__file__}:{line}"
    assert written.__qualname__ in error.message and _names_row(error.message)


def _names_row(text: str) -> bool:
    """Whether the class of the returned object is in the text."""
    return re.search(r"\bRow\b", text) is not None


def test_a_type_error_of_the_function_itself_stays_one(box: LocalJobs) -> None:
    class Wrong(KeyedProcessFunction[Row, Row]):
        def process_element(self, row: Row, ctx: Context) -> Any:
            return [row, *row.number]  # type: ignore[misc]

    error = _error_of(box, lambda rows: _keyed(rows).process(Wrong(), output=Row, uid="op"))
    assert "TypeError" in error.message


@pytest.mark.parametrize(
    "apply",
    [
        lambda rows, policy: _keyed(rows).process(OneRow(), output=Row, uid="op", on_error=policy),
        lambda rows, policy: rows.flat_map(one_row, on_error=policy),
    ],
)
def test_a_dead_letter_names_it_as_well(box: LocalJobs, apply: Callable[[Any, DeadLetters], Any]) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        made = apply(env.from_collection(ROWS, Row, uid="rows"), DeadLetters(budget=2))
        made.sink_to(box.sink("out"), uid="out")
        made.get_dead_letters().sink_to(box.sink("letters"), uid="letters")

    box.run(build)
    letters = box.letters()
    assert letters
    assert all(_names_row(letter.error) and __file__ in letter.where for letter in letters)
