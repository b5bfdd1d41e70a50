"""Two jobs, or two checkpoints of one job, are compared; the expected differences come from plain dictionaries."""

from __future__ import annotations

import base64
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import stateflow
from stateflow.api.state_backends import StateBackend
from stateflow.checkpoint.log.documents import Manifest, SavepointFormat
from stateflow.clock import ManualClock
from stateflow.compare.changes import to_json
from stateflow.compare.snapshots import DiffOptions, SnapshotDiff, compare, split_location
from stateflow.compare.summary import DiffLimits, StateDiff, states_beyond
from stateflow.errors import ConfigError
from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.query.snapshot import Snapshot, open_snapshot
from stateflow.query.state import entries_of
from stateflow.storage import MemoryStorage
from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import Row, build_job, timer_time
from tests.testing.test_every_state import INCREMENTAL, MEMORY, EveryHistory, Kept

ACTIONS = ["update", "clear", "add", "put", "remove", "tag", "collect", "rate", "timer", "event timer"]


def rows_of(seed: int, count: int) -> list[Row]:
    dice = random.Random(seed)
    return [
        Row(
            number, dice.choice("abc"), dice.randint(0, 3), dice.choice(ACTIONS), dice.choice("xy"),
            dice.randint(0, 9), -1,
        )
        for number in range(count)
    ]  # fmt: skip


def jobs_in(folder: Path, **settings: Any) -> LocalJobs:
    folder.mkdir()
    return LocalJobs(folder, ManualClock(), max_parallelism=32, parallelism=2, **settings)


def changes_of(found: SnapshotDiff) -> dict[tuple[str, str, str], list[tuple[str, ...]]]:
    """Key, map key, old and new value of each change, by operator, state and kind of change."""
    assert found.changes is not None
    changes: dict[tuple[str, str, str], list[tuple[str, ...]]] = {}
    for row in found.changes.read_all().to_pylist():
        kept = tuple(row[name] for name in ("key", "map_key", "old", "new") if row[name] is not None)
        changes.setdefault((row["operator"], row["state"], row["change"]), []).append(kept)
    return changes


@pytest.fixture
def jobs(tmp_path: Path) -> LocalJobs:
    return jobs_in(tmp_path / "one")


@pytest.mark.parametrize(
    "other",
    [{"state__backend": "filesystem", "parallelism": 3}, {"max_parallelism": 7, "source__max_rows_per_batch": 1000}],
)
def test_two_jobs_that_have_processed_the_same_rows_have_equal_state(
    jobs: LocalJobs, tmp_path: Path, other: dict[str, Any]
) -> None:
    """Whatever their backends, parallelism and batches are; and what a further row changes is all that differs then."""
    rows = rows_of(1, 60)
    jobs.run(build_job(jobs, rows, 0))
    second = jobs_in(tmp_path / "two")
    second.run(build_job(second, rows, 0), **other)
    roots = str(jobs.folder / "root"), str(second.folder / "root")
    found = stateflow.diff(*roots)
    assert changes_of(found) == {}
    assert found.keys == 0
    assert {state.operator for state in found.states} == {"every"}
    # One more row, also in a canonical savepoint.
    second.run(build_job(second, [*rows, Row(60, "z", 9, "update", value=5, at=-1)], 0), **other)
    create_savepoint(roots[1], SavepointRequest(name="c", format=SavepointFormat.CANONICAL, from_head=True))
    for change, sides in (("added", roots), ("removed", roots[::-1]), ("added", (roots[0], f"{roots[1]}@c"))):
        wanted = {("every", state, change): [('["z",9]', "5")] for state in ("one", "brief")}
        assert changes_of(stateflow.diff(*sides)) == wanted


