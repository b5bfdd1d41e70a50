"""State of every kind as tables, from the files of every backend and from canonical files."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stateflow import FsStateBackend, MemoryStateBackend, RocksDBStateBackend
from stateflow.errors import ConfigError
from stateflow.query.reader import state_table
from stateflow.query.snapshot import Snapshot
from stateflow.query.state_table import Rows
from stateflow.testing.harness.job import OPERATOR
from stateflow.types.key_groups import KeyGroupRange, key_group
from tests.query.columns.every_kind import (
    COLUMNS,
    KEY_GROUPS,
    PlainState,
    Row,
    Rule,
    as_canonical,
    harness,
    read_rows,
    read_table,
    snapshot_of,
)

NAMES = st.text("ab\0é", max_size=3)
ROWS = st.lists(st.builds(Row, NAMES, st.integers(0, 3), st.integers(1, 1 << 62)), max_size=8)
RULES = st.lists(st.builds(Rule, NAMES, st.floats(allow_nan=False)), max_size=3)
BATCHES = st.lists(st.tuples(ROWS, RULES), min_size=1, max_size=3)
GROUPS = st.tuples(*[st.integers(0, KEY_GROUPS - 1)] * 2)
BEGIN = [Row("a", 1, 5), Row("b\0", 2, 7)], [Rule("r", 0.5)]
"""Makes all states known: each declares its state with its first row."""


_SLOW = pytest.mark.slow(reason="reads every kind of state in several ways")


@pytest.mark.parametrize(
    ("backend", "examples"),
    [
        (MemoryStateBackend(), 3),
        pytest.param(FsStateBackend(), 2, marks=_SLOW),
        pytest.param(RocksDBStateBackend(), 1, marks=_SLOW),
    ],
)
def test_tables_have_what_was_written(backend: Any, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, phases=[Phase.generate])
    @given(BATCHES, st.lists(NAMES, max_size=3), GROUPS)
    def check(batches: Any, wanted: list[str], groups: tuple[int, int]) -> None:
        plain = PlainState()
        with harness(backend) as job:
            for rows, rules in (BEGIN, *batches):
                plain.add(rows, rules)
                job.push_both(rows, rules)
            native = snapshot_of(job)
            for snapshot in (native, as_canonical(native)):
                _check_keyed(snapshot, plain, wanted)
                _check_groups(snapshot, plain, KeyGroupRange(min(groups), max(groups)))
            _check_operator_state(native, plain)

    check()


def _check_keyed(snapshot: Snapshot, plain: PlainState, wanted: list[str]) -> None:
    for state in COLUMNS:
        assert read_rows(snapshot, state) == plain.rows(state)
        assert read_rows(snapshot, state, keys=tuple(wanted)) == plain.rows(state, wanted)


def _check_groups(snapshot: Snapshot, plain: PlainState, some: KeyGroupRange) -> None:
    found = read_table(snapshot, "last", ["key", "key_group"], groups=some).to_pylist()
    groups = {key: key_group([key], ["string"], KEY_GROUPS) for key in plain.keys}
    assert {row["key"]: row["key_group"] for row in found} == {
        key: group for key, group in groups.items() if group in some
    }


def _check_operator_state(snapshot: Snapshot, plain: PlainState) -> None:
    limits = read_table(snapshot, "_operator/rules", ["map_key", "value"]).to_pylist()
    assert {row["map_key"]: row["value"] for row in limits} == plain.limits
    seen = read_table(snapshot, "_operator/seen")
    numbers = [row.number for rows in plain.keys.values() for row in rows]
    assert sorted(row["value"]["item"] for row in seen.to_pylist()) == sorted(numbers)
    assert set(seen["kind"].to_pylist()) == {"split-list"}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with harness(MemoryStateBackend()) as job:
        job.push_both([Row("a", 1, 2)], [Rule("r", 1.0)])
        yield snapshot_of(job)


@pytest.mark.parametrize(
    ("state", "rows"),
    [
        ("nothing", Rows()),
        ("_operator/nothing", Rows()),
        ("last", Rows(keys=(1,))),
        ("last", Rows(keys=(("a", "b"),))),
        ("_operator/seen", Rows(keys=("a",))),
        ("_raw", Rows(groups=KeyGroupRange(0, 1))),
        ("last", Rows(groups=KeyGroupRange(5, 3))),
        ("last", Rows(groups=KeyGroupRange(-1, 3))),
        ("last", Rows(groups=KeyGroupRange(0, KEY_GROUPS))),
    ],
)
def test_what_does_not_exist_is_a_config_error(snapshot: Any, state: str, rows: Rows) -> None:
    with pytest.raises(ConfigError):
        state_table(snapshot, OPERATOR, state, rows)
