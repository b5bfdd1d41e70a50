"""Publishing to Iceberg: one snapshot for each checkpoint, once, by one driver, whatever the catalog answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from stateflow.errors import SinkDiverged, StorageError
from tests.support.delta_tables import Pair, pairs
from tests.support.errors import raises
from tests.support.iceberg_tables import IcebergTable, expire_all_but_current
from tests.support.job_fixture import KILLED
from tests.support.restores import go_back
from tests.support.table_jobs import IcebergJob


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return IcebergTable.create(tmp_path, Pair).prepare()


def test_a_checkpoint_is_one_snapshot_with_the_token_in_its_summary(table: IcebergTable) -> None:
    files = table.stage(1, pairs(0, 3), pairs(3, 2))
    handle, late = table.sink.open_table(table.about), table.sink.open_table(table.about)
    before = len(table.table.snapshots())
    version = handle.commit(7, files)
    assert (handle.commit(7, files), late.commit(7, files), late.commit(8, files)) == (None, None, None)
    [*earlier, snapshot] = table.table.snapshots()
    assert (len(earlier), snapshot.sequence_number) == (before, version)
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    assert summary["stateflow.application"] == table.about.application
    assert (summary["stateflow.token"], summary["added-records"]) == ("7", "5")
    assert table.table.properties[f"stateflow.token.{table.about.application}"] == "7"
    assert (table.ids(), table.token) == ([0, 1, 2, 3, 4], 7)


def test_a_commit_is_not_repeated_after_a_commit_of_another_writer(table: IcebergTable) -> None:
    """PyIceberg's own transactions would append the rows to whatever the table is by then."""
    table.table.transaction().set_properties({"commit.retry.num-retries": "10"}).commit_transaction()
    files = table.stage(1, pairs(0, 2))
    handle = table.sink.open_table(table.about)
    _before_commit(lambda: table.append(10), handle, files)
    assert table.ids() == [10]
    assert len(table.data_files()) == 1
    assert table.sink.open_table(table.about).commit(1, files) is not None
    assert (table.ids(), table.token) == ([0, 1, 10], 1)


