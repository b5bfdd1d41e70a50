"""Spark's settings that a run does not go without."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stateflow import Context, KeyedProcessFunction, StreamExecutionEnvironment
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import ConfigError
from stateflow.runtime.spark.session import JobTraits, check_session, defaults, job_traits
from stateflow.runtime.spark.settings import REQUIRED
from tests.support.errors import raises


class FakeConf:
    """Settings of a session."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values

    def get(self, key: str, default: str | None) -> str | None:
        return self.values.get(key, default)


def _session(changes: dict[str, str | None], master: str = "local[2,4]") -> Any:
    values = {k: v for k, v in {**REQUIRED, **changes}.items() if v is not None}
    return SimpleNamespace(conf=FakeConf(values), sparkContext=SimpleNamespace(master=master))


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("value", ["false", "FALSE", "", None])
def test_a_session_in_which_attempts_could_mix_is_refused(key: str, value: str | None) -> None:
    with raises(ConfigError, setting=key, found=value) as refused:
        check_session(_session({key: value}))
    assert REQUIRED[key] in refused.value.hint


def test_a_session_with_what_is_required_is_taken() -> None:
    check_session(_session({}))
    check_session(_session(dict.fromkeys(REQUIRED, "TRUE")))


def test_a_session_that_never_tries_a_task_again_is_refused() -> None:
    with raises(ConfigError, master="local[2]"):
        check_session(_session({}, master="local[2]"))


def test_spark_s_adaptive_execution_is_left_on_for_expressions_that_may_profit_from_it() -> None:
    adaptive = "spark.sql.adaptive.enabled"
    assert defaults(JobTraits(has_expressions=False, has_fixed_rows=True))[adaptive] == "false"
    assert adaptive not in defaults(JobTraits(has_expressions=True, has_fixed_rows=True))


def test_arrow_batches_are_weighed_only_where_rows_have_no_fixed_width() -> None:
    weight = "spark.sql.execution.arrow.maxBytesPerBatch"
    assert int(defaults(JobTraits(has_expressions=False, has_fixed_rows=True))[weight]) == (1 << 31) - 1
    assert weight not in defaults(JobTraits(has_expressions=False, has_fixed_rows=False))


@pytest.mark.parametrize("has_expressions", [False, True])
def test_what_is_required_is_set(has_expressions: bool) -> None:
    assert REQUIRED.items() <= defaults(JobTraits(has_expressions, has_fixed_rows=True)).items()


class Reading(msgspec.Struct):
    sensor: int
    celsius: float
    at: datetime
    is_valid: bool


class Note(msgspec.Struct):
    sensor: int
    text: str


class _Noting(KeyedProcessFunction[Reading, Note]):
    def process_element(self, row: Reading, ctx: Context) -> list[Note]:
        return [Note(row.sensor, "seen")]


def _readings(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([], Reading, uid="readings")


def test_rows_of_numbers_and_times_have_a_fixed_width() -> None:
    env = StreamExecutionEnvironment()
    _readings(env).print(uid="shown")
    assert job_traits(env.graph) == JobTraits(has_expressions=False, has_fixed_rows=True)


def test_a_text_anywhere_on_the_way_makes_rows_wide() -> None:
    env = StreamExecutionEnvironment()
    notes = _readings(env).key_by("sensor").process(_Noting(), output=Note, uid="noting")
    notes.map(lambda note: Reading(note.sensor, 0.0, datetime(2026, 1, 1, tzinfo=UTC), True), output=Reading).print(
        uid="shown"
    )
    assert not job_traits(env.graph).has_fixed_rows


def test_a_spark_expression_on_the_way_is_seen() -> None:
    env = StreamExecutionEnvironment()
    _readings(env).transform(lambda frame: frame.where("celsius > 0"), schema=Reading).print(uid="shown")
    assert job_traits(env.graph).has_expressions


def test_spark_keeps_no_more_of_past_batches_than_a_person_looks_at() -> None:
    kept = defaults(JobTraits(has_expressions=False, has_fixed_rows=True))
    names = (
        "spark.sql.ui.retainedExecutions",
        "spark.ui.retainedJobs",
        "spark.ui.retainedStages",
        "spark.sql.streaming.numRecentProgressUpdates",
    )
    assert all(0 < int(kept[name]) <= 100 for name in names)
