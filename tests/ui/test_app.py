"""The endpoints of the pages, with the records of real local runs."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema
import pytest
from msgspec import structs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from stateflow import failpoints, operations
from stateflow.api.graph import JobFile
from stateflow.checkpoint.history import (
    FAILURE,
    RUN_START,
    read_history,
    read_pending_records,
    record_failed_start,
    write_action,
)
from stateflow.checkpoint.log.documents import ActionRecord, CheckpointRecord, Origin, PendingOutput, RunProgress
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import state_bytes
from stateflow.checkpoint.progress import write_progress
from stateflow.checkpoint.restore.plan_document import differing_parts
from stateflow.checkpoint.savepoints.cleanup import SavepointRule
from stateflow.clock import SystemClock
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import ConfigError, InternalError, NotYetAvailable, Unauthorized, UserCodeError
from stateflow.operations.checkpoints import CheckpointEntry
from stateflow.operations.health import describe_with_health
from stateflow.outputs import to_object
from stateflow.requesters import Requester
from stateflow.runtime.backlog import JobBacklog, SourceBacklog, sum_up, write_backlog
from stateflow.storage import MemoryStorage, PosixStorage, open_location
from stateflow.storage.locations import VARIABLE
from stateflow.storage.paths import HISTORY, PROGRESS, backlog_key
from stateflow.ui.access import TokenPolicy, Viewer
from stateflow.ui.answers import Answer, Bodies
from stateflow.ui.app import ENDPOINTS, make_app
from stateflow.ui.catalog import RootCatalog
from stateflow.ui.checkpoints import CheckpointPage, PointPage, summary_of
from stateflow.ui.dags import DAG_ENDPOINTS, DagJobs, JobFamily
from stateflow.ui.jobs import JobList, JobState, sinks_at
from stateflow.ui.journal import OMITTED, JournalFilter, JournalKind, JournalPage, journal_table
from stateflow.ui.openapi import API, ApiError, to_document
from stateflow.ui.requests import to_cursor
from stateflow.ui.restores import RestorePlanPage
from stateflow.ui.roots import CatalogJob, Orchestration, Reading
from stateflow.ui.runs import GraphPage, RunPage, TaskTry, runs_of
from stateflow.ui.savepoints import RetentionPreview, SavepointDiff, SavepointPage
from stateflow.ui.snapshots import Action, Extent, History, RootReader, Snapshot
from stateflow.ui.timeline import TimelinePage, timeline_page
from tests.support.errors import raises
from tests.support.json_outputs import check
from tests.support.local_jobs import Growing, plan_restore
from tests.ui.pages_job import OSCAR, UMA, FixedCatalog, Pages, PagesJob, Row, Sum

_AT_ONCE = timedelta(0)


class TwoTables(PagesJob):
    def build(self, env: StreamExecutionEnvironment) -> None:
        rows = [Row("abc"[at % 3], at) for at in range(self.number)]
        summed = env.from_source(Growing(rows, Row), uid="rows").key_by("key").process(Sum(), output=Row, uid="sum")
        for name in ("out", "copy"):
            summed.sink_to(self.sink(name), uid=name)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> PagesJob:
    """A job that has gone back from its third run to its first, and has run again."""
    job = PagesJob(tmp_path_factory.mktemp("job"))
    first = job.grow()
    job.save("early", "before the upgrade")
    job.grow(8)
    job.grow()
    job.go_back(first)
    job.grow()
    return job


@pytest.fixture
def pages(job: PagesJob) -> Pages:
    return Pages.of(job)


def _records(job: PagesJob) -> list[CheckpointRecord]:
    root = job.root
    found = read_history(root.storage, read_pending_records(root, root.head()))
    return [record for record in found if isinstance(record, CheckpointRecord)]


def test_the_list_of_jobs_has_what_the_log_and_the_history_have(job: PagesJob, pages: Pages) -> None:
    (row,) = pages.get("jobs", JobList)["jobs"]
    status = operations.describe(job.address)
    assert (row["job"], row["job_uuid"], row["checkpoint_id"]) == ("job", status.job_uuid, status.checkpoint_id)
    assert row["generation"] == status.generation and row["label"] == status.label
    live = [r for r in _records(job) if r.checkpoint_id in status.retained_checkpoint_ids]
    assert [size["full_bytes"] for size in row["state_sizes"]] == [r.full_bytes for r in live]
    assert row["full_bytes"] == live[-1].full_bytes and row["run"] == live[-1].run
    assert (row["savepoint"]["name"], row["savepoint"]["by"]["name"]) == ("early", "uma")
    assert row["health"] == {"word": "caught-up", "unknown": ["waits-for-approval", "late"]}
    assert (row["failure"], row["problem"], row["last_read_at"]) == (None, None, None)


def test_the_list_of_jobs_has_pages_if_it_is_asked_for_them(job: PagesJob) -> None:
    names = [f"job{number}" for number in range(5)]
    catalog = FixedCatalog(**dict.fromkeys(reversed(names), job.storage))
    pages, found, cursor = Pages(catalog), list[str](), ""
    for number in (2, 2, 1):
        page = pages.get("jobs", JobList, limit=2, **({"cursor": cursor} if cursor else {}))
        assert len(page["jobs"]) == number
        found += [row["id"] for row in page["jobs"]]
        # The job roots of later pages are not read yet.
        assert sorted(id for id, each in catalog.jobs().items() if pages.roots.known(each)) == found
        cursor = page["next_cursor"]
    assert found == names and not cursor
    everything = pages.get("jobs", JobList)
    assert ([row["id"] for row in everything["jobs"]], everything["next_cursor"]) == (names, None)
    for query in ("limit=0", "limit=1001", "cursor=x", "cursor=W10"):
        assert pages.http.get(f"/api/v1/jobs?{query}").status_code == 422, query


def test_the_state_of_a_job_is_its_status_with_operators_sources_and_runs(job: PagesJob, pages: Pages) -> None:
    state = pages.get("jobs/job", JobState)
    found = json.loads(json.dumps(state["description"]))
    assert found["retained_checkpoint_ids"] == list(operations.describe(job.address).retained_checkpoint_ids)
    newest = _records(job)[-1]
    assert (state["newest"]["checkpoint_id"], state["newest"]["rows_in"]) == (newest.checkpoint_id, newest.rows_in)
    (operator,) = state["operators"]
    assert (operator["uid"], operator["subtasks"], operator["states"]) == ("sum", 2, ["total"])
    assert operator["metrics"]["rows_in"] == newest.operators["sum"].rows_in
    assert state["live_bytes"] is not None
    assert operator["live_bytes"] == operator["metrics"]["live_bytes"] == state["live_bytes"]
    assert [size["live_bytes"] for size in state["state_sizes"]][-1] == state["live_bytes"]
    assert [(source["uid"], source["offset"]) for source in state["sources"]] == [("rows", {"row": job.number})]
    records = _records(job)
    runs = {run["generation"]: run for run in state["runs"]}
    for generation in {r.generation for r in records}:
        own = [r for r in records if r.generation == generation]
        assert runs[generation]["checkpoints"] == len(own)
        assert runs[generation]["rows_in"] == sum(r.rows_in for r in own)
    assert [run["generation"] for run in state["runs"]] == sorted(runs, reverse=True)
    assert found["run"] == state["runs"][0]["run"]
    assert state["undone_count"] == len(records) - len(job.checkpoints)


def test_a_sink_has_its_position_its_target_and_what_the_newest_checkpoint_published(
    job: PagesJob, planned: PagesJob
) -> None:
    for each, is_described in ((job, False), (planned, True)):
        (newest,) = _records(each)[-1:]
        sinks = Pages.of(each).get("jobs/job", JobState)["sinks"]
        assert sinks.keys() == {"out"}
        sink = sinks["out"]
        assert (sink["checkpoint_id"], sink["pending_checkpoint_ids"]) == (newest.checkpoint_id, [])
        assert sink["metrics"] == to_object(newest.sinks["out"]) and sink["metrics"]["rows"] == newest.rows_out["out"]
        # Only a stored graph has the target.
        target = ("FolderSink", str(each.folder / "out")) if is_described else (None, None)
        assert (sink["description"], sink["location"]) == target


def test_output_that_is_not_known_to_be_published_is_shown_with_its_checkpoints(job: PagesJob) -> None:
    head = job.root.head()
    pending = [
        PendingOutput(checkpoint_id=id, sink=sink, committables=[]) for id, sink in ((3, "out"), (0, "out"), (4, "new"))
    ]
    found = sinks_at(replace(head, entry=structs.replace(head.entry, pending=pending)), None, None)
    assert found["out"].pending_checkpoint_ids == (3, head.entry.seq)
    # Nothing of this sink was published yet.
    assert (found["new"].pending_checkpoint_ids, found["new"].position.table_id) == ((4,), "")


def test_a_row_of_a_list_does_not_grow_with_operators_and_subtasks(job: PagesJob, pages: Pages) -> None:
    (record,) = _records(job)[-1:]
    metrics = record.operators["sum"]
    assert metrics.busiest and metrics.spread
    rows = [
        to_object(summary_of(CheckpointEntry("checkpoint", 1, 0, False, True, None, each)))
        for each in (record, structs.replace(record, operators={f"o{n}": metrics for n in range(200)}))
    ]
    assert [len(json.dumps({**row, "live_bytes": 0})) for row in rows] == [
        len(json.dumps({**rows[0], "live_bytes": 0}))
    ] * 2
    run = record.generation
    for path in ("jobs", "jobs/job/points", "jobs/job/timeline", f"jobs/job/runs/{run}", "jobs/job/journal"):
        text = pages.http.get(f"/api/v1/{path}").text
        assert str(record.checkpoint_id) in text or path.endswith("journal"), path
        assert not any(f'"{name}"' in text for name in ("busiest", "spread", "operators", "sinks")), path
    assert '"busiest"' in pages.http.get(f"/api/v1/jobs/job/checkpoints/{record.checkpoint_id}").text


def test_after_a_restore_the_newest_checkpoint_is_the_one_that_was_restored(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.file = JobFile("job.py", b"", datetime(2026, 1, 31, tzinfo=UTC))
    first = job.grow()
    job.save("early")
    for _ in range(2):
        job.grow(8)
    pages = Pages.of(job, fresh=_AT_ONCE)
    records = {record.checkpoint_id: record for record in _records(job)}
    # Both keep the id, or give the state of the savepoint an id of its own; the last one restores such a state.
    for target in (str(first), "early", "latest"):
        job.go_back(target)
        state = pages.get("jobs/job", JobState)
        (row,) = pages.get("jobs", JobList)["jobs"]
        newest = state["newest"]
        assert (newest["checkpoint_id"], newest["undone"], newest["run"]) == (first, False, 1), target
        assert (state["run"], row["run"], state["full_bytes"]) == (1, 1, records[first].full_bytes), target
        (operator,) = state["operators"]
        assert operator["metrics"]["rows_in"] == records[first].operators["sum"].rows_in == 4, target
        assert state["undone_count"] == len(records) - 1, target
        restore = state["restore"]
        assert (restore["kind"], restore["seq"]) == ("restore", state["generation"]), target
        people = restore["by"]["name"], restore["requested_by"]["name"], restore["reason"], restore["note"]
        assert people == ("oscar", "uma", "wrong rows", "looks right"), target
        assert restore["ended_at"] >= state["committed_at"], target
    again = job.grow(8)
    state = pages.get("jobs/job", JobState)
    assert (state["newest"]["checkpoint_id"], state["run"], state["restore"]) == (again, 4, None)


def test_the_timeline_has_runs_undone_branches_and_the_restore_with_both_people(job: PagesJob, pages: Pages) -> None:
    page = pages.get("jobs/job/timeline", TimelinePage)
    kept = job.checkpoints
    assert {c["checkpoint_id"] for c in page["checkpoints"] if not c["undone"]} == set(kept)
    assert [c["checkpoint_id"] for c in page["checkpoints"]] == sorted(r.checkpoint_id for r in _records(job))
    (restore,) = [each for each in page["actions"] if each["kind"] == "restore"]
    assert (restore["by"]["name"], restore["requested_by"]["name"], restore["reason"], restore["note"]) == (
        "oscar",
        "uma",
        "wrong rows",
        "looks right",
    )
    assert restore["restored_checkpoint_id"] == kept[0] and (page["older"], page["next_cursor"]) == (False, None)
    # As each record has it, which the run of its checkpoint wrote.
    wanted = {
        c["checkpoint_id"]: restore["seq"] if c["checkpoint_id"] > restore["seq"] else None for c in page["checkpoints"]
    }
    assert {c["checkpoint_id"]: c["branch"] for c in page["checkpoints"]} == wanted


def test_pages_of_a_timeline_are_complete_and_repeat_none_while_a_run_adds_records(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.file = JobFile("job.py", b"", datetime(2026, 1, 31, tzinfo=UTC))
    first = job.grow(12)
    job.save("early")
    job.grow(8)
    job.go_back(first)
    job.grow()
    record_failed_start(job.root, ConfigError("no such setting"))
    pages = Pages.of(job, fresh=_AT_ONCE)
    whole = pages.get("jobs/job/timeline", TimelinePage)
    assert (whole["older"], whole["next_cursor"], len(whole["runs"])) == (False, None, 3)
    parts: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while not parts or cursor:
        part = pages.get("jobs/job/timeline", TimelinePage, limit=3, **cursor)
        parts.insert(0, part)
        assert len(part["checkpoints"]) + len(part["actions"]) <= 3
        cursor = {"cursor": part["next_cursor"]} if part["next_cursor"] else {}
        assert part["older"] == bool(cursor)
        if cursor:
            # Newer records are not for the pages of older ones.
            job.grow()
    assert len(parts) > 3
    # Whether a record is verified, and a checkpoint kept, changes with each run.
    places = {"checkpoints": ("generation", "ordinal", "ended_at"), "actions": ("kind", "seq", "ended_at")}
    for name, of in places.items():
        found = [[each[field] for field in of] for part in parts for each in part[name]]
        assert found == [[each[field] for field in of] for each in whole[name]]
    # A run whose records are on several pages is on each of them.
    runs = {run["generation"]: run for part in parts for run in part["runs"]}
    assert [runs[generation] for generation in sorted(runs)] == whole["runs"]
    for part in parts:
        assert {each["generation"] for each in part["checkpoints"]} <= {run["generation"] for run in part["runs"]}
    for wrong in ("x", "WzFd", to_cursor((["a"], None)), to_cursor(((1,), None))):
        assert _error(pages, "jobs/job/timeline", cursor=wrong)[0] == 422


def test_a_checkpoint_has_its_subtasks_as_long_as_the_job_keeps_it(job: PagesJob, pages: Pages) -> None:
    kept = job.checkpoints[-1]
    page = pages.get(f"jobs/job/checkpoints/{kept}", CheckpointPage)
    manifest = job.root.checkpoints.manifest_at(job.root.head())
    assert manifest is not None
    (operator,) = page["operators"]
    wanted = [(s.subtask, s.first_group, s.last_group, s.entries) for s in manifest.operators[0].subtasks]
    names = ("subtask", "first_key_group", "last_key_group", "state_entries")
    assert [tuple(each[name] for name in names) for each in operator["subtask_details"]] == wanted
    assert sum(each["size_bytes"] for each in operator["subtask_details"]) == operator["size_bytes"]
    assert page["description"]["checkpoint_id"] == page["entry"]["checkpoint_id"] == kept
    undone = next(r.checkpoint_id for r in _records(job) if r.checkpoint_id not in job.checkpoints)
    page = pages.get(f"jobs/job/checkpoints/{undone}", CheckpointPage)
    assert (page["entry"]["checkpoint_id"], page["entry"]["undone"]) == (undone, True)
    assert (page["description"], page["operators"]) == (None, [])
    assert pages.http.get("/api/v1/jobs/job/checkpoints/9999").status_code == 404


def test_savepoints_have_what_the_command_shows_and_are_read_again_when_one_is_made(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow()
    job.save("first", by=OSCAR)
    pages = Pages.of(job)
    found = pages.get("jobs/job/savepoints", SavepointPage)["savepoints"]
    wanted = operations.describe_contents(operations.find(job.address, "first"))
    assert (found[0]["id"], found[0]["size_bytes"]) == (wanted.report.id, wanted.report.size_bytes)
    assert found[0]["by"] == {"name": "oscar", "source": "claim", "account": "root@host"}


def test_a_savepoint_says_whether_its_record_is_as_it_was_recorded(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    for name in ("kept", "changed", "gone"):
        job.grow()
        job.save(name)
    job.grow()
    paths = sorted((job.folder / "root" / HISTORY).glob("*-savepoint-*"))
    records = {json.loads(path.read_bytes())["facts"]["savepoint"]: path for path in paths}
    records["changed"].write_bytes(records["changed"].read_bytes().replace(UMA.encode(), b"airflow-user:eve"))
    records["gone"].unlink()
    pages = Pages.of(job)
    found = pages.get("jobs/job/savepoints", SavepointPage)["savepoints"]
    wanted = {"kept": "verified", "changed": "changed", "gone": None}
    assert {each["name"]: each["record_integrity"] for each in found} == wanted
    state = pages.get("jobs/job", JobState)
    assert (state["savepoint"]["name"], state["savepoint_integrity"]) == ("changed", "changed")


def test_of_many_savepoints_the_newest_ones_are_listed_first_whatever_their_names(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    made = []
    for name in ("d", "c", "b", "a"):
        job.grow()
        folder = Path(job.save(name).path.removeprefix("file://"))
        made.append(folder / "_savepoint")
        # As in a copy: all are of the same time.
        os.utime(made[-1], (1_000_000, 1_000_000))
    pages, path = Pages.of(job), "jobs/job/savepoints"
    page = pages.get(path, SavepointPage, limit=3)
    assert ([each["name"] for each in page["savepoints"]], page["older"]) == (["a", "b", "c"], True)
    rest = pages.get(path, SavepointPage, limit=3, cursor=page["next_cursor"])
    assert ([each["name"] for each in rest["savepoints"]], rest["older"], rest["next_cursor"]) == (["d"], False, None)
    assert len(pages.get(path, SavepointPage)["savepoints"]) == 4
    for query in ("limit=0", "limit=201", "cursor=x", "cursor=WzEsMl0"):
        assert pages.http.get(f"/api/v1/{path}?{query}").status_code == 422, query
    # Without the records, the time of the files tells.
    job.storage.delete([blob.key for blob in job.storage.list(HISTORY) if "-savepoint-" in blob.key])
    for number, document in enumerate(reversed(made)):
        os.utime(document, (2_000_000 + number, 2_000_000 + number))
    page = Pages.of(job).get(path, SavepointPage, limit=2)
    assert ({each["name"] for each in page["savepoints"]}, page["older"]) == ({"c", "d"}, True)


def test_pages_of_points_are_complete_and_repeat_none_while_a_run_adds_records(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow(32)
    pages = Pages.of(job, fresh=_AT_ONCE)
    before = [r.checkpoint_id for r in _records(job)]
    assert len(before) == 8
    seen, cursor = [], None
    while True:
        page = pages.get("jobs/job/points", PointPage, limit=3, **({"cursor": cursor} if cursor else {}))
        seen += [point["checkpoint_id"] for point in page["points"]]
        if not (cursor := page["next_cursor"]):
            break
        job.grow()
    assert seen == sorted(before, reverse=True)
    assert pages.get("jobs/job/points")["points"][0]["checkpoint_id"] == job.checkpoints[-1] > before[-1]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"kind": "restore"}, lambda p: p["kind"] == "restore"),
        ({"undone": "true"}, lambda p: p["undone"]),
        ({"undone": "false", "kind": "checkpoint"}, lambda p: not p["undone"] and p["kind"] == "checkpoint"),
        ({"retained": "true"}, lambda p: p["retained"]),
        ({"generation": 1}, lambda p: p.get("generation") == 1),
        ({"status": "aborted"}, lambda p: False),
    ],
)
def test_filters_select_points(pages: Pages, query: dict[str, Any], wanted: Any) -> None:
    every = pages.get("jobs/job/points", PointPage)["points"]
    found = pages.get("jobs/job/points", PointPage, **query)["points"]
    assert found == [point for point in every if wanted(point)]
    assert bool(found) is (query.get("status") != "aborted")


def test_points_of_a_time_are_those_that_ended_then(pages: Pages) -> None:
    every = pages.get("jobs/job/points")["points"]
    middle = every[2]["ended_at"]
    assert pages.get("jobs/job/points", since=middle)["points"] == every[:3]
    assert pages.get("jobs/job/points", until=middle)["points"] == every[2:]


def test_the_journal_has_what_persons_did_over_all_jobs(job: PagesJob, tmp_path: Path) -> None:
    other = PagesJob(tmp_path)
    other.grow()
    other.save("mine", "=HYPERLINK(1)", by=OSCAR)
    pages = Pages(FixedCatalog(a=job.storage, b=other.storage))
    page = pages.get("journal", JournalPage)
    assert [(e["id"], e["kind"], e["by"]["name"]) for e in page["entries"]] == [
        ("b", "savepoint", "oscar"),
        ("a", "restore", "oscar"),
        ("a", "savepoint", "uma"),
    ]
    first = pages.get("journal", JournalPage, limit=2)
    rest = pages.get("journal", JournalPage, limit=2, cursor=first["next_cursor"])
    assert first["entries"] + rest["entries"] == page["entries"] and rest["next_cursor"] is None
    assert len(pages.get("journal", person="UMA")["entries"]) == 2
    assert [e["id"] for e in pages.get("jobs/b/journal", JournalPage)["entries"]] == ["b"]
    answer = pages.http.get("/api/v1/journal.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["id"] for row in rows] == ["b", "a", "a"]
    # A program for tables computes nothing.
    assert rows[0]["reason"] == "'=HYPERLINK(1)" and answer.headers["content-disposition"].startswith("attachment")
    assert rows[1]["requested_by"] == "uma" and json.loads(rows[1]["facts"])["target_label"]


def _table(pages: Pages, path: str = "journal.csv", **query: int) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(pages.http.get(f"/api/v1/{path}", params=query).text)))


def _omissions(rows: list[dict[str, str]]) -> list[tuple[str, str]]:
    """The jobs that the last rows of a table name, which have all omissions."""
    found = [row for row in rows if row["kind"] == OMITTED]
    assert rows[len(rows) - len(found) :] == found and all(row["reason"] for row in found)
    return [(row["id"], row["job"]) for row in found]


def test_a_table_of_the_journal_says_that_older_actions_are_omitted(pages: Pages) -> None:
    every = [entry["kind"] for entry in pages.get("journal", JournalPage)["entries"]]
    assert len(every) > 1
    rows = _table(pages, limit=len(every))
    assert [row["kind"] for row in rows] == every and not _omissions(rows)
    rows = _table(pages, limit=1)
    assert [row["kind"] for row in rows] == [every[0], OMITTED] and _omissions(rows) == [("", "")]


def test_a_table_of_the_journal_names_each_job_whose_root_cannot_be_read(job: PagesJob) -> None:
    pages = Pages(FixedCatalog(a=MemoryStorage("memory://nothing"), b=job.storage, c=MemoryStorage("memory://none")))
    rows = _table(pages)
    assert len(rows) > 2 and _omissions(rows) == [("a", ""), ("c", "")]
    assert "memory://nothing" in rows[-2]["reason"]
    assert _omissions(_table(pages, limit=1)) == [("a", ""), ("c", ""), ("", "")]
    assert _omissions(_table(pages, "jobs/a/journal.csv")) == [("a", "")]
    assert not _omissions(_table(pages, "jobs/b/journal.csv"))


def test_a_table_of_the_journal_says_that_a_history_is_truncated(
    job: PagesJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateflow.ui.snapshots.LARGEST_HISTORY", 1)
    assert _omissions(_table(Pages.of(job))) == [("job", "job")]


def test_a_table_of_the_journal_says_that_a_history_is_not_read_yet(job: PagesJob) -> None:
    snapshot = RootReader(lambda: job.storage, SystemClock()).look(Extent.ACTIONS)
    found = CatalogJob("a", job.address, lambda: job.storage)
    for extent, wanted in ((Extent.NEWEST, [("a", "job")]), (Extent.ACTIONS, []), (Extent.WHOLE, [])):
        reading = Reading(replace(snapshot, extent=extent), "", None)
        text = journal_table([(found, reading)], JournalFilter(), 100)
        assert _omissions(list(csv.DictReader(io.StringIO(text)))) == wanted


def test_the_journal_can_be_filtered_by_what_it_can_have_and_by_nothing_else(pages: Pages) -> None:
    """A run records its start and its failure in its own name: a filter for these would never find anything."""
    found = {kind: pages.get("journal", JournalPage, kind=kind.value)["entries"] for kind in JournalKind}
    assert sum(map(len, found.values())) == len(pages.get("journal", JournalPage)["entries"])
    assert {e["kind"] for e in found[JournalKind.RESTORE]} == {"restore"}
    for kind in ("run", "failure", "background", "checkpoint", ""):
        assert _error(pages, "journal", kind=kind)[0] == 422


def test_runs_and_schedules_are_not_in_the_journal(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow()
    job.save("hourly", by="airflow-dag:hourly")
    job.save("mine")
    entries = Pages.of(job).get("journal", JournalPage)["entries"]
    assert [entry["facts"]["savepoint"] for entry in entries] == ["mine"]


def test_a_savepoint_that_was_disposed_of_is_not_the_last_one(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow()
    pages = Pages.of(job, fresh=_AT_ONCE)
    assert pages.get("jobs", JobList)["jobs"][0]["savepoint"] is None
    job.save("first")
    job.save("second")
    for name, before in (("second", "first"), ("first", None)):
        operations.dispose(job.address, name, OSCAR, "not needed")
        found = pages.get("jobs", JobList)["jobs"][0]["savepoint"]
        assert (found and found["name"]) == before
    assert pages.get("jobs/job/savepoints", SavepointPage)["savepoints"] == []


def test_a_job_waits_for_approval_as_soon_as_its_catalog_says_so(job: PagesJob) -> None:
    catalog = FixedCatalog(job=job.storage)
    pages = Pages(catalog)
    before = [pages.http.get(f"/api/v1/{path}") for path in ("jobs", "jobs/job")]
    for awaits, word in ((True, "waits-for-approval"), (False, "caught-up")):
        catalog.orchestration = {"job": Orchestration(awaits_approval=awaits)}
        for answer in before:
            # Nothing has changed in the job root, and yet it is another answer.
            again = pages.http.get(answer.url.path, headers={"if-none-match": answer.headers["etag"]})
            row = again.json()
            health = (row["jobs"][0] if "jobs" in row else row)["health"]
            assert health["word"] == word and "waits-for-approval" not in health["unknown"]


def test_a_job_has_its_next_run_and_is_late_as_its_orchestrator_says(job: PagesJob) -> None:
    catalog = FixedCatalog(job=job.storage)
    pages = Pages(catalog)
    row = pages.get("jobs", JobList)["jobs"][0]
    assert row["next_run_at"] is None and "late" in row["health"]["unknown"]
    at = "2026-11-30T03:00:00+01:00"
    for late, word in ((True, "late"), (False, "caught-up")):
        catalog.orchestration = {"job": Orchestration(awaits_approval=False, late=late, next_run_at=at)}
        row = pages.get("jobs/job", JobState)
        assert (row["next_run_at"], row["health"]) == ("2026-11-30T02:00:00.000Z", {"word": word, "unknown": []})


def test_input_waits_as_the_newest_run_has_measured_it(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    pages = Pages.of(job, fresh=_AT_ONCE)
    first = job.grow()
    row = pages.get("jobs", JobList)["jobs"][0]
    assert (row["backlog"]["rows"], row["backlog_unknown"], row["health"]["word"]) == (0, None, "caught-up")
    generation = job.root.head().entry.generation
    waiting = SourceBacklog("rows", 7, None, 3, None, exact=True, unknown="")
    measured = sum_up([waiting], None, datetime(2026, 1, 31, tzinfo=UTC))
    job.grow(4)
    # As the driver of a run that is killed later.
    run = job.prepare(job.build)
    run.start()
    open_row = pages.get("jobs/job", JobState)
    generation = job.root.head().entry.generation
    write_backlog(job.storage, backlog_key(generation, 1), measured, [])
    row = pages.get("jobs/job", JobState)
    # No log entry tells it.
    assert (open_row["backlog"]["rows"], row["backlog"]["rows"], row["health"]["word"]) == (0, 7, "starting")
    assert (row["backlog"]["files"], row["backlog"]["measured_at"]) == (3, "2026-01-31T00:00:00.000Z")
    run.abandon()
    job.go_back(first)
    row = pages.get("jobs/job", JobState)
    # More waits now, and nobody has measured it.
    assert row["backlog"] is None and row["backlog_unknown"] and "caught-up" in row["health"]["unknown"]


def test_a_restore_that_ended_before_it_has_changed_the_job_is_not_shown_as_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = PagesJob(tmp_path)
    job.file = JobFile("job.py", b"", datetime(2026, 1, 31, tzinfo=UTC))
    first = job.grow()
    job.grow()
    pages = Pages.of(job, fresh=_AT_ONCE)
    before = pages.get("jobs/job", JobState)
    with monkeypatch.context() as patched, pytest.raises(InternalError):
        patched.setenv("STATEFLOW_FAILPOINT", "restore.claimed:1:error")
        job.go_back(first)
    page = pages.get("jobs/job", JobState)
    assert page["generation"] > before["generation"] and page["runs"] == before["runs"]
    assert [(each["description"]["restore_open"], each["description"]["run_open"]) for each in (before, page)] == [
        (False, False),
        (True, False),
    ]
    assert (before["health"]["word"], page["health"]["word"]) == ("caught-up", "restoring")
    plan = pages.get("jobs/job/restore-plan", RestorePlanPage, target=first)
    assert {check["name"] for check in plan["checks"] if not check["ok"]} == {"no-restore"}
    assert plan["plan"]["restore_open"] and not plan["plan"]["run_open"]
    # The next run undoes the claim.
    job.grow()
    page = pages.get("jobs/job", JobState)
    assert not page["description"]["restore_open"] and len(page["runs"]) == len(before["runs"]) + 1


def test_the_tables_of_a_restore_appear_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = TwoTables(tmp_path)
    first = job.grow()
    job.grow()
    pages, seen = Pages.of(job, fresh=_AT_ONCE), []

    def look(name: str) -> None:
        if name in ("rewind.table", "rewind.tables"):
            restoring = pages.get("jobs/job", JobState)["description"]["restoring"]
            seen.append((restoring["restored_tables"], sorted(restoring["tables"])))

    monkeypatch.setattr(failpoints, "hit", look)
    job.go_back(first)
    assert seen == [(done, ["copy", "out"]) for done in ([], ["copy"], ["copy", "out"])]
    assert pages.get("jobs/job", JobState)["description"]["restoring"] is None
    assert job.storage.list(PROGRESS) == []


def test_the_word_for_a_job_follows_its_runs(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    pages = Pages.of(job, fresh=_AT_ONCE)

    def word() -> object:
        health = pages.get("jobs", JobList)["jobs"][0]["health"]
        # The command reads it without the records in memory.
        assert health == to_object(describe_with_health(job.address)[1])
        return health["word"]

    job.grow()
    assert word() == "caught-up"
    operations.stop(job.address, operations.SavepointRequest(name="halt", by=UMA), savepoint=True)
    assert word() == "stopped"
    first = job.prepare(job.build)
    first.start()
    assert word() == "starting"
    first.record_failure(UserCodeError("no"))
    first.abandon()
    assert word() == "failing"
    second = job.prepare(job.build)
    second.start()
    assert word() == "retrying"
    second.abandon()
    job.grow()
    assert word() == "caught-up"


HOSTILE = ['</script><img src=x onerror=alert(1)>"', "\x1b[2J\u202e\x00", "=1+1", "x" * 5000, "../..", "\u2028"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_come_through_as_text(tmp_path: Path, text: str) -> None:
    job = PagesJob(tmp_path)
    checkpoint = job.grow()
    record = ActionRecord(
        seq=checkpoint, kind="savepoint", ended_at="2026-01-01T00:00:00+00:00", by=f"airflow-user:{text}",
        reason=text, note=text, facts={text: [text], "savepoint": text},
    )  # fmt: skip
    write_action(job.storage, record, "1")
    generation = job.root.head().entry.generation
    failure = ActionRecord(
        seq=generation, kind=FAILURE, ended_at="2026-01-01T00:00:00+00:00", by=f"process:{text}", reason=text,
        facts={"code": text},
    )  # fmt: skip
    write_action(job.storage, failure, "run")
    waiting = SourceBacklog(text, 1, -1, None, text, exact=True, unknown=text)
    # Beyond the numbers of reports, so that it is the last one.
    key = backlog_key(generation, 9_999_999_999)
    write_backlog(job.storage, key, JobBacklog(text, 1, True, None, -1, text, None, None, (waiting,)), [])
    pages = Pages.of(job)
    (entry,) = pages.get("jobs/job/journal", JournalPage)["entries"]
    backlog = pages.get("jobs/job", JobState)["backlog"]
    assert (backlog["measured_at"], backlog["sources"][0]["unknown"]) == (None, text)
    assert (entry["reason"], entry["by"]["name"], entry["facts"][text]) == (text, text, [text])
    assert pages.get("jobs/job", JobState)["failure"]["message"] == text
    assert pages.http.get(f"/api/v1/jobs/{quote(text, safe='')}").status_code == 404
    for path in ("journal.csv", "jobs/job/timeline", "jobs"):
        answer = pages.http.get(f"/api/v1/{path}")
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"
        assert not answer.headers["content-type"].startswith("text/html")


def test_an_error_of_a_run_with_a_hostile_text_is_shown(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow()

    def build(env: Any) -> None:
        def fail(row: Any) -> Any:
            raise ValueError("<b>\x1b[1m no")

        rows = env.from_source(Growing([Row("a", at) for at in range(8)], Row), uid="rows").map(fail, output=Row)
        rows.key_by("key").process(Sum(), output=Row, uid="sum").sink_to(job.sink("out"), uid="out")

    run = job.prepare(build)
    with pytest.raises(UserCodeError) as failed:
        job.execute(run)
    run.record_failure(failed.value)
    row = Pages.of(job).get("jobs", JobList)["jobs"][0]
    assert row["health"]["word"] == "failing" and "<b>\x1b[1m no" in (row["failure"] or row["failed_start"])["message"]


# -- ETags ------------------------------------------------------------------------------------------------------------


class CountedStorage(PosixStorage):
    """Notes the objects that are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        self.read.append(key)
        return super().get(key, limit)


