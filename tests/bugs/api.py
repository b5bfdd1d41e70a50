"""Bugs of streams, windows, rankings, patterns and SQL."""

from __future__ import annotations

from tests.bugs.bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "row-at-the-end-is-in-the-window",
        "stateflow/api/windows/assigners.py",
        "range(latest, timestamp - self.size, -self.slide)]",
        "range(latest, timestamp - self.size - 1, -self.slide)]",
        ("tests/windows/test_flink_cases.py::test_tumbling_event_time_windows",),
    ),
    Bug(
        "replaced-rank-is-not-retracted",
        "stateflow/api/ranking.py",
        "        had = before >= 0\n",
        "        had = before > 0\n",
        ("tests/changelogs/test_flink_cases.py",),
    ),
    Bug(
        "top-n-has-one-row-more",
        "stateflow/api/ranking.py",
        "        is_chosen = rank < self._selection.n\n",
        "        is_chosen = rank <= self._selection.n\n",
        ("tests/changelogs/test_flink_cases.py::test_a_top_n_without_rank_inserts_and_deletes",),
    ),
    Bug(
        "match-continues-with-its-last-row",
        "stateflow/api/patterns/skip.py",
        "            return last + 1\n",
        "            return last\n",
        ("tests/patterns/test_flink_cases.py",),
    ),
    Bug(
        "substring-counts-from-zero",
        "stateflow/api/sql/sql_functions.py",
        "begin = start - 1 if start > 0 else",
        "begin = start if start > 0 else",
        ("tests/sql/test_functions.py::test_values_in_python_are_those_of_flinks_tests",),
    ),
    Bug(
        "touching-sessions-stay-apart",
        "stateflow/api/windows/window_operator.py",
        "(touched if each.start <= end and start <= each.end else others)",
        "(touched if each.start < end and start < each.end else others)",
        ("tests/windows/test_flink_cases.py::test_sessions_that_touch_are_one",),
    ),
)
