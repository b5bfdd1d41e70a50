"""An error about state names the operator, the state, the key and the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow import ListStateDescriptor, MapStateDescriptor, OutputTag, RuntimeContext, ValueStateDescriptor
from stateflow.api.functions.process import Context, KeyedProcessFunction
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import StateflowError
from tests.support.graphs import Row
from tests.support.local_jobs import LocalJobs

ROWS = [Row("a", 1), Row("b", 2), Row("b", 3), Row("c", 4)]


class Failing(KeyedProcessFunction[Row, Row]):
    """Does something wrong with the row whose number is 3."""

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


class DeclaredTwice(KeyedProcessFunction[Row, Row]):
    """Declares one state with two types."""

    def open(self, ctx: RuntimeContext) -> None:
        for type_ in (int, str):
            ctx.get_state(ValueStateDescriptor("value", type_))

    def process_element(self, row: Row, ctx: Context) -> None: ...


def _error_of(tmp_path: Path, wrong: Callable[[Any, Context], None]) -> dict[str, object]:
    return _error_in(tmp_path, Failing(wrong))


def _error_in(tmp_path: Path, function: KeyedProcessFunction[Row, Row]) -> dict[str, object]:
    box = LocalJobs(tmp_path)

    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_collection(ROWS, Row, uid="rows").key_by("key", order_by=("number",))
        rows.process(function, output=Row, uid="failing").sink_to(box.sink("out"), uid="out")

    with pytest.raises(StateflowError) as raised:
        box.run(build)
    assert raised.value.code in ("state", "job-definition")
    return raised.value.facts


@pytest.mark.parametrize(
    ("state", "wrong"),
    [
        # The first is encoded when the next key comes.
        ("value", lambda f, ctx: f.value.update("x")),
        ("list", lambda f, ctx: f.list.add("x")),
        ("map", lambda f, ctx: f.map.put("k", "x")),
        ("map", lambda f, ctx: f.map.put(5, 1)),
    ],
)
def test_an_error_about_a_value_names_operator_state_key_and_row(
    tmp_path: Path, state: str, wrong: Callable[[Any, Context], None]
) -> None:
    facts = _error_of(tmp_path, wrong)
    assert (facts["operator"], facts["state"]) == ("failing", state)
    assert facts["key"] == "{'key': 'b'}"
    assert facts["row"] == repr(Row("b", 3))


def test_an_error_about_a_declaration_names_operator_and_state(tmp_path: Path) -> None:
    facts = _error_in(tmp_path, DeclaredTwice())
    assert (facts["operator"], facts["name"]) == ("failing", "value")


@pytest.mark.parametrize("tag", [None, "late", OutputTag])
def test_a_side_output_needs_a_tag(tmp_path: Path, tag: Any) -> None:
    facts = _error_of(tmp_path, lambda f, ctx: ctx.output(tag, Row("b", 3)))
    assert facts["given"] == repr(tag)
    assert (facts["operator"], facts["key"], facts["row"]) == ("failing", "{'key': 'b'}", repr(Row("b", 3)))
