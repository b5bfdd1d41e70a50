"""Savepoints and stops as tasks: of a job that runs and of one that does not, tried again, killed, drained."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from structlog.testing import capture_logs
from syrupy.assertion import SnapshotAssertion

from stateflow import operations
from stateflow.errors import DataError, Interrupted
from stateflow.launch import RunRequest, run_job
from stateflow.operations import job_savepoints as savepoints
from stateflow.operations.job_root import JobCode
from stateflow.operations.job_savepoints import SavepointRequest
from stateflow.requesters import airflow_user
from stateflow.testing.sinks import FolderSink
from stateflow_airflow.failures import PermanentFailure, RetryByErrorCode, TransientFailure
from stateflow_airflow.operators.base import request_id
from stateflow_airflow.operators.recovery import StateflowVerifyOperator
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator, StateflowStopOperator
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.fakes import FakeRun, fails
from tests.airflow.jobs import ACCOUNTS, new_run, settings, use_submit
from tests.support import root_files
from tests.support.cli_fixture import invoke
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for
from tests.support.screens import normalized

SAVEPOINT = Asset(name="accounts.savepoint", uri="stateflow://accounts/savepoint")


def savepoint(job: AccountsJob, /, **more: Any) -> StateflowSavepointOperator:
    return StateflowSavepointOperator(task_id="savepoint", job_root=str(job.root), outlets=[SAVEPOINT], **more)


def stop(job: AccountsJob, /, **more: Any) -> StateflowStopOperator:
    more = {"needs_approval": False, **more}
    return StateflowStopOperator(task_id="stop", job_root=str(job.root), outlets=[SAVEPOINT], **more)


@contextmanager
def during_a_run(job: AccountsJob, background: ThreadPoolExecutor, execute: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Executes a task while a run is stopped in its third batch; after the block, the run continues to its end."""
    job.deliver(100)
    job.settings = {**job.settings, "requests__interval": "20ms"}
    run = job.start("batch.begin:3:stop")
    run.wait_stopped()
    answer = background.submit(execute)

    def is_asked() -> bool:
        assert not answer.done(), answer.result()
        return (job.root / "requests").is_dir() and any((job.root / "requests").iterdir())

    wait_for(is_asked, lambda: "the request")
    yield answer
    run.resume()
    answer.exception(60)
    assert run.wait().code == 0


def test_a_savepoint_without_a_run_copies_the_newest_checkpoint_and_the_log_has_why(idle_job: AccountsJob) -> None:
    run = new_run("2026-01-01")
    run.user = "ada"
    with capture_logs() as logged:
        made: dict[str, Any] = savepoint(idle_job, name="before-upgrade", reason="version 2").execute(run.next_try())
    head = root_files.head(idle_job.root)
    assert (made["name"], made["checkpoint_id"], made["made_from"]) == ("before-upgrade", head.checkpoint, "head")
    assert made["offsets"] == {"events": {"row": 50}}
    stored = root_files.savepoints(idle_job.root)["before-upgrade"]
    assert (stored["by"], stored["reason"], stored["origin"]) == (airflow_user("ada"), "version 2", "manual")
    announced = {name: made[name] for name in ("name", "path", "checkpoint_id")}
    assert run.events[SAVEPOINT].extra == {"savepoint_id": made["id"], **announced}
    assert Path(made["path"].removeprefix("file://")).is_dir()
    (event,) = [str(event) for event in logged if "before-upgrade" in str(event)]
    assert savepoints.why_no_run(str(idle_job.root), SavepointRequest()) in event


def test_another_try_returns_the_same_savepoint_and_another_task_makes_its_own(idle_job: AccountsJob) -> None:
    run = new_run("2026-01-01")
    made: dict[str, Any] = savepoint(idle_job).execute(run.next_try())
    assert savepoint(idle_job).execute(run.next_try()) == made
    run.clear()
    assert savepoint(idle_job).execute(run.next_try()) == made
    assert made["name"].startswith("manual-20260101T000000Z-")
    others = [new_run("2026-01-02"), new_run("2026-01-01", map_index=1), new_run("2026-01-01", task_id="x")]
    ids = {savepoint(idle_job).execute(other.next_try())["id"] for other in others}
    assert len(ids | {made["id"]}) == 4 == len(root_files.savepoints(idle_job.root))


def test_a_savepoint_during_a_run_is_taken_at_the_next_barrier(
    job: AccountsJob, background: ThreadPoolExecutor
) -> None:
    task = new_run("2026-01-01")
    execute = partial(savepoint(job, name="during").execute, task.next_try())
    with during_a_run(job, background, execute) as answer:
        committed = root_files.head(job.root).position
    made = answer.result()
    assert made["made_from"] == "run"
    assert root_files.savepoints(job.root)["during"]["manifest"]["sources"][0]["offset"] > f'{{"row": {committed}}}'
    assert savepoint(job, name="during").execute(task.next_try()) == made
    job.check_results()
    job.check_clean()


