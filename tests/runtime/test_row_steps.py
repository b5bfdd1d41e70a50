"""Row functions without an operator: their order, their life cycle, and how their errors reach the driver."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stateflow import RichMapFunction, RuntimeContext, ValueStateDescriptor
from stateflow.api.functions.process import TaskInfo
from stateflow.api.functions.rich import RowStep, StepKind
from stateflow.api.schema import RowSchema
from stateflow.checkpoint.barriers import error_in_text
from stateflow.errors import SchemaMismatch, StateError, UserCodeError
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.runtime.task.stateless_functions import RowFunctions, apply_to_partition
from tests.support.errors import raises

INFO = TaskInfo("", 3, 0, 128, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))


class Row(msgspec.Struct):
    number: int


SCHEMA = RowSchema.of(Row)


class Noted(RichMapFunction[Row, Row]):
    """Notes what is called."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def open(self, ctx: RuntimeContext) -> None:
        self.calls.append(f"open in {ctx.info.subtask}")

    def map(self, row: Row) -> Row:
        self.calls.append(f"map {row.number}")
        return Row(10 // row.number)

    def close(self) -> None:
        self.calls.append("close")


class Stateful(RichMapFunction[Row, Row]):
    """Asks for state."""

    def open(self, ctx: RuntimeContext) -> None:
        ctx.get_state(ValueStateDescriptor("count", int))


def test_steps_are_applied_in_their_order() -> None:
    chain = RowFunctions(
        [
            RowStep(StepKind.FLAT_MAP, lambda row: [Row(n) for n in range(row.number)] or None, SCHEMA),
            RowStep(StepKind.FILTER, lambda row: row.number % 2, SCHEMA),
            RowStep(StepKind.MAP, lambda row: Row(row.number * 10), SCHEMA),
        ],
        INFO,
    )
    assert chain.apply([Row(4), Row(0), Row(2)]) == [Row(10), Row(30), Row(10)]


def _in_frame(function: Any, *numbers: int) -> list[Row]:
    batches = [to_batch([Row(n)], SCHEMA) for n in numbers]
    made = list(apply_to_partition([RowStep(StepKind.MAP, function, SCHEMA)], SCHEMA, INFO, batches))
    return [Row(n) for n in pa.Table.from_batches(made, SCHEMA.arrow).column("number").to_pylist()]


def test_a_rich_function_is_opened_once_and_closed_and_its_error_survives_as_text() -> None:
    calls: list[str] = []
    assert _in_frame(Noted(calls), 5, 2) == [Row(2), Row(5)]
    assert calls == ["open in 3", "map 5", "map 2", "close"]
    calls.clear()
    with pytest.raises(RuntimeError) as raised:
        _in_frame(Noted(calls), 5, 0)
    assert calls == ["open in 3", "map 5", "map 0", "close"]
    error = error_in_text(f"PythonException: Traceback …\nRuntimeError: {raised.value}\n\tat org.apache.spark")
    assert isinstance(error, UserCodeError) and "ZeroDivisionError" in error.message
    assert error.facts["row"] == "Row(number=0)" and str(error.facts["function"]).endswith("Noted")


def test_rows_of_another_class_and_state_without_a_key_are_errors() -> None:
    with pytest.raises(RuntimeError) as raised:
        _in_frame(lambda row: "no row", 1)
    assert isinstance(error_in_text(str(raised.value)), SchemaMismatch)
    with raises(StateError):
        RowFunctions([RowStep(StepKind.MAP, Stateful(), SCHEMA)], INFO)


@pytest.mark.parametrize("text", ["", "[stateflow-failure:]", "[stateflow-failure:AAAA]", "[stateflow-failure:A]"])
def test_another_text_contains_no_error(text: str) -> None:
    assert error_in_text(text) is None
