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

Declare = Callable[..., Any]


@pytest.mark.parametrize("declare", [
    lambda **options: ValueStateDescriptor("seen", int, **options),
    lambda **options: ListStateDescriptor("seen", int, **options),
    lambda **options: MapStateDescriptor("seen", str, int, **options),
    lambda **options: ReducingStateDescriptor("seen", max, int, **options),
])  # fmt: skip
@pytest.mark.parametrize("options", [
    {"ttl": timedelta(days=7)}, {"ttl": 7}, {"serializer": Serializer}, {"serializer": "json"},
])  # fmt: skip
def test_an_option_of_a_wrong_type_is_refused(declare: Declare, options: dict[str, Any]) -> None:
    with pytest.raises(JobDefinitionError) as raised:
        declare(**options)
    assert raised.value.facts["name"] == "seen"
    ((option, given),) = options.items()
    assert raised.value.facts[option] == repr(given)


@pytest.mark.parametrize(("given", "written"), [
    (timedelta(days=7), "Time.days(7)"), (timedelta(hours=36), "Time.hours(36)"),
    (timedelta(minutes=90), "Time.minutes(90)"), (timedelta(milliseconds=1500), "Time.milliseconds(1500)"),
])  # fmt: skip
def test_the_hint_writes_the_given_duration_as_a_time_to_live(given: timedelta, written: str) -> None:
    with pytest.raises(JobDefinitionError) as raised:
        ValueStateDescriptor("seen", int, ttl=given)  # type: ignore[arg-type]
    assert raised.value.hint == f"StateTtlConfig.new_builder({written}).build()"


@pytest.mark.filterwarnings("ignore:FoldingStateDescriptor:DeprecationWarning")
@pytest.mark.parametrize("declare", [
    lambda: ReducingStateDescriptor("sum", int, max),
    lambda: ReducingStateDescriptor("sum", "max", int),  # type: ignore[arg-type]
    lambda: AggregatingStateDescriptor("sum", int, max),  # type: ignore[arg-type]
    lambda: FoldingStateDescriptor("sum", 0, int, max),
])  # fmt: skip
def test_a_type_in_the_place_of_a_function_is_refused(declare: Declare) -> None:
    with pytest.raises(JobDefinitionError) as raised:
        declare()
    assert raised.value.facts["name"] == "sum"