_QUERIES = {"jobs/{id}/restore-plan": "?target=latest", "jobs/{id}/savepoint-diff": "?from=first&to=first"}
"""What an endpoint cannot be asked without."""


@pytest.mark.parametrize("path", [each.path for each in ENDPOINTS])
def test_an_answer_that_has_not_changed_is_not_made_again(tmp_path: Path, path: str) -> None:
    job = PagesJob(tmp_path)
    checkpoint = job.grow(12)
    path = path.replace("{generation}", str(job.root.head().entry.generation))
    job.save("first")
    storage = CountedStorage(job.folder / "root")
    pages = Pages(FixedCatalog(job=storage), fresh=_AT_ONCE)
    address = f"/api/v1/{path.format(id='job', checkpoint_id=checkpoint)}{_QUERIES.get(path, '')}"
    # The second one has the whole history.
    first = [pages.http.get(address) for _ in range(2)][-1]
    assert first.status_code == 200
    storage.read.clear()
    again = pages.http.get(address, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert storage.read == []
    job.grow()
    changed = pages.http.get(address, headers={"if-none-match": first.headers["etag"]})
    if not path.endswith(".csv"):
        assert changed.status_code == 200 and changed.headers["etag"] != first.headers["etag"]


def test_an_answer_that_many_ask_for_at_once_is_made_once(job: PagesJob, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    all_wait = threading.Barrier(2, timeout=30)

    def make(*given: Any) -> Any:
        made.append(1)
        all_wait.wait()
        return timeline_page(*given)

    monkeypatch.setattr("stateflow.ui.timeline.timeline_page", make)
    app = Pages.of(job).app

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            # The first one to ask goes away.
            cancelled = asyncio.create_task(client.get("/api/v1/jobs/job/timeline"))
            while not made:
                await asyncio.sleep(0.01)
            asked = [asyncio.create_task(client.get("/api/v1/jobs/job/timeline")) for _ in range(5)]
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.to_thread(all_wait.wait)
            return await asyncio.gather(*asked)

    answers = asyncio.run(ask())
    assert {answer.status_code for answer in answers} == {200} and len({a.content for a in answers}) == 1
    assert made == [1]


def test_another_process_has_the_same_etags(job: PagesJob) -> None:
    one, other = (Pages.of(job).http.get("/api/v1/jobs/job/points") for _ in range(2))
    assert one.headers["etag"] == other.headers["etag"]
    assert Pages.of(job).http.get("/api/v1/jobs/job/points?limit=5").headers["etag"] != one.headers["etag"]


def test_after_an_upgrade_no_etag_of_before_is_valid(job: PagesJob, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [
        f"/api/v1/{path}" for path in ("jobs", "jobs/job", "jobs/job/points", "jobs/job/savepoints", "journal.csv")
    ]
    before = {path: Pages.of(job).http.get(path).headers["etag"] for path in paths}
    monkeypatch.setattr("stateflow.ui.app.installed_version", lambda: "99.0")
    after = Pages.of(job)
    for path, tag in before.items():
        assert after.http.get(path, headers={"if-none-match": tag}).status_code == 200, path


def test_a_damaged_manifest_changes_the_etag(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow()
    tag = Pages.of(job).http.get("/api/v1/jobs/job").headers["etag"]
    head = job.root.head()
    damaged = head.entry.manifest
    assert damaged is not None
    (job.folder / "root" / damaged.key).write_bytes(b"{")
    found = Pages.of(job).http.get("/api/v1/jobs/job", headers={"if-none-match": tag})
    assert found.status_code == 200 and found.json()["full_bytes"] is None


# -- errors and access ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("jobs/none", 404),
        ("jobs/job/none", 404),
        ("none", 404),
        ("jobs/job/checkpoints/0", 422),
        ("jobs/job/checkpoints/x", 422),
        ("jobs/job/points?limit=0", 422),
        ("jobs/job/points?limit=501", 422),
        ("jobs/job/points?limit=٣", 422),
        ("jobs/job/points?undone=1", 422),
        ("jobs/job/points?status=done", 422),
        ("jobs/job/points?since=yesterday", 422),
        ("jobs/job/points?cursor=x", 422),
        ("jobs/job/points?cursor=WzFd", 422),
        ("jobs/job/points?limt=3", 422),
        ("jobs/job/points?limit=3&limit=4", 422),
        ("jobs/", 404),
    ],
)
def test_a_wrong_request_is_an_error_in_json_with_a_hint(pages: Pages, path: str, status: int) -> None:
    answer = pages.http.get(f"/api/v1/{path}", follow_redirects=False)
    assert answer.status_code == status, answer.text
    check(ApiError, answer.json())
    assert answer.json()["error"]["hint"] and "etag" not in answer.headers


class NoDags:
    async def jobs_of(self, viewer: Viewer, dag_id: str) -> DagJobs | None:
        return None

    async def family_of(self, viewer: Viewer, job: CatalogJob) -> JobFamily:
        return JobFamily((), (), may_read_state=False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "X"])
def test_only_reading_is_possible_whatever_the_path_and_the_body(job: PagesJob, built: Path, method: str) -> None:
    app = make_app(FixedCatalog(job=job.storage), TokenPolicy(), static=built, dags=NoDags())
    endpoints = [*ENDPOINTS, *DAG_ENDPOINTS]
    paths = [each.path.format(id="job", checkpoint_id=1, generation=1, dag_id="flights") for each in endpoints]
    routes = [f"api/v1/{path}" for path in (*paths, "openapi.json", "none", "")]
    stored = [blob.key for blob in job.storage.list("")]
    # Also mounted by another application, as in Airflow.
    for http in (TestClient(app), TestClient(Starlette(routes=[Mount("/x", app=app)]), base_url="http://testserver/x")):
        for path in (*routes, "", "assets/main.js", "none"):
            answer = http.request(method, f"/{path}", json={"kind": "restore"}, headers={"origin": "https://other"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (405, "config"), path
            assert "access-control-allow-origin" not in answer.headers
    assert [blob.key for blob in job.storage.list("")] == stored


def test_the_token_is_wanted_by_each_endpoint(job: PagesJob) -> None:
    http = Pages(FixedCatalog(job=job.storage), TokenPolicy("s3cret")).http
    paths = [*(each.path.format(id="job", checkpoint_id=1, generation=1) for each in ENDPOINTS), "openapi.json"]
    for header in (
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "bearer s3cret",
        "Basic s3cret",
        "Bearer s3cretx",
        "é",
    ):
        given = [] if header is None else [(b"authorization", header.encode())]
        for path in paths:
            answer = http.get(f"/api/v1/{path}", headers=given)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized"), (header, path)
            assert "job" not in answer.text.replace("job root", "")
    assert http.get("/api/v1/jobs", headers={"authorization": "Bearer s3cret"}).status_code == 200


class OnlyJob:
    """A viewer, and a policy that admits it, of one job; admits nobody without a header."""

    serves_files_to_all = False

    async def admit(self, request: Request) -> OnlyJob:
        if "x-user" not in request.headers:
            raise Unauthorized("log in", hint="log in")
        return self

    def may_read(self, job: CatalogJob) -> bool:
        return job.id == "mine"

    async def may_read_code(self, job: CatalogJob) -> bool:
        return False


def test_jobs_that_the_viewer_may_not_read_do_not_exist(job: PagesJob) -> None:
    http = Pages(FixedCatalog(mine=job.storage, other=job.storage), OnlyJob()).http
    assert http.get("/api/v1/jobs").status_code == http.get("/").status_code == 401
    http.headers["x-user"] = "uma"
    assert [row["id"] for row in http.get("/api/v1/jobs").json()["jobs"]] == ["mine"]
    assert {entry["id"] for entry in http.get("/api/v1/journal").json()["entries"]} == {"mine"}
    refused = {http.get(f"/api/v1/jobs/{id}").text.replace(id, "ID") for id in ("other", "none")}
    assert len(refused) == 1
    for endpoint in ENDPOINTS:
        if "{id}" in endpoint.path:
            path = endpoint.path.format(id="other", checkpoint_id=job.checkpoints[-1], generation=1)
            assert http.get(f"/api/v1/{path}").status_code == 404


# -- the application --------------------------------------------------------------------------------------------------


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<script src='assets/main.js'></script>")
    (tmp_path / "assets" / "main.js").write_text("1")
    (tmp_path.parent / "secret").write_text("secret")
    yield tmp_path


def test_the_files_of_the_pages_have_a_strict_policy(job: PagesJob, built: Path) -> None:
    app = make_app(FixedCatalog(job=job.storage), TokenPolicy("s3cret"), static=built)
    # Below the prefix of a proxy, or mounted by another application.
    for http, prefix in ((TestClient(app), ""), (TestClient(Starlette(routes=[Mount("/x", app=app)])), "/x")):
        page, script = http.get(f"{prefix}/"), http.get(f"{prefix}/assets/main.js")
        assert (page.status_code, script.text) == (200, "1") and page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "script-src 'self';" in policy
        unchanged = http.get(f"{prefix}/", headers={"if-none-match": page.headers["etag"]})
        assert (unchanged.status_code, unchanged.headers["content-security-policy"]) == (304, policy)
        assert "script-src" not in http.get(f"{prefix}/api/v1/jobs").headers["content-security-policy"]
        for answer in (page, script, http.get(f"{prefix}/api/v1/jobs")):
            assert answer.headers["x-content-type-options"] == "nosniff" and "set-cookie" not in answer.headers
        for path in ("/../secret", "/assets/../../secret", "/%2e%2e/secret", "/assets", "/assets/"):
            answer = http.get(f"{prefix}{path}", follow_redirects=False)
            assert answer.status_code == 404 and "location" not in answer.headers, path
        assert http.get(f"{prefix}/api/v1/jobs", headers={"authorization": "Bearer s3cret"}).status_code == 200


def test_many_small_answers_are_bounded_as_few_large_ones() -> None:
    bodies, made = Bodies(), list[int]()

    def answer(number: int) -> Answer:
        def make() -> str:
            made.append(number)
            return ""

        return Answer((), make)

    for number in (*range(17_000), 0, 16_999):
        # Of 2 kB each with what surrounds it.
        bodies.body(str(number), answer(number)).result()
    assert made == [*range(17_000), 0]


def test_answers_that_wait_are_bounded_also_of_clients_that_have_gone_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateflow.ui.answers._WAITING", 6)
    bodies, release = Bodies(), threading.Event()
    answer = Answer((), lambda: str(release.wait(60)))
    waiting = [bodies.body(str(number), answer) for number in range(6)]
    assert bodies.body("3", answer) is waiting[3]
    with raises(NotYetAvailable):
        bodies.body("6", answer)
    release.set()
    assert {each.result(60) for each in waiting} == {b"True"}
    assert bodies.body("6", answer).result(60) == b"True"


def test_without_built_files_a_sentence_says_so(pages: Pages, tmp_path: Path) -> None:
    app = make_app(FixedCatalog(), TokenPolicy(), static=tmp_path / "none")
    answer = TestClient(app).get("/")
    assert answer.status_code == 404 and answer.headers["content-type"].startswith("text/plain") and API in answer.text


def test_the_document_describes_each_endpoint_and_each_answer(pages: Pages) -> None:
    text = pages.http.get("/api/v1/openapi.json").text
    assert text == to_document(ENDPOINTS)
    stored = (Path(__file__).parents[2] / "docs" / "reference" / "openapi.json").read_text()
    assert stored == to_document((*ENDPOINTS, *DAG_ENDPOINTS))
    document = json.loads(text)
    limits = {each["name"]: each["schema"] for each in document["paths"]["/jobs"]["get"]["parameters"]}
    assert limits["limit"]["default"] == limits["limit"]["maximum"] == 1000
    assert set(document["paths"]) == {f"/{each.path}" for each in ENDPOINTS}
    assert len({each["get"]["operationId"] for each in document["paths"].values()}) == len(ENDPOINTS)
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        for reference in _references(schema):
            assert reference.rpartition("/")[2] in schemas, name
    # A validator that follows the references accepts an answer.
    whole = {"$ref": "#/components/schemas/PointPage", **document}
    jsonschema.validate(pages.get("jobs/job/points"), whole)


def _references(schema: Any) -> Iterator[str]:
    for name, each in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if name == "$ref":
            yield each
        elif isinstance(each, dict | list):
            yield from _references(each)


def test_a_catalog_of_addresses_serves_the_job(job: PagesJob) -> None:
    (row,) = Pages(RootCatalog([job.address])).get("jobs", JobList)["jobs"]
    assert row["job_root"] == job.address and row["id"].startswith("root-") and row["job"] == "job"


# -- plans of restores ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> PagesJob:
    """A job whose runs have stored their graph."""
    job = PagesJob(tmp_path_factory.mktemp("planned"))
    job.file = JobFile("job.py", b"before\n", datetime(2026, 1, 31, tzinfo=UTC))
    job.grow()
    job.save("early")
    job.grow(8)
    return job


def _error(pages: Pages, path: str, **query: str) -> tuple[int, dict[str, Any]]:
    answer = pages.http.get(f"/api/v1/{path}", params=query)
    check(ApiError, answer.json())
    return answer.status_code, answer.json()["error"]


def test_a_plan_of_a_restore_has_cautions_checks_and_what_a_later_plan_is_compared_with(planned: PagesJob) -> None:
    pages, first = Pages.of(planned), planned.checkpoints[0]
    page = pages.get("jobs/job/restore-plan", RestorePlanPage, target=first)
    plan = plan_restore(planned, planned.build, target=str(first))
    shown = page["plan"]
    assert (shown["target_checkpoint_id"], shown["rows_again"]) == (first, plan.rows_again)
    assert [s["uid"] for s in shown["states"]] == ["sum"] and shown["job_file"] is None
    assert [c["about"] for c in page["cautions"]] == ["sink out", ""]
    since = [record for record in _records(planned) if record.checkpoint_id > first]
    assert [s["rows_written_since"] for s in shown["sinks"]] == [sum(r.rows_out["out"] for r in since)]
    assert page["replay_ms"] == pytest.approx(sum(r.duration_ms for r in since))
    assert {c["name"]: c["ok"] for c in page["checks"]} == dict.fromkeys(
        ("no-run", "no-restore", "newest-checkpoint", "graph", "target-files"), True
    )
    assert page["graph_known"] and page["replay"] and page["problem"] is None
    assert differing_parts(plan, page["expected_plan"]) == {}
    again = pages.http.get("/api/v1/jobs/job/restore-plan", params={"target": first})
    same = pages.http.get(
        "/api/v1/jobs/job/restore-plan", params={"target": first}, headers={"if-none-match": again.headers["etag"]}
    )
    assert (again.status_code, same.status_code) == (200, 304)


def test_the_parameters_of_a_plan_are_those_of_the_form_of_the_recovery_dag(planned: PagesJob) -> None:
    pages = Pages.of(planned)
    page = pages.get(
        "jobs/job/restore-plan",
        RestorePlanPage,
        target=" early ",
        sinks="keep",
        new_names="",
        keep_tables="out",
        source_positions="\n rows=earliest\n",
        from_other_job="false",
        claim_mode="claim",
    )
    plan = page["plan"]
    assert (plan["mode"], plan["claim_mode"], plan["target"]) == ("keep", "claim", "early")
    assert plan["savepoint_path"].startswith(planned.storage.uri)
    assert [s["action"] for s in plan["sources"]] == ["reset"]
    by_path = pages.get("jobs/job/restore-plan", target=plan["savepoint_path"])["plan"]
    assert by_path["target_sha256"] == plan["target_sha256"]


def test_a_plan_with_a_wrong_value_is_refused_with_the_error_of_the_library(planned: PagesJob) -> None:
    pages, target = Pages.of(planned), str(planned.checkpoints[0])
    status, error = _error(pages, "jobs/job/restore-plan", target="none")
    assert (status, error["facts"]["target"]) == (422, "none") and "early" in error["hint"]
    wrong = {"sinks": "delete", "from_other_job": "yes", "claim_mode": "steal", "source_positions": "rows"}
    wrong |= {"new_names": "a", "keep_tables": "gone", "drop": "gone"}
    for name, value in wrong.items():
        assert _error(pages, "jobs/job/restore-plan", target=target, **{name: value})[0] == 422, name
    assert _error(pages, "jobs/job/restore-plan")[1]["facts"]["parameter"] == "target"
    assert _error(pages, "jobs/none/restore-plan", target="latest")[0] == 404


def test_a_plan_opens_only_the_job_roots_that_the_viewer_may_read(planned: PagesJob, tmp_path: Path) -> None:
    other = PagesJob(tmp_path / "other")
    other.grow()
    path = other.save("theirs").path
    # A link that somebody has put into a job root leads out of it.
    link = planned.folder / "root" / "savepoints" / "link"
    link.symlink_to(path.removeprefix("file://"))
    pages = Pages(FixedCatalog(job=planned.storage))
    own = planned.storage.uri
    for target in (path, path.removeprefix("file://"), f"{own}/../x", "./x/y", "s3://bucket/x", f"{own}x/y", f"{link}"):
        status, error = _error(pages, "jobs/job/restore-plan", target=target, from_other_job="true")
        assert status == 422 and error["code"] in ("config", "missing-file"), target
    link.unlink()
    both = Pages(FixedCatalog(job=planned.storage, other=other.storage))
    plan = both.get("jobs/job/restore-plan", RestorePlanPage, target=path, from_other_job="true")["plan"]
    assert (plan["foreign"], plan["parent_job_uuid"]) == (True, other.root.job.job_uuid)


def test_no_answer_has_the_locations_that_the_server_may_open(
    planned: PagesJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/private s3://hidden/savepoints")
    outside, catalog = str(tmp_path / "outside"), FixedCatalog(job=planned.storage)
    catalog.jobs()["other"] = CatalogJob("other", outside, partial(open_location, outside))
    pages = Pages(catalog)
    state = pages.get("jobs/other", JobState)
    assert (state["problem"]["facts"], state["backlog"]) == ({"location": outside}, None)
    # The command would not measure it either.
    assert state["backlog_unknown"] and outside not in state["backlog_unknown"]
    addresses = [each.path.replace("{id}", "other") + _QUERIES.get(each.path, "") for each in ENDPOINTS]
    addresses += ["jobs/job/restore-plan?target=/nowhere/x", "jobs/job/savepoint-diff?from=early&to=/nowhere/x"]
    for address in addresses:
        answer = pages.http.get(f"/api/v1/{address}")
        assert not any(text in answer.text for text in ("private", "hidden")), address
    status, error = _error(pages, "jobs/job/restore-plan", target="/nowhere/x")
    assert (status, error["facts"]) == (422, {"location": "/nowhere/x"})


def test_without_a_stored_graph_the_plan_is_null(job: PagesJob, pages: Pages) -> None:
    page = pages.get("jobs/job/restore-plan", RestorePlanPage, target="latest")
    assert (page["plan"], page["graph_known"], page["expected_plan"], page["replay"]) == (None, False, None, None)
    assert {c["name"]: c["ok"] for c in page["checks"]}["graph"] is None


# -- runs and the graph -----------------------------------------------------------------------------------------------


def test_the_graph_has_what_the_newest_run_has_stored_and_what_a_checkpoint_had(planned: PagesJob) -> None:
    pages, kept = Pages.of(planned), planned.checkpoints
    page = pages.get("jobs/job/graph", GraphPage)
    (chain,) = [chain for level in page["graph"]["levels"] for chain in level["chains"]]
    assert (chain["uid"], chain["states"], [sink["uid"] for sink in chain["sinks"]]) == ("sum", None, ["out"])
    assert [source["uid"] for source in page["graph"]["sources"]] == ["rows"]
    newest = planned.root.head().entry.generation
    assert (page["checkpoint_id"], page["graph_generation"], page["checkpoint_generation"]) == (
        kept[-1],
        newest,
        newest,
    )
    assert (page["graph_run"], page["checkpoint_run"]) == (2, 2)
    records = {record.checkpoint_id: record for record in _records(planned)}
    for checkpoint in kept[:2]:
        at = pages.get("jobs/job/graph", GraphPage, checkpoint_id=checkpoint)
        (operator,) = at["operators"]
        assert (operator["uid"], operator["states"]) == ("sum", ["total"])
        assert operator["metrics"]["rows_in"] == records[checkpoint].operators["sum"].rows_in
        # The page divides the rows by it.
        entry = pages.get(f"jobs/job/checkpoints/{checkpoint}", CheckpointPage)["entry"]
        assert entry["duration_ms"] == records[checkpoint].duration_ms > 0
        assert [source["offset"] for source in at["sources"]] != [] and at["graph"] == page["graph"]
    assert _error(pages, "jobs/job/graph", checkpoint_id="999999")[0] == 404
    assert _error(pages, "jobs/job/graph", checkpoint_id="x")[0] == 422


class ChangedGraph(PagesJob):
    """A job whose sinks change from run to run."""

    sinks: tuple[str, ...] = ("out",)

    def build(self, env: StreamExecutionEnvironment) -> None:
        rows = [Row("abc"[at % 3], at) for at in range(self.number)]
        summed = env.from_source(Growing(rows, Row), uid="rows").key_by("key").process(Sum(), output=Row, uid="sum")
        for name in self.sinks:
            summed.sink_to(self.sink(name), uid=name)


def test_an_old_checkpoint_has_the_graph_of_its_run_or_of_the_nearest_one(tmp_path: Path) -> None:
    job = ChangedGraph(tmp_path)
    file = JobFile("job.py", b"", datetime(2026, 1, 31, tzinfo=UTC))
    # The first and the third run store no graph.
    made = []
    for sinks, stored in ((("out",), None), (("out", "copy"), file), (("out",), None), (("out", "last"), file)):
        job.sinks, job.file = sinks, stored
        made.append(job.grow())
    pages, generations = Pages.of(job, fresh=_AT_ONCE), [r.generation for r in _records(job)]

    def graph(**query: int) -> tuple[set[str], int, int, int, int]:
        page = pages.get("jobs/job/graph", GraphPage, **query)
        sinks = {
            sink["uid"] for level in page["graph"]["levels"] for chain in level["chains"] for sink in chain["sinks"]
        }
        names = ("graph_generation", "graph_run", "checkpoint_generation", "checkpoint_run")
        return sinks, *(page[name] for name in names)

    older, newer = ({"out", "copy"}, generations[1], 2), ({"out", "last"}, generations[3], 4)
    for number, wanted in enumerate((older, older, older, newer)):
        assert graph(checkpoint_id=made[number]) == (*wanted, generations[number], number + 1), number
    assert graph() == (*newer, generations[3], 4)
    # A run without a checkpoint of its own: the newest graph with the numbers of the newest checkpoint.
    job.sinks = ("out", "next")
    run = job.prepare(job.build)
    run.start()
    run.abandon()
    assert graph() == ({"out", "next"}, job.root.head().entry.generation, 5, generations[3], 4)
    assert graph(checkpoint_id=made[1]) == (*older, generations[1], 2)


def test_a_job_without_a_stored_graph_has_the_rest(job: PagesJob, pages: Pages) -> None:
    page = pages.get("jobs/job/graph", GraphPage)
    assert (page["graph"], page["graph_generation"], page["graph_run"]) == (None, None, None)
    assert [operator["uid"] for operator in page["operators"]] == ["sum"]


def test_the_graph_at_a_checkpoint_that_the_job_no_longer_keeps_has_no_operators(job: PagesJob, pages: Pages) -> None:
    undone = next(r.checkpoint_id for r in _records(job) if r.checkpoint_id not in job.checkpoints)
    page = pages.get("jobs/job/graph", GraphPage, checkpoint_id=undone)
    assert (page["checkpoint_id"], page["operators"], page["sources"], page["watermarks"]) == (undone, [], [], {})
    assert page["problem"] is None


def test_a_run_has_its_job_file_and_the_difference_to_the_one_before(tmp_path: Path) -> None:
    job, generations = PagesJob(tmp_path), []
    for text in (b"one\n", b"one\n", b"two\n<script>\n", b"x" * (2 << 20), b"two\n"):
        job.file = JobFile("job.py", text, datetime(2026, 1, 31, tzinfo=UTC))
        job.grow()
        generations.append(job.root.head().entry.generation)
    pages = Pages.of(job)
    shown = [pages.get(f"jobs/job/runs/{each}", RunPage) for each in generations]
    assert [page["job_file"] for page in shown] == ["one\n", "one\n", "two\n<script>\n", None, "two\n"]
    first, same, changed, large, after = (page["job_file_difference"] for page in shown)
    assert (first, same, large, after) == (None, "", None, None)
    assert changed.splitlines()[2:] == ["@@ -1 +1,2 @@", "-one", "+two", "+<script>"]
    assert [page["previous_job_file_sha256"] for page in shown[1:]] == [p["run"]["job_file_sha256"] for p in shown[:-1]]
    starts = {r.seq: r for r in read_history(job.storage) if isinstance(r, ActionRecord) and r.kind == RUN_START}
    runs = {run["generation"]: run for run in pages.get("jobs/job", JobState)["runs"]}
    for page, generation in zip(shown, generations, strict=True):
        run, start = page["run"], starts[generation]
        assert run == runs[generation]
        assert (run["stateflow"], run["startup_ms"]) == (start.facts["stateflow"], start.duration_ms)
        assert (run["base_checkpoint_id"], run["run"]) == (start.facts["checkpoint_id"], start.facts["run"])
        assert (run["requested_by"]["name"], run["parallelism"]) == (Requester.parse(start.by).name, 2)
        assert (run["graph_sha256"], run["job_file"]) == (start.facts["graph_sha256"], "job.py")
        assert run["job_file_modified_at"] == "2026-01-31T00:00:00.000Z"
    assert _error(pages, "jobs/job/runs/999999")[0] == 404
    assert _error(pages, "jobs/job/runs/0")[0] == 422


def test_the_job_file_is_for_those_who_may_read_code(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    for text in (b"secret = 1\n", b"secret = 2\n"):
        job.file = JobFile("job.py", text, datetime(2026, 1, 31, tzinfo=UTC))
        job.grow()
    path = f"/api/v1/jobs/mine/runs/{job.root.head().entry.generation}"
    app = Pages(FixedCatalog(mine=job.storage), OnlyJob()).http
    all_of_it = Pages(FixedCatalog(mine=job.storage)).http.get(path).json()
    page = app.get(path, headers={"x-user": "uma"}).json()
    assert (all_of_it["may_read_code"], all_of_it["job_file"]) == (True, "secret = 2\n")
    assert (page["may_read_code"], page["job_file"], page["job_file_difference"]) == (False, None, None)
    assert page["run"] == all_of_it["run"]


def test_a_run_has_its_tries_its_checkpoints_and_the_starts_that_failed_before_it(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow()
    record_failed_start(job.root, ConfigError("no such setting"))
    task = "flights/manual__2026-01-31T03:00:00+00:00_a/b/run"
    for note in (f"{task}/1", f"{task}/2; restart 1", "nightly/2", f"{task}/3"):
        job.number += 8
        job.execute(job.prepare(job.build), note)
    pages = Pages.of(job, fresh=_AT_ONCE)
    runs = pages.get("jobs/job", JobState)["runs"]
    shown = {run["generation"]: pages.get(f"jobs/job/runs/{run['generation']}", RunPage) for run in runs}
    newest, nightly, second, first, oldest = shown.values()
    tried = [page["run"]["attempt"] for page in shown.values()]
    assert [each and each["try_number"] for each in tried] == [3, None, 2, 1, None]
    known = {"dag_id": "flights", "dag_run_id": "manual__2026-01-31T03:00:00+00:00_a/b", "task_id": "run"}
    assert tried[2] == {**known, "try_number": 2}
    tries = [first["run"], second["run"], newest["run"]]
    assert newest["tries"] == second["tries"] == tries and nightly["tries"] == oldest["tries"] == []
    assert [page["failed_starts"] for page in (oldest, second, nightly, newest)] == [[]] * 4
    (failed,) = first["failed_starts"]
    assert (failed["code"], failed["generation"]) == ("config", oldest["run"]["generation"])
    for generation, page in shown.items():
        points = pages.get("jobs/job/points", PointPage, generation=generation)["points"]
        assert page["checkpoints"] == points and len(points) == page["run"]["checkpoints"] and not page["older"]
        assert not page["run"]["is_open"] and page["progress"] is None


@pytest.mark.parametrize(
    ("reason", "attempt"),
    [
        ("flights/scheduled__2026-01-31/run/2", TaskTry("flights", "scheduled__2026-01-31", "run", 2)),
        ("f.lights-é_1/manual__x/y\n/run/0/12; restart 3", TaskTry("f.lights-é_1", "manual__x/y\n", "run/0", 12)),
        ("known/a/b/run/7/1", TaskTry("known", "a/b", "run/7", 1)),
        ("known/a/7/1", None),
        ("a/b/c/7", None),
        ("/data/jobs/7", None),
        ("https://example.com/manual__x/y/7", None),
        ("releases/manual__/7", None),
        ("flights/manual__x/run/7 again", None),
    ],
)
def test_only_a_reason_as_airflow_writes_it_has_a_try(job: PagesJob, reason: str, attempt: TaskTry | None) -> None:
    record = ActionRecord(seq=1, kind=RUN_START, ended_at="2026-01-31T03:00:00+00:00", by="process:h/1", reason=reason)
    (run,) = runs_of(Snapshot(job.root, history=History(actions=[Action(record, "")])), {"known"})
    assert (run.reason, run.attempt) == (reason, attempt)


@pytest.mark.parametrize("part", ["x" * 150_000, "1/" * 75_000, "x/" * 75_000, "x/1/" * 40_000])
def test_a_long_reason_is_read_in_linear_time(job: PagesJob, part: str) -> None:
    record = ActionRecord(seq=1, kind=RUN_START, ended_at="", by="process:h/1", reason=f"known/a/{part}/y")
    begun = time.thread_time()
    (run,) = runs_of(Snapshot(job.root, history=History(actions=[Action(record, "")])), {"known"})
    assert run.attempt is None and time.thread_time() - begun < 3


def test_an_open_run_shows_the_progress_of_its_batch(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow()
    job.file = JobFile("job.py", b"", datetime(2026, 1, 31, tzinfo=UTC))
    run = job.prepare(job.build)
    run.start("nightly")
    pages = Pages.of(job, fresh=_AT_ONCE)
    generation = job.root.head().entry.generation
    path = f"jobs/job/runs/{generation}"
    assert not pages.get(path, RunPage)["run"]["failure"]
    at = "2026-01-31T00:00:00+00:00"
    progress = RunProgress(
        reported_at=at, ordinal=1, batch_started_at=at, batches=0, rows_in=9, driver="host/1", reason="nightly"
    )
    write_progress(job.storage, generation, 1, progress)
    state = pages.get("jobs/job", JobState)
    assert state["description"]["progress"] == to_object(progress)
    page = pages.get(path, RunPage)
    assert (page["run"]["is_open"], page["progress"]["rows_in"], page["progress"]["driver"]) == (True, 9, "host/1")
    run.record_failure(UserCodeError("no"))
    run.abandon()
    page = pages.get(path, RunPage)
    assert (page["run"]["is_open"], page["progress"], page["run"]["failure"]["code"]) == (False, None, "user-code")


def test_a_run_that_made_no_checkpoint_is_a_run(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow()
    job.file = JobFile("job.py", b"", datetime(2026, 1, 31, tzinfo=UTC))
    run = job.prepare(job.build)
    run.start()
    run.abandon()
    newest, before = Pages.of(job).get("jobs/job", JobState)["runs"]
    assert (newest["generation"], newest["run"], newest["checkpoints"]) == (job.root.head().entry.generation, 2, 0)
    assert (before["requested_by"], before["startup_ms"], before["job_file_sha256"]) == (None, None, None)


def test_a_run_that_was_killed_before_it_recorded_its_start_is_a_run(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow()
    claim = JobRoot.open(job.storage, job.clock, "host/1").claim("nightly").entry
    pages = Pages.of(job)
    newest, before = pages.get("jobs/job", JobState)["runs"]
    assert (newest["generation"], newest["driver"], newest["reason"]) == (claim.generation, "host/1", "nightly")
    assert (newest["is_open"], newest["checkpoints"], newest["started_at"]) == (True, 0, None)
    assert pages.get(f"jobs/job/runs/{claim.generation}", RunPage)["run"] == newest and not before["is_open"]


# -- retention and comparison of savepoints ---------------------------------------------------------------------------


def test_a_preview_of_a_retention_is_what_it_deletes(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    for name in ("a", "b", "c"):
        job.grow()
        request = operations.SavepointRequest(name=name, origin=Origin.PERIODIC)
        operations.create_savepoint(job.address, request)
    job.save("manual")
    pages, kept = Pages.of(job), job.checkpoints
    assert pages.get("jobs/job/retention-preview", RetentionPreview)["freed_bytes"] == 0
    given = {"retain": 2, "savepoints": 1, "max_age": "7d"}
    page = pages.get("jobs/job/retention-preview", RetentionPreview, **given)
    assert (page["checkpoints"], page["savepoints"]) == (kept[:-2], ["a", "b"]) and page["problem"] is None
    before = operations.collect_garbage(job.address)
    pruned = operations.prune_savepoints(job.address, SavepointRule(1, timedelta(days=7)))
    collected = operations.collect_garbage(job.address, retain=2)
    assert before.deleted_files == 0 and list(pruned.deleted) == page["savepoints"]
    assert (kept[-2:], page["freed_bytes"]) == (job.checkpoints, pruned.freed_bytes + collected.freed_bytes)
    for wrong in ({"retain": "0"}, {"savepoints": "-1"}, {"max_age": "soon"}, {"max_age": "0s"}):
        assert _error(pages, "jobs/job/retention-preview", **wrong)[0] == 422


def test_a_preview_of_a_retention_reads_a_bounded_number_of_objects(
    job: PagesJob, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateflow.operations.garbage._MOST_CHECKPOINTS", 1)
    page = pages.get("jobs/job/retention-preview", RetentionPreview, retain=1)
    assert (page["checkpoints"], page["savepoints"], page["freed_bytes"]) == (job.checkpoints[:-1], [], None)
    monkeypatch.setattr("stateflow.operations.garbage._MOST_SAVEPOINTS", 0)
    page = pages.get("jobs/job/retention-preview", RetentionPreview, savepoints=1)
    assert (page["checkpoints"], page["savepoints"], page["freed_bytes"]) == ([], None, None)


def test_a_pinned_checkpoint_stays_in_the_preview_of_a_retention(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow(12)
    root = job.root
    first, *middle, newest = root.checkpoints.restorable(root.head())
    root.admin.pin(first, "ada", "a reader")
    page = Pages.of(job).get("jobs/job/retention-preview", RetentionPreview, retain=1)
    assert page["checkpoints"] == [ref.id for ref in middle] and page["freed_bytes"] > 0 and newest


def test_two_savepoints_are_compared_by_their_documents(planned: PagesJob) -> None:
    planned.save("later")
    pages = Pages.of(planned)
    page = pages.get("jobs/job/savepoint-diff", SavepointDiff, **{"from": "early", "to": "later"})
    old, new = (operations.find(planned.address, name).document for name in ("early", "later"))
    assert (page["old"]["name"], page["new"]["checkpoint_id"]) == ("early", new.checkpoint_id)
    assert page["old"]["offsets"] == {"rows": {"row": 4}}
    assert [page[side]["sinks"]["out"]["checkpoint_id"] for side in ("old", "new")] == [
        old.checkpoint_id,
        new.checkpoint_id,
    ]
    (operator,) = page["operators"]
    files = [{f.sha256: f.size for o in each.manifest.operators for f in o.files} for each in (old, new)]
    assert operator["added_files"] == len(files[1].keys() - files[0].keys()) > 0
    assert operator["common_files"] == len(files[1].keys() & files[0].keys())
    assert operator["removed_bytes"] == sum(size for key, size in files[0].items() if key not in files[1])
    assert (operator["uid"], operator["new_bytes"]) == ("sum", state_bytes(new.manifest.operators))
    assert operator["states"] == [{"name": "total", "kind": "value", "old_type": "int", "new_type": "int"}]
    same = pages.get("jobs/job/savepoint-diff", SavepointDiff, **{"from": "early", "to": "early"})["operators"][0]
    assert (same["added_files"], same["removed_files"], same["old_bytes"]) == (0, 0, same["new_bytes"])
    assert _error(pages, "jobs/job/savepoint-diff", **{"from": "early"})[1]["facts"]["parameter"] == "to"
    for wrong in ("none", planned.storage.uri, "../early"):
        status, error = _error(pages, "jobs/job/savepoint-diff", **{"from": "early", "to": wrong})
        assert (status, error["facts"]) == (422, {"savepoint": wrong})
