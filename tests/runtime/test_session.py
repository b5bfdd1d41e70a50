"""Settings of Spark that a run requires, and those that it sets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stateflow import Context, KeyedProcessFunction, StreamExecutionEnvironment
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
def test_a_session_without_a_required_setting_is_refused(key: str, value: str | None) -> None:
    """Without them, rows of several attempts of a task could mix."""
    with raises(ConfigError, setting=key, found=value) as refused:
        check_session(_session({key: value}))
    assert REQUIRED[key] in refused.value.hint


def test_a_session_with_the_required_settings_that_retries_tasks_is_accepted() -> None:
    check_session(_session({}))
    check_session(_session(dict.fromkeys(REQUIRED, "TRUE")))
    with raises(ConfigError, master="local[2]"):
        check_session(_session({}, master="local[2]"))


def test_the_defaults_are_the_required_settings_and_those_that_suit_the_job() -> None:
    adaptive, weight = "spark.sql.adaptive.enabled", "spark.sql.execution.arrow.maxBytesPerBatch"
    plain, expressions, wide = (
        defaults(JobTraits(has_expressions, has_fixed_rows))
        for has_expressions, has_fixed_rows in ((False, True), (True, True), (False, False))
    )
    assert all(REQUIRED.items() <= given.items() for given in (plain, expressions, wide))
    # Adaptive execution may speed up expressions; rows of a fixed width need no limit in bytes.
    assert plain[adaptive] == "false" and adaptive not in expressions
    assert int(plain[weight]) == (1 << 31) - 1 and weight not in wide
    retained = (
        "spark.sql.ui.retainedExecutions",
        "spark.ui.retainedJobs",
        "spark.ui.retainedStages",
        "spark.sql.streaming.numRecentProgressUpdates",
    )
    assert all(0 < int(plain[name]) <= 100 for name in retained)


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


def _fixed(rows: Any) -> Any:
    return rows


def _with_text_between(rows: Any) -> Any:
    notes = rows.key_by("sensor").process(_Noting(), output=Note, uid="noting")
    return notes.map(lambda note: Reading(note.sensor, 0.0, datetime(2026, 1, 1, tzinfo=UTC), True), output=Reading)


def _with_expression(rows: Any) -> Any:
    return rows.transform(lambda frame: frame.where("celsius > 0"), schema=Reading)


@pytest.mark.parametrize(
    ("operators", "has_expressions", "has_fixed_rows"),
    [(_fixed, False, True), (_with_text_between, False, False), (_with_expression, True, True)],
)
def test_a_job_has_fixed_rows_without_any_text_and_expressions_if_any_stream_has_one(
    operators: Callable[[Any], Any], has_expressions: bool, has_fixed_rows: bool
) -> None:
    env = StreamExecutionEnvironment()
    operators(env.from_collection([], Reading, uid="readings")).print(uid="shown")
    assert job_traits(env.graph) == JobTraits(has_expressions, has_fixed_rows)
