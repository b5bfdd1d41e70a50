"""Cases of Flink's tests of windows, joins, changelogs and patterns, by the harness on Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType

import msgspec
import pytest
from hypothesis import is_hypothesis_test

from stateflow import Context, KeyedProcessFunction
from stateflow.testing import KeyedHarness, KeyedInput
from tests.changelogs import test_flink_cases as changelogs
from tests.joins import test_changed_joins as changed_joins
from tests.joins import test_changelog_join as changelog_joins
from tests.joins import test_interval_join_flink_cases as interval_joins
from tests.joins import test_regular_join as regular_joins
from tests.joins import test_temporal_join as temporal_joins
from tests.joins import test_window_join_flink_cases as window_joins
from tests.patterns import test_flink_cases as patterns
from tests.windows import test_flink_cases as windows
from tests.windows import test_window_functions as window_functions

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.spark,
    pytest.mark.slow(reason="each push is a batch on Spark"),
    pytest.mark.usefixtures("harnesses_on_spark"),
]


def _tests_of(module: ModuleType, *without: object) -> type:
    """Returns a class with the tests of a module, for pytest. Random histories have too many batches for Spark.

    Args:
        without: tests that look into the process of an operator.
    """
    found: dict[str, Callable[..., None]] = {
        name: test
        for name, test in vars(module).items()
        if name.startswith("test_") and not is_hypothesis_test(test) and test not in without
    }
    assert found
    return type("Tests", (), {name: staticmethod(test) for name, test in found.items()})


TestWindows = _tests_of(windows)
TestWindowFunctions = _tests_of(window_functions)
TestWindowJoins = _tests_of(window_joins)
TestIntervalJoins = _tests_of(interval_joins)
TestRegularJoins = _tests_of(
    regular_joins,
    regular_joins.test_an_equality_makes_as_many_pairs_as_are_joined,
    regular_joins.test_the_run_names_the_key_that_a_join_compares_most_pairs_of,
)
TestChangedJoins = _tests_of(changed_joins)
TestChangelogJoins = _tests_of(changelog_joins)
TestTemporalJoins = _tests_of(temporal_joins)
TestChangelogs = _tests_of(changelogs)
TestPatterns = _tests_of(patterns)


class Row(msgspec.Struct):
    key: str


class Process(msgspec.Struct):
    number: int


class EmitProcess(KeyedProcessFunction[Row, Process]):
    def process_element(self, row: Row, ctx: Context) -> list[Process]:
        return [Process(os.getpid())]


def test_a_batch_runs_in_a_worker_of_spark() -> None:
    with KeyedHarness(EmitProcess(), KeyedInput(Row, "key"), output=Process) as h:
        (found,) = h.push(Row("a"))
    assert found.number != os.getpid()
