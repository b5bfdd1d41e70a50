"""The run operator: a fake spark-submit does what each test's script has; and DAG runs over a real job."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset

from stateflow.config.sources import read_toml
from stateflow.launch import RunResult
from stateflow_airflow import processes
from stateflow_airflow.failures import PermanentFailure, StateflowTaskFailed, TransientFailure
from stateflow_airflow.launch import Launcher
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.spark import SparkSubmit
from stateflow_airflow.versions import HAS_RETRY_POLICIES
from tests.airflow.conftest import REPOSITORY
from tests.airflow.fakes import DEADLINE, FakeRun, FakeSpark, fails
from tests.airflow.jobs import new_run, run_task, use_submit
from tests.support.job_fixture import AccountsJob
from tests.support.json_outputs import check

_REPORT = json.loads((Path(__file__).parent / "data" / "report.json").read_text())
RETURNED = _REPORT["result"]
"""What a task returns of the report of the fake spark-submit."""

Make = Callable[..., StateflowRunOperator]


@pytest.fixture
def operator(tmp_path: Path) -> Make:
    """Makes the operator of one try: every try of a task runs in a process of its own, so with its own object."""
    job = tmp_path / "job.py"
    job.write_text("")

    def make(**changes: Any) -> StateflowRunOperator:
        paths = {"job": str(job), "job_root": str(tmp_path / "root"), "run_folder": str(tmp_path / "runs")}
        return StateflowRunOperator(**{"task_id": "run", **paths, **changes})

    return make


def test_a_task_returns_what_the_run_reports_and_an_outlet_gets_the_checkpoint(
    spark: FakeSpark, operator: Make
) -> None:
    spark.script("finish", "finish")
    asset = Asset(name="flights.checkpoint", uri="stateflow://flights/checkpoint")
    run = FakeRun()
    returned = operator(outlets=[asset]).execute(run.next_try())
    assert returned == RETURNED
    check(RunResult, returned)
    event = {"checkpoint_id": 9, "offsets": RETURNED["offsets"]}
    assert {key: event.extra for key, event in run.events.items()} == {asset: event}
    silent = FakeRun()
    operator().execute(silent.next_try())
    assert not silent.events


def test_the_command_line_has_spark_options_settings_and_the_result_file(
    spark: FakeSpark, operator: Make, tmp_path: Path
) -> None:
    spark.script("finish")
    submit = SparkSubmit(conf={"spark.ui.enabled": "false"}, env_vars={"COLOUR": "blue", "STATEFLOW_FAILPOINT": ""})
    settings = {"source.max_files_per_batch": 1, "job.landing": "/data/in", "job.strict": True}
    operator(settings=settings, spark=submit).execute(FakeRun().next_try())
    (launch,) = spark.launches()
    folder = Path(launch["cwd"])
    assert folder.parent.parent == tmp_path / "runs/a_dag/run"
    assert launch["env"]["COLOUR"] == "blue"
    assert launch["argv"] == [
        *("--master", "local[2,4]"),
        *("--name", "stateflow job"),
        *("--properties-file", str(folder / "spark.conf"), "--load-spark-defaults"),
        str(REPOSITORY / "stateflow" / "__main__.py"),
        *("run", str(tmp_path / "job.py")),
        *("--job-root", str(tmp_path / "root")),
        *("--config", str(folder / "settings.toml")),
        *("--result-file", str(folder / "result.json")),
        *("--run-id", "a_dag/manual__2026-01-01T00:00:00+00:00/run/1"),
        *("--log-format", "text"),
    ]
    given = {"source.max_files_per_batch": "1", "job.landing": "/data/in", "job.strict": "true"}
    assert read_toml(folder / "settings.toml") == given
    assert (folder / "spark.conf").read_text() == "spark.ui.enabled=false\n"


def test_an_existing_job_is_checked_before_spark_starts(spark: FakeSpark, operator: Make, tmp_path: Path) -> None:
    """Here the check finds no job, so that spark-submit replaces its process and gets the same arguments."""
    spark.script("finish", "finish")
    operator().execute(FakeRun().next_try())
    (tmp_path / "root").mkdir()
    operator().execute(FakeRun().next_try())
    without, checked = spark.launches()
    assert [word for word in checked["argv"] if "launch-" not in word] == [
        word for word in without["argv"] if "launch-" not in word
    ]
    log = (Path(checked["cwd"]) / "driver.log").read_text().splitlines()
    assert len(log) > 1 and log[-1] == "launch 1 says finish"


_PASSWORD = "the-password-of-a-bucket"


def test_secrets_are_not_among_the_arguments(spark: FakeSpark, operator: Make) -> None:
    """Which every user of the host can see."""
    spark.script("finish")
    submit = SparkSubmit(conf={"spark.hadoop.fs.s3a.secret.key": _PASSWORD}, options={"properties_file": os.devnull})
    operator(settings={"job.password": _PASSWORD}, spark=submit).execute(FakeRun().next_try())
    (launch,) = spark.launches()
    assert _PASSWORD not in str(launch["argv"]) and "--load-spark-defaults" not in launch["argv"]
    folder = Path(launch["cwd"])
    holders = {path for path in folder.iterdir() if _PASSWORD.encode() in path.read_bytes()}
    assert holders == {folder / "spark.conf", folder / "settings.toml"}
    assert {oct(path.stat().st_mode & 0o777) for path in holders} == {"0o600"}


def test_the_driver_gets_a_part_of_the_worker_s_environment(
    spark: FakeSpark, operator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.script("finish")
    for name in ("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_CONN_DB", "DB_PASSWORD", "VAULT_ADDR", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AIRFLOW__STATEFLOW__PASSED_ENVIRONMENT", "OTHER, VAULT_*")
    monkeypatch.setenv("STATEFLOW_ALLOWED_LOCATIONS", "/of/the/host")
    operator(locations=["s3://kept/savepoints"]).execute(FakeRun().next_try())
    environment = spark.launches()[0]["env"]
    assert {"VAULT_ADDR", "AWS_REGION", "PATH", "HOME"} <= set(environment)
    assert not {"AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_CONN_DB", "DB_PASSWORD"} & set(environment)
    assert environment["STATEFLOW_ALLOWED_LOCATIONS"].split() == ["s3://kept/savepoints", "/of/the/host"]


@pytest.mark.parametrize("location", ["", "/a b", " "])
def test_a_location_with_whitespace_is_refused(spark: FakeSpark, operator: Make, location: str) -> None:
    with fails(PermanentFailure, "config", location=location):
        operator(locations=[location]).execute(FakeRun().next_try())


BEGINNINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"tables": "refuse"}, []),
    ({"tables": "keep"}, ["--tables", "keep"]),
    ({"tables": "continue", "from_other_job": True, "drop": "b, a"}, ["continue", "--from-other-job", "--drop=b"]),
    (
        {"maps": "a=b, b=a", "sources": 's={"row": 1, "of": 2}\nt=latest\n'},
        ["--map=a=b", "--map=b=a", '--source=s={"row": 1, "of": 2}', "--source=t=latest"],
    ),
]


def test_a_new_job_root_begins_with_a_savepoint_or_tables_of_another_one(spark: FakeSpark, operator: Make) -> None:
    spark.script(*["finish"] * len(BEGINNINGS))
    for number, (given, words) in enumerate(BEGINNINGS):
        savepoint = {"from_savepoint": "s3://kept/mine"} if number > 1 else {}
        operator(**savepoint, **given).execute(FakeRun().next_try())
        argv = spark.launches()[-1]["argv"]
        more = ["--from-savepoint", "s3://kept/mine", "--claim-mode", "no-claim"] if savepoint else []
        assert {*words, *more} <= {*argv} and ("--tables" in argv) is (number > 0)


def test_each_mapped_task_has_its_own_folder(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish", "finish")
    for index in (0, 1):
        operator().execute(FakeRun(map_index=index).next_try())
    assert [Path(launch["cwd"]).parts[-2:] for launch in spark.launches()] == [("0", "launch-1"), ("1", "launch-1")]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("script", "kind", "code", "facts"),
    [
        ("fail config 2 no", PermanentFailure, "config", {"key": "a"}),
        ("fail storage 5 yes", TransientFailure, "storage", {"key": "a"}),
        # spark-submit may squash the driver's exit code: what the result file has counts.
        ("fail fenced 1 no", PermanentFailure, "fenced", {"key": "a"}),
        ("exit 1", TransientFailure, "no-result", {"exit_code": 1}),
        ("exit 3", PermanentFailure, "fenced", {"exit_code": 3}),
        ("die", TransientFailure, "signal", {"signal": 9}),
    ],
)
def test_a_failure_is_permanent_or_transient_by_the_result_file_or_else_the_exit_code(
    spark: FakeSpark, operator: Make, script: str, kind: type[StateflowTaskFailed], code: str, facts: dict[str, Any]
) -> None:
    spark.script(script)
    with fails(kind, code, **facts):
        operator().execute(FakeRun().next_try())


_STORES = pytest.mark.skipif(not HAS_RETRY_POLICIES, reason="Airflow 3.2 has no store for the state of a task")


@pytest.mark.matrix
@pytest.mark.parametrize("forgets", [True, pytest.param(False, marks=_STORES)], ids=["forgotten", "remembered"])
def test_a_try_after_a_failure_launches_a_new_run(spark: FakeSpark, operator: Make, forgets: bool) -> None:
    """Also when Airflow still remembers the launch that failed."""
    spark.script("die", "finish")
    run = FakeRun()
    run.store.forgets = forgets
    with pytest.raises(TransientFailure):
        operator().execute(run.next_try())
    assert bool(run.store) is not forgets
    assert operator().execute(run.next_try()) == RETURNED
    assert len(spark.launches()) == 2


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("forgets", "cleared", "launches"),
    # Not forgotten: the worker died, or its task was marked as failed, just as the driver wrote its result.
    [(True, True, 2), pytest.param(False, True, 2, marks=_STORES), pytest.param(False, False, 1, marks=_STORES)],
    ids=["cleared", "unseen-and-cleared", "unseen"],
)
def test_a_success_is_run_again_only_after_a_clear(
    spark: FakeSpark, operator: Make, forgets: bool, cleared: bool, launches: int
) -> None:
    spark.script("finish", "finish")
    run = FakeRun()
    run.store.forgets = forgets
    operator().execute(run.next_try())
    assert bool(run.store) is not forgets
    run.store.forgets = True
    if cleared:
        run.clear()
    assert operator().execute(run.next_try()) == RETURNED
    assert (len(spark.launches()), run.store) == (launches, {})


@pytest.mark.matrix
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not-stored"])
def test_a_clear_replaces_a_run_that_a_dead_worker_left_alive(
    spark: FakeSpark, operator: Make, background: ThreadPoolExecutor, stored: bool
) -> None:
    spark.script("finish-after-gate", "finish")
    run = FakeRun()
    dead = background.submit(operator().execute, run.next_try())
    spark.wait_until_ready()
    if not stored:
        run.store.clear()
    run.clear()
    assert operator().execute(run.next_try()) == RETURNED
    assert isinstance(dead.exception(DEADLINE), TransientFailure)
    first, second = spark.launches()
    assert processes.find(first["pid"]) is None
    assert Path(second["cwd"]).name == "launch-2"


@pytest.mark.parametrize("stored", ["by-airflow", "on-disk-only"])
def test_the_next_try_waits_for_the_run_of_a_dead_worker(
    spark: FakeSpark, operator: Make, background: ThreadPoolExecutor, stored: str
) -> None:
    spark.script("finish-after-gate")
    run = FakeRun()
    # A thread represents the worker that is gone.
    dead = background.submit(operator().execute, run.next_try())
    spark.wait_until_ready()
    if stored == "on-disk-only":
        run.store.clear()
    second = background.submit(operator().execute, run.next_try())
    spark.open_gate()
    assert second.result(DEADLINE) == dead.result(DEADLINE) == RETURNED
    assert len(spark.launches()) == 1


def test_a_run_on_another_host_is_replaced(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish")
    run = FakeRun()
    gone = {"folder": "/elsewhere/launch-1", "pid": 1, "started": 1, "host": "elsewhere", "boot": "b"}
    run.store.set(StateflowRunOperator.external_id_key, gone)
    assert operator().execute(run.next_try()) == RETURNED


def test_a_task_succeeds_without_airflow_s_task_state_store(spark: FakeSpark, operator: Make) -> None:
    spark.script("finish", "finish")
    context = FakeRun().next_try()
    assert operator(durable=False).execute(context) == RETURNED
    del context["task_state_store"]
    assert operator().execute(context) == RETURNED


def test_on_kill_ends_the_driver_and_its_children(
    spark: FakeSpark, operator: Make, background: ThreadPoolExecutor
) -> None:
    spark.script("ignore-terminate")
    task = operator()
    running = background.submit(task.execute, FakeRun().next_try())
    spark.wait_until_ready()
    pids = [spark.launches()[0]["pid"], spark.child()]
    task.on_kill()
    assert [processes.find(pid) for pid in pids] == [None, None]
    with pytest.raises(TransientFailure):
        running.result(DEADLINE)


def test_a_kill_while_the_run_is_being_started_is_not_lost(
    spark: FakeSpark, operator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.script("ignore-terminate")
    task = operator()
    start = Launcher.start

    def killed_meanwhile(self: Launcher, *arguments: Any) -> Any:
        task.on_kill()
        return start(self, *arguments)

    monkeypatch.setattr(Launcher, "start", killed_meanwhile)
    with pytest.raises(TransientFailure):
        task.execute(FakeRun().next_try())


WRONG_PATHS: list[dict[str, Any]] = [
    *({"job": path} for path in ("/nowhere/job.py", "job.py")),
    *({"job_root": path} for path in ("roots/flights", "")),
    {"from_savepoint": "kept/mine"},
]
NO_CONNECTION = {"connection": "other", "missing": "connection"}


def _failpoint(value: str) -> dict[str, Any]:
    return {"spark": SparkSubmit(env_vars={"STATEFLOW_FAILPOINT": value})}


@pytest.mark.parametrize(
    ("changes", "facts", "hint"),
    [
        *((path, path, "") for path in WRONG_PATHS),
        # Airflow would use YARN.
        ({"spark": SparkSubmit(conn_id="other")}, NO_CONNECTION, "airflow connections add other"),
        (_failpoint("batch.reprted:3"), {"name": "batch.reprted"}, "batch.reported"),
        (_failpoint("batch.reported:x"), {"value": "batch.reported:x"}, "batch.reported"),
        (_failpoint("batch.reported 3"), {"value": "batch.reported 3"}, "batch.reported"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_wrong_arguments_are_named_before_anything_is_launched(
    spark: FakeSpark, operator: Make, changes: dict[str, Any], facts: dict[str, str], hint: str
) -> None:
    with fails(PermanentFailure, "config", **facts) as caught:
        operator(**changes).execute(FakeRun().next_try())
    assert hint in caught.value.hint
    assert spark.launches() == []


# -- DAG runs of a task over a real job, in any order of their dates --------------------------------------------------


class OneTaskDag:
    """A DAG with one task, over a job without Spark; only spark-submit is a stand-in, which starts the program."""

    def __init__(self, folder: Path) -> None:
        self.job = AccountsJob(folder / "job")
        self._runs: dict[str, FakeRun] = {}

    def run(self, date: str, failpoint: str = "") -> dict[str, Any]:
        """The next try of the DAG run of this date."""
        run = self._runs.setdefault(date, new_run(date))
        return run_task(self.job, {"STATEFLOW_FAILPOINT": failpoint}).execute(run.next_try())

    def clear(self, date: str) -> dict[str, Any]:
        self._runs[date].clear()
        return self.run(date)


@pytest.fixture
def dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneTaskDag:
    use_submit(tmp_path, monkeypatch)
    return OneTaskDag(tmp_path)


def test_the_failure_of_a_real_run_has_the_facts_of_its_error(dag: OneTaskDag) -> None:
    dag.job.settings = {"parallelism": 0}
    dag.job.deliver(1)
    with fails(PermanentFailure, "config", name="parallelism", value="0"):
        dag.run("2026-01-01")


@pytest.mark.slow(reason="launches seven runs in processes of their own")
def test_a_run_of_any_date_continues_from_the_head(dag: OneTaskDag) -> None:
    dag.job.deliver(30)
    first = dag.run("2026-03-02")
    assert (first["rows_in"], first["batches"], first["start_checkpoint_id"]) == (30, 3, None)

    # Caught up, then backfilled: nothing is new, whatever the date.
    for date in ("2026-03-03", "2026-01-01"):
        idle = dag.run(date)
        assert (idle["rows_in"], idle["batches"]) == (0, 0)
        assert idle["start_checkpoint_id"] == idle["checkpoint_id"] == first["checkpoint_id"]
        assert idle["offsets"] == first["offsets"]

    # What has come since belongs to whichever run is next: here an old one, that is cleared.
    dag.job.deliver(50)
    cleared = dag.clear("2026-03-02")
    assert (cleared["rows_in"], cleared["start_checkpoint_id"]) == (20, first["checkpoint_id"])
    assert dag.clear("2026-03-02")["rows_in"] == 0

    dag.job.deliver(60)
    newer = dag.run("2026-02-01")
    assert (newer["rows_in"], newer["start_checkpoint_id"]) == (10, cleared["checkpoint_id"])
    assert dag.job.requested() == [(n, n + 10) for n in range(0, 60, 10)]
    dag.job.check_results()


@pytest.mark.slow(reason="launches three runs in processes of their own")
def test_a_date_whose_run_was_killed_continues_after_a_retry_and_after_another_date(dag: OneTaskDag) -> None:
    dag.job.deliver(40)
    with pytest.raises(TransientFailure):
        dag.run("2026-01-01", "batch.reported:3")
    other = dag.run("2026-01-02")
    retried = dag.run("2026-01-01")
    # The third slice was read twice, and committed once.
    assert (other["rows_in"], retried["rows_in"]) == (20, 0)
    assert retried["start_checkpoint_id"] == other["checkpoint_id"]
    assert dag.job.requested() == [(0, 10), (10, 20), (20, 30), (20, 30), (30, 40)]
    dag.job.check_results()
