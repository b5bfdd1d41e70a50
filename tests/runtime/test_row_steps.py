"""Row functions away from operators: their order, what they are opened with, and how their errors travel."""

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
from stateflow.errors import SchemaMismatch, StateError, UserCodeError
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.runtime.task.row_functions import RowFunctions, apply_to_partition, error_in_text
from tests.support.errors import raises

INFO = TaskInfo("", 3, 0, 128, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))


class Row(msgspec.Struct):
    number: int


SCHEMA = RowSchema.of(Row)


def _step(kind: StepKind, function: Any) -> RowStep:
    return RowStep(kind, function, SCHEMA)


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
            _step(StepKind.FLAT_MAP, lambda row: [Row(n) for n in range(row.number)] or None),
            _step(StepKind.FILTER, lambda row: row.number % 2),
            _step(StepKind.MAP, lambda row: Row(row.number * 10)),
        ],
        INFO,
    )
    assert chain.apply([Row(4), Row(0), Row(2)]) == [Row(10), Row(30), Row(10)]


def _in_frame(function: Any, *numbers: int) -> list[Row]:
    batches = [to_batch([Row(n)], SCHEMA) for n in numbers]
    made = list(apply_to_partition([_step(StepKind.MAP, function)], SCHEMA, INFO, batches))
    return [Row(n) for n in pa.Table.from_batches(made, SCHEMA.arrow).column("number").to_pylist()]


def test_a_rich_function_is_opened_once_and_closed_also_after_a_failure() -> None:
    calls: list[str] = []
    assert _in_frame(Noted(calls), 5, 2) == [Row(2), Row(5)]
    assert calls == ["open in 3", "map 5", "map 2", "close"]
    calls.clear()
    with pytest.raises(RuntimeError):
        _in_frame(Noted(calls), 5, 0)
    assert calls == ["open in 3", "map 5", "map 0", "close"]


def test_an_error_survives_as_text() -> None:
    with pytest.raises(RuntimeError) as raised:
        _in_frame(Noted([]), 0)
    error = error_in_text(f"PythonException: Traceback …\nRuntimeError: {raised.value}\n\tat org.apache.spark")
    assert isinstance(error, UserCodeError)
    assert error.facts["row"] == "Row(number=0)" and error.facts["function"].endswith("Noted")
    assert "ZeroDivisionError" in error.message


def test_rows_of_another_class_are_refused_as_an_operator_s_are() -> None:
    with pytest.raises(RuntimeError) as raised:
        _in_frame(lambda row: "no row", 1)
    assert isinstance(error_in_text(str(raised.value)), SchemaMismatch)


def test_state_without_a_key_is_an_error() -> None:
    with raises(StateError):
        RowFunctions([_step(StepKind.MAP, Stateful())], INFO)


@pytest.mark.parametrize("text", ["", "[stateflow-failure:]", "[stateflow-failure:AAAA]", "[stateflow-failure:A]"])
def test_another_text_has_no_error(text: str) -> None:
    assert error_in_text(text) is None
