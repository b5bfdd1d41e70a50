"""State descriptors: what a strict type checker infers from them, and the arguments that they refuse."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from stateflow import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Serializer,
    ValueStateDescriptor,
)
from stateflow.errors import JobDefinitionError
from tests.support.errors import raises

_JOB = """
from typing import Annotated
import msgspec
from stateflow import *

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
    'state(ValueStateDescriptor("s", Sum))': "ValueState[Sum]",
    'state(ValueStateDescriptor("s", int, default=0, ttl=TTL, queryable="q"))': "ValueState[int]",
    'state(ValueStateDescriptor("s", list[str]))': "ValueState[list[str]]",
    'state(ValueStateDescriptor("s", tuple[int, int]))': "ValueState[tuple[int, int]]",
    'state(ValueStateDescriptor("s", int | None))': "ValueState[Any]",
    'state(ValueStateDescriptor("s", int | str, default=1))': "ValueState[Any]",
    'state(ValueStateDescriptor("s", Annotated[int, msgspec.Meta(ge=0)]))': "ValueState[Any]",
    'list_state(ListStateDescriptor("s", Sum, ttl=TTL))': "ListState[Sum]",
    'list_state(ListStateDescriptor("s", str | None))': "ListState[Any]",
    'map_state(MapStateDescriptor("s", str, Sum))': "MapState[str, Sum]",
    'map_state(MapStateDescriptor("s", str, Sum | None))': "MapState[str, Any]",
    'reducing_state(ReducingStateDescriptor("s", Add(), int))': "ReducingState[int]",
    'reducing_state(ReducingStateDescriptor("s", lambda a, b: a + b, int))': "ReducingState[int]",
    'reducing_state(ReducingStateDescriptor("s", lambda a, b: a or b, int | None))': "ReducingState[Any]",
    'aggregating_state(AggregatingStateDescriptor("s", Mean(), list[int]))': "AggregatingState[int, list[int], float]",
    'folding_state(FoldingStateDescriptor("s", 0, longest, int))': "AggregatingState[str, int, int]",
}
_REFUSED = ['ValueStateDescriptor("s", int, unknown=1)', "ValueStateDescriptor(1, int)", 'MapStateDescriptor("s", str)']


@pytest.mark.slow(reason="mypy reads the whole package: 20 seconds")
def test_a_state_has_the_type_that_its_descriptor_names(tmp_path: Path) -> None:
    """As mypy --strict reports it, line by line, without an annotation by the user."""
    lines = [f"self.s{at} = ctx.get_{state}; reveal_type(self.s{at})" for at, state in enumerate(_STATES)] + _REFUSED
    job = tmp_path / "typed_job.py"
    job.write_text(_JOB + "".join(f"        {line}\n" for line in lines))
    config = Path(__file__).parents[2] / "pyproject.toml"
    out, err, _ = api.run(["--config-file", str(config), "--no-error-summary", str(job)])
    assert not err
    reported: dict[int, list[str]] = {}
    for number, text in re.findall(r"typed_job\.py:(\d+): (.*)", out):
        reported.setdefault(int(number) - _JOB.count("\n") - 1, []).append(re.sub(r"\b(?:\w+\.)+(?=\w)", "", text))
    *types, first, second, third = [reported.pop(at, []) for at in range(len(lines))]
    assert types == [[f'note: Revealed type is "{wanted}"'] for wanted in _STATES.values()]
    assert all(any(text.startswith("error: ") for text in texts) for texts in (first, second, third))
    assert reported == {}, "the job's first lines have no errors"


ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    ValueStateDescriptor: (int,),
    ListStateDescriptor: (int,),
    MapStateDescriptor: (str, int),
    ReducingStateDescriptor: (max, int),
}
WRONG_OPTIONS = [{"ttl": timedelta(days=7)}, {"ttl": 7}, {"serializer": Serializer}, {"serializer": "json"}]


@pytest.mark.parametrize("descriptor", ARGUMENTS)
@pytest.mark.parametrize("options", WRONG_OPTIONS)
def test_an_option_of_a_wrong_type_is_refused(descriptor: Any, options: dict[str, Any]) -> None:
    with raises(JobDefinitionError, name="seen", **{option: repr(given) for option, given in options.items()}):
        descriptor("seen", *ARGUMENTS[descriptor], **options)


def test_a_type_in_the_place_of_a_function_is_refused() -> None:
    for kind, arguments in ((ReducingStateDescriptor, (int, max)), (AggregatingStateDescriptor, (int, max))):
        made: Any = kind
        with raises(JobDefinitionError, name="sum"):
            made("sum", *arguments)