_A, _B = '["a",1]', '["b",2]'
_CHANGES = {
    ("every", "one", "changed"): [(_A, "1", "2")], ("every", "one", "added"): [(_B, "9")],
    ("every", "brief", "changed"): [(_A, "1", "2")], ("every", "brief", "added"): [(_B, "9")],
    ("every", "items", "changed"): [(_A, "[1]", "[1,3]")], ("every", "brief items", "changed"): [(_A, "[1]", "[1,3]")],
    ("every", "entries", "added"): [(_A, '"y"', "2")], ("every", "entries", "removed"): [(_A, '"x"', "1")],
    ("every", "brief entries", "added"): [(_A, '"y"', "2")], ("every", "sum", "changed"): [(_A, "1", "4")],
    ("every", "mean", "changed"): [(_A, "[1,1]", "[2,4]")],
    ("every", "_timers", "removed"): [(_A, f'{{"time":{timer_time(5)},"domain":"processing"}}')],
    ("every", "_operator/numbers", "added"): [("[]", "11")], ("every", "_operator/union", "added"): [("[]", "11")],
    ("every", "_raw", "added"): [("[]", '"MTE="')], ("rates", "_operator/rates", "changed"): [("[]", '"x"', "1", "2")],
}  # fmt: skip
"""What rows of every kind change, by operator, state and change."""


_KEY_A: dict[str, Any] = {"key": "a", "shop": 1, "namespace": None}
_KEY_B: dict[str, Any] = {"key": "b", "shop": 2, "namespace": None}
_TYPED: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("every", "one"): [
        {"change": "changed", **_KEY_A, "old": 1, "new": 2},
        {"change": "added", **_KEY_B, "old": None, "new": 9},
    ],
    ("every", "items"): [{"change": "changed", **_KEY_A, "old": [1], "new": [1, 3]}],
    ("every", "entries"): [
        {"change": "removed", **_KEY_A, "map_key": "x", "old": 1, "new": None},
        {"change": "added", **_KEY_A, "map_key": "y", "old": None, "new": 2},
    ],
    ("every", "mean"): [{"change": "changed", **_KEY_A, "old": [1, 1], "new": [2, 4]}],
    ("every", "tags"): [],
    ("every", "_timers"): [{"change": "removed", **_KEY_A, "time": timer_time(5), "domain": "processing"}],
    ("every", "_operator/numbers"): [{"change": "added", "old": None, "new": 11}],
    ("every", "_raw"): [{"change": "added", "old": None, "new": b"11"}],
    ("rates", "_operator/rates"): [{"change": "changed", "map_key": "x", "old": 1, "new": 2}],
}
"""The same of some states with the types of their columns."""


def _check_typed(found: SnapshotDiff) -> None:
    for (operator, state), wanted in _TYPED.items():
        rows = found.changes_of(operator, state).read_all().to_pylist()
        if not state.startswith("_operator/"):
            groups = [row.pop("key_group") for row in rows if state != "_raw"]
            assert groups == sorted(groups)
        assert sorted(rows, key=repr) == sorted(wanted, key=repr), state
    (pieces,) = found.changes_of("every", "_raw_keyed").read_all().to_pylist()
    assert [json.loads(pieces[side]) for side in ("old", "new")] == [[4], [4, 11]]
    tags = found.changes_of("every", "tags").schema
    assert tags.field("new").type == pa.map_(pa.string(), pa.list_(pa.int64()))


