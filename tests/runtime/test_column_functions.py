"""Functions over columns or rows of a stream: what they get, what they may return, and how errors are reported."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateflow import RichMapFunction, RuntimeContext
from stateflow.api.functions.process import TaskInfo
from stateflow.api.functions.rich import RowStep, StepKind
from stateflow.api.graph import is_emitted
from stateflow.api.schema import RowSchema
from stateflow.checkpoint.barriers import error_in_text
from stateflow.errors import SchemaMismatch, UserCodeError
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.runtime.task.stateless_functions import ColumnStep, apply_to_partition
from tests.support.errors import raises
from tests.support.local_jobs import LocalJobs


class Row(msgspec.Struct):
    number: int


class Half(msgspec.Struct):
    number: int
    half: int | None


def halves(rows: pa.RecordBatch) -> pa.RecordBatch:
    half = pc.if_else(pc.equal(pc.bit_wise_and(rows.column("number"), 1), 0), pc.divide(rows.column("number"), 2), None)
    return rows.append_column("half", half)


def test_a_function_computes_columns_and_selects_rows_before_and_after_an_operator(tmp_path: Path) -> None:
    def large(rows: pa.RecordBatch) -> pa.RecordBatch | None:
        found = rows.filter(pc.greater(rows.column("half"), 1))
        return found if len(found) else None

    jobs = LocalJobs(tmp_path, parallelism=2)
    for numbers in ([1, 2], [1, 2, 3, 4, 5, 6]):
        jobs.apply(
            [Row(n) for n in numbers],
            lambda rows: (
                rows.transform_columns(halves, output=Half)
                .key_by("number")
                .reduce(lambda _, row: row, uid="last")
                .transform_columns(large)
            ),
        )
    assert sorted(jobs.rows()) == [(4, 2), (6, 3)]


def step(function: Any) -> ColumnStep:
    return ColumnStep(function, RowSchema.of(Row), RowSchema.of(Half))


ROWS = pa.RecordBatch.from_pydict({"number": [1, 2]})


def test_results_have_the_declared_columns_in_order_and_may_be_tables_of_narrower_types() -> None:
    def table(rows: pa.RecordBatch) -> pa.Table:
        half = pa.table({"half": pa.array([0, 1], pa.int8()), "number": rows.column("number")})
        return pa.concat_tables([half, half])

    found = pa.Table.from_batches(step(table).apply([ROWS, ROWS.slice(0, 0)]))
    assert found.schema == RowSchema.of(Half).arrow
    assert found.to_pydict() == {"number": [1, 2, 1, 2], "half": [0, 1, 0, 1]}


@pytest.mark.parametrize(
    ("function", "facts"),
    [
        (lambda rows: rows, {"declared": ["number", "half"]}),
        (lambda rows: halves(rows).rename_columns(["number", "Half"]), {"given": ["number", "Half"]}),
        (lambda rows: rows.append_column("half", pa.array([0.5, 1.0])), {"column": "half", "given": "double"}),
        (lambda rows: halves(rows).set_column(0, "number", pa.array([1, None])), {"column": "number"}),
        (
            lambda rows: halves(rows).set_column(0, "number", pa.array([1, 2], pa.uint64())),
            {"column": "number", "given": "uint64"},
        ),
    ],
)
def test_other_columns_than_declared_are_refused(function: Any, facts: dict[str, object]) -> None:
    with raises(SchemaMismatch, **facts):
        list(step(function).apply([ROWS]))


def failing(rows: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("no")


@pytest.mark.parametrize("function", [failing, lambda rows: rows.to_pylist(), lambda rows: (yield rows)])
def test_errors_of_the_function_are_those_of_the_user_also_through_spark(function: Any) -> None:
    with raises(UserCodeError):
        list(step(function).apply([ROWS]))
    with pytest.raises(RuntimeError) as raised:
        list(step(function).apply_to_partition([ROWS]))
    assert isinstance(error_in_text(str(raised.value)), UserCodeError)


@pytest.mark.parametrize("is_of_rows", [False, True])
def test_functions_after_an_operator_are_applied_in_order_by_its_task(tmp_path: Path, is_of_rows: bool) -> None:
    def plus_one(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"number": pc.add(rows.column("number"), 1)})

    def operators(rows: Any) -> Any:
        made = rows.key_by("number").reduce(lambda _, row: row, uid="last") if is_of_rows else of_columns(rows)
        twice = made.transform_columns(plus_one).transform_columns(plus_one)
        assert is_emitted(twice._node)
        # A function of another kind begins after the task.
        return twice.map(lambda row: Row(row.number * 10)).transform_columns(halves, output=Half)

    def of_columns(rows: Any) -> Any:
        return rows.key_by("number").deduplicate(keep="first", uid="first")

    jobs = LocalJobs(tmp_path, parallelism=2)
    jobs.apply([Row(n) for n in (1, 2, 3)], operators)
    assert sorted(jobs.rows()) == [(30, 15), (40, 20), (50, 25)]


INFO = TaskInfo("", 3, 0, 128, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
SCHEMA = RowSchema.of(Row)


class Noted(RichMapFunction[Row, Row]):
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def open(self, ctx: RuntimeContext) -> None:
        self.calls.append(f"open in {ctx.info.subtask}")

    def map(self, row: Row) -> Row:
        self.calls.append(f"map {row.number}")
        return Row(10 // row.number)

    def close(self) -> None:
        self.calls.append("close")


def _mapped(function: Any, *numbers: int) -> list[int]:
    batches = [to_batch([Row(n)], SCHEMA) for n in numbers]
    made = list(apply_to_partition([RowStep(StepKind.MAP, function, SCHEMA)], SCHEMA, INFO, batches))
    found: list[int] = pa.Table.from_batches(made, SCHEMA.arrow).column("number").to_pylist()
    return found


def test_a_rich_function_is_opened_once_and_closed_and_its_error_survives_as_text() -> None:
    calls: list[str] = []
    assert _mapped(Noted(calls), 5, 2) == [2, 5]
    assert calls == ["open in 3", "map 5", "map 2", "close"]
    calls.clear()
    with pytest.raises(RuntimeError) as raised:
        _mapped(Noted(calls), 5, 0)
    assert calls == ["open in 3", "map 5", "map 0", "close"]
    error = error_in_text(f"PythonException: Traceback …\nRuntimeError: {raised.value}\n\tat org.apache.spark")
    assert isinstance(error, UserCodeError) and "ZeroDivisionError" in error.message
    assert error.facts["row"] == "Row(number=0)" and str(error.facts["function"]).endswith("Noted")
    assert [error_in_text(text) for text in ("", "[stateflow-failure:]", "[stateflow-failure:AAAA]")] == [None] * 3