def test_a_killed_task_withdraws_its_savepoint_request_and_its_next_try_makes_a_new_one(
    job: AccountsJob, background: ThreadPoolExecutor
) -> None:
    task, operator = new_run("2026-01-01"), savepoint(job, name="mine")
    context = task.next_try()
    with during_a_run(job, background, partial(operator.execute, context)) as answer:
        operator.on_kill()
        with fails(TransientFailure, "request-timeout", id=request_id(context)):
            answer.result(60)
    assert root_files.savepoints(job.root) == {}
    assert savepoint(job, name="mine").execute(task.next_try())["made_from"] == "head"
    job.check_clean()


def test_a_stop_ends_the_run_with_a_savepoint(job: AccountsJob, background: ThreadPoolExecutor) -> None:
    task, given = new_run("2026-01-01"), {"reason": "upgrade", "drain": True}
    with during_a_run(job, background, partial(stop(job, **given).execute, task.next_try())) as answer:
        pass
    made, head = answer.result(), root_files.head(job.root)
    assert (made["origin"], made["checkpoint_id"]) == ("stop", head.checkpoint) and head.position < 100
    assert root_files.savepoints(job.root)[made["name"]]["drained"] is True
    assert task.events[SAVEPOINT].extra["savepoint_id"] == made["id"]
    assert stop(job, **given).execute(task.next_try()) == made
    # A clear means: once more.
    task.clear()
    assert stop(job, **given).execute(task.next_try())["id"] != made["id"]
    job.finish()
    job.check_results()


def test_a_cleared_stop_with_a_name_returns_its_savepoint_unless_rows_have_followed(idle_job: AccountsJob) -> None:
    task = new_run("2026-01-01")
    made = stop(idle_job, name="last").execute(task.next_try())
    task.clear()
    assert stop(idle_job, name="last").execute(task.next_try()) == made
    with fails(PermanentFailure, "config", name="last"):
        stop(idle_job, name="last").execute(new_run("2026-01-02").next_try())
    idle_job.deliver(80)
    idle_job.finish()
    task.clear()
    with fails(PermanentFailure, "config", name="last"):
        stop(idle_job, name="last").execute(task.next_try())


def test_a_stop_keeps_the_origin_that_the_form_gave(idle_job: AccountsJob) -> None:
    for day, (origin, kept) in enumerate({"upgrade": "upgrade", "manual": "stop", "stop": "stop"}.items(), 1):
        made: dict[str, Any] = stop(idle_job, origin=origin).execute(new_run(f"2026-01-0{day}").next_try())
        assert made["origin"] == kept and made["name"].startswith(kept)


@pytest.mark.slow(reason="waits for three runs in processes of their own")
def test_a_savepoint_after_a_crash_needs_the_job_file(job: AccountsJob) -> None:
    job.deliver(50)
    assert job.run("commit.after:3").code == -9
    with fails(PermanentFailure, "config", checkpoint_id=root_files.head(job.root).checkpoint):
        savepoint(job).execute(new_run("2026-01-01").next_try())
    made = savepoint(job, job=ACCOUNTS, settings=settings(job)).execute(new_run("2026-01-01").next_try())
    assert made["checkpoint_id"] == root_files.head(job.root).checkpoint
    job.finish()
    job.check_results()


def test_wrong_arguments_are_named_and_not_tried_again(idle_job: AccountsJob) -> None:
    wrong = {"name": "../up", "origin": "whim", "job": "/no.py", "job_root": "here"}
    for name, value in wrong.items():
        operator = StateflowSavepointOperator(task_id="savepoint", **{"job_root": str(idle_job.root), name: value})
        with fails(PermanentFailure, "config", **{name: value}):
            operator.execute(new_run("2026-01-01").next_try())
    assert isinstance(operator.retry_policy, RetryByErrorCode)
    with fails(PermanentFailure, "config", storage="file:///nowhere"):
        StateflowSavepointOperator(task_id="savepoint", job_root="/nowhere").execute(new_run("2026-01-01").next_try())
    assert root_files.savepoints(idle_job.root) == {}


def test_verify_reads_every_file(idle_job: AccountsJob) -> None:
    made: dict[str, Any] = savepoint(idle_job, name="mine").execute(new_run("2026-01-01").next_try())

    def verify(name: str) -> dict[str, Any]:
        operator = StateflowVerifyOperator(task_id="verify", job_root=str(idle_job.root), savepoint=name)
        return operator.execute(new_run("2026-01-01").next_try())

    for name in ("mine", made["path"]):
        read = verify(name)
        assert (read["checkpoint_id"], read["size_bytes"]) == (made["checkpoint_id"], made["size_bytes"])
        assert read["files"] > 0
    assert verify("")["checkpoint_id"] == root_files.head(idle_job.root).checkpoint
    path = next((Path(made["path"].removeprefix("file://")) / "files").iterdir())
    path.unlink()
    with fails(PermanentFailure, "missing-file") as caught:
        verify("mine")
    assert path.name in str(caught.value.facts)


