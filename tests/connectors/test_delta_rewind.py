"""Going back in a Delta table: what comes back, what it says beforehand, what it refuses. Without Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from stateflow.api.sink import SinkRewind
from stateflow.checkpoint.sink_commit import Decision, decide
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.checkpoint import checkpoint
from stateflow.connectors.delta.log import entry_path
from stateflow.errors import InternalError, SinkDiverged, SinkRefused
from tests.support.delta_tables import (
    Pair,
    Process,
    commit_elsewhere,
    context,
    ids,
    pairs,
    put,
    snapshot,
    visible,
    write,
)
from tests.support.errors import raises

_ABOUT = context()


class Wider(Pair):
    """A row of a later version, with a column more."""

    largest: float | None = None


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def sink(table: Path) -> DeltaSink:
    """A table whose version and token are equal: checkpoint n brought row n, up to 4."""
    made = DeltaSink(table)
    made.prepare(_ABOUT)
    for token in range(1, 5):
        put(made, _ABOUT, token, pairs(token, 1))
    return made


def _plan(sink: DeltaSink, checkpoint_id: int) -> SinkRewind:
    return sink.open_table(_ABOUT).plan_rewind(checkpoint_id)


def _go_back(sink: DeltaSink, checkpoint_id: int, token: int) -> SinkRewind:
    """Rewinds, and compares what was said with the rows of both versions."""
    handle = sink.open_table(_ABOUT)
    plan = handle.plan_rewind(checkpoint_id)
    before = _rows(sink)
    assert handle.rewind(plan.to_version, token) == plan.from_version + 1
    after = _rows(sink)
    assert sink.open_table(_ABOUT).token == token
    if plan.to_version is not None:
        assert after == _rows(sink, plan.to_version)
    if plan.rows_removed is not None:
        counted = ((before - after).total(), (after - before).total())
        assert (plan.rows_removed, plan.rows_returned) == counted
    return plan


def _rows(sink: DeltaSink, version: int | None = None) -> Counter[str]:
    """The rows of a version as Parquet has them."""
    uris = DeltaTable(sink.table, version=version).file_uris()
    return Counter(str(row) for uri in uris for row in pq.read_table(uri).to_pylist())


def _entry(table: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in entry_path(table, version).read_text().splitlines()]


# --- What comes back


def test_the_guide_s_column_is_null_in_rows_of_older_versions_and_stays(sink: DeltaSink, table: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "upgrade-with-a-savepoint.md"
    (block,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    exec(block.replace("/data/tables/sessions", str(table)))
    # An older version goes on, goes back, and goes on.
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


def test_a_rewind_is_one_version_with_the_old_rows_and_the_new_token(sink: DeltaSink, table: Path) -> None:
    handle = sink.open_table(_ABOUT)
    assert handle.plan_rewind(2) == SinkRewind(4, 2, 2, 0, ())
    assert handle.rewind(2, token=7) == 5
    assert ids(table) == [1, 2]
    opened = sink.open_table(_ABOUT)
    assert (opened.version, opened.token) == (5, 7)
    assert DeltaTable(str(table)).transaction_version(_ABOUT.application) == 7


def test_planning_changes_nothing(sink: DeltaSink, table: Path) -> None:
    before = snapshot(table)
    _plan(sink, 1)
    assert snapshot(table) == before


def test_a_kept_table_gets_the_token_and_nothing_else(sink: DeltaSink, table: Path) -> None:
    handle = sink.open_table(_ABOUT)
    assert handle.plan_rewind(4) == handle.plan_rewind(6) == SinkRewind(4, None, 0, 0, ())
    assert handle.rewind(None, token=7) == 5
    assert ids(table) == [1, 2, 3, 4]
    assert sink.open_table(_ABOUT).token == 7
    assert [next(iter(action)) for action in _entry(table, 5)] == ["commitInfo", "txn"]


def test_a_table_goes_back_to_before_the_first_publication(sink: DeltaSink, table: Path) -> None:
    assert _go_back(sink, 0, token=7).to_version == 0
    assert ids(table) == []


def test_another_process_that_knows_nothing_goes_back_just_so(sink: DeltaSink, table: Path) -> None:
    assert _go_back(DeltaSink(table), 3, token=7).to_version == 3
    assert ids(table) == [1, 2, 3]


def test_files_come_back_as_they_were_added(sink: DeltaSink, table: Path) -> None:
    [_, _, added] = _entry(table, 3)
    _go_back(sink, 2, token=6)
    _go_back(sink, 3, token=7)
    assert [action["add"] for action in _entry(table, 6) if "add" in action] == [added["add"]]
    [removed] = [action["remove"] for action in _entry(table, 5) if added["add"]["path"] in str(action)]
    assert (removed["dataChange"], removed["size"], removed["stats"]) == (
        True,
        added["add"]["size"],
        added["add"]["stats"],
    )


def test_the_history_says_what_happened(sink: DeltaSink, table: Path) -> None:
    _go_back(sink, 2, token=6)
    newest = DeltaTable(str(table)).history(1)[0]
    assert newest["operation"] == "RESTORE"
    parameters = newest["operationParameters"]
    assert (parameters["version"], parameters["epochId"]) == ("2", "6")
    assert parameters["queryId"] == _ABOUT.application
    assert newest["operationMetrics"]["numRemovedFiles"] == "2"
    assert _ABOUT.application in newest["userMetadata"]
    assert {"2", "6"} <= set(re.findall(r"\b\d+\b", newest["userMetadata"]))


# --- Several times


def test_a_table_goes_back_again_and_again(sink: DeltaSink, table: Path) -> None:
    _go_back(sink, 2, token=10)
    for token in (11, 12):
        put(sink, _ABOUT, token, pairs(token, 1))
    assert _go_back(sink, 11, token=13).to_version == 6
    assert ids(table) == [1, 2, 11]
    _go_back(sink, 1, token=14)
    assert ids(table) == [1]


def test_a_table_goes_back_to_what_was_undone(sink: DeltaSink, table: Path) -> None:
    _go_back(sink, 1, token=10)
    put(sink, _ABOUT, 11, pairs(11, 1))
    plan = _go_back(sink, 3, token=12)
    assert (plan.to_version, plan.rows_removed, plan.rows_returned) == (3, 1, 2)
    assert ids(table) == [1, 2, 3]


def test_going_back_twice_to_the_same_point_takes_nothing_more(sink: DeltaSink, table: Path) -> None:
    _go_back(sink, 2, token=10)
    assert _go_back(sink, 2, token=11) == SinkRewind(5, 2, 0, 0, ())
    assert ids(table) == [1, 2]


def test_a_checkpoint_without_output_goes_back_to_the_publication_before_it(sink: DeltaSink) -> None:
    put(sink, _ABOUT, 8, pairs(8, 1))
    assert _plan(sink, 6).to_version == 4


def test_publishing_goes_on_after_a_rewind(sink: DeltaSink, table: Path) -> None:
    _go_back(sink, 2, token=7)
    put(sink, _ABOUT, 8, pairs(8, 2))
    assert ids(table) == [1, 2, 8, 9]


# --- Who comes in between


def test_a_handle_that_somebody_overtook_changes_nothing(sink: DeltaSink, table: Path) -> None:
    stale = sink.open_table(_ABOUT)
    commit_elsewhere(table, pairs(50, 1))
    before = snapshot(table)
    assert stale.rewind(2, token=7) is None
    assert stale.rewind(None, token=7) is None
    assert snapshot(table) == before


def test_of_two_that_go_back_one_does(sink: DeltaSink, table: Path) -> None:
    """As after a kill between the intent and its completion, when two starts complete it."""
    first, second = DeltaSink(table).open_table(_ABOUT), sink.open_table(_ABOUT)
    assert first.rewind(2, token=7) == 5
    assert second.rewind(2, token=7) is None
    assert sink.open_table(_ABOUT).token == 7
    assert ids(table) == [1, 2]


def test_of_processes_that_go_back_at_once_one_does(tmp_path: Path) -> None:
    for i in range(20):
        made = DeltaSink(tmp_path / str(i))
        made.prepare(_ABOUT)
        for token in (1, 2):
            put(made, _ABOUT, token, pairs(token, 1))
    processes = [Process("rewind", tmp_path, 20) for _ in range(2)]
    for process in processes:
        process.go()
    ends = [process.end() for process in processes]
    assert [end[0] for end in ends] == [0, 0], ends
    for i, results in enumerate(zip(*(end[1].splitlines() for end in ends), strict=True)):
        assert sorted(results)[0] == "3" and set(results) <= {"3", "None", "done before"}
        assert len(set(results)) == 2
        assert (ids(tmp_path / str(i)), DeltaTable(str(tmp_path / str(i))).version()) == ([1], 3)


def test_an_entry_that_comes_before_ours_has_its_name_wins(
    sink: DeltaSink, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        commit_elsewhere(table, pairs(50, 1))
        os.link(*arguments, **options)

    monkeypatch.setattr(os, "link", link)
    assert sink.open_table(_ABOUT).rewind(2, token=7) is None
    assert ids(table) == [1, 2, 3, 4, 50]


def test_a_table_made_again_is_left_alone(sink: DeltaSink, table: Path) -> None:
    stale = sink.open_table(_ABOUT)
    shutil.rmtree(table)
    DeltaSink(table).prepare(_ABOUT)
    before = snapshot(table)
    assert stale.rewind(2, token=7) is None
    assert snapshot(table) == before


def test_a_driver_that_was_paused_finds_the_token(sink: DeltaSink, table: Path) -> None:
    """It read that 4 is published, and is about to publish 5 when the job goes back, by entry 6."""
    files = write(sink, _ABOUT, pairs(5, 1))
    paused = DeltaSink(table).open_table(_ABOUT)
    _go_back(sink, 2, token=6)
    assert paused.commit(5, files) is None
    again = sink.open_table(_ABOUT)
    assert decide(again.token, published=4, checkpoint=5, head=5) is Decision.UNKNOWN_FUTURE
    assert ids(table) == [1, 2]


def test_a_driver_that_was_paused_finds_the_token_of_a_kept_table(sink: DeltaSink, table: Path) -> None:
    files = write(sink, _ABOUT, pairs(5, 1))
    paused = DeltaSink(table).open_table(_ABOUT)
    assert sink.open_table(_ABOUT).rewind(None, token=6) == 5
    assert paused.commit(5, files) is None
    assert ids(table) == [1, 2, 3, 4]


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


# --- What others did


def test_what_others_did_before_the_target_stays(sink: DeltaSink, table: Path) -> None:
    commit_elsewhere(table, pairs(50, 1))
    put(sink, _ABOUT, 5, pairs(5, 1))
    assert _go_back(sink, 4, token=6).others == ()
    assert ids(table) == [1, 2, 3, 4, 50]


def test_what_others_did_since_is_listed_and_undone(sink: DeltaSink, table: Path) -> None:
    commit_elsewhere(table, pairs(50, 3))
    commit_elsewhere(table, pairs(60, 1), application="copy/in", token=9)
    DeltaTable(str(table)).delete("id = 51")
    DeltaTable(str(table)).update({"text": "'changed'"}, predicate="id = 1")
    plan = _go_back(sink, 3, token=7)
    assert [(c.version, c.operation, c.applications, c.rows) for c in plan.others] == [
        (5, "WRITE", set(), 3),
        (6, "WRITE", {"copy/in"}, 1),
        (7, "DELETE", set(), -1),
        (8, "UPDATE", set(), 0),
    ]
    for commit in plan.others:
        assert {str(commit.version), commit.operation, *commit.applications} <= set(re.findall(r"[\w/]+", commit.text))
        assert re.search(r"\b20\d\d-\d\d-\d\d", commit.text), "when"
    # Row 4, the three that are left of others', and row 1 as it was changed.
    assert (plan.rows_removed, plan.rows_returned) == (5, 1)
    assert ids(table) == [1, 2, 3]


def test_rows_that_others_deleted_come_back(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 5, pairs(10, 10))
    put(sink, _ABOUT, 6, pairs(20, 10))
    DeltaTable(str(table)).delete("id in (2, 11, 12)")
    DeltaTable(str(table)).delete("id = 21")
    plan = _go_back(sink, 5, token=7)
    assert (plan.to_version, plan.rows_removed, plan.rows_returned) == (5, 9, 3)
    assert len(plan.others) == 2


def test_rows_that_others_rewrote_several_times_are_counted_once(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 5, pairs(10, 10))
    put(sink, _ABOUT, 6, pairs(20, 10))
    for text in ("id = 11", "id = 12", "id = 21"):
        DeltaTable(str(table)).delete(text)
    DeltaTable(str(table)).update({"text": "'changed'"}, predicate="id = 13")
    plan = _go_back(sink, 5, token=7)
    assert (plan.rows_removed, plan.rows_returned) == (10, 3)


def test_rows_that_were_rewritten_on_two_branches_are_not_guessed(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 5, pairs(10, 10))
    DeltaTable(str(table)).delete("id = 11")
    put(sink, _ABOUT, 6, pairs(20, 1))
    plan = _go_back(sink, 4, token=7)
    assert (plan.rows_removed, plan.rows_returned) == (10, 0)
    plan = _go_back(sink, 5, token=8)
    assert (plan.to_version, plan.rows_removed, plan.rows_returned) == (6, 0, 9)
    put(sink, _ABOUT, 9, pairs(30, 10))
    DeltaTable(str(table)).delete("id = 12")
    assert _go_back(sink, 6, token=10).rows_removed == 10
    _go_back(sink, 8, token=11)
    DeltaTable(str(table)).delete("id = 13")
    plan = _go_back(sink, 9, token=12)
    assert (plan.rows_removed, plan.rows_returned) == (None, None)


@pytest.mark.parametrize("mixes", ["id in (11, 21)", "id = 12"])
def test_rows_copied_from_files_of_both_kinds_are_not_guessed(sink: DeltaSink, table: Path, mixes: str) -> None:
    put(sink, _ABOUT, 5, pairs(10, 10))
    put(sink, _ABOUT, 6, pairs(20, 10))
    DeltaTable(str(table)).update({"text": "'changed'"}, predicate="id = 13")
    DeltaTable(str(table)).delete(mixes)
    plan = _go_back(sink, 5, token=7)
    assert (plan.rows_removed, plan.rows_returned) == (None, None)


def test_rows_that_others_replaced_come_back(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 5, pairs(10, 10))
    write_deltalake(str(table), pa.table({"id": [90], "text": ["x"]}), mode="overwrite")
    plan = _go_back(sink, 4, token=7)
    assert (plan.rows_removed, plan.rows_returned) == (1, 4)
    assert [commit.rows for commit in plan.others] == [-13]


def test_compaction_is_neither_listed_nor_counted(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()
    put(sink, _ABOUT, 6, pairs(6, 1))
    DeltaTable(str(table)).optimize.compact()
    plan = _go_back(sink, 3, token=7)
    assert (plan.to_version, plan.rows_removed, plan.rows_returned, plan.others) == (3, 2, 0, ())
    # And back to before that, past the compaction, from the branch that has none.
    plan = _go_back(sink, 6, token=8)
    assert (plan.to_version, plan.rows_removed, plan.rows_returned, plan.others) == (7, 0, 2, ())
    assert ids(table) == [1, 2, 3, 4, 6]


def test_rows_that_were_deleted_after_compaction_are_not_guessed(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).delete("id = 1")
    plan = _go_back(sink, 3, token=7)
    assert (plan.rows_removed, plan.rows_returned) == (None, None)
    assert [(commit.version, commit.operation) for commit in plan.others] == [(6, "DELETE")]


def test_files_without_statistics_are_not_guessed(sink: DeltaSink, table: Path) -> None:
    pq.write_table(pa.table({"id": [70], "text": ["x"]}), table / "bare.parquet")
    add = {
        "path": "bare.parquet",
        "partitionValues": {},
        "size": (table / "bare.parquet").stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
    }
    entry_path(table, 5).write_text(json.dumps({"add": add}))
    plan = _go_back(sink, 3, token=7)
    assert (plan.rows_removed, plan.rows_returned) == (None, None)
    assert [(c.version, c.operation, c.rows) for c in plan.others] == [(5, "", None)]


def test_what_an_earlier_rewind_undid_is_not_listed_again(sink: DeltaSink, table: Path) -> None:
    commit_elsewhere(table, pairs(50, 1))
    assert len(_go_back(sink, 3, token=7).others) == 1
    commit_elsewhere(table, pairs(60, 1))
    plan = _go_back(sink, 2, token=8)
    assert [commit.version for commit in plan.others] == [7]


def test_another_sink_of_the_table_is_somebody_else(sink: DeltaSink, table: Path) -> None:
    other = context(uid="other")
    put(sink, other, 5, pairs(50, 2))
    [commit] = _go_back(sink, 3, token=7).others
    assert (commit.version, commit.applications, commit.rows) == (5, {other.application}, 2)
    assert sink.open_table(other).token == 5


# --- The table around it


def test_columns_and_properties_stay(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.logRetentionDuration": "interval 90 days"})
    more = pa.table({"id": [50], "text": ["x"], "more": [1]})
    write_deltalake(str(table), more, mode="append", schema_mode="merge")
    assert [commit.rows for commit in _go_back(sink, 3, token=7).others] == [1]
    assert DeltaTable(str(table)).schema().to_arrow().names == ["id", "text", "more"]
    assert DeltaTable(str(table)).metadata().configuration == {"delta.logRetentionDuration": "interval 90 days"}
    assert ids(table) == [1, 2, 3]


def test_a_dropped_column_cannot_come_back(tmp_path: Path) -> None:
    table = tmp_path / "wide"
    write_deltalake(str(table), pa.table({"id": [0], "text": ["x"], "more": [1]}))
    sink = DeltaSink(table)
    put(sink, _ABOUT, 1, pairs(1, 1))
    narrow = pa.table({"id": [9], "text": ["x"]})
    write_deltalake(str(table), narrow, mode="overwrite", schema_mode="overwrite")
    before = snapshot(table)
    with raises(SinkDiverged, columns=["more"]):
        _plan(sink, 0)
    with raises(SinkDiverged, columns=["more"]):
        sink.open_table(_ABOUT).rewind(0, token=7)
    assert snapshot(table) == before


def test_a_replaced_table_cannot_come_back(sink: DeltaSink, table: Path) -> None:
    entry = [action for action in _entry(table, 0) if "metaData" in action]
    known, entry[0]["metaData"]["id"] = entry[0]["metaData"]["id"], "another"
    entry_path(table, 5).write_text(json.dumps(entry[0]))
    with raises(SinkDiverged, table_id=known, found="another"):
        _plan(sink, 3)


def test_a_table_that_only_grows_does_not_go_back(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.appendOnly": "true"})
    with raises(SinkRefused, property="delta.appendOnly"):
        _plan(sink, 3)
    with raises(SinkRefused, property="delta.appendOnly"):
        sink.open_table(_ABOUT).rewind(3, token=7)
    assert sink.open_table(_ABOUT).rewind(None, token=7) == 6
    assert ids(table) == [1, 2, 3, 4]


def test_what_a_sink_refuses_is_refused_on_the_way_back(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.add_constraint({"positive": "id > 0"})
    with raises(SinkRefused, property="delta.constraints.positive"):
        sink.open_table(_ABOUT)


def test_delta_checkpoints_come_and_are_right(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "7"})
    _go_back(sink, 2, token=7)
    assert [p.name for p in (table / "_delta_log").glob("*.checkpoint.parquet")] == [f"{6:020d}.checkpoint.parquet"]
    for version in range(6):
        entry_path(table, version).unlink()
    assert ids(table) == [1, 2]
    assert DeltaSink(table).open_table(_ABOUT).token == 7
    put(DeltaSink(table), _ABOUT, 8, pairs(8, 1))
    assert ids(table) == [1, 2, 8]


@pytest.mark.parametrize("again", [False, True])
def test_a_sweep_leaves_what_a_rewind_named(sink: DeltaSink, table: Path, again: bool) -> None:
    _go_back(sink, 2, token=7)
    if again:
        _go_back(sink, 4, token=8)
    lost = write(sink, _ABOUT, pairs(99, 1))
    assert sink.sweep(_ABOUT, lambda generation, ordinal, path: True) == [lost[0].path]
    _go_back(sink, 3, token=9)
    assert ids(table) == [1, 2, 3]


def test_a_sweep_leaves_what_only_a_rewind_names(sink: DeltaSink, table: Path) -> None:
    """The entries that first added the files are gone, and a checkpoint of Delta's is not there yet."""
    _go_back(sink, 1, token=7)
    checkpoint(table)
    _go_back(sink, 4, token=8)
    for version in range(6):
        entry_path(table, version).unlink()
    assert sink.sweep(_ABOUT, lambda generation, ordinal, path: True) == []
    assert ids(table) == [1, 2, 3, 4]


