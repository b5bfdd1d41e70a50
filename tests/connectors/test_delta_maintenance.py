"""Maintenance of a Delta table: rows stay, and so do files that a checkpoint, a savepoint or another writer needs."""

from __future__ import annotations

import datetime
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from stateflow import failpoints
from stateflow.api.sink import SinkContext, Writing
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import append_entry, list_log
from stateflow.connectors.delta.maintenance import Compaction, CompactionReport, Holder, VacuumReport, vacuum
from stateflow.connectors.delta.sink import COMPACTED
from stateflow.connectors.table_folder import DiskFolder
from stateflow.errors import SinkDiverged, SinkRefused, StorageError
from stateflow.storage import BlobInfo, MemoryStorage, register_memory, unregister_memory
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
    visible,
    write,
)
from tests.support.errors import raises

_ABOUT = context()
_FAR = 1 << 42
"""A time in the future, in milliseconds."""


class Reading(msgspec.Struct):
    id: int
    day: str


def _upserting(folder: Path) -> DeltaSink:
    """A table of which each checkpoint replaces the only file."""
    sink = DeltaSink(folder, mode="upsert", keys="id")
    sink.prepare(_ABOUT)
    for token in (10, 20, 30, 40):
        put(sink, _ABOUT, token, [Pair(1, f"checkpoint {token}")])
    return sink


def _vacuum(
    sink: DeltaSink,
    *holders: Holder,
    now: int = _FAR,
    older_than: int = 0,
    ignores_other_jobs: bool = False,
    dry_run: bool = False,
) -> VacuumReport:
    return vacuum(
        sink.own_table(_ABOUT),
        holders,
        now=now,
        older_than=older_than,
        ignores_other_jobs=ignores_other_jobs,
        dry_run=dry_run,
    )


def _holder(checkpoint: int) -> Holder:
    return Holder(f"checkpoint {checkpoint}", checkpoint)


def _data_files(folder: Path) -> int:
    return len(list(folder.rglob("*.parquet")))


