"""The OpenLineage events of runs, as a server receives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow.api.datasets import Dataset
from stateflow.lineage.events import (
    CheckpointFacts,
    ColumnOrigin,
    DatasetFacts,
    LineageEvent,
    PastRestore,
    RestoreFacts,
    RunFacts,
    RunState,
    SavepointFacts,
    run_id_of,
)
from stateflow.outputs import encode_json, from_object
from tests.servers.lineage import LineageServer, facets_of, lineage_server
from tests.support.job_fixture import KILLED, SLICE, AccountsJob
from tests.support.json_outputs import check
from tests.support.processes import spawn
from tests.support.restores import continue_past_savepoint, execute, go_back, plan


@pytest.fixture
def server() -> Iterator[LineageServer]:
    with lineage_server() as server:
        yield server


@pytest.fixture
def job(tmp_path: Path, server: LineageServer) -> Iterator[AccountsJob]:
    job = AccountsJob(tmp_path / "job", variables=server.variables)
    yield job
    job.end_all()


def _states(events: list[dict[str, Any]]) -> list[str]:
    return [event["eventType"] for event in events]


def test_a_run_reports_its_start_and_its_end_with_datasets_positions_and_rows(
    job: AccountsJob, server: LineageServer
) -> None:
    job.deliver(2 * SLICE)
    ended = job.finish()
    start, complete = server.take()
    assert _states([start, complete]) == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert {event["job"]["name"] for event in (start, complete)} == {"accounts"}
    run, checkpoint = facets_of(complete, "stateflow_run"), facets_of(complete, "stateflow_checkpoint")
    assert (run["jobUuid"], run["generation"], run["endedBy"]) == (job.job_uuid, 1, ended.result["stopped_because"])
    assert checkpoint["checkpointId"] == ended.result["checkpoint_id"]
    assert checkpoint["offsets"] == ended.result["offsets"]
    assert (checkpoint["rowsIn"], checkpoint["rowsOut"]) == (2 * SLICE, ended.result["rows_out"])
    written = {each["name"]: each["outputFacets"]["outputStatistics"]["rowCount"] for each in complete["outputs"]}
    assert {Path(name).name: rows for name, rows in written.items()} == ended.result["rows_out"]
    assert not any(each["outputFacets"] for each in start["outputs"])
    movements = next(each for each in start["outputs"] if each["name"].endswith("movements"))
    fields = [(each["name"], each["type"]) for each in movements["facets"]["schema"]["fields"]]
    assert fields[0] == ("number", "bigint") and len(fields) == 7


def test_a_run_that_was_killed_is_reported_by_the_next_one_with_its_last_checkpoint(
    job: AccountsJob, server: LineageServer
) -> None:
    job.deliver(3 * SLICE)
    job.reach("commit.after:2")
    # The process may have been killed before its first event was sent.
    started = {run for run, _ in server.states()}
    server.take()
    killed, last = run_id_of(job.job_uuid, job.head.doc["run"]), job.commits[-1].seq
    job.finish()
    lost, *own = server.take()
    assert started <= {killed} and (lost["run"]["runId"], lost["eventType"]) == (killed, "ABORT")
    assert facets_of(lost, "stateflow_run")["endedBy"] == "lost"
    assert facets_of(lost, "stateflow_checkpoint")["checkpointId"] == last
    assert _states(own) == ["START", "COMPLETE"]
    job.finish()
    assert _states(server.take()) == ["START", "COMPLETE"]


@pytest.mark.slow(reason="kills two runs")
def test_each_of_several_runs_that_were_killed_before_a_checkpoint_is_reported(
    job: AccountsJob, server: LineageServer
) -> None:
    job.deliver(SLICE)
    job.reach("batch.begin")
    job.reach("claim.after")
    first = {run for run, _ in server.states()}
    server.take()
    job.finish()
    *lost, start, complete = server.take()
    killed = [event["run"]["runId"] for event in lost]
    assert _states(lost) == ["ABORT", "ABORT"] and first <= {killed[0]}
    assert [facets_of(event, "stateflow_run")["generation"] for event in lost] == [1, 2]
    assert start["run"]["runId"] == complete["run"]["runId"] not in killed


def test_a_run_that_fails_reports_its_error_and_so_does_the_next_one(job: AccountsJob, server: LineageServer) -> None:
    job.deliver(2 * SLICE)
    ended = job.run("batch.reported:2:error")
    start, fail = server.take()
    assert _states([start, fail]) == ["START", "FAIL"]
    assert facets_of(fail, "stateflow_run")["endedBy"] == ended.error.code == "internal"
    assert facets_of(fail, "errorMessage")["message"].startswith("failpoint reached")
    assert facets_of(fail, "stateflow_checkpoint")["rowsIn"] == SLICE
    job.finish()
    again, *own = server.take()
    assert (again["run"]["runId"], again["eventType"]) == (fail["run"]["runId"], "FAIL")
    assert facets_of(again, "stateflow_run")["endedBy"] == "internal"
    assert _states(own) == ["START", "COMPLETE"]


def test_a_restart_is_a_run_of_its_own(job: AccountsJob, server: LineageServer) -> None:
    job.deliver(2 * SLICE)
    job.settings = {"restart__strategy": "fixed-delay", "restart__fixed_delay__delay": "1ms"}
    job.run("batch.reported:2:error").check()
    events = server.take()
    assert _states(events) == ["START", "FAIL", "START", "COMPLETE"]
    first, second = (events[0]["run"]["runId"], events[2]["run"]["runId"])
    assert [event["run"]["runId"] for event in events] == [first, first, second, second]
    rows = [facets_of(event, "stateflow_checkpoint").get("rowsIn") for event in events]
    assert rows == [None, SLICE, None, SLICE]


def test_a_start_that_is_refused_is_a_run_that_failed(job: AccountsJob, server: LineageServer) -> None:
    job.run_to(SLICE)
    server.take()
    ended = job.run(max_parallelism=77)
    assert ended.code != 0
    start, fail = server.take()
    assert _states([start, fail]) == ["START", "FAIL"] and start["run"]["runId"] == fail["run"]["runId"]
    run = facets_of(fail, "stateflow_run")
    assert (run["generation"], run["endedBy"]) == (0, ended.error.code)
    job.finish()
    assert _states(server.take()) == ["START", "COMPLETE"]


@pytest.mark.slow(reason="runs twice, and waits for a fenced run")
def test_a_run_that_a_newer_one_fences_and_the_newer_one_report_the_same(
    job: AccountsJob, server: LineageServer
) -> None:
    job.deliver(3 * SLICE)
    old = job.start("batch.reported:2:stop").wait_stopped()
    job.finish()
    (lost,) = [event for event in server.take() if event["eventType"] == "ABORT"]
    assert old.resume().wait().code == 3
    aborted = server.take()[-1]
    assert (aborted["run"]["runId"], aborted["eventType"]) == (lost["run"]["runId"], "ABORT")
    assert facets_of(aborted, "stateflow_run")["endedBy"] == "fenced"


@pytest.mark.slow(reason="makes a savepoint, a restore and three runs")
def test_a_restore_is_an_event_and_a_facet_of_the_next_run(job: AccountsJob, server: LineageServer) -> None:
    continue_past_savepoint(job, 2 * SLICE, 4 * SLICE)
    server.take()
    go_back(job, "early")
    start, complete = server.take()
    assert _states([start, complete]) == ["START", "COMPLETE"]
    restore = facets_of(complete, "stateflow_restore")
    (record,) = job.records("restore")
    assert (restore["seq"], restore["request"]) == (record["seq"], record["facts"]["request_id"])
    assert (str(restore["leftCheckpoint"]), restore["restored"]) == (
        str(record["facts"]["previous_checkpoint_id"]),
        record["facts"]["target_label"],
    )
    assert restore["undoneCheckpoints"] == record["facts"]["undone_checkpoint_ids"] != []
    versions = {Path(each["name"]).name: int(each["facets"]["version"]["datasetVersion"]) for each in start["outputs"]}
    assert versions == restore["tableVersions"] and set(versions) == {"movements", "totals"}
    job.finish()
    start, complete = server.take()
    assert _states([start, complete]) == ["START", "COMPLETE"]
    assert facets_of(start, "stateflow_restore") == restore and not facets_of(complete, "stateflow_restore")
    assert facets_of(start, "stateflow_run")["restores"] == [
        {"seq": restore["seq"], "restoredCheckpoint": restore["restoredCheckpoint"]}
    ]
    job.finish()
    assert not any(facets_of(event, "stateflow_restore") for event in server.take())


@pytest.mark.slow(reason="makes a savepoint, a restore and four runs")
def test_a_run_that_dies_before_a_restore_is_reported_after_it(job: AccountsJob, server: LineageServer) -> None:
    continue_past_savepoint(job, 2 * SLICE, 3 * SLICE)
    job.deliver(4 * SLICE)
    server.take()
    job.reach("batch.reported")
    go_back(job, "early")
    job.finish()
    events = server.take()
    *_, lost, start, complete = events
    assert _states([lost, start, complete]) == ["ABORT", "START", "COMPLETE"]
    restored = [event["run"]["runId"] for event in events if facets_of(event, "stateflow_restore")]
    assert len(restored) == 3 and lost["run"]["runId"] not in restored


@pytest.mark.slow(reason="makes a savepoint, a restore and three runs")
def test_a_restore_that_is_killed_shows_in_the_run_that_completes_it(job: AccountsJob, server: LineageServer) -> None:
    continue_past_savepoint(job, 2 * SLICE, 3 * SLICE)
    server.take()
    plan(job, "early")
    assert execute(job, failpoint="restore.intent").code == KILLED
    job.finish()
    start, complete = server.take()
    assert _states([start, complete]) == ["START", "COMPLETE"]
    assert facets_of(start, "stateflow_restore")["restored"] == job.records("restore")[0]["facts"]["target_label"]


@pytest.mark.slow(reason="stops and resumes a run")
def test_a_savepoint_that_a_run_makes_is_in_its_next_event(job: AccountsJob, server: LineageServer) -> None:
    job.deliver(3 * SLICE)
    asked, _ = job.asked_at("batch.begin:2", "savepoint", "create", "--name", "now", "--json")
    made = asked.check().document
    start, complete = server.take()
    (savepoint,) = facets_of(complete, "stateflow_savepoints")["savepoints"]
    assert (savepoint["name"], savepoint["checkpointId"]) == ("now", made["checkpoint_id"])
    assert not facets_of(start, "stateflow_savepoints")


def test_the_task_of_an_orchestrator_is_the_parent_of_the_run(job: AccountsJob, server: LineageServer) -> None:
    task, dag = "0190a7a2-9b7a-7000-8000-000000000001", "0190a7a2-9b7a-7000-8000-000000000002"
    job.variables = {
        **server.variables,
        "OPENLINEAGE_NAMESPACE": "lakehouse",
        "OPENLINEAGE_PARENT_ID": f"https://airflow/prod/flights.run/{task}",
        "OPENLINEAGE_ROOT_PARENT_ID": f"https://airflow/prod/flights/{dag}",
    }
    job.run_to(SLICE)
    for event in server.take():
        parent = facets_of(event, "parent")
        assert event["job"]["namespace"] == "lakehouse"
        assert (parent["job"]["namespace"], parent["job"]["name"]) == ("https://airflow/prod", "flights.run")
        assert (parent["run"]["runId"], parent["root"]["run"]["runId"]) == (task, dag)
        assert parent["root"]["job"]["name"] == "flights"


@pytest.mark.parametrize("status", [500, 401])
def test_a_server_that_refuses_events_does_not_fail_a_run_and_is_reported_once(
    job: AccountsJob, server: LineageServer, status: int
) -> None:
    server.status = status
    job.variables = {"OPENLINEAGE_URL": server.address.replace("//", "//alice:s3cret@")}
    ended = job.run_to(3 * SLICE)
    assert server.take() == [] and job.head.position == 3 * SLICE
    assert ended.err.count("a lineage event is lost") == 1
    assert "s3cret" not in ended.err


@pytest.mark.slow(reason="waits for a server that does not answer")
def test_a_run_ends_although_the_server_never_answers(job: AccountsJob, server: LineageServer) -> None:
    server.released.clear()
    job.deliver(5 * SLICE)
    ended = job.finish()
    assert ended.result["batches"] == 5
    assert ended.err.count("a lineage event is lost") == 1


@pytest.mark.slow(reason="starts a new interpreter")
def test_without_the_package_a_run_says_so_once(job: AccountsJob, server: LineageServer, tmp_path: Path) -> None:
    (tmp_path / "openlineage").mkdir()
    (tmp_path / "openlineage" / "__init__.py").write_text("raise ModuleNotFoundError('gone', name='openlineage')")
    job.variables = {**server.variables, "PYTHONPATH": str(tmp_path)}
    job.deliver(SLICE)
    ended = job.start(launcher=spawn).wait().check()
    assert ended.err.count("stateflow[openlineage]") == 1


@pytest.mark.slow(reason="runs three times")
def test_nothing_is_sent_or_printed_unless_a_receiver_is_configured(
    job: AccountsJob, server: LineageServer, tmp_path: Path
) -> None:
    (tmp_path / "other.yml").write_text("tags: {job: {team: data}}")
    for variables in (
        {},
        {**server.variables, "OPENLINEAGE_DISABLED": "true"},
        {"OPENLINEAGE_CONFIG": str(tmp_path / "other.yml")},
    ):
        job.variables = variables
        ended = job.run_to(SLICE)
        assert server.take() == []
        assert "eventType" not in ended.out + ended.err


def test_a_configuration_file_of_openlineage_names_the_receiver(
    job: AccountsJob, server: LineageServer, tmp_path: Path
) -> None:
    file = tmp_path / "lineage.yml"
    file.write_text(f"transport: {{type: http, url: '{server.address}', timeout: 2}}")
    job.variables = {"OPENLINEAGE_CONFIG": str(file)}
    job.run_to(SLICE)
    assert _states(server.take()) == ["START", "COMPLETE"]


def test_the_event_in_a_result_follows_the_rules_of_json_and_can_be_read_again() -> None:
    origin = ColumnOrigin(Dataset("file", "/in", "FILE"), "delay", (("DIRECT", "IDENTITY"),))
    event = LineageEvent(
        state=RunState.COMPLETE,
        occurred_at="2026-01-31T03:00:00.123+00:00",
        run_id="r",
        job="flights",
        is_continuous=False,
        run=RunFacts(generation=3, restores=(PastRestore(2, 0),)),
        inputs=(DatasetFacts(Dataset("file", "/in", added=frozenset({"b", "a"})), (("delay", "bigint"),)),),
        outputs=(
            DatasetFacts(Dataset("file", "/out"), version="7", origins={"delay": (origin,)}, row_origins=(origin,)),
        ),
        checkpoint=CheckpointFacts(
            checkpoint_id=5,
            committed_at="2026-01-31T03:00:00+00:00",
            offsets={"flights": {"row": 1}, "other": None},
            watermarks={"flights": "2026-01-31T02:00:00+00:00", "other": None},
        ),
        restore=RestoreFacts(seq=4, restored_checkpoint_id=2, by="claim:bob@host:anna", table_versions={"out": None}),
        savepoints=(SavepointFacts("s", "", 5, "manual", "2026-01-31T03:00:00.000+00:00", "airflow-user:anna"),),
    )
    found = json.loads(encode_json(event))
    check(LineageEvent, found)
    assert found["occurred_at"] == "2026-01-31T03:00:00.123Z"
    assert found["checkpoint"]["watermarks"] == {"flights": "2026-01-31T02:00:00.000Z", "other": None}
    assert (found["error"], found["run"]["requester"], found["outputs"][0]["dataset"]["kind"]) == (None, None, None)
    assert found["run"]["restores"] == [{"seq": 2, "restored_checkpoint_id": None}]
    assert found["restore"]["by"] == {"name": "anna", "source": "claim", "account": "bob@host"}
    again = from_object(LineageEvent, found)
    assert again.occurred_at == event.occurred_at
    assert (again.error, again.restore) == ("", event.restore)
    assert (again.inputs, again.outputs) == (event.inputs, event.outputs)
    assert again.savepoints[0].by == "airflow-user:anna"
    assert json.loads(encode_json(again)) == found