# --- What cannot be had any more


def _expire(table: Path, versions: range) -> None:
    checkpoint(table)
    for version in versions:
        entry_path(table, version).unlink()


def test_a_version_whose_entries_are_gone_cannot_come_back(sink: DeltaSink, table: Path) -> None:
    _expire(table, range(4))
    before = snapshot(table)
    for checkpoint_id in (0, 2, 3):
        with raises(SinkDiverged, table=str(table), checkpoint=checkpoint_id) as caught:
            _plan(sink, checkpoint_id)
        assert caught.value.hint
    with raises(SinkDiverged, table=str(table), version=2):
        sink.open_table(_ABOUT).rewind(2, token=7)
    assert snapshot(table) == before


def test_a_version_in_a_delta_checkpoint_comes_back(sink: DeltaSink, table: Path) -> None:
    _expire(table, range(4))
    for token in (5, 6):
        put(sink, _ABOUT, token, pairs(token, 1))
    assert _go_back(sink, 4, token=7).to_version == 4
    assert ids(table) == [1, 2, 3, 4]


def test_an_older_version_is_not_taken_for_the_one_that_is_gone(sink: DeltaSink, table: Path) -> None:
    """What is left begins at version 4, which checkpoint 4 made: 3 stood in version 3."""
    _expire(table, range(4))
    put(sink, _ABOUT, 5, pairs(5, 1))
    with raises(SinkDiverged, checkpoint=3):
        _plan(sink, 3)
    entry_path(table, 4).unlink()
    with raises(SinkDiverged, checkpoint=3):
        _plan(sink, 3)
    assert _plan(sink, 4).to_version == 4


