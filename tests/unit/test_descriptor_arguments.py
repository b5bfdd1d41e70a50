"""A state descriptor refuses arguments of a wrong type where the job declares the state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stateflow import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Serializer,
    ValueStateDescriptor,
)
from stateflow.errors import JobDefinitionError
from tests.support.errors import raises

Declare = Callable[..., Any]


@pytest.mark.parametrize(
    "declare",
    [
        lambda **options: ValueStateDescriptor("seen", int, **options),
        lambda **options: ListStateDescriptor("seen", int, **options),
        lambda **options: MapStateDescriptor("seen", str, int, **options),
        lambda **options: ReducingStateDescriptor("seen", max, int, **options),
    ],
)
@pytest.mark.parametrize(
    "options", [{"ttl": timedelta(days=7)}, {"ttl": 7}, {"serializer": Serializer}, {"serializer": "json"}]
)
def test_an_option_of_a_wrong_type_is_refused(declare: Declare, options: dict[str, Any]) -> None:
    with raises(JobDefinitionError, name="seen", **{option: repr(given) for option, given in options.items()}):
        declare(**options)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (timedelta(days=7), "Time.days(7)"),
        (timedelta(hours=36), "Time.hours(36)"),
        (timedelta(minutes=90), "Time.minutes(90)"),
        (timedelta(milliseconds=1500), "Time.milliseconds(1500)"),
    ],
)
def test_the_hint_writes_the_given_duration_as_a_time_to_live(given: timedelta, written: str) -> None:
    with raises(JobDefinitionError) as refused:
        ValueStateDescriptor("seen", int, ttl=given)  # type: ignore[arg-type]
    assert f"StateTtlConfig.new_builder({written}).build()" in refused.value.hint


@pytest.mark.filterwarnings("ignore:FoldingStateDescriptor:DeprecationWarning")
@pytest.mark.parametrize(
    "declare",
    [
        lambda: ReducingStateDescriptor("sum", int, max),
        lambda: ReducingStateDescriptor("sum", "max", int),  # type: ignore[arg-type]
        lambda: AggregatingStateDescriptor("sum", int, max),  # type: ignore[arg-type]
        lambda: FoldingStateDescriptor("sum", 0, int, max),
    ],
)
def test_a_type_in_the_place_of_a_function_is_refused(declare: Declare) -> None:
    with raises(JobDefinitionError, name="sum"):
        declare()