# -- the last run of a job: every event-time timer fires, also when no run exists that could do it --------------------

SESSIONS = """
import msgspec
from stateflow import KeyedProcessFunction, WatermarkStrategy
from stateflow.api.source import CollectionSource
from stateflow.testing.sinks import FolderSink

class Event(msgspec.Struct):
    key: str
    at: int

class Growing(CollectionSource):
    bounded = False

class Ends(KeyedProcessFunction[Event, Event]):
    def process_element(self, row, ctx):
        ctx.timer_service().register_event_time_timer(row.at + 3_600_000)
    def on_timer(self, timestamp, ctx):
        yield Event(ctx.get_current_key(), timestamp)

def build(env):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    rows = env.from_source(Growing([Event("a", 1), Event("b", 2)], Event), uid="rows")
    ends = rows.assign_timestamps_and_watermarks(strategy).key_by("key").process(Ends(), output=Event, uid="ends")
    ends.sink_to(FolderSink(env.parameters["out"]), uid="out")
"""


class Sessions:
    """A job that has run, and waits for later rows; its timers fire only when it is drained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = {"job.out": str(folder / "out"), "local_dir": str(folder / "local")}
        (folder / "sessions.py").write_text(SESSIONS)
        run_job(RunRequest(folder / "sessions.py", str(folder / "root"), (self.settings,)))
        assert self.ends() == []

    def ends(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in FolderSink(self.folder / "out").rows())

    def stop(self, run: FakeRun, drain: bool | str, **more: Any) -> dict[str, Any]:
        job: dict[str, Any] = {"job": str(self.folder / "sessions.py"), "settings": self.settings}
        job |= {"job_root": str(self.folder / "root"), "needs_approval": False}
        operator = StateflowStopOperator(task_id="stop", drain=drain, **job, **more)
        return operator.execute(run.next_try())

    def status(self, *more: str) -> str:
        return invoke("status", "--job-root", str(self.folder / "root"), *more).output


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path)


def test_a_drain_without_a_run_fires_the_timers_in_the_task(sessions: Sessions, golden: SnapshotAssertion) -> None:
    run = new_run("2026-01-01")
    # As a template renders it.
    made = sessions.stop(run, "True", name="last")
    assert made["made_from"] == "run"
    assert sessions.ends() == [("a", 3_600_001), ("b", 3_600_002)]
    assert root_files.savepoints(sessions.folder / "root")["last"]["drained"] is True
    assert sessions.stop(run, "True", name="last")["id"] == made["id"]
    assert json.loads(sessions.status("--json"))["drained"]
    # The table has milliseconds without a unit.
    assert re.sub(r"(?<=<time>  )\d+", "<ms>", normalized(sessions.status())) == golden


def test_a_drain_that_failed_in_its_own_run_is_repeated_although_that_run_is_the_newest_one(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = JobCode(sessions.folder / "sessions.py", (sessions.settings,))
    root = str(sessions.folder / "root")
    approved = operations.describe(root).generation
    request = SavepointRequest("last", request_id="r", code=code, drain=True, generation=approved)
    with monkeypatch.context() as patch:
        patch.setenv("STATEFLOW_FAILPOINT", "batch.begin:1:error")
        with pytest.raises(DataError):
            operations.stop(root, request, savepoint=True, may_run=True)
    assert operations.describe(root).generation > approved and sessions.ends() == []
    made = operations.stop(root, request, savepoint=True, may_run=True)
    assert made is not None and made.made_from == "run" and len(sessions.ends()) == 2


def test_a_drain_takes_the_spark_of_the_connection(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    use_submit(sessions.folder, monkeypatch)
    spark = SparkSubmit(conf={"spark.ui.enabled": "false"}, env_vars={"ONE": "1"})
    seen: dict[str, str] = {}
    monkeypatch.setenv("AIRFLOW_CONN_DB", "x")

    def look(*_: object, **__: object) -> None:
        seen.update(os.environ)
        words = shlex.split(seen["PYSPARK_SUBMIT_ARGS"])
        seen["conf"] = Path(words[words.index("--properties-file") + 1]).read_text()
        raise Interrupted("enough was seen")

    monkeypatch.setattr(operations, "stop", look)
    before = dict(os.environ)
    with fails(TransientFailure, "interrupted"):
        sessions.stop(new_run("2026-01-01"), True, spark=spark)
    assert dict(os.environ) == before
    words = shlex.split(seen["PYSPARK_SUBMIT_ARGS"])
    assert words[words.index("--master") + 1] == "local[2,4]"
    assert seen["conf"] == "spark.ui.enabled=false\n" and words[-1] == "pyspark-shell"
    assert seen["ONE"] == "1" and "AIRFLOW_CONN_DB" not in seen
