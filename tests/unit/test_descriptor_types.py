"""What a strict type checker makes of a job's states, without an annotation by the user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

_JOB = """
from typing import Annotated

import msgspec
from stateflow import (
    AggregateFunction, AggregatingStateDescriptor, FoldingStateDescriptor, KeyedProcessFunction, ListStateDescriptor,
    MapStateDescriptor, ReduceFunction, ReducingStateDescriptor, RuntimeContext, StateTtlConfig, Time,
    ValueStateDescriptor,
)

TTL = StateTtlConfig.new_builder(Time.days(1)).build()


class Sum(msgspec.Struct):
    total: int = 0


class Add(ReduceFunction[int]):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


class Mean(AggregateFunction[int, list[int], float]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[int]) -> float:
        return sum(accumulator) / len(accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return acc_a + acc_b


def longest(length: int, word: str) -> int:
    return max(length, len(word))


class States(KeyedProcessFunction[Sum, Sum]):
    def open(self, ctx: RuntimeContext) -> None:
"""
_STATES = {
    'ctx.get_state(ValueStateDescriptor("s", Sum))': "ValueState[Sum]",
    'ctx.get_state(ValueStateDescriptor("s", int, default=0, ttl=TTL, queryable="q"))': "ValueState[int]",
    'ctx.get_state(ValueStateDescriptor("s", list[str]))': "ValueState[list[str]]",
    'ctx.get_state(ValueStateDescriptor("s", tuple[int, int]))': "ValueState[tuple[int, int]]",
    'ctx.get_state(ValueStateDescriptor("s", int | None))': "ValueState[Any]",
    'ctx.get_state(ValueStateDescriptor("s", int | str, default=1))': "ValueState[Any]",
    'ctx.get_state(ValueStateDescriptor("s", Annotated[int, msgspec.Meta(ge=0)]))': "ValueState[Any]",
    'ctx.get_list_state(ListStateDescriptor("s", Sum, ttl=TTL))': "ListState[Sum]",
    'ctx.get_list_state(ListStateDescriptor("s", str | None))': "ListState[Any]",
    'ctx.get_map_state(MapStateDescriptor("s", str, Sum))': "MapState[str, Sum]",
    'ctx.get_map_state(MapStateDescriptor("s", str, Sum | None))': "MapState[str, Any]",
    'ctx.get_reducing_state(ReducingStateDescriptor("s", Add(), int))': "ReducingState[int]",
    'ctx.get_reducing_state(ReducingStateDescriptor("s", lambda a, b: a + b, int))': "ReducingState[int]",
    'ctx.get_reducing_state(ReducingStateDescriptor("s", lambda a, b: a or b, int | None))': "ReducingState[Any]",
    'ctx.get_aggregating_state(AggregatingStateDescriptor("s", Mean(), list[int]))': (
        "AggregatingState[int, list[int], float]"
    ),
    'ctx.get_folding_state(FoldingStateDescriptor("s", 0, longest, int))': "AggregatingState[str, int, int]",
}
_REFUSED = ['ValueStateDescriptor("s", int, unknown=1)', "ValueStateDescriptor(1, int)", 'MapStateDescriptor("s", str)']


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy --strict says of each line behind the job's first ones."""
    lines = [f"self.s{at} = {state}; reveal_type(self.s{at})" for at, state in enumerate(_STATES)] + _REFUSED
    job = tmp_path_factory.mktemp("typed") / "typed_job.py"
    job.write_text(_JOB + "".join(f"        {line}\n" for line in lines))
    config = Path(__file__).parents[2] / "pyproject.toml"
    out, err, _ = api.run(["--config-file", str(config), "--no-error-summary", str(job)])
    assert not err
    first = _JOB.count("\n") + 1
    told: list[list[str]] = [[] for _ in lines]
    for number, text in re.findall(r"typed_job\.py:(\d+): (.*)", out):
        assert int(number) >= first, text
        told[int(number) - first].append(text)
    return [" ".join(texts) for texts in told]


@pytest.mark.parametrize("state", _STATES)
def test_a_state_has_the_type_that_its_descriptor_names(found: list[str], state: str) -> None:
    told = re.sub(r"\b(?:\w+\.)+(?=\w)", "", found[list(_STATES).index(state)])
    assert told == f'note: Revealed type is "{_STATES[state]}"'


@pytest.mark.parametrize("wrong", _REFUSED)
def test_what_no_descriptor_takes_is_refused(found: list[str], wrong: str) -> None:
    assert "error: " in found[len(_STATES) + _REFUSED.index(wrong)]