def test_every_kind_of_state_is_compared(jobs: LocalJobs) -> None:
    """Between two checkpoints of one job, of which the later one has processed a row of every kind."""
    place: dict[str, Any] = {"key": "a", "shop": 1, "at": -1}
    first = [
        Row(0, action="update", value=1, **place), Row(1, action="put", name="x", value=1, **place),
        Row(2, action="add", value=1, **place), Row(3, action="tag", name="x", value=1, **place),
        Row(4, action="collect", **place), Row(5, action="rate", name="x", value=1, **place),
        Row(6, action="timer", value=5, **place),
    ]  # fmt: skip
    jobs.run(build_job(jobs, first, 32), source__max_rows_per_batch=1000)
    root = str(jobs.folder / "root")
    with open_snapshot(root) as snapshot:
        before = snapshot.checkpoint_id
    more = [
        Row(7, action="update", value=2, **place), Row(8, action="put", name="y", value=2, **place),
        Row(9, action="remove", name="x", **place), Row(10, action="add", value=3, **place),
        Row(11, action="collect", **place), Row(12, action="rate", name="x", value=1, **place),
        Row(13, action="no timer", value=5, **place), Row(14, key="b", shop=2, action="update", value=9, at=-1),
    ]  # fmt: skip
    jobs.run(build_job(jobs, [*first, *more], 32), source__max_rows_per_batch=1000)
    found = stateflow.diff(f"{root}@{before}", root)
    changes = changes_of(found)
    pieces = changes.pop(("every", "_raw_keyed", "changed"))
    assert [(json.loads(base64.b64decode(json.loads(text)))) for text in pieces[0][-2:]] == [[4], [4, 11]]
    assert changes == _CHANGES
    _check_typed(found)
    one = {state.state: state for state in found.states if state.operator == "every"}["one"]
    assert (one.kind, one.added, one.removed, one.changed) == ("value", 1, 0, 1)
    assert one.new_bytes > one.old_bytes > 0
    assert found.old.label == f"checkpoint {before}"


def test_one_operator_is_compared(jobs: LocalJobs) -> None:
    jobs.run(build_job(jobs, rows_of(2, 20), 0))
    root = str(jobs.folder / "root")
    assert {state.operator for state in stateflow.diff(root, root, ["rates"], changes=False).states} <= {"rates"}
    with pytest.raises(ConfigError) as refused:
        stateflow.diff(root, root, ["evry"])
    assert refused.value.facts["uid"] == "evry"


def test_an_operator_of_one_snapshot_only_is_added_or_removed(jobs: LocalJobs, tmp_path: Path) -> None:
    """As if its state had been empty in the other one."""
    jobs.run(build_job(jobs, rows_of(3, 40), 0))
    second = jobs_in(tmp_path / "two")
    second.apply([Row(0, "a", 1, "update", at=-1)], lambda stream: stream)
    roots = str(jobs.folder / "root"), str(second.folder / "root")
    added, removed = stateflow.diff(*roots[::-1], counts_all=True), stateflow.diff(*roots)
    assert added.keys == removed.keys > 0
    for new, old in zip(added.states, removed.states, strict=True):
        assert (new.added, new.removed, new.changed) == (old.removed, old.added, old.changed)
        assert new.new_keys in (None, new.added)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/jobs/a@17", ("/jobs/a", "17")), ("/jobs/a", ("/jobs/a", None)),
        ("s3://user@host/a", ("s3://user@host/a", None)), ("s3://user@host/a@latest", ("s3://user@host/a", "latest")),
        ("root@before:2026-01-01T00:00", ("root", "before:2026-01-01T00:00")), ("/jobs/a@b/", ("/jobs/a@b/", None)),
        ("@17", ("@17", None)),
    ],
)  # fmt: skip
def test_a_location_may_name_a_snapshot(text: str, expected: tuple[str, str | None]) -> None:
    assert split_location(text) == expected


# -- limits -----------------------------------------------------------------------------------------------------------


COUNT = StateDiff("op", "count", "value", added=1, removed=2, changed=3, old_keys=59, new_keys=58)
EQUAL = StateDiff("op", "seen", "map", old_keys=10, new_keys=10)


@pytest.mark.parametrize(
    ("limits", "fails"),
    [
        (DiffLimits(), True), (DiffLimits(keys=5), True), (DiffLimits(keys=6), False), (DiffLimits(keys=None), False),
        (DiffLimits(keys=None, fraction=0.1), False), (DiffLimits(keys=None, fraction=0.09), True),
        (DiffLimits(keys=5, fraction=0.5), True),
    ],
)  # fmt: skip
def test_each_state_has_to_be_within_the_limits(limits: DiffLimits, fails: bool) -> None:
    assert COUNT.fraction == 6 / 60
    assert states_beyond([COUNT, EQUAL], limits) == ([COUNT] if fails else [])
    for ignored in ("op", "op.count"):
        assert states_beyond([COUNT, EQUAL], limits, [ignored]) == []


