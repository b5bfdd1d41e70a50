"""Cases of Flink's tests of windows, joins, changelogs and patterns, by the harness on Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType, ModuleType

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

_OF_MATRIX = {
    windows.test_tumbling_event_time_windows,
    windows.test_session_windows,
    windows.test_a_count_trigger_purges_the_global_window,
    window_functions.test_an_aggregate_is_passed_to_the_window_function,
    window_functions.test_triggers_and_evictors_see_the_rows_of_all_keys,
    window_joins.test_join_has_the_pairs_of_each_window,
    interval_joins.test_late_rows_are_side_outputs_and_the_row_at_the_watermark_is_not_late,
    regular_joins.test_nested_columns_and_keys_of_several_columns_are_joined,
    changelog_joins.test_a_retraction_removes_one_row_of_equal_content,
    temporal_joins.test_a_row_waits_for_the_watermark_and_gets_the_version_of_its_time,
    changelogs.test_a_top_n_with_rank_updates_the_rows_of_ranks,
    changelogs.test_proc_time_keep_last,
    patterns.test_partial_matches_that_exceed_the_time_limit_go_to_a_side_output,
}
"""A few tests of each kind of operator, which other versions of Spark run; windows by rows and by columns."""

pytestmark = [
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
    marked = {name: pytest.mark.matrix(_copy(t)) if t in _OF_MATRIX else t for name, t in found.items()}
    return type("Tests", (), {name: staticmethod(test) for name, test in marked.items()})


def _copy(test: Callable[..., None]) -> Callable[..., None]:
    """Returns a copy of a test, so that a mark of the copy is not a mark of the test itself."""
    assert isinstance(test, FunctionType)
    copy = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    return update_wrapper(copy, test)


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


@pytest.mark.matrix
def test_a_batch_runs_in_a_worker_of_spark() -> None:
    with KeyedHarness(EmitProcess(), KeyedInput(Row, "key"), output=Process) as h:
        (found,) = h.push(Row("a"))
    assert found.number != os.getpid()
