"""Rewinds of a Delta table: their result, their preview, and what they refuse. Without Spark."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from stateflow.api.sink import SinkRewind
from stateflow.connectors import DeltaSink
from stateflow.errors import InternalError, SinkDiverged, SinkRefused
from tests.support.delta_tables import (
    Pair,
    checkpoint,
    commit_elsewhere,
    context,
    entry_path,
    ids,
    pairs,
    put,
    snapshot,
)
from tests.support.errors import raises
from tests.support.examples import one_in

_ABOUT = context()


class Wider(Pair):
    largest: float | None = None


@pytest.fixture
def sink(table: Path) -> DeltaSink:
    """A table whose version and token are equal: checkpoint n published row n, up to 4."""
    made = DeltaSink(table)
    made.prepare(_ABOUT)
    for token in range(1, 5):
        put(made, _ABOUT, token, pairs(token, 1))
    return made


def _plan(sink: DeltaSink, checkpoint_id: int) -> SinkRewind:
    return sink.open_table(_ABOUT).plan_rewind(checkpoint_id)


def _go_back(sink: DeltaSink, checkpoint_id: int, token: int) -> SinkRewind:
    """Rewinds, and compares the plan with the rows of both versions."""
    handle = sink.open_table(_ABOUT)
    plan = handle.plan_rewind(checkpoint_id)
    before = _rows(sink)
    assert handle.rewind(plan.to_version, token) == plan.from_version + 1
    after = _rows(sink)
    assert sink.open_table(_ABOUT).token == token
    if plan.to_version is not None:
        assert after == _rows(sink, plan.to_version)
    if plan.rows_removed is not None:
        assert (plan.rows_removed, plan.rows_returned) == ((before - after).total(), (after - before).total())
    return plan


def _rows(sink: DeltaSink, version: int | None = None) -> Counter[str]:
    """The rows of a version as Parquet has them."""
    uris = DeltaTable(sink.table, version=version).file_uris()
    return Counter(str(row) for uri in uris for row in pq.read_table(uri).to_pylist())


def _entry(table: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in entry_path(table, version).read_text().splitlines()]


def _cannot_rewind(sink: DeltaSink, checkpoint_id: int, error: type[SinkDiverged | SinkRefused], **facts: Any) -> None:
    """Neither planning nor rewinding to the version of a checkpoint succeeds, and the table does not change."""
    before = snapshot(Path(sink.table))
    with raises(error, **facts) as planned:
        _plan(sink, checkpoint_id)
    assert planned.value.hint
    with raises(error, **facts):
        sink.open_table(_ABOUT).rewind(checkpoint_id, token=50)
    assert snapshot(Path(sink.table)) == before


# --- The log


def test_the_history_and_the_actions_describe_a_rewind(sink: DeltaSink, table: Path) -> None:
    [_, _, added] = _entry(table, 3)
    _go_back(DeltaSink(table), 2, token=7)
    assert DeltaTable(str(table)).transaction_version(_ABOUT.application) == 7
    newest = DeltaTable(str(table)).history(1)[0]
    parameters = newest["operationParameters"]
    assert (newest["operation"], parameters["version"], parameters["epochId"]) == ("RESTORE", "2", "7")
    assert parameters["queryId"] == _ABOUT.application
    assert newest["operationMetrics"]["numRemovedFiles"] == "2"
    assert _ABOUT.application in newest["userMetadata"]
    assert {"2", "7"} <= set(re.findall(r"\b\d+\b", newest["userMetadata"]))
    [removed] = [action["remove"] for action in _entry(table, 5) if added["add"]["path"] in str(action)]
    kept = {name: added["add"][name] for name in ("size", "stats")}
    assert {"dataChange": True, **kept}.items() <= removed.items()
    _go_back(sink, 3, token=8)
    assert [action["add"] for action in _entry(table, 6) if "add" in action] == [added["add"]]
    assert sink.open_table(_ABOUT).rewind(None, token=9) == 7
    assert [next(iter(action)) for action in _entry(table, 7)] == ["commitInfo", "txn"]


def test_the_column_of_the_guide_is_null_in_older_rows_and_is_kept(sink: DeltaSink, table: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "upgrade-with-a-savepoint.md"
    (block,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    exec(block.replace("/data/tables/sessions", str(table)))
    # A job without the column continues, is rewound, and continues.
    sink.check(_ABOUT)
    put(sink, _ABOUT, 5, pairs(5, 1))
    _go_back(sink, 2, token=7)
    put(sink, _ABOUT, 8, pairs(8, 1))

    def largest() -> dict[int, float | None]:
        return {row["id"]: row["largest"] for row in DeltaTable(table).to_pyarrow_table().to_pylist()}

    assert largest() == {1: None, 2: None, 8: None}
    wider = context(Wider)
    sink.check(wider)
    put(sink, wider, 9, [Wider(9, "x", 1.5)])
    assert largest()[9] == 1.5


# --- Concurrent writers


def test_an_entry_that_gets_the_name_first_wins(sink: DeltaSink, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        commit_elsewhere(table, pairs(50, 1))
        os.link(*arguments, **options)

    monkeypatch.setattr(os, "link", link)
    assert sink.open_table(_ABOUT).rewind(2, token=7) is None
    assert ids(table) == [1, 2, 3, 4, 50]


@pytest.mark.parametrize(("to_version", "token"), [(2, 4), (None, 4), (4, 7), (-1, 7)])
def test_a_token_only_grows_and_a_version_only_falls(
    sink: DeltaSink, table: Path, to_version: int | None, token: int
) -> None:
    before = snapshot(table)
    with raises(InternalError, to_version=to_version, token=token):
        sink.open_table(_ABOUT).rewind(to_version, token)
    assert snapshot(table) == before


def test_an_entry_is_durable_when_rewind_returns(sink: DeltaSink, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes before its name, and then its name."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    _go_back(sink, 2, token=6)
    assert len(synced) == 2
    assert synced[1] == str(table / "_delta_log")


# --- Commits of others


def test_commits_of_others_are_kept_up_to_the_target_and_listed_and_undone_afterwards(
    sink: DeltaSink, table: Path
) -> None:
    commit_elsewhere(table, pairs(40, 1))
    put(sink, _ABOUT, 5, pairs(5, 1))
    commit_elsewhere(table, pairs(50, 3))
    commit_elsewhere(table, pairs(60, 1), application="copy/in", token=9)
    DeltaTable(str(table)).delete("id = 51")
    DeltaTable(str(table)).update({"text": "'changed'"}, predicate="id = 1")
    put(sink, _ABOUT, 6, pairs(6, 1))
    plan = _go_back(sink, 4, token=7)
    assert [(c.version, c.operation, c.applications, c.rows) for c in plan.others] == [
        (7, "WRITE", frozenset(), 3),
        (8, "WRITE", frozenset({"copy/in"}), 1),
        (9, "DELETE", frozenset(), -1),
        (10, "UPDATE", frozenset(), 0),
    ]
    for commit in plan.others:
        assert {str(commit.version), commit.operation, *commit.applications} <= set(re.findall(r"[\w/]+", commit.text))
        assert re.search(r"\b20\d\d-\d\d-\d\d", commit.text), "the date"
    # Rows 5 and 6, the three that are left of others', and row 1 as it was changed.
    assert (plan.rows_removed, plan.rows_returned) == (6, 1)
    assert ids(table) == [1, 2, 3, 4, 40]
    # What was undone is not listed again.
    commit_elsewhere(table, pairs(70, 2))
    [commit] = _go_back(sink, 4, token=9).others
    assert (commit.version, commit.rows) == (13, 2)


_TENS = [("publish", 5, 10), ("publish", 6, 20)]
_UNKNOWN = (None, None)


@pytest.mark.parametrize(
    ("steps", "checkpoint_id", "counts", "others"),
    [
        ([*_TENS, ("delete", "id in (2, 11, 12)"), ("update", "id = 13")], 5, (11, 4), [-3, 0]),
        # Rows that were copied from files before and after the target cannot be distinguished.
        ([*_TENS, ("update", "id = 13"), ("delete", "id in (11, 21)")], 5, _UNKNOWN, [0, -2]),
        ([("publish", 5, 10), ("overwrite", "id = 90")], 4, (1, 4), [-13]),
        ([("compact", ""), ("publish", 6, 60), ("compact", "")], 3, (11, 0), []),
        ([("compact", ""), ("delete", "id = 1")], 3, _UNKNOWN, [None]),
        ([("add without statistics", "id = 70")], 3, _UNKNOWN, [None]),
    ],
)
def test_a_rewind_counts_rows_where_the_log_has_enough_facts(
    sink: DeltaSink,
    steps: list[Any],
    checkpoint_id: int,
    counts: tuple[int | None, int | None],
    others: list[int | None],
) -> None:
    for name, *arguments in steps:
        _STEPS[name](sink, *arguments)
    plan = _go_back(sink, checkpoint_id, token=7)
    assert (plan.rows_removed, plan.rows_returned) == counts
    assert [commit.rows for commit in plan.others] == others


def _add_without_statistics(sink: DeltaSink, _: str) -> None:
    file = Path(sink.table, "bare.parquet")
    pq.write_table(pa.table({"id": [70], "text": ["x"]}), file)
    add = {
        "path": file.name, "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 0,
        "dataChange": True,
    }  # fmt: skip
    entry_path(Path(sink.table), 5).write_text(json.dumps({"add": add}))


_STEPS: dict[str, Callable[..., Any]] = {
    "publish": lambda sink, token, first: put(sink, _ABOUT, token, pairs(first, 10)),
    "delete": lambda sink, predicate: DeltaTable(sink.table).delete(predicate),
    "update": lambda sink, predicate: DeltaTable(sink.table).update({"text": "'changed'"}, predicate=predicate),
    "compact": lambda sink, _: DeltaTable(sink.table).optimize.compact(),
    "overwrite": lambda sink, _: write_deltalake(sink.table, pa.table({"id": [90], "text": ["x"]}), mode="overwrite"),
    "add without statistics": _add_without_statistics,
}


def test_changes_of_others_since_a_version_have_their_rows_and_files(sink: DeltaSink, table: Path) -> None:
    commit_elsewhere(table, pairs(50, 2))
    put(sink, _ABOUT, 5, pairs(5, 1))
    DeltaTable(str(table)).optimize.compact()
    commit_elsewhere(table, pairs(60, 3), "other/app", 1)
    changes = sink.open_table(_ABOUT).changes_since(4)
    assert (changes.table, changes.published) == (str(table), True)
    assert [(c.version, c.applications) for c in changes.others] == [(5, frozenset()), (8, {"other/app"})]
    assert [c.rows for c in changes.others] == [2, 3]
    assert all(len(c.files) == 1 and (table / c.files[0]).exists() for c in changes.others)
    since = sink.open_table(_ABOUT).changes_since(8)
    assert (since.published, since.others) == (False, ())
    # A commit without its entry may be of another writer.
    handle = sink.open_table(_ABOUT)
    entry_path(table, 3).unlink()
    assert next((c.version, c.files) for c in handle.changes_since(2).others) == (3, ())


# --- Schema, properties, Delta checkpoints, sweeps


def test_columns_and_properties_are_kept(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.logRetentionDuration": "interval 90 days"})
    more = pa.table({"id": [50], "text": ["x"], "more": [1]})
    write_deltalake(str(table), more, mode="append", schema_mode="merge")
    assert [commit.rows for commit in _go_back(sink, 3, token=7).others] == [1]
    assert DeltaTable(str(table)).schema().to_arrow().names == ["id", "text", "more"]
    assert DeltaTable(str(table)).metadata().configuration == {"delta.logRetentionDuration": "interval 90 days"}
    assert ids(table) == [1, 2, 3]


def test_a_version_with_a_dropped_column_cannot_be_restored(tmp_path: Path) -> None:
    table = tmp_path / "wide"
    write_deltalake(str(table), pa.table({"id": [0], "text": ["x"], "more": [1]}))
    sink = DeltaSink(table)
    put(sink, _ABOUT, 1, pairs(1, 1))
    narrow = pa.table({"id": [9], "text": ["x"]})
    write_deltalake(str(table), narrow, mode="overwrite", schema_mode="overwrite")
    _cannot_rewind(sink, 0, SinkDiverged, columns=["more"])


def test_a_version_before_the_table_was_replaced_cannot_be_restored(sink: DeltaSink, table: Path) -> None:
    entry = [action for action in _entry(table, 0) if "metaData" in action]
    known, entry[0]["metaData"]["id"] = entry[0]["metaData"]["id"], "another"
    entry_path(table, 5).write_text(json.dumps(entry[0]))
    with raises(SinkDiverged, table_id=known, found="another"):
        _plan(sink, 3)


def test_an_append_only_table_can_only_be_kept(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.appendOnly": "true"})
    _cannot_rewind(sink, 3, SinkRefused, property="delta.appendOnly")
    assert sink.open_table(_ABOUT).rewind(None, token=7) == 6
    assert ids(table) == [1, 2, 3, 4]


# --- Versions and files that are gone


def _expire(table: Path, versions: range) -> None:
    checkpoint(table)
    for version in versions:
        entry_path(table, version).unlink()


def test_only_versions_from_the_oldest_delta_checkpoint_on_can_be_restored(sink: DeltaSink, table: Path) -> None:
    """Checkpoint 4 made version 4, the oldest one left: it is not taken for that of checkpoint 3."""
    _expire(table, range(4))
    for checkpoint_id in (0, 2, 3):
        with raises(SinkDiverged, table=str(table), checkpoint_id=checkpoint_id) as caught:
            _plan(sink, checkpoint_id)
        assert caught.value.hint
    before = snapshot(table)
    with raises(SinkDiverged, table=str(table), version=2):
        sink.open_table(_ABOUT).rewind(2, token=7)
    assert snapshot(table) == before
    for token in (5, 6):
        put(sink, _ABOUT, token, pairs(token, 1))
    entry_path(table, 4).unlink()
    with raises(SinkDiverged, checkpoint_id=3):
        _plan(sink, 3)
    assert _go_back(sink, 4, token=7).to_version == 4
    assert ids(table) == [1, 2, 3, 4]


def test_vacuumed_and_changed_files_cannot_be_restored(sink: DeltaSink, table: Path) -> None:
    gone = sorted(action["add"]["path"] for v in (3, 4) for action in _entry(table, v) if "add" in action)
    _go_back(sink, 2, token=7)
    (table / gone[0]).write_bytes(b"")
    _cannot_rewind(sink, 4, SinkDiverged, version=4, files=gone[:1], missing=1)
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    _cannot_rewind(sink, 4, SinkDiverged, version=4, files=gone, missing=2)
    _go_back(sink, 1, token=8)
    assert ids(table) == [1]


# -- any order of publications, commits of others and rewinds, against a list of versions ----------------------------


_ANY_STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["delete", "update"]), st.integers(0, 40)),
    st.tuples(st.sampled_from(["compact", "checkpoint"]), st.just(0)),
    st.tuples(st.just("rewind"), st.integers(0, 20)),
)


class _Model:
    def __init__(self, table: Path) -> None:
        self.table = table
        self.sink = DeltaSink(table)
        self.sink.prepare(_ABOUT)
        self.versions: list[tuple[Counter[tuple[int, str]], int]] = [(Counter(), 0)]
        self._next_id, self._last = 0, 0

    def publish(self, count: int) -> None:
        put(self.sink, _ABOUT, self._new_token(), self._new_rows(count))

    def append(self, count: int) -> None:
        commit_elsewhere(self.table, self._new_rows(count))

    def delete(self, row: int) -> None:
        DeltaTable(str(self.table)).delete(f"id = {row}")

    def update(self, row: int) -> None:
        DeltaTable(str(self.table)).update({"text": f"'{self._last} {row}'"}, predicate=f"id = {row}")

    def compact(self, _: int) -> None:
        DeltaTable(str(self.table)).optimize.compact()

    def checkpoint(self, _: int) -> None:
        checkpoint(self.table)

    def rewind(self, checkpoint_id: int) -> None:
        target = self._target(checkpoint_id)
        handle = self.sink.open_table(_ABOUT)
        plan = handle.plan_rewind(checkpoint_id)
        assert plan.to_version == target
        now = self.versions[-1][0]
        then = now if target is None else self.versions[target][0]
        if plan.rows_removed is not None:
            assert (plan.rows_removed, plan.rows_returned) == ((now - then).total(), (then - now).total())
        assert handle.rewind(plan.to_version, self._new_token()) == len(self.versions)
        assert self._read() == then

    def record(self) -> None:
        """Records the rows of the newest versions, as the table's log has them."""
        newest = DeltaTable(str(self.table)).version()
        for _ in range(len(self.versions), newest + 1):
            token = self.sink.open_table(_ABOUT).token
            assert token is not None
            self.versions.append((self._read(), token))
        assert len(self.versions) == newest + 1

    def _target(self, checkpoint_id: int) -> int | None:
        later = (version for version, (_, token) in enumerate(self.versions) if token > checkpoint_id)
        first = next(later, None)
        return None if first is None else first - 1

    def _read(self) -> Counter[tuple[int, str]]:
        uris = DeltaTable(str(self.table)).file_uris()
        return Counter((row["id"], row["text"]) for uri in uris for row in pq.read_table(uri).to_pylist())

    def _new_rows(self, count: int) -> list[Pair]:
        self._next_id += count
        return pairs(self._next_id - count, count)

    def _new_token(self) -> int:
        self._last += 1
        return self._last


@pytest.mark.long(reason="draws many histories of a table")
@one_in(5)
@given(st.lists(_ANY_STEPS, min_size=3, max_size=12))
def test_a_rewind_restores_the_rows_of_its_target_and_counts_them_correctly(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = _Model(Path(folder) / "out")
        for name, argument in steps:
            getattr(model, name)(argument)
            model.record()