def test_rows_are_unknown_where_the_log_does_not_tell_how_branches_began(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 6, pairs(6, 1))
    checkpoint(table)
    _go_back(sink, 2, token=7)
    put(sink, _ABOUT, 8, pairs(8, 1))
    for version in range(5):
        entry_path(table, version).unlink()
    plan = _go_back(sink, 6, token=9)
    assert plan == SinkRewind(7, 5, None, None, ())
    assert ids(table) == [1, 2, 3, 4, 6]


def test_vacuumed_files_cannot_come_back(sink: DeltaSink, table: Path) -> None:
    gone = sorted(action["add"]["path"] for v in (3, 4) for action in _entry(table, v) if "add" in action)
    _go_back(sink, 2, token=7)
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    before = snapshot(table)
    with raises(SinkDiverged, version=4, files=gone, missing=2):
        _plan(sink, 4)
    with raises(SinkDiverged, version=4, files=gone, missing=2):
        sink.open_table(_ABOUT).rewind(4, token=8)
    assert snapshot(table) == before
    _go_back(sink, 1, token=8)
    assert ids(table) == [1]


def test_a_file_of_another_size_does_not_come_back(sink: DeltaSink, table: Path) -> None:
    [_, _, added] = _entry(table, 4)
    _go_back(sink, 2, token=7)
    (table / added["add"]["path"]).write_bytes(b"")
    with raises(SinkDiverged, files=[added["add"]["path"]], missing=1):
        _plan(sink, 4)


