"""The demo's claim about its kill holds whenever the demo looks, and fails when something of the batch was committed.

Over real runs without Spark, launched as the operator launches them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from flights_demo.crash import FAILPOINT, Kill, NotAsPromised, look_for_kill

from stateflow_airflow.launches.launch import Launch
from stateflow_airflow.launches.launcher import Command, Launcher
from tests.airflow.conftest import REPOSITORY
from tests.airflow.fakes import DEADLINE
from tests.support.job_fixture import JOBS, AccountsJob


class Stage:
    """A job root with one run that went well, and the launches of a second DAG run."""

    def __init__(self, folder: Path) -> None:
        self.box = AccountsJob(folder / "job")
        self.runs = folder / "runs"
        self.tries = 0
        self.box.deliver(20)
        self._launch("first", 1, "")
        self.box.deliver(80)

    def next_try(self, failpoint: str) -> Launch:
        """A try of the DAG run that is killed at a failpoint, or ends well."""
        self.tries += 1
        return self._launch("second", self.tries, failpoint)

    def look(self) -> Kill | None:
        return look_for_kill(self.runs, self.box.root)

    def _launch(self, run: str, number: int, failpoint: str) -> Launch:
        launcher = Launcher(self.runs / run)
        box = self.box
        argv = [sys.executable, "-m", "stateflow", "run", str(JOBS / "accounts.py"), "--job-root", str(box.root)]
        argv += ["--set", f"job.folder={box.folder}", "--set", f"local_dir={box.local}"]
        # Else a run of ten rows a batch may be killed before its first commit.
        argv += ["--set", "checkpoints.asynchronous=no"]
        argv += ["--run-id", f"flights/{run}/run/{number}"]
        once = "../failpoint-reached" if number == 1 else f"../failpoint-reached-{number}"
        environment = {"STATEFLOW_FAILPOINT": failpoint, "STATEFLOW_FAILPOINT_ONCE": once}
        with launcher.locked():
            command = Command(argv, {"PYTHONPATH": str(REPOSITORY), **(environment if failpoint else {})})
            launch = launcher.start(launcher.next_folder(), command)
        assert launcher.wait(launch, DEADLINE)
        assert launch.exit_code() == (-9 if failpoint else 0), launch.log_file.read_text()
        return launch


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_the_kill_is_seen_whether_or_not_the_next_try_has_begun(stage: Stage) -> None:
    assert stage.look() is None
    stage.next_try(FAILPOINT)
    found = stage.look()
    assert found is not None
    assert (found.exit_code, found.left_behind.files > 0) == (-9, True)
    # The next try has claimed the job. Once it works, it deletes the log entries of the try before.
    stage.next_try("claim.after")
    assert stage.look() == found
    stage.next_try("")
    stage.box.check_results()


@pytest.mark.parametrize(
    ("failpoint", "retried"), [("commit.after:3", False), ("commit.after:3", True), ("claim.after", False)]
)
def test_another_kill_than_the_promised_one_is_refused(stage: Stage, failpoint: str, retried: bool) -> None:
    stage.next_try(failpoint)
    if retried:
        stage.next_try("claim.after")
    with pytest.raises(NotAsPromised) as caught:
        stage.look()
    assert "committed" in caught.value.broken
