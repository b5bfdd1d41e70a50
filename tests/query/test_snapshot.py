"""Checkpoints and savepoints are found, read and pinned; all other names are errors that list the existing ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.completed_checkpoints import AdminEntries
from stateflow.errors import ConfigError, CorruptFile, DataError
from stateflow.query import open_snapshot, state_entries
from stateflow.query.snapshot import Snapshot
from tests.query.summed_job import SummedJob, totals, totals_in
from tests.support.errors import raises


def _totals(snapshot: Snapshot) -> dict[str, int]:
    return totals_in(snapshot.operator("sum"), snapshot.storage)


def test_the_newest_checkpoint_is_opened_without_a_name(ran: SummedJob) -> None:
    older, newest = ran.kept
    with open_snapshot(ran.uri) as snapshot:
        assert (snapshot.checkpoint_id, snapshot.name, snapshot.job, snapshot.max_parallelism) == (
            newest,
            "",
            "job",
            16,
        )
        assert snapshot.job_uuid == ran.root.job.job_uuid
        assert _totals(snapshot) == totals(12)
    for older_id in (older, str(older)):
        with open_snapshot(ran.uri, older_id) as snapshot:
            assert (snapshot.checkpoint_id, _totals(snapshot)) == (older, totals(8))


@pytest.mark.parametrize("name", ["canonical", "native"])
def test_a_savepoint_is_opened_by_name_folder_and_path(ran: SummedJob, name: str, tmp_path: Path) -> None:
    (folder,) = (ran.folder / "root" / "savepoints").glob(f"{name}-*")
    copy = tmp_path / "moved"
    shutil.copytree(folder, copy)
    places: list[tuple[str, str | int | None]] = [
        (ran.uri, name),
        (ran.uri, folder.name),
        (ran.uri, str(folder)),
        (str(folder), None),
        (f"{folder}/", name),
        (f"{folder}/_savepoint", ran.kept[-1]),
        (copy.as_uri(), None),
    ]
    for location, wanted in places:
        with open_snapshot(location, wanted) as snapshot:
            assert (snapshot.name, snapshot.checkpoint_id, snapshot.job) == (name, ran.kept[-1], "job")
            assert _totals(snapshot) == totals(12), (location, wanted)


@pytest.mark.parametrize(
    ("wanted", "facts"),
    [(999, {"checkpoint": 999}), ("9" * 5000, {}), ("nothing", {"target": "nothing"}), ("before:2020-01-01", {})],
)
def test_an_unknown_snapshot_is_an_error_that_lists_the_existing_ones(
    ran: SummedJob, wanted: int | str, facts: dict[str, Any]
) -> None:
    with raises(ConfigError) as caught, open_snapshot(ran.uri, wanted):
        pass
    assert facts.items() <= caught.value.facts.items()
    if facts:
        assert all(str(kept) in str(caught.value) for kept in ran.kept)


def test_a_job_without_a_checkpoint_has_no_snapshot(job: SummedJob) -> None:
    job.prepare(lambda env: job.declare(env, 0))
    with raises(DataError), open_snapshot(job.uri):
        pass


def test_a_damaged_savepoint_is_refused(ran: SummedJob, tmp_path: Path) -> None:
    (folder,) = (ran.folder / "root" / "savepoints").glob("native-*")
    copy = shutil.copytree(folder, tmp_path / "copy")
    document = copy / "_savepoint"
    document.write_bytes(document.read_bytes().replace(b'"job"', b'"jab"', 1))
    with raises(CorruptFile), open_snapshot(str(copy)):
        pass


def test_a_checkpoint_is_pinned_while_a_reader_has_opened_its_snapshot(job: SummedJob) -> None:
    job.run(4)
    (first,) = job.kept
    with open_snapshot(job.uri) as snapshot:
        job.run(24)
        Collector(job.root).collect()
        assert (job.kept[0], snapshot.checkpoint_id) == (first, first)
        assert _totals(snapshot) == totals(4)
        # Another reader finds the pinned checkpoint by its id, and the newest one without a name.
        assert {e.key[0]: e.value for e in state_entries(job.uri, "sum", first)} == totals(4)
        assert {e.key[0]: e.value for e in state_entries(job.uri, "sum")} == totals(24)
    assert job.root.head().entry.pinned == []
    Collector(job.root).collect()
    with raises(ConfigError) as caught, open_snapshot(job.uri, first):
        pass
    assert caught.value.facts["kept"] == job.kept


def test_the_newest_checkpoint_is_pinned_although_a_run_releases_the_one_that_was_found(
    job: SummedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(4, checkpoints__retained=1)

    pin, progress = AdminEntries.pin, iter((8, 12))

    def late(admin: AdminEntries, *given: Any, **more: Any) -> Any:
        if (count := next(progress, None)) is not None:
            job.run(count, checkpoints__retained=1)
            Collector(job.root).collect()
        return pin(admin, *given, **more)

    monkeypatch.setattr(AdminEntries, "pin", late)
    with open_snapshot(job.uri) as snapshot:
        assert _totals(snapshot) == totals(12)