def test_a_fraction_of_keys_that_were_not_counted_is_exceeded_by_any_difference() -> None:
    uncounted = StateDiff("op", "_operator/list", "split-list", added=1)
    assert uncounted.fraction is None
    assert states_beyond([uncounted], DiffLimits(None, 0.99)) == [uncounted]


# -- any two snapshots ------------------------------------------------------------------------------------------------

Address = tuple[str, ...]
"""State; key, namespace and map key as JSON."""


def _snapshot_of(kept: Kept) -> Snapshot:
    storage, state = MemoryStorage(), kept.snapshot
    for key, data in state.files.items():
        storage.put_new(key, data)
    operators = list(state.position.operators.values())
    manifest = Manifest(job_uuid="u", generation=1, ordinal=1, operators=operators, sources=[])
    return Snapshot(storage, manifest, "job", "u", state.max_parallelism, 1)


def _values_of(snapshot: Snapshot) -> dict[Address, Any]:
    """Returns the stored entries, with each list as one value."""
    values: dict[Address, Any] = {}
    for operator in snapshot.manifest.operators:
        for entry in entries_of(operator, snapshot.storage, ManualClock()):
            address = (entry.state, *map(to_json, (list(entry.key), entry.namespace, entry.map_key)))
            values[address] = [*values.get(address, []), entry.value] if entry.state == "list" else entry.value
    return values


def _check_difference(old: Kept, new: Kept, *, counts_all: bool) -> None:
    sides = _snapshot_of(old), _snapshot_of(new)
    before, after = map(_values_of, sides)
    wanted = {
        address: (before.get(address), after.get(address))
        for address in before.keys() | after.keys()
        if before.get(address) != after.get(address)
    }
    found = compare(*sides, DiffOptions(counts_all=counts_all))
    assert found.changes is not None
    rows = [row for row in found.changes.read_all().to_pylist() if not row["state"].startswith("_")]
    texts = [(row["state"], *(row[name] or "null" for name in ("key", "namespace", "map_key"))) for row in rows]
    changes = [tuple(json.loads(row[side] or "null") for side in ("old", "new")) for row in rows]
    assert dict(zip(texts, changes, strict=True)) == wanted and len(rows) == len(wanted)
    for state in found.states:
        if not state.state.startswith("_"):
            of_state = [pair for address, pair in wanted.items() if address[0] == state.state]
            added, removed = (sum(pair[side] is None for pair in of_state) for side in (0, 1))
            assert (state.added, state.removed, state.changed) == (added, removed, len(of_state) - added - removed)
            keys = [sum(address[0] == state.state for address in values) for values in (before, after)]
            assert [state.old_keys, state.new_keys] == keys or not counts_all


class ComparedHistory(EveryHistory):
    """Compares the last snapshots of a history with each other, mostly with stores that share files."""

    compact_at_files = 20

    def _use(self, backend: StateBackend) -> None:
        super()._use(backend if backend == MEMORY else INCREMENTAL)

    def _check_state(self, key: str = "", namespace: Any = None) -> None:
        """Another test checks the state."""

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.snapshot()
            for number, (old, new) in enumerate(pairwise([*self.kept, self.kept[0]])):
                _check_difference(old, new, counts_all=number == 1)
        super().teardown()


@pytest.mark.long(reason="draws many histories")
def test_after_any_history_the_difference_of_two_snapshots_is_that_of_their_values() -> None:
    few = settings(max_examples=max(1, settings().max_examples // 8), stateful_step_count=8)
    run_state_machine_as_test(ComparedHistory, settings=few)
