"""Savepoints as tasks: of a job that runs and of one that does not, tried again, killed, too many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from airflow.sdk import DAG, Asset

from stateflow.operations import savepoints
from stateflow.operations.job_root import JobCode
from stateflow.operations.savepoints import SavepointRequest
from stateflow_airflow.failures import PermanentFailure, TransientFailure
from stateflow_airflow.operators.recovery import StateflowVerifyOperator
from stateflow_airflow.operators.retention import StateflowRetentionOperator
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator, StateflowStopOperator
from stateflow_airflow.operators.task_requests import request_id
from stateflow_airflow.retry import RetryByErrorCode
from tests.airflow.failing import fails
from tests.airflow.fakes import FakeRun
from tests.airflow.jobs import ACCOUNTS, new_run, settings
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.processes import Running, wait_for

SAVEPOINT = Asset(name="accounts.savepoint", uri="stateflow://accounts/savepoint")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    box = AccountsJob(tmp_path / "job")
    yield box
    box.end_all()


@pytest.fixture
def resting(box: AccountsJob) -> AccountsJob:
    """A job with a few checkpoints and nothing to do."""
    box.deliver(50)
    box.finish()
    return box


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def savepoint(box: AccountsJob, **more: Any) -> StateflowSavepointOperator:
    return StateflowSavepointOperator(task_id="savepoint", job_root=str(box.root), outlets=[SAVEPOINT], **more)


def at_work(box: AccountsJob) -> Running:
    """A run that stands still in its third batch."""
    box.deliver(100)
    box.settings = {**box.settings, "requests__interval": "20ms"}
    run = box.start("batch.begin:3:stop")
    run.wait_stopped()
    return run


def asked(box: AccountsJob, answer: Future[Any]) -> None:
    """Returns when the run has been asked."""
    folder = box.root / "requests"

    def is_asked() -> bool:
        assert not answer.done(), answer.result()
        return folder.is_dir() and any(folder.iterdir())

    wait_for(is_asked, lambda: "the request")


def test_without_a_run_it_is_the_newest_checkpoint(resting: AccountsJob) -> None:
    run = new_run("2026-01-01")
    run.user = "ada"
    made = savepoint(resting, name="before-upgrade", reason="version 2").execute(run.next_try())
    head = root_files.head(resting.root)
    assert (made["name"], made["checkpoint_id"], made["taken_by"]) == ("before-upgrade", head.checkpoint, "head")
    assert made["offsets"] == {"events": {"row": 50}}
    stored = root_files.savepoints(resting.root)["before-upgrade"]
    assert (stored["by"], stored["reason"], stored["origin"]) == ("ada", "version 2", "manual")
    assert run.events[SAVEPOINT].extra == {
        "savepoint_id": made["id"],
        "name": "before-upgrade",
        "path": made["path"],
        "checkpoint_id": made["checkpoint_id"],
    }
    assert Path(made["path"].removeprefix("file://")).is_dir()


def test_the_log_has_why_no_run_took_it(resting: AccountsJob) -> None:
    logged: list[str] = []

    def keep(_: object, __: str, event: Any) -> Any:
        logged.append(str(event))
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[keep])
    try:
        savepoint(resting, name="mine").execute(new_run("2026-01-01").next_try())
    finally:
        structlog.configure(processors=before)
    (line,) = [line for line in logged if "mine" in line]
    report = savepoints.why_no_run(str(resting.root), SavepointRequest())
    assert report in line


def test_another_try_gives_the_same_one_and_another_task_its_own(resting: AccountsJob) -> None:
    run = new_run("2026-01-01")
    made = savepoint(resting).execute(run.next_try())
    assert savepoint(resting).execute(run.next_try()) == made
    run.clear()
    assert savepoint(resting).execute(run.next_try()) == made
    assert made["name"].startswith("manual-20260101T000000Z-")
    others = [new_run("2026-01-02"), new_run("2026-01-01", map_index=1), new_run("2026-01-01", task_id="x")]
    ids = {savepoint(resting).execute(other.next_try())["id"] for other in others}
    assert len(ids | {made["id"]}) == 4 == len(root_files.savepoints(resting.root))


def test_beside_a_run_it_is_taken_at_the_next_barrier(box: AccountsJob, background: ThreadPoolExecutor) -> None:
    run = at_work(box)
    committed = root_files.head(box.root).position
    task = new_run("2026-01-01")
    answer = background.submit(savepoint(box, name="beside").execute, task.next_try())
    asked(box, answer)
    run.resume()
    made = answer.result(60)
    assert run.wait().code == 0
    assert made["taken_by"] == "run"
    assert root_files.savepoints(box.root)["beside"]["manifest"]["sources"][0]["offset"] > f'{{"row": {committed}}}'
    assert savepoint(box, name="beside").execute(task.next_try()) == made
    box.check_results()
    box.check_clean()


def test_a_task_that_is_killed_takes_its_request_back_and_its_next_try_asks_anew(
    box: AccountsJob, background: ThreadPoolExecutor
) -> None:
    run, task = at_work(box), new_run("2026-01-01")
    operator = savepoint(box, name="mine")
    context = task.next_try()
    answer = background.submit(operator.execute, context)
    asked(box, answer)
    operator.on_kill()
    with fails(TransientFailure, "request-timeout", id=request_id(context)):
        answer.result(60)
    run.resume()
    assert run.wait().code == 0
    assert root_files.savepoints(box.root) == {}
    assert savepoint(box, name="mine").execute(task.next_try())["taken_by"] == "head"
    box.check_clean()


def test_a_stop_ends_the_run_with_it(box: AccountsJob, background: ThreadPoolExecutor) -> None:
    run, task = at_work(box), new_run("2026-01-01")

    def stop() -> StateflowStopOperator:
        return StateflowStopOperator(
            task_id="stop", job_root=str(box.root), reason="upgrade", drain=True, outlets=[SAVEPOINT]
        )

    answer = background.submit(stop().execute, task.next_try())
    asked(box, answer)
    run.resume()
    made = answer.result(60)
    assert run.wait().code == 0
    head = root_files.head(box.root)
    assert (made["origin"], made["checkpoint_id"]) == ("stop", head.checkpoint) and head.position < 100
    assert root_files.savepoints(box.root)[made["name"]]["drained"] is True
    assert task.events[SAVEPOINT].extra["savepoint_id"] == made["id"]
    assert stop().execute(task.next_try()) == made
    # A clear means: once more.
    task.clear()
    assert stop().execute(task.next_try())["id"] != made["id"]
    box.finish()
    box.check_results()


def test_a_stop_with_a_name_that_is_cleared_after_its_work_gives_what_it_has_made(resting: AccountsJob) -> None:
    task = new_run("2026-01-01")

    def stop() -> dict[str, object]:
        operator = StateflowStopOperator(task_id="stop", job_root=str(resting.root), name="last")
        return operator.execute(task.next_try())

    made = stop()
    task.clear()
    assert stop() == made
    with fails(PermanentFailure, "config", name="last"):
        StateflowStopOperator(task_id="stop", job_root=str(resting.root), name="last").execute(
            new_run("2026-01-02").next_try()
        )
    resting.deliver(80)
    resting.finish()
    task.clear()
    with fails(PermanentFailure, "config", name="last"):
        stop()


@pytest.mark.parametrize(("origin", "kept"), [("upgrade", "upgrade"), ("manual", "stop"), ("stop", "stop")])
def test_a_stop_keeps_the_origin_that_the_form_gave(resting: AccountsJob, origin: str, kept: str) -> None:
    stop = StateflowStopOperator(task_id="stop", job_root=str(resting.root), origin=origin)
    made = stop.execute(new_run("2026-01-01").next_try())
    assert made["origin"] == kept and made["name"].startswith(kept)


@pytest.mark.parametrize("refused", ["withdrawn", "failed"])
def test_a_request_that_was_answered_with_no_is_asked_anew(resting: AccountsJob, refused: str) -> None:
    resting.deliver(70)
    assert resting.run("batch.begin:2").code == -9
    _answered(resting.root, "r1", refused)
    code = JobCode(Path(ACCOUNTS), (settings(resting),))
    ask = SavepointRequest(name="mine", request_id="r1", acknowledge_timeout=timedelta(seconds=0.1), code=code)
    made = savepoints.create_savepoint(str(resting.root), ask)
    assert made.taken_by == "head"
    assert savepoints.create_savepoint(str(resting.root), ask) == made
    assert set(root_files.savepoints(resting.root)) == {"mine"}


def _answered(root: Path, request: str, status: str) -> None:
    folder = root / "requests"
    folder.mkdir(exist_ok=True)
    (folder / request).write_bytes(
        root_files.sealed(
            {
                "id": request,
                "kind": "savepoint",
                "savepoint": "mine",
                "origin": "manual",
                "by": "ada",
                "reason": "",
                "drain": False,
                "at": "2026-01-01",
            }
        )
    )
    (folder / f"{request}.done").write_bytes(
        root_files.sealed(
            {
                "id": request,
                "status": status,
                "checkpoint_id": 0,
                "savepoint_id": "",
                "savepoint": "",
                "code": "data",
                "message": "no space",
                "by": "a run",
                "at": "2026-01-01",
            }
        )
    )


@pytest.mark.parametrize("name", ["savepoint.pinned", "savepoint.copied", "savepoint.complete"])
def test_a_try_that_was_killed_leaves_nothing_that_its_next_one_does_not_clean(resting: AccountsJob, name: str) -> None:
    same = ("savepoint", "create", "--name", "mine", "--by", "ada", "--request-id", "r1")
    assert resting.command(*same, failpoint=name).code == -9
    assert root_files.head(resting.root).doc["pinned"]
    assert resting.command(*same).code == 0
    assert root_files.head(resting.root).doc["pinned"] == []
    resting.check_clean()
    assert set(root_files.savepoints(resting.root)) == {"mine"}


def test_after_a_crash_it_needs_the_job_file(box: AccountsJob) -> None:
    box.deliver(50)
    assert box.run("commit.after:3").code == -9
    with fails(PermanentFailure, "config", checkpoint=root_files.head(box.root).checkpoint):
        savepoint(box).execute(new_run("2026-01-01").next_try())
    made = savepoint(box, job=ACCOUNTS, settings=settings(box)).execute(new_run("2026-01-01").next_try())
    assert made["checkpoint_id"] == root_files.head(box.root).checkpoint
    box.finish()
    box.check_results()


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"name": "../up"}, {"name": "../up"}),
        ({"origin": "whim"}, {"origin": "whim"}),
        ({"job": "/no.py"}, {"job": "/no.py"}),
        ({"job_root": "here"}, {"job_root": "here"}),
        ({"job_root": "/nowhere"}, {"storage": "file:///nowhere"}),
    ],
)
def test_wrong_arguments_are_named_and_not_tried_again(
    resting: AccountsJob, arguments: dict[str, Any], facts: dict[str, str]
) -> None:
    given = {"job_root": str(resting.root), **arguments}
    operator = StateflowSavepointOperator(task_id="savepoint", **given)
    with fails(PermanentFailure, "config", **facts):
        operator.execute(new_run("2026-01-01").next_try())
    assert root_files.savepoints(resting.root) == {}
    assert isinstance(operator.retry_policy, RetryByErrorCode)


def test_verify_reads_every_file(resting: AccountsJob) -> None:
    made = savepoint(resting, name="mine").execute(new_run("2026-01-01").next_try())

    def verify(name: str) -> dict[str, Any]:
        operator = StateflowVerifyOperator(task_id="verify", job_root=str(resting.root), savepoint=name)
        return operator.execute(new_run("2026-01-01").next_try())

    for name in ("mine", made["path"]):
        read = verify(name)
        assert (read["checkpoint_id"], read["bytes"]) == (made["checkpoint_id"], made["bytes"])
        assert read["files"] > 0
    assert verify("")["checkpoint_id"] == root_files.head(resting.root).checkpoint
    path = next((Path(made["path"].removeprefix("file://")) / "files").iterdir())
    path.unlink()
    with fails(PermanentFailure, "missing-file") as caught:
        verify("mine")
    assert path.name in str(caught.value.facts)


# -- retention ----------------------------------------------------------------------------------------------------


def retention(box: AccountsJob, **more: Any) -> dict[str, Any]:
    operator = StateflowRetentionOperator(task_id="collect", job_root=str(box.root), **more)
    return operator.execute(FakeRun().next_try())


def test_retention_deletes_periodic_ones_only_and_a_preview_none(resting: AccountsJob) -> None:
    periodic = [
        savepoint(resting, name=f"p{day}", origin="periodic").execute(new_run(f"2026-01-0{day}").next_try())["name"]
        for day in (1, 2, 3)
    ]
    savepoint(resting, name="mine").execute(new_run("2026-01-04").next_try())
    seen = retention(resting, savepoints="2", preview="True")
    assert (seen["savepoints_deleted"], seen["dry_run"]) == (["p1"], True)
    assert set(root_files.savepoints(resting.root)) == {*periodic, "mine"}
    done = retention(resting, savepoints="2", preview="False")
    assert (done["savepoints_deleted"], done["savepoints_kept"]) == (["p1"], ["p2", "p3", "mine"])
    assert set(root_files.savepoints(resting.root)) == {"p2", "p3", "mine"}
    # Everything is too old now; the last stays.
    last = retention(resting, savepoints_max_age=timedelta(microseconds=1))
    assert last["savepoints_deleted"] == ["p2"]
    assert set(root_files.savepoints(resting.root)) == {"p3", "mine"}
    noted = [r for r in root_files.history(resting.root) if r.get("kind") == "dispose"]
    assert {(r["facts"]["savepoint"], r["reason"]) for r in noted} == {("p1", "retention"), ("p2", "retention")}
    resting.check_clean()


def test_retention_logs_what_it_will_delete_before_it_does(resting: AccountsJob) -> None:
    for day in (1, 2):
        savepoint(resting, name=f"p{day}", origin="periodic").execute(new_run(f"2026-01-0{day}").next_try())
    there: list[set[str]] = []

    def watch(_: object, __: str, event: Any) -> Any:
        if "p1" in str(event).replace(str(resting.folder), ""):
            there.append(set(root_files.savepoints(resting.root)))
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[watch])
    try:
        retention(resting, savepoints="1")
    finally:
        structlog.configure(processors=before)
    assert there[0] == {"p1", "p2"}
    assert set(root_files.savepoints(resting.root)) == {"p2"}


@pytest.mark.parametrize("arguments", [{"savepoints": "0"}, {"savepoints": "some"}, {"savepoints_max_age": "long"}])
def test_a_wrong_rule_deletes_nothing(resting: AccountsJob, arguments: dict[str, Any]) -> None:
    savepoint(resting, name="p", origin="periodic").execute(new_run("2026-01-01").next_try())
    with fails(PermanentFailure, "config", **arguments):
        retention(resting, **arguments)
    assert set(root_files.savepoints(resting.root)) == {"p"}


def test_by_command(resting: AccountsJob) -> None:
    for day in (1, 2):
        savepoint(resting, name=f"p{day}", origin="periodic").execute(new_run(f"2026-01-0{day}").next_try())
    prune = ("savepoint", "prune", "--json", "--keep", "1")
    seen = json.loads(resting.command(*prune, "--max-age", "30d", "--dry-run").out)
    assert (seen["deleted"], seen["kept"]) == (["p1"], ["p2"])
    assert set(root_files.savepoints(resting.root)) == {"p1", "p2"}
    assert json.loads(resting.command(*prune).out) == {**seen, "dry_run": False}
    assert set(root_files.savepoints(resting.root)) == {"p2"}
    assert resting.command("savepoint", "prune", "--max-age", "soon").code == 2


def test_templates() -> None:
    with DAG("a_dag"):
        task = StateflowSavepointOperator(
            task_id="savepoint", job_root="{{ root }}", name="{{ name }}", reason="{{ why }}", origin="{{ o }}"
        )
    context: Any = {"root": "/jobs/flights", "name": "n", "why": "w", "o": "upgrade"}
    task.render_template_fields(context)
    assert (task.job_root, task.name, task.reason, task.origin) == ("/jobs/flights", "n", "w", "upgrade")


def test_take_back_of_nothing_is_nothing(resting: AccountsJob) -> None:
    assert savepoints.withdraw(str(resting.root), "never-asked") is False
    assert not (resting.root / "requests").exists()
