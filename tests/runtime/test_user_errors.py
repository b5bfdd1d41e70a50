"""Errors of user functions name the operator, the function, the key and the row; those about state, the state."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import stateflow
from stateflow import (
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    RichFlatMapFunction,
    RuntimeContext,
    ValueStateDescriptor,
)
from stateflow.api.functions.connected import KeyedCoProcessFunction
from stateflow.api.functions.process import Context, KeyedProcessFunction, OnTimerContext
from stateflow.api.functions.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.errors import SchemaMismatch, StateflowError
from stateflow.runtime.spark.errors import to_stateflow_error
from stateflow.types.time_window import TimeWindow
from tests.support.errors import raises
from tests.support.graphs import Row
from tests.support.local_jobs import LocalJobs

ROWS = [Row("a", 1), Row("b", 2), Row("b", 3), Row("c", 4)]
OF_ROW_3 = {"operator": "op", "key": "{'key': 'b'}", "row": repr(Row("b", 3))}
Apply = Callable[[Any], Any]


def _keyed(rows: Any) -> Any:
    return rows.key_by("key", order_by=("number",))


def _process(function: Any, **more: Any) -> Apply:
    return lambda rows: _keyed(rows).process(function, output=Row, uid="op", **more)


def _error_of(jobs: LocalJobs, operators: Apply) -> StateflowError:
    with pytest.raises(StateflowError) as raised:
        jobs.apply(ROWS, operators)
    return raised.value


# -- state and side outputs -----------------------------------------------------------------------------------------


class Failing(KeyedProcessFunction[Row, Row]):
    def __init__(self, wrong: Callable[[Any, Context], None]) -> None:
        self.wrong = wrong

    def open(self, ctx: RuntimeContext) -> None:
        self.value = ctx.get_state(ValueStateDescriptor("value", int))
        self.list = ctx.get_list_state(ListStateDescriptor("list", int))
        self.map = ctx.get_map_state(MapStateDescriptor("map", str, int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        if row.number == 3:
            self.wrong(self, ctx)
        yield row


@pytest.mark.parametrize(
    ("wrong", "facts"),
    [
        # The first is encoded when the key changes.
        (lambda f, ctx: f.value.update("x"), {"state": "value"}),
        (lambda f, ctx: f.list.add("x"), {"state": "list"}),
        (lambda f, ctx: f.map.put("k", "x"), {"state": "map"}),
        (lambda f, ctx: f.map.put(5, 1), {"state": "map"}),
        (lambda f, ctx: ctx.output(None, Row("b", 3)), {"given": repr(None)}),
        (lambda f, ctx: ctx.output("late", Row("b", 3)), {"given": repr("late")}),
        (lambda f, ctx: ctx.output(OutputTag, Row("b", 3)), {"given": repr(OutputTag)}),
    ],
)
def test_an_error_about_a_value_or_a_tag_names_operator_key_and_row(
    jobs: LocalJobs, wrong: Callable[[Any, Context], None], facts: dict[str, str]
) -> None:
    error = _error_of(jobs, _process(Failing(wrong)))
    assert error.code in ("state", "job-definition")
    assert {**OF_ROW_3, **facts}.items() <= error.facts.items()


def test_a_task_that_fails_leaves_no_store(jobs: LocalJobs) -> None:
    stores: list[Path] = []

    def fail(function: Failing, ctx: Context) -> None:
        stores.extend((jobs.folder / "local").glob("*/op/*/work/*"))
        raise LookupError

    assert _error_of(jobs, _process(Failing(fail))).code == "user-code"
    assert stores and not [store for store in stores if store.exists()]


def test_a_function_gets_no_row_that_is_not_of_the_class_of_its_source(jobs: LocalJobs) -> None:
    seen: list[Any] = []
    wrong = Row("b", cast(Any, "2"))
    with raises(SchemaMismatch, column="number", row=repr(wrong)) as raised:
        jobs.apply([Row("a", 1), wrong], lambda rows: rows.filter(seen.append))
    assert "source" in raised.value.facts and not seen


# -- emitted and read rows ------------------------------------------------------------------------------------------


class Largest(msgspec.Struct):
    key: str
    largest: float


class Forgets(KeyedProcessFunction[Row, Largest]):
    def process_element(self, row: Row, ctx: Context) -> Iterator[Largest]:
        missing: Any = None
        yield Largest(row.key, missing if row.key == "b" else 1.0)


def test_an_error_about_an_emitted_row_names_operator_key_class_column_and_row(jobs: LocalJobs) -> None:
    row = "Largest(key='b', largest=None)"
    with raises(SchemaMismatch, operator="op", key="{'key': 'b'}", row_class="Largest", column="largest", row=row):
        jobs.apply(ROWS, lambda rows: _keyed(rows).process(Forgets(), output=Largest, uid="op"))


# -- a row instead of rows ------------------------------------------------------------------------------------------


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


class Columns(VectorizedKeyedFunction):
    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> Any:
        return Row("a", 1)


def no_pair(row: Row, value: Any) -> Any:
    return row


def one_row(row: Row) -> Any:
    return row


def _connected(function: Any, other: Apply) -> Apply:
    return lambda rows: _keyed(rows).connect(other(rows)).process(function, output=Row, uid="op")


def _names(error: StateflowError, written: Any) -> None:
    """The error names the function, its line and the class of the returned object."""
    assert error.facts["where"] == f"{__file__}:{inspect.getsourcelines(written)[1]}"
    assert written.__qualname__ in error.message and re.search(r"\bRow\b", error.message)


@pytest.mark.parametrize(
    ("operators", "written"),
    [
        (_process(OneRow()), OneRow.process_element),
        (_process(OnTimer()), OnTimer.on_timer),
        (_process(AtBatchEnd()), AtBatchEnd.on_batch_end),
        (lambda s: _keyed(s).flat_map(FlatMap(), uid="op"), FlatMap.flat_map),
        (_connected(Second(), _keyed), Second.process_element2),
        (_process(Columns()), Columns.process_batch),
        (lambda s: _keyed(s).map_with_state(no_pair, state=int, output=Row, uid="op"), no_pair),
    ],
)
def test_an_error_about_a_returned_object_names_its_function(jobs: LocalJobs, operators: Apply, written: Any) -> None:
    error = _error_of(jobs, operators)
    assert error.facts["operator"] == "op"
    _names(error, written)


@pytest.mark.parametrize(
    ("function", "written"), [(one_row, one_row), (FlatMap(), FlatMap.flat_map)], ids=["function", "rich function"]
)
def test_an_error_about_an_object_that_a_row_function_returned_names_the_function(
    jobs: LocalJobs, function: Any, written: Any
) -> None:
    _names(_error_of(jobs, lambda rows: rows.flat_map(function)), written)


def decoding(row: Row) -> Row:
    json.loads("{")
    return row


def misread(row: Row) -> Row:
    TimeWindow.parse("no window")
    return row


class Missing(KeyedProcessFunction[Row, Row]):
    """Lacks `process_element`."""


def _two_outputs(function: Failing, ctx: Context) -> None:
    ctx.output("late", Row("b", 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operators", "written", "line"),
    [
        (lambda rows: rows.map(decoding), decoding, 1),
        (lambda rows: _keyed(rows).map(decoding, uid="op"), decoding, 1),
        (_process(Missing()), Missing, 0),
        (_process(Failing(_two_outputs)), _two_outputs, 1),
        (lambda rows: rows.map(misread, output=Row), misread, 1),
    ],
    ids=["row function", "operator", "class", "tag", "stateflow"],
)
def test_an_error_names_a_line_of_the_job_and_none_of_a_library(
    jobs: LocalJobs, operators: Apply, written: Any, line: int
) -> None:
    error = _error_of(jobs, operators)
    assert error.facts["where"] == f"{__file__}:{inspect.getsourcelines(written)[1] + line}"


@pytest.mark.parametrize(
    ("file", "where"), [("/jobs/pay.py", "/jobs/pay.py:7"), (json.__file__, ""), (inspect.getfile(stateflow), "")]
)
def test_an_error_of_a_udf_names_its_line_and_is_not_retried(file: str, where: str) -> None:
    text = (
        "Job aborted: An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
        f'  File "{json.__file__}", line 2, in main\n    x\n  File "{file}", line 7, in half\n    y\n'
        f'  File "{inspect.getfile(stateflow)}", line 9, in z\nZeroDivisionError: division by zero\n'
        "\tat org.apache.spark.Executor.run(Executor.scala:1)"
    )
    error = to_stateflow_error(RuntimeError(text))
    assert error.facts.get("where", "") == where
    assert error.code == ("user-code" if where else "batch-failed")
    assert not where or "ZeroDivisionError: division by zero" in error.message


@pytest.mark.spark
@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("CAST(concat(id, 'x') AS INT)", "CAST_INVALID_INPUT"),
        ("map(id, 1, 1L, 2)", "DUPLICATED_MAP_KEY"),
        ("raise_error(concat('no ', id))", "USER_RAISED_EXCEPTION"),
    ],
)
def test_an_error_of_an_expression_because_of_a_value_is_not_retried(
    spark_session: SparkSession, expression: str, condition: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        spark_session.range(1, 2).selectExpr(f"{expression} AS a").collect()
    error = to_stateflow_error(raised.value)
    assert (error.code, error.facts["condition"]) == ("user-code", condition)
