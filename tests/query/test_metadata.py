"""The metadata tables have what manifests, savepoints and pins say, by code that shares nothing with the reader."""

from __future__ import annotations

import hashlib
from datetime import datetime

import pytest

import stateflow
from stateflow.checkpoint.log.job_root import LEASE
from stateflow.errors import ConfigError
from stateflow.query import open_snapshot
from stateflow.query.metadata import SCHEMAS
from tests.query.summed_job import SummedJob
from tests.support import root_files
from tests.support.errors import raises


def test_the_snapshots_are_the_kept_checkpoints_and_the_savepoints(ran: SummedJob) -> None:
    older, newest = ran.kept
    found = stateflow.read_metadata(ran.uri, "snapshots").to_pylist()
    assert [(row["id"], row["kind"], row["name"], row["is_current"]) for row in found] == [
        (older, "checkpoint", None, False),
        (newest, "checkpoint", None, True),
        (newest, "savepoint", "canonical", False),
        (newest, "savepoint", "native", False),
    ]
    entries = {entry.seq: entry for entry in root_files.kept_entries(ran.folder / "root")}
    manifest = root_files.read_manifest(ran.folder / "root", root_files.head(ran.folder / "root").doc["manifest"])
    assert found[1]["bytes"] == manifest["full_bytes"] and newest in entries
    savepoints = root_files.savepoints(ran.folder / "root")
    assert [row["at"] for row in found[2:]] == [
        datetime.fromisoformat(savepoints[name]["made_at"]) for name in ("canonical", "native")
    ]
    assert all(row["bytes"] > 0 and row["pins"] == [] for row in found)


def test_the_pins_of_a_checkpoint_have_owner_reason_and_end(ran: SummedJob) -> None:
    older, _ = ran.kept
    with open_snapshot(ran.uri, older):
        (pin,) = stateflow.read_metadata(ran.uri, "snapshots").to_pylist()[0]["pins"]
        (stored,) = ran.root.head().entry.pinned
    assert (pin["id"], pin["reason"]) == (stored.id, stored.reason)
    assert abs(pin["until"] - pin["since"] - LEASE).total_seconds() < 1


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
        stored = (ran.folder / "root" / row["file"]).read_bytes()[row["offset"] : row["offset"] + row["size"]]
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
