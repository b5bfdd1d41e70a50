"""Checkpoints and savepoints are found, read and pinned; all other names are errors that list the existing ones."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stateflow
from stateflow import KeyedStateFrame, SavepointWriter, ValueStateDescriptor
from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.completed_checkpoints import AdminEntries
from stateflow.checkpoint.log.job_root import LEASE
from stateflow.errors import ConfigError, CorruptFile, DataError
from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.query import open_snapshot, state_entries
from stateflow.query.metadata import SCHEMAS
from stateflow.query.snapshot import Snapshot
from stateflow.serving.client import QueryableStateClient
from stateflow.storage import open_storage
from tests.query.summed_job import SummedJob, totals, totals_in
from tests.servers.running import s3_server
from tests.serving.shops_job import TOKEN, ShopsJob, Total, serving
from tests.support import root_files
from tests.support.cli_fixture import invoke
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
        (ran.uri, name), (ran.uri, folder.name), (ran.uri, str(folder)), (str(folder), None), (f"{folder}/", name),
        (f"{folder}/_savepoint", ran.kept[-1]), (copy.as_uri(), None),
    ]  # fmt: skip
    for location, wanted in places:
        with open_snapshot(location, wanted) as snapshot:
            assert (snapshot.name, snapshot.checkpoint_id, snapshot.job) == (name, ran.kept[-1], "job")
            assert _totals(snapshot) == totals(12), (location, wanted)


@pytest.mark.parametrize(
    ("wanted", "facts"),
    [(999, {"checkpoint_id": 999}), ("9" * 5000, {}), ("nothing", {"target": "nothing"}), ("before:2020-01-01", {})],
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
    assert caught.value.facts["kept_checkpoint_ids"] == job.kept


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


# -- metadata tables, by code that shares nothing with the reader -----------------------------------------------------


def test_the_snapshots_are_the_kept_checkpoints_and_the_savepoints(ran: SummedJob) -> None:
    older, newest = ran.kept
    found = stateflow.read_metadata(ran.uri, "snapshots").to_pylist()
    assert [(row["checkpoint_id"], row["kind"], row["name"], row["current"]) for row in found] == [
        (older, "checkpoint", None, False),
        (newest, "checkpoint", None, True),
        (newest, "savepoint", "canonical", False),
        (newest, "savepoint", "native", False),
    ]
    entries = {entry.seq: entry for entry in root_files.kept_entries(ran.folder / "root")}
    manifest = root_files.read_manifest(ran.folder / "root", root_files.head(ran.folder / "root").doc["manifest"])
    assert found[1]["size_bytes"] == manifest["full_bytes"] and newest in entries
    savepoints = root_files.savepoints(ran.folder / "root")
    assert [row["made_at"] for row in found[2:]] == [
        datetime.fromisoformat(savepoints[name]["made_at"]) for name in ("canonical", "native")
    ]
    assert all(row["size_bytes"] > 0 and row["pins"] == [] for row in found)


def test_the_pins_of_a_checkpoint_have_owner_reason_and_end(ran: SummedJob) -> None:
    older, _ = ran.kept
    with open_snapshot(ran.uri, older):
        (pin,) = stateflow.read_metadata(ran.uri, "snapshots").to_pylist()[0]["pins"]
        (stored,) = ran.root.head().entry.pinned
    assert (pin["id"], pin["reason"]) == (stored.id, stored.reason)
    assert abs(pin["expires_at"] - pin["pinned_at"] - LEASE).total_seconds() < 1


@pytest.mark.parametrize("snapshot", [None, "native", "canonical"])
def test_operators_states_and_files_are_those_of_the_manifest(ran: SummedJob, snapshot: str | None) -> None:
    (operator,) = stateflow.read_metadata(ran.uri, "operators", snapshot).to_pylist()
    files = stateflow.read_metadata(ran.uri, "files", snapshot).to_pylist()
    assert (operator["operator"], operator["key_types"], operator["states"]) == ("sum", ["string"], 1)
    assert operator["max_parallelism"] == 16 and operator["files"] == len({row["file"] for row in files})
    (state,) = stateflow.read_metadata(ran.uri, "states", snapshot).to_pylist()
    wanted = {"operator": "sum", "state": "total", "kind": "value", "value_type": "int"}
    assert state == {**wanted, "map_key_type": None, "ttl": None, "queryable": None}
    groups = set()
    for row in files:
        stored = (ran.folder / "root" / row["file"]).read_bytes()[
            row["offset_bytes"] : row["offset_bytes"] + row["size_bytes"]
        ]
        assert hashlib.sha256(stored).hexdigest() == row["sha256"]
        groups |= set(range(row["first_key_group"], row["last_key_group"] + 1))
    assert groups == set(range(16))


def test_every_table_has_its_columns_also_for_the_folder_of_a_savepoint(ran: SummedJob) -> None:
    (folder,) = (ran.folder / "root" / "savepoints").glob("native-*")
    for name, schema in SCHEMAS.items():
        table = stateflow.read_metadata(str(folder), name)
        assert table.schema == schema and table.num_rows > 0


def test_unknown_tables_and_snapshots_are_errors_that_name_the_known_ones(ran: SummedJob) -> None:
    with raises(ConfigError) as caught:
        stateflow.read_metadata(ran.uri, "state")
    assert "'states'" in caught.value.hint
    with raises(ConfigError):
        stateflow.read_metadata(ran.uri, "snapshots", 3)
    with raises(ConfigError) as caught:
        stateflow.read_metadata(ran.uri, "files", "nothing")
    assert "native" in caught.value.hint


def test_metadata_is_read_without_an_entry_in_the_log(ran: SummedJob) -> None:
    before = ran.root.head()
    for name in SCHEMAS:
        stateflow.read_metadata(ran.uri, name)
    assert ran.root.head() == before


# -- state in a bucket ------------------------------------------------------------------------------------------------

ROOT = "s3://bucket/jobs/shops"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShopsJob]:
    with s3_server(tmp_path, "bucket") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        jobs = ShopsJob(tmp_path, state__backend="rocksdb", checkpoints__asynchronous="no")
        jobs.storage = open_storage(ROOT)
        yield jobs


@pytest.mark.slow(reason="starts a server of S3, and runs a job and a state server on it")
def test_state_in_a_bucket_is_read_compared_written_and_served(jobs: ShopsJob) -> None:
    first, newest = jobs.sell(20), jobs.sell(5)
    totals = jobs.expected[newest].totals
    table = stateflow.read_state(ROOT, "totals", "total").read_all().flatten()
    keys = list(zip(table["shop"].to_pylist(), table["day"].to_pylist(), strict=True))
    values = map(Total, table["value.count"].to_pylist(), table["value.amount"].to_pylist())
    assert dict(zip(keys, values, strict=True)) == totals

    before = jobs.expected[first].totals
    found = stateflow.diff(f"{ROOT}@{first}", ROOT)
    (state,) = (each for each in found.states if each.state == "total")
    changed = sum(1 for key in before if before[key] != totals[key])
    assert (state.added, state.removed, state.changed) == (len(totals) - len(before), 0, changed)

    create_savepoint(ROOT, SavepointRequest(name="made", from_head=True))
    shown = invoke("state", "show", ROOT, "--snapshot", "made")
    assert shown.exit_code == 0 and shown.output.startswith("savepoint made of job"), shown.output

    frame = KeyedStateFrame(ValueStateDescriptor("total", int), pa.table({"shop": ["north"], "value": [7]}))
    writer = SavepointWriter.new("job", max_parallelism=16).with_operator("totals", key=["shop"], states=[frame])
    written = writer.write("s3://bucket/written")
    assert stateflow.read_state(written, "totals", "total", columns=["shop", "value"]).read_all().to_pylist() == [
        {"shop": "north", "value": 7}
    ]

    with serving(ROOT) as server, QueryableStateClient(ROOT, token=TOKEN, timeout=timedelta(minutes=1)) as client:
        results = client.get_many("totals", list(totals), exactly=newest, value_type=Total)
        assert [result.value for result in results] == list(totals.values())
        assert server.follower.problem is None
    assert not jobs.storage.list("servers/")
