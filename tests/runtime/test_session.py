"""Spark's settings that a run does not go without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stateflow.errors import ConfigError
from stateflow.runtime.session import REQUIRED, _check, defaults


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
    with pytest.raises(ConfigError, match="two attempts of a task") as refused:
        _check(_session({key: value}))
    assert refused.value.facts == {"setting": key, "found": value}
    assert refused.value.hint == "set it to true"


def test_a_session_with_what_is_required_is_taken() -> None:
    _check(_session({}))
    _check(_session(dict.fromkeys(REQUIRED, "TRUE")))


def test_a_session_that_never_tries_a_task_again_is_refused() -> None:
    with pytest.raises(ConfigError, match="without retries"):
        _check(_session({}, master="local[2]"))


def test_spark_s_adaptive_execution_is_left_on_for_expressions_that_may_profit_from_it() -> None:
    adaptive = "spark.sql.adaptive.enabled"
    assert defaults(has_expressions=False)[adaptive] == "false"
    assert adaptive not in defaults(has_expressions=True)


@pytest.mark.parametrize("has_expressions", [False, True])
def test_what_is_required_is_set(has_expressions: bool) -> None:
    assert REQUIRED.items() <= defaults(has_expressions).items()