def _before_commit(action: Callable[[], object], handle: Any, files: list[Any]) -> None:
    """Lets another process do something after the handle has written its files, just before its request."""
    commit = SqlCatalog.commit_table

    def late(self: SqlCatalog, *arguments: Any) -> Any:
        patch.undo()
        action()
        return commit(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", late)
        assert handle.commit(1, files) is None


def test_a_table_that_is_dropped_before_the_commit_is_not_created_again(table: IcebergTable) -> None:
    handle, files = table.sink.open_table(table.about), table.stage(1, pairs(0, 1))
    _before_commit(lambda: table.table.catalog.drop_table(table.name), handle, files)
    assert not table.table_exists()
    with raises(SinkDiverged, table=table.sink.location):
        table.sink.open_table(table.about)


@pytest.mark.parametrize(
    "lost",
    [CommitStateUnknownException("502"), ConnectionError("reset"), CommitFailedException("409 of a repeated request")],
    ids=lambda e: type(e).__name__,
)
def test_a_lost_answer_to_a_commit_that_was_made_is_resolved(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, lost: Exception
) -> None:
    files = table.stage(1, pairs(0, 2))
    with monkeypatch.context() as patch:
        _answer(patch, lost, made=True)
        version = table.sink.open_table(table.about).commit(1, files)
    opened = table.sink.open_table(table.about)
    assert (version, opened.token) == (opened.version, 1)
    assert table.ids() == [0, 1]


@pytest.mark.parametrize("error", [CommitStateUnknownException("500"), OSError("refused")], ids=lambda e: str(e))
def test_a_commit_that_was_not_made_is_worth_a_retry(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    files = table.stage(1, pairs(0, 2))
    with monkeypatch.context() as patch:
        _answer(patch, error, made=False)
        with raises(StorageError, table=table.sink.location):
            table.sink.open_table(table.about).commit(1, files)
    assert (table.ids(), table.token) == ([], 0)
    assert table.sink.open_table(table.about).commit(1, files) is not None
    assert table.ids() == [0, 1]


def _answer(patch: pytest.MonkeyPatch, error: Exception, made: bool) -> None:
    commit = SqlCatalog.commit_table

    def answered(self: SqlCatalog, *arguments: Any) -> Any:
        if made:
            commit(self, *arguments)
        raise error

    patch.setattr(SqlCatalog, "commit_table", answered)


def test_a_token_outlives_its_snapshot(table: IcebergTable) -> None:
    table.put(1, pairs(0, 1))
    table.put(2, pairs(1, 1))
    table.append(10)
    table.append(11)
    handle = table.sink.open_table(table.about)
    assert handle.plan_rewind(1).rows_removed == 3
    expire_all_but_current(table.table)
    assert (table.ids(), table.token) == ([0, 1, 10, 11], 2)
    table.put(3, pairs(2, 1))
    opened = table.sink.open_table(table.about)
    assert (opened.token, opened.plan_rewind(2).rows_removed) == (3, 1)
    with raises(SinkDiverged, checkpoint=1):
        opened.plan_rewind(1)


def test_changes_whose_snapshots_have_expired_count_as_those_of_another_writer(table: IcebergTable) -> None:
    seen = table.sink.open_table(table.about).version
    table.put(1, pairs(0, 1))
    table.append(10)
    changes = table.sink.open_table(table.about).changes_since(seen)
    assert (changes.published, [c.rows for c in changes.others]) == (True, [1])
    expire_all_but_current(table.table)
    changes = table.sink.open_table(table.about).changes_since(seen)
    assert (changes.published, [c.rows for c in changes.others]) == (False, [None, 1])


def test_a_plan_counts_rows_that_other_writers_deleted(table: IcebergTable) -> None:
    table.put(1, pairs(0, 3))
    table.table.delete("id = 1")
    table.put(2, pairs(5, 1))
    table.put(3, pairs(6, 1))
    handle = table.sink.open_table(table.about)
    assert handle.plan_rewind(2).others == ()
    # Before token 2: with the deletion, as the version before the first one of a later checkpoint.
    plan = handle.plan_rewind(1)
    assert (plan.rows_removed, plan.rows_returned, plan.others) == (2, 0, ())
    plan = handle.plan_rewind(0)
    assert plan.rows_removed is not None and plan.rows_returned is not None
    assert plan.rows_returned - plan.rows_removed == -4
    [commit] = plan.others
    assert (commit.operation, commit.rows, commit.applications) == ("overwrite", -1, frozenset())
    assert handle.rewind(plan.to_version, 4) is not None
    assert table.ids() == []


def test_a_rewind_by_another_sink_of_the_table_is_listed(table: IcebergTable) -> None:
    other = table.of(Pair, uid="other")
    other.put(1, pairs(10, 1))
    table.put(1, pairs(0, 1))
    table.put(2, pairs(1, 1))
    seen = table.sink.open_table(table.about).version
    undone = other.sink.open_table(other.about)
    assert undone.rewind(undone.plan_rewind(0).to_version, 2) is not None
    assert (table.ids(), table.token, other.token) == ([], 2, 2)
    handle = table.sink.open_table(table.about)
    [commit] = handle.changes_since(seen).others
    assert (commit.applications, commit.rows) == (frozenset({other.about.application}), None)
    plan = handle.plan_rewind(1)
    assert [c.version for c in plan.others] == [commit.version]
    assert (plan.rows_removed, plan.rows_returned) == (0, 2)
    assert handle.rewind(plan.to_version, 3) is not None
    assert (table.ids(), other.token) == ([0, 10], 2)


def test_manifests_are_merged_and_settings_of_the_branch_are_kept(table: IcebergTable) -> None:
    found = table.table
    found.transaction().set_properties({"commit.manifest.min-count-to-merge": "3"}).commit_transaction()
    head = found.current_snapshot()
    assert head is not None
    table.table.manage_snapshots().create_branch(head.snapshot_id, "main", min_snapshots_to_keep=5).commit()
    for token in range(1, 9):
        table.put(token, pairs(token, 1))
    found, snapshot = table.table, table.table.current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(found.io)) <= 3
    assert found.refs()["main"].min_snapshots_to_keep == 5
    assert table.ids() == list(range(1, 9))
    handle = table.sink.open_table(table.about)
    assert handle.rewind(handle.plan_rewind(4).to_version, 9) is not None
    assert table.ids() == [1, 2, 3, 4]


# -- a job whose tables are iceberg's ---------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Iterator[IcebergJob]:
    job = IcebergJob.create(tmp_path)
    job.settings = {**job.settings, "checkpoints__retained": 100}
    yield job
    job.end_all()


@pytest.mark.slow(reason="a job in processes, killed and restored")
def test_a_job_that_is_killed_during_a_publication_is_continued_and_restored(job: IcebergJob) -> None:
    job.run_to(30)
    job.create_savepoint("early")
    job.deliver(60)
    # Both tables pass this point in turn.
    assert job.run("iceberg.before-commit:3").code == KILLED
    job.finish()
    job.check()
    planned = go_back(job, "early")
    assert {(s["uid"], s["rows_removed"] > 0) for s in planned["sinks"]} == {("movements", True), ("totals", True)}
    job.replace_events(since=30)
    job.finish()
    job.check()