# --- Shadows


def test_a_shadow_is_the_table_beside_it(sink: DeltaSink, table: Path) -> None:
    shadow = sink.shadow()
    assert shadow.table == f"{table}_shadow" == DeltaSink(f"{table}/").shadow().table
    assert sink.table == str(table)


def test_a_shadow_has_a_life_of_its_own(sink: DeltaSink, table: Path) -> None:
    shadow = sink.shadow()
    assert shadow.check(_ABOUT) is None
    assert shadow.prepare(_ABOUT) != sink.prepare(_ABOUT)
    before = snapshot(table)
    put(shadow, _ABOUT, 1, pairs(100, 2))
    shadow.open_table(_ABOUT).rewind(0, token=9)
    assert snapshot(table) == before
    assert visible(shadow.table) == []
    assert (sink.open_table(_ABOUT).token, shadow.open_table(_ABOUT).token) == (4, 9)


# --- What others do in between


def test_changes_of_others_are_told_with_version_rows_and_files(sink: DeltaSink, table: Path) -> None:
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


def test_a_commit_whose_entry_is_gone_may_be_another_writer_s(sink: DeltaSink, table: Path) -> None:
    handle = sink.open_table(_ABOUT)
    entry_path(table, 3).unlink()
    changes = handle.changes_since(2)
    assert [(c.version, c.files) for c in changes.others] == [(3, ())]
