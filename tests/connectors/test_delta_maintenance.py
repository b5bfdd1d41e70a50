"""Maintenance of a Delta table: rows stay, and so do files that a checkpoint, a savepoint or another writer needs."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from stateflow import failpoints
from stateflow.api.sink import SinkContext, Writing
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import checkpoint, entry_path
from stateflow.connectors.delta.maintenance import Compaction, CompactionReport, Holder, VacuumReport, vacuum
from stateflow.connectors.delta.sink import COMPACTED
from stateflow.errors import CorruptFile, SinkDiverged, SinkRefused
from tests.support.delta_tables import Every, Pair, commit_elsewhere, context, ids, pairs, put, snapshot, visible, write
from tests.support.errors import raises

_ABOUT = context()
_FAR = 1 << 42
"""A time in the future, in milliseconds."""


class Reading(msgspec.Struct):
    """A row of a partitioned table."""

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
    assert (done.files, done.version, done.lost) == (2, 4, ())
    [held] = done.held
    assert (held.version, held.holders, held.files) == (2, ("checkpoint 20", "savepoint x"), 1)
    opened = sink.open_table(_ABOUT)
    assert opened.rewind(opened.plan_rewind(20).to_version, 50) == 5
    assert visible(tmp_path / "t") == [{"id": 1, "text": "checkpoint 20"}]
    with raises(SinkDiverged):
        sink.open_table(_ABOUT).plan_rewind(30)


def test_a_version_that_a_restore_has_decided_on_stays(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    done = _vacuum(sink, Holder("the restore", 99, 1))
    assert [(held.version, held.holders) for held in done.held] == [(1, ("the restore",))]
    assert sink.open_table(_ABOUT).rewind(1, 50) == 5


def test_recently_removed_and_restored_files_stay(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    now = int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)
    assert _vacuum(sink, now=now, older_than=3_600_000).files == 0
    assert sink.open_table(_ABOUT).rewind(2, 50) == 5
    assert _vacuum(sink).files == 3
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
    assert _vacuum(sink).files == 3
    assert sink.open_table(_ABOUT).missing(pending) == []
    assert (tmp_path / "t" / "being-written.parquet").exists()


def test_a_table_of_several_jobs_is_refused_unless_that_is_permitted(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    commit_elsewhere(tmp_path / "t", pairs(7, 1), f"{'f' * 32}/out", 1)
    with raises(SinkRefused, jobs=["f" * 32]):
        _vacuum(sink)
    assert _vacuum(sink, ignores_other_jobs=True).files == 3


def test_a_table_with_an_unknown_feature_is_refused_by_name_and_nothing_is_deleted(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    features = {"readerFeatures": ["vacuumProtocolCheck"], "writerFeatures": ["vacuumProtocolCheck", "newer"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    entry_path(tmp_path / "t", 5).write_bytes(msgspec.json.encode({"protocol": protocol}))
    with raises(SinkRefused, table=str(tmp_path / "t"), feature="newer"):
        _vacuum(sink)
    assert _data_files(tmp_path / "t") == 4


def test_paths_of_the_log_that_lead_out_of_the_table_are_never_deleted(tmp_path: Path) -> None:
    sink = _upserting(tmp_path / "t")
    outside = tmp_path / "precious"
    outside.write_text("x")
    lines = [
        {"path": path, "deletionTimestamp": 1, "dataChange": True} for path in ("../precious", f"file://{outside}")
    ]
    lines += [{"path": str(outside), "deletionTimestamp": 1, "dataChange": True}]
    entry = b"\n".join(msgspec.json.encode({"remove": line}) for line in lines)
    (tmp_path / "t" / "_delta_log" / f"{5:020d}.json").write_bytes(entry + b"\n")
    assert _vacuum(sink).files == 3
    assert outside.exists()


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
    assert (planned.files_before, planned.files_after, planned.version) == (8, None, head.version)
    done = _compact(sink, about)
    assert (done.files_before, done.files_after, done.skipped, done.version) == (8, 2, 0, 5)
    assert _rows(tmp_path / "t") == before
    assert len(DeltaTable(str(tmp_path / "t")).file_uris()) == 3
    assert _compact(sink, about).files_before == 0
    opened = sink.open_table(about)
    assert opened.changes_since(head.version).others == ()
    plan = opened.plan_rewind(2)
    assert (plan.to_version, plan.others) == (2, ())
    assert opened.rewind(plan.to_version, 9) == 6
    assert len(_rows(tmp_path / "t")) == 5
    assert sink.sweep(about, lambda generation, ordinal, path: True) == []


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_damaged_or_missing_file_is_named_and_the_table_is_unchanged(tmp_path: Path, is_missing: bool) -> None:
    about = context(Reading)
    sink = DeltaSink(tmp_path / "t", partition_by="day")
    sink.prepare(about)
    for token in range(1, 3):
        put(sink, about, token, [Reading(token, day) for day in ("a", "b", "c")])
    for path in sorted((tmp_path / "t" / "day=c").iterdir())[: 1 if is_missing else 2]:
        path.unlink() if is_missing else path.write_bytes(b"")
    before = snapshot(tmp_path / "t")
    error = SinkDiverged if is_missing else CorruptFile
    with pytest.raises(error) as caught:
        _compact(sink, about)
    assert str(caught.value.facts["file"]).startswith("day=c/")
    assert snapshot(tmp_path / "t") == before


def test_columns_of_every_type_survive(tmp_path: Path) -> None:
    about = context(Every)
    sink = DeltaSink(tmp_path / "t")
    sink.prepare(about)
    for token in range(1, 4):
        put(
            sink,
            about,
            token,
            [Every(id=token, amount=float("nan"), raw=b"\x00", numbers=[1.5, None]), Every(id=-token)],
        )
    before = list(map(repr, visible(tmp_path / "t")))
    assert _compact(sink, about).files_after == 1
    assert list(map(repr, visible(tmp_path / "t"))) == before
    assert sink.other_jobs(context(Every, uid="files", job="x")) == frozenset()


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
    assert (done.files_before, done.files_after, done.version) == (3, 1, 5)
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
    assert (done.files_before, done.skipped) == (0, 3)
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
    assert _vacuum(sink, now=now).files == 0
    assert _vacuum(sink, now=now + 25 * 3_600_000).files == 1
    assert ids(tmp_path / "t") == [1, 2, 3]
