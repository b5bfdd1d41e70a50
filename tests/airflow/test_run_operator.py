"""The run operator, over real processes: a fake spark-submit does what each test's script has."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset

from stateflow_airflow.failures import PermanentFailure, StateflowTaskFailed, TransientFailure
from stateflow_airflow.launches import processes
from stateflow_airflow.launches.launcher import Launcher
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.retry import RetryByErrorCode
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.failing import fails
from tests.airflow.fakes import DEADLINE, FakeRun, FakeSpark
from tests.airflow.jobs import run_task, use_submit
from tests.support.job_fixture import AccountsJob

RETURNED = {
    "checkpoint_id": 9,
    "offsets": {"flights": {"logOffset": 1}},
    "rows_in": 20,
    "rows_out": {"delays": 20},
    "batches": 2,
    "started_from": 5,
    "started_at": "checkpoint 5",
    "generation": 7,
    "stopped_because": "caught-up",
    "quarantined_count": 0,
    "quarantined": [],
}

Make = Callable[..., StateflowRunOperator]


@pytest.fixture
def operator(tmp_path: Path) -> Make:
    """Makes the operator of one try: every try of a task runs in a process of its own, so with its own object."""
    job = tmp_path / "job.py"
    job.write_text("")

    def make(**changes: Any) -> StateflowRunOperator:
        arguments = {
            "task_id": "run",
            "job": str(job),
            "job_root": str(tmp_path / "root"),
            "run_folder": str(tmp_path / "runs"),
        }
        return StateflowRunOperator(**{**arguments, **changes})

    return make


class InBackground:
    """A try that goes on while the test looks."""

    def __init__(self, operator: StateflowRunOperator, context: Any) -> None:
        self.returned: Any = None
        self.failure: StateflowTaskFailed | None = None
        self._thread = threading.Thread(target=self._run, args=(operator, context))
        self._thread.start()

    def _run(self, operator: StateflowRunOperator, context: Any) -> None:
        try:
            self.returned = operator.execute(context)
        except StateflowTaskFailed as failure:
            self.failure = failure

    def join(self) -> None:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


def test_returns_what_the_run_reports(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish")
    assert operator().execute(FakeRun().next_try()) == RETURNED


def test_command_line(spark: FakeSpark, operator: Make, tmp_path: Path) -> None:
    spark.script("finish")
    task = operator(
        settings={"source.max_files_per_batch": 1, "job.landing": "/data/in", "job.strict": True},
        spark=SparkSubmit(conf={"spark.ui.enabled": "false"}, env_vars={"COLOUR": "blue"}),
    )
    task.execute(FakeRun().next_try())
    launch = spark.launches()[0]
    folder = Path(launch["cwd"])
    assert folder.parent.parent == tmp_path / "runs/a_dag/run"
    assert launch["env"]["COLOUR"] == "blue"
    spec = importlib.util.find_spec("stateflow")
    assert spec is not None and spec.submodule_search_locations is not None
    assert launch["argv"] == [
        *("--master", "local[2,4]"),
        *("--conf", "spark.ui.enabled=false"),
        *("--name", "stateflow job"),
        str(Path(spec.submodule_search_locations[0]) / "__main__.py"),
        *("run", str(tmp_path / "job.py")),
        *("--job-root", str(tmp_path / "root")),
        *("--set", "source.max_files_per_batch=1"),
        *("--set", "job.landing=/data/in"),
        *("--set", "job.strict=true"),
        *("--result-file", str(folder / "result.json")),
        *("--run-id", "a_dag/manual__2026-01-01T00:00:00+00:00/run/1"),
        *("--log-format", "text"),
    ]


def test_a_new_job_root_begins_with_a_savepoint(spark: FakeSpark, operator: Make, tmp_path: Path) -> None:
    spark.script("finish")
    beginning = {"from_savepoint": "s3://kept/mine", "tables": "continue", "from_other_job": True, "drop": "b, a"}
    operator(**beginning).execute(FakeRun().next_try())
    argv = spark.launches()[0]["argv"]
    at = argv.index("--from-savepoint")
    assert argv[at : at + 7] == [
        *("--from-savepoint", "s3://kept/mine", "--tables", "continue"),
        *("--from-other-job", "--drop=a", "--drop=b"),
    ]
    with fails(PermanentFailure, "config", from_savepoint="kept/mine"):
        operator(from_savepoint="kept/mine").execute(FakeRun().next_try())


def test_each_mapped_task_has_its_own_folder(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish", "finish")
    for index in (0, 1):
        operator().execute(FakeRun(map_index=index).next_try())
    assert [Path(launch["cwd"]).parts[-2:] for launch in spark.launches()] == [("0", "launch-1"), ("1", "launch-1")]


@pytest.mark.parametrize(
    ("script", "kind", "code", "facts"),
    [
        ("fail config 2 no", PermanentFailure, "config", {"key": "a"}),
        ("fail fenced 3 no", PermanentFailure, "fenced", {"key": "a"}),
        ("fail corrupt-file 4 no", PermanentFailure, "corrupt-file", {"key": "a"}),
        ("fail storage 5 yes", TransientFailure, "storage", {"key": "a"}),
        # spark-submit may squash the driver's exit code: what the result file has counts.
        ("fail fenced 1 no", PermanentFailure, "fenced", {"key": "a"}),
        ("exit 1", TransientFailure, "no-result", {"exit_code": 1}),
        ("exit 2", PermanentFailure, "config", {"exit_code": 2}),
        ("exit 3", PermanentFailure, "fenced", {"exit_code": 3}),
        ("exit 4", PermanentFailure, "data", {"exit_code": 4}),
        ("exit 5", TransientFailure, "no-result", {"exit_code": 5}),
        ("die", TransientFailure, "signal", {"signal": 9}),
    ],
)
def test_failures(
    spark: FakeSpark, operator: Make, script: str, kind: type[StateflowTaskFailed], code: str, facts: dict[str, Any]
) -> None:
    spark.script(script)
    with fails(kind, code, **facts):
        operator().execute(FakeRun().next_try())


def test_the_facts_of_a_real_run_s_error_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_submit(tmp_path, monkeypatch)
    box = AccountsJob(tmp_path / "job", {"parallelism": 0})
    box.deliver(1)
    with fails(PermanentFailure, "config", name="parallelism", value="0"):
        run_task(box).execute(FakeRun().next_try())


def test_try_after_a_failure_starts_afresh(spark: FakeSpark, operator: Make) -> None:
    spark.script("die", "finish")
    run = FakeRun()
    with pytest.raises(TransientFailure):
        operator().execute(run.next_try())
    assert run.store.values == {}
    assert operator().execute(run.next_try()) == RETURNED
    assert len(spark.launches()) == 2


def test_try_after_a_failure_starts_afresh_when_airflow_still_remembers_it(spark: FakeSpark, operator: Make) -> None:
    spark.script("die", "finish")
    run = FakeRun()
    store, run.store.delete = run.store, lambda key: None  # type: ignore[method-assign]
    with pytest.raises(TransientFailure):
        operator().execute(run.next_try())
    assert store.values
    assert operator().execute(run.next_try()) == RETURNED


def test_clear_after_success_runs_again(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish", "finish")
    run = FakeRun()
    operator().execute(run.next_try())
    assert run.store.values == {}
    run.clear()
    operator().execute(run.next_try())
    assert len(spark.launches()) == 2


def test_clear_runs_again_although_the_run_before_finished_unseen(spark: FakeSpark, operator: Make) -> None:
    """The task was marked failed, and its worker died, just as its driver wrote that it has finished."""
    spark.script("finish", "fail fenced 3 no")
    run = FakeRun()
    run.store.delete, delete = lambda key: None, run.store.delete  # type: ignore[method-assign]
    operator().execute(run.next_try())
    run.store.delete = delete  # type: ignore[method-assign]
    run.clear()
    with pytest.raises(PermanentFailure):
        operator().execute(run.next_try())
    assert len(spark.launches()) == 2


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not-stored"])
def test_clear_replaces_a_run_that_a_dead_worker_left_alive(spark: FakeSpark, operator: Make, stored: bool) -> None:
    spark.script("finish-after-gate", "finish")
    run = FakeRun()
    dead = InBackground(operator(), run.next_try())
    spark.wait_until_ready()
    if not stored:
        run.store.values.clear()
    run.clear()
    assert operator().execute(run.next_try()) == RETURNED
    dead.join()
    first, second = spark.launches()
    assert processes.find(first["pid"]) is None
    assert Path(second["cwd"]).name == "launch-2"


def test_launches_of_a_version_that_did_not_note_the_turn_are_waited_for(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish-after-gate")
    run = FakeRun()
    dead = InBackground(operator(), run.next_try())
    spark.wait_until_ready()
    stored = run.store.values[StateflowRunOperator.external_id_key]
    del stored["turn"]
    run.clear()
    second = InBackground(operator(), run.next_try())
    spark.open_gate()
    second.join()
    dead.join()
    assert second.returned == RETURNED


def test_folders_of_old_dag_runs_go(spark: FakeSpark, operator: Make, tmp_path: Path) -> None:
    spark.script(*["finish"] * 5)
    # Neither by name nor by date: a backfill's run is new although its logical date is old.
    for run_id in ("c", "a", "d", "b"):
        operator(kept_runs=2).execute(FakeRun(run_id=run_id).next_try())
    operator(kept_runs=2).execute(FakeRun(run_id="b", task_id="other").next_try())
    kept = sorted(str(path.relative_to(tmp_path / "runs")) for path in (tmp_path / "runs").glob("*/*/*"))
    assert kept == ["a_dag/other/b", "a_dag/run/b", "a_dag/run/d"]


def test_success_that_airflow_did_not_hear_of_is_not_run_again(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish")
    run = FakeRun()
    run.store.delete, delete = lambda key: None, run.store.delete  # type: ignore[method-assign]
    operator().execute(run.next_try())
    run.store.delete = delete  # type: ignore[method-assign]
    assert operator().execute(run.next_try()) == RETURNED
    assert len(spark.launches()) == 1
    assert run.store.values == {}


def test_next_try_waits_for_the_run_of_a_dead_worker(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish-after-gate")
    run = FakeRun()
    # Its thread stands for the worker that is gone: what it returns is not looked at.
    dead = InBackground(operator(), run.next_try())
    spark.wait_until_ready()
    second = InBackground(operator(), run.next_try())
    spark.open_gate()
    second.join()
    dead.join()
    assert second.returned == RETURNED
    assert len(spark.launches()) == 1


def test_next_try_finds_the_run_although_airflow_has_not_stored_it(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish-after-gate")
    run = FakeRun()
    dead = InBackground(operator(), run.next_try())
    spark.wait_until_ready()
    run.store.values.clear()
    second = InBackground(operator(), run.next_try())
    spark.open_gate()
    second.join()
    dead.join()
    assert second.returned == RETURNED
    assert len(spark.launches()) == 1


def test_run_on_another_host_is_replaced(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish")
    run = FakeRun()
    gone = {"folder": "/elsewhere/launch-1", "pid": 1, "started": 1, "host": "elsewhere", "boot": "b"}
    run.store.set(StateflowRunOperator.external_id_key, gone)
    assert operator().execute(run.next_try()) == RETURNED


def test_works_where_airflow_stores_nothing(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish", "finish")
    context = FakeRun().next_try()
    assert operator(durable=False).execute(context) == RETURNED
    del context["task_state_store"]
    assert operator().execute(context) == RETURNED


def test_on_kill_ends_everything(spark: FakeSpark, operator: Make) -> None:
    spark.script("ignore-terminate")
    task = operator()
    running = InBackground(task, FakeRun().next_try())
    spark.wait_until_ready()
    pids = [spark.launches()[0]["pid"], spark.child()]
    task.on_kill()
    assert [processes.find(pid) for pid in pids] == [None, None]
    running.join()
    assert isinstance(running.failure, TransientFailure)


def test_kill_while_the_run_is_being_started_is_not_lost(
    spark: FakeSpark, operator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.script("ignore-terminate")
    task = operator()
    start = Launcher.start

    def killed_meanwhile(self: Launcher, *arguments: Any) -> Any:
        task.on_kill()
        return start(self, *arguments)

    monkeypatch.setattr(Launcher, "start", killed_meanwhile)
    running = InBackground(task, FakeRun().next_try())
    running.join()
    assert isinstance(running.failure, TransientFailure)


def test_asset_event_names_the_checkpoint_only_for_given_outlets(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish", "finish")
    asset = Asset(name="flights.checkpoint", uri="stateflow://flights/checkpoint")
    run = FakeRun()
    operator(outlets=[asset]).execute(run.next_try())
    assert {key: event.extra for key, event in run.events.items()} == {
        asset: {"checkpoint_id": 9, "offsets": RETURNED["offsets"]}
    }
    silent = FakeRun()
    operator().execute(silent.next_try())
    assert not silent.events


def test_missing_connection_is_named_and_never_becomes_yarn(
    spark: FakeSpark, operator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    with fails(PermanentFailure, "config", connection="spark_default", missing="connection") as caught:
        operator().execute(FakeRun().next_try())
    assert "airflow connections add spark_default" in caught.value.hint
    assert spark.launches() == []


@pytest.mark.parametrize(
    "changes", [{"job": "/nowhere/job.py"}, {"job": "job.py"}, {"job_root": "roots/flights"}, {"job_root": ""}]
)
def test_wrong_paths_are_named_before_anything_starts(
    spark: FakeSpark, operator: Make, changes: dict[str, str]
) -> None:
    with fails(PermanentFailure, "config", **changes):
        operator(**changes).execute(FakeRun().next_try())
    assert spark.launches() == []


def test_templates_reach_settings_configuration_and_environment(tmp_path: Path) -> None:
    with DAG("a_dag"):
        task = StateflowRunOperator(
            task_id="run",
            job="{{ folder }}/job.py",
            job_root="{{ folder }}/root",
            settings={"job.day": "{{ day }}"},
            spark=SparkSubmit(conf={"spark.x": "{{ day }}"}, env_vars={"DAY": "{{ day }}"}),
        )
    context: Any = {"folder": "/data", "day": "monday"}
    task.render_template_fields(context)
    rendered = (task.job, task.job_root, task.settings, task.conf, task.env_vars)
    assert rendered == ("/data/job.py", "/data/root", {"job.day": "monday"}, {"spark.x": "monday"}, {"DAY": "monday"})


def test_one_dag_runs_a_job_once_at_a_time_unless_the_author_chose(operator: Make) -> None:
    assert operator().max_active_tis_per_dag == 1
    assert operator(max_active_tis_per_dag=None).max_active_tis_per_dag is None


def test_retry_policy_is_ours_unless_the_author_chose(operator: Make) -> None:
    assert isinstance(operator().retry_policy, RetryByErrorCode)
    assert operator(retry_policy=None).retry_policy is None


@pytest.mark.parametrize(
    ("failpoint", "facts"),
    [
        ("batch.reprted:3", {"name": "batch.reprted"}),
        ("batch.reported:x", {"value": "batch.reported:x"}),
        ("batch.reported 3", {"value": "batch.reported 3"}),
    ],
)
def test_a_wrong_failpoint_is_refused_before_anything_is_launched(
    spark: FakeSpark, operator: Make, failpoint: str, facts: dict[str, str]
) -> None:
    made = operator(spark=SparkSubmit(env_vars={"STATEFLOW_FAILPOINT": failpoint}))
    with fails(PermanentFailure, "config", **facts) as caught:
        made.execute(FakeRun().next_try())
    assert spark.launches() == []
    assert "batch.reported" in caught.value.hint


def test_no_failpoint_is_no_wrong_one(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish")
    made = operator(spark=SparkSubmit(env_vars={"STATEFLOW_FAILPOINT": ""}))
    assert made.execute(FakeRun().next_try())["checkpoint_id"]