def test_files_of_versions_that_checkpoints_need_stay_and_their_holders_are_named(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    planned = _vacuum(sink, _holder(20), Holder("savepoint x", 20), _holder(40), dry_run=True)
    assert _data_files(tmp_path / "t") == 4
    done = _vacuum(sink, _holder(20), Holder("savepoint x", 20), _holder(40))
    assert done == planned
    assert (done.deleted_files, done.version, done.lost) == (2, 4, ())
    [held] = done.held
    assert (held.version, held.holders, held.files) == (2, ("checkpoint 20", "savepoint x"), 1)
    opened = sink.open_table(_ABOUT)
    assert opened.rewind(opened.plan_rewind(20).to_version, 50) == 5
    assert visible(tmp_path / "t") == [{"id": 1, "text": "checkpoint 20"}]
    with raises(SinkDiverged):
        sink.open_table(_ABOUT).plan_rewind(30)


class _Together(MemoryStorage):
    """Answers the second and the third of three questions about data files when both were asked."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.asked: Iterator[int] | None = None
        self.both = threading.Barrier(2, timeout=10)

    def info(self, key: str) -> BlobInfo | None:
        if self.asked is not None and key.endswith(".parquet") and next(self.asked) > 0:
            self.both.wait()
        return super().info(key)


def test_the_sizes_of_expired_files_are_asked_for_at_once() -> None:
    register_memory(storage := _Together("memory://together"))
    sink = DeltaSink(storage.uri, mode="upsert", keys="id")
    sink.prepare(_ABOUT)
    for token in (10, 20, 30, 40):
        put(sink, _ABOUT, token, [Pair(1, f"checkpoint {token}")])
    storage.asked = itertools.count()
    assert _vacuum(sink, _holder(40), dry_run=True).deleted_files == 3
    assert next(storage.asked) == 3
    unregister_memory(storage.uri)


def test_a_link_among_expired_files_is_left_out(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    first = next(path for path in (tmp_path / "t").glob("*.parquet") if "-o10-" in path.name)
    first.rename(tmp_path / "elsewhere.parquet")
    first.symlink_to(tmp_path / "elsewhere.parquet")
    assert _vacuum(sink, _holder(40), dry_run=True).deleted_files == 2


def test_recently_removed_and_restored_files_stay(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    now = int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)
    assert _vacuum(sink, now=now, older_than=3_600_000).deleted_files == 0
    assert sink.open_table(_ABOUT).rewind(2, 50) == 5
    assert _vacuum(sink).deleted_files == 3
    assert visible(tmp_path / "t") == [{"id": 1, "text": "checkpoint 20"}]


def test_a_checkpoint_older_than_the_log_is_reported_and_holds_nothing(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    checkpoint(tmp_path / "t")
    put(sink, _ABOUT, 50, [Pair(1, "checkpoint 50")])
    for version in range(4):
        entry_path(tmp_path / "t", version).unlink()
    done = _vacuum(sink, _holder(10), _holder(40))
    assert done.lost == ("checkpoint 10",)
    assert [held.version for held in done.held] == [4]


def test_output_that_is_not_published_and_files_of_other_writers_stay(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    pending = write(sink, _ABOUT, [Pair(2)], Writing(1, 9, 0, "pending"))
    (tmp_path / "t" / "being-written.parquet").write_bytes(b"x")
    for path in (tmp_path / "t").glob("*.parquet"):
        os.utime(path, (0, 0))
    assert _vacuum(sink).deleted_files == 3
    assert sink.open_table(_ABOUT).missing(pending) == []
    assert (tmp_path / "t" / "being-written.parquet").exists()


def test_a_table_of_several_jobs_is_refused_unless_that_is_permitted(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    commit_elsewhere(tmp_path / "t", pairs(7, 1), f"{'f' * 32}/out", 1)
    with raises(SinkRefused, jobs=["f" * 32]):
        _vacuum(sink)
    assert _vacuum(sink, ignores_other_jobs=True).deleted_files == 3


def test_a_table_with_an_unknown_feature_is_refused_by_name_and_nothing_is_deleted(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    features = {"readerFeatures": ["vacuumProtocolCheck"], "writerFeatures": ["vacuumProtocolCheck", "newer"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    entry_path(tmp_path / "t", 5).write_bytes(msgspec.json.encode({"protocol": protocol}))
    with raises(SinkRefused, table=str(tmp_path / "t"), feature="newer"):
        _vacuum(sink)
    assert _data_files(tmp_path / "t") == 4


# -- compaction -------------------------------------------------------------------------------------------------------


def _compact(sink: DeltaSink, about: SinkContext = _ABOUT, *, dry_run: bool = False) -> CompactionReport:
    return Compaction(sink.own_table(about)).run(dry_run=dry_run)


def _rows(folder: Path) -> list[str]:
    found = QueryBuilder().register("t", DeltaTable(str(folder))).execute("SELECT * FROM t").read_all()
    return sorted(map(repr, pa.table(found).to_pylist()))


def test_small_files_of_each_partition_are_combined_without_a_change_of_rows(tmp_path: Path) -> None:
    about = context(Reading)
    sink = DeltaSink(tmp_path / "t", partition_by="day")
    sink.prepare(about)
    for token in range(1, 5):
        put(
            sink, about, token, [Reading(token, "a/b"), Reading(token, "c"), *([Reading(9, "d")] if token == 1 else [])]
        )
    before, head = _rows(tmp_path / "t"), sink.open_table(about)
    planned = _compact(sink, about, dry_run=True)
    assert (planned.combined_files, planned.new_files, planned.version) == (8, None, head.version)
    done = _compact(sink, about)
    assert (done.combined_files, done.new_files, done.skipped_files, done.version) == (8, 2, 0, 5)
    assert _rows(tmp_path / "t") == before
    assert len(DeltaTable(str(tmp_path / "t")).file_uris()) == 3
    assert _compact(sink, about).combined_files == 0
    opened = sink.open_table(about)
    assert opened.changes_since(head.version).others == ()
    plan = opened.plan_rewind(2)
    assert (plan.to_version, plan.others) == (2, ())
    assert opened.rewind(plan.to_version, 9) == 6
    assert len(_rows(tmp_path / "t")) == 5
    assert sink.sweep(about, lambda generation, ordinal, path: True) == []


def test_a_commit_of_another_writer_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DeltaSink(tmp_path / "t")
    sink.prepare(_ABOUT)
    for token in range(1, 4):
        put(sink, _ABOUT, token, pairs(token, 1))
    calls = iter([[4], []])

    def commit_once(name: str) -> None:
        for token in next(calls) if name == "compaction.commit" else ():
            put(DeltaSink(sink.table), _ABOUT, token, pairs(token, 1))

    monkeypatch.setattr(failpoints, "hit", commit_once)
    done = _compact(sink)
    assert (done.combined_files, done.new_files, done.version) == (3, 1, 5)
    assert ids(tmp_path / "t") == [1, 2, 3, 4]


def test_files_that_an_upsert_replaced_meanwhile_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appending = DeltaSink(tmp_path / "t")
    appending.prepare(_ABOUT)
    for token in range(1, 4):
        put(appending, _ABOUT, token, pairs(token, 1))
    sink = DeltaSink(tmp_path / "t", mode="upsert", keys="id")

    def upsert(name: str) -> None:
        if name == "compaction.commit":
            put(sink, _ABOUT, 4, [Pair(1, "new")])

    monkeypatch.setattr(failpoints, "hit", upsert)
    done = _compact(sink)
    assert (done.combined_files, done.skipped_files) == (0, 3)
    assert [row["text"] for row in visible(tmp_path / "t")] == ["new", "row 2", "row 3"]
    assert [path for path in os.listdir(tmp_path / "t") if COMPACTED in path] == []


def test_a_killed_compaction_leaves_files_that_the_next_vacuum_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(tmp_path / "t")
    sink.prepare(_ABOUT)
    for token in range(1, 4):
        put(sink, _ABOUT, token, pairs(token, 1))

    def kill(name: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(failpoints, "hit", kill)
        _compact(sink)
    [left] = [path for path in os.listdir(tmp_path / "t") if COMPACTED in path]
    assert sink.sweep(_ABOUT, lambda generation, ordinal, path: True) == []
    now = int((tmp_path / "t" / left).stat().st_mtime * 1000)
    assert _vacuum(sink, now=now).deleted_files == 0
    assert _vacuum(sink, now=now + 25 * 3_600_000).deleted_files == 1
    assert ids(tmp_path / "t") == [1, 2, 3]


# -- the sweep of a delta table ---------------------------------------------------------------------------------------


def _all(generation: int, ordinal: int, path: str) -> bool:
    return True


def _delete_rows(table: Path, expired: bool = False) -> None:
    """Deletes all rows, and makes a Delta checkpoint, without the removed files if they have expired."""
    if expired:
        retention = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        DeltaTable(str(table)).alter.set_table_properties(retention)
    DeltaTable(str(table)).delete()
    checkpoint(table)


def _remove_entries(table: Path, count: int) -> None:
    for version in range(count):
        entry_path(table, version).unlink()


def test_files_of_others_are_kept(sink: DeltaSink, table: Path) -> None:
    for about in (context(uid="other"), context(uid="out-2"), context(job="f" * 32)):
        write(sink, about, pairs(0, 1))
    (table / "notes.txt").write_text("x")
    before = snapshot(table)
    assert sink.sweep(_ABOUT, _all) == []
    assert snapshot(table) == before


def test_files_of_readable_versions_are_kept(sink: DeltaSink, table: Path) -> None:
    for token in (1, 2):
        put(sink, _ABOUT, token, pairs(token, 1))
    DeltaTable(str(table)).optimize.compact()
    assert sink.sweep(_ABOUT, _all) == []
    # Delta checkpoints omit removed files after their retention, while older versions can still be read.
    _delete_rows(table, expired=True)
    assert sink.sweep(_ABOUT, _all) == []
    older = DeltaTable(str(table), version=2)
    assert all(Path(uri.removeprefix("file://")).exists() for uri in older.file_uris())


def test_a_file_that_only_a_delta_checkpoint_names_as_removed_is_kept(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 2))
    _delete_rows(table)
    _remove_entries(table, 3)
    assert DeltaTable(str(table)).file_uris() == []
    assert sink.sweep(_ABOUT, _all) == []


def test_a_file_that_no_remaining_version_names_is_deleted(sink: DeltaSink, table: Path) -> None:
    [file] = put(sink, _ABOUT, 1, pairs(0, 2))
    _delete_rows(table, expired=True)
    _remove_entries(table, 4)
    assert sink.sweep(_ABOUT, _all) == [file.path]


# -- how much of the log is read --------------------------------------------------------------------------------------


def _make_unreadable(table: Path, version: int) -> None:
    """Reading this log entry fails."""
    entry_path(table, version).unlink()
    entry_path(table, version).mkdir()


def test_only_entries_after_the_checkpoint_or_the_generation_of_a_leftover_are_read(
    sink: DeltaSink, table: Path
) -> None:
    """Tokens are above the generation that publishes: an entry with a lower one is older than its files."""
    for token in range(1, 12):
        put(sink, _ABOUT, token, pairs(token, 1))
    checkpoint(table)
    _make_unreadable(table, 7)
    fresh = DeltaSink(table)
    assert fresh.check(_ABOUT) is not None
    assert fresh.sweep(_ABOUT, _all) == []
    lost = write(sink, _ABOUT, pairs(100, 1), Writing(10, 1, 0, "lost"))[0].path
    assert DeltaSink(table).sweep(_ABOUT, lambda generation, *_: generation == 10) == [lost]


def test_output_that_was_published_before_its_checkpoint_is_kept(sink: DeltaSink, table: Path) -> None:
    """In at-least-once mode entries of generation 5 have the token that the table had when it began."""
    put(sink, _ABOUT, 2, pairs(2, 1))
    early = [write(sink, _ABOUT, pairs(n, 1), Writing(5, n, 0, "early")) for n in range(3)]
    assert sink.open_table(_ABOUT).commit(2, early[0]) is not None
    _delete_rows(table, expired=True)
    for files in early[1:]:
        assert sink.open_table(_ABOUT).commit(2, files) is not None
    assert DeltaSink(table).sweep(_ABOUT, lambda generation, *_: generation == 5) == []


def test_a_start_makes_a_checkpoint_when_two_are_missing(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "5"})
    for newest in range(2, 11):
        assert append_entry(DiskFolder(table), newest, [{"commitInfo": {"operation": "WRITE"}}])
        if newest > 8:
            DeltaSink(table).sweep(_ABOUT, _all)
            assert list_log(DiskFolder(table)).checkpoints == ({10} if newest == 10 else frozenset())


def test_a_checkpoint_without_one_of_its_parts_is_ignored(table: Path) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True)
    names = [
        "4.checkpoint.0000000001.0000000002",
        "4.checkpoint.0000000002.0000000002",
        "6.checkpoint.0000000001.0000000002",
        "8.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11",
    ]
    for name in names:
        version, rest = name.split(".", 1)
        (log / f"{int(version):020d}.{rest}.parquet").touch()
    found = list_log(DiskFolder(table))
    assert found.checkpoints == {4, 8}
    assert [found.newest_checkpoint(v) for v in (3, 4, 7, 9)] == [0, 4, 4, 8]


def test_a_checkpoint_leaves_no_threads_in_the_driver_and_its_failure_is_an_error(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    put(sink, _ABOUT, 1, pairs(1, 1))
    DeltaTable(str(table))
    before = len(os.listdir("/proc/self/task"))
    checkpoint(table)
    assert list_log(DiskFolder(table)).checkpoints == {1}
    assert len(os.listdir("/proc/self/task")) <= before + 2
    with raises(StorageError, table=str(tmp_path / "none"), exit_code=1):
        checkpoint(tmp_path / "none")
