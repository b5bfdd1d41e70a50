"""Starts with nothing to do, which do not start Spark, and everything that makes a start a normal one."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from stateflow.checkpoint.log.documents import PendingOutput
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import ManualClock, SystemClock
from stateflow.launch import RunRequest, RunResult, prepare, run_if_idle
from stateflow.runtime.idle import IdleStart, find_idle, unfinished_work
from stateflow.storage import open_storage
from tests.spark.jobs import continuous
from tests.spark.processes import ModuleJob
from tests.support.errors import reported_errors
from tests.support.processes import ROOT

pytestmark = pytest.mark.spark


def _deliver(home: Path, name: str, *numbers: int) -> Path:
    folder = home / "in"
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text("".join(json.dumps({"name": "a", "number": n}) + "\n" for n in numbers))
    return file


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleJob]:
    """A job on Spark that has read one file."""
    home = tmp_path_factory.mktemp("idle")
    with closing(ModuleJob(home, continuous, job__delay=3_600_000)) as job:
        _deliver(home, "0.json", 1, 2)
        job.finish()
        yield job


class Start:
    """A start of a copy of the job root."""

    def __init__(self, job: ModuleJob, root: Path) -> None:
        self.job, self.root = job, Path(shutil.copytree(job.root, root))

    def open(self) -> JobRoot:
        return JobRoot.open(open_storage(str(self.root)), SystemClock(), "test")

    def request(self, **settings: str) -> RunRequest:
        given = {**self.job.settings, "local_dir": self.job.local, **settings}
        layer = {name.replace("__", "."): str(value) for name, value in given.items()}
        return RunRequest(Path(self.job.job_file), str(self.root), (layer,))

    def result(self, **settings: str) -> RunResult | None:
        return run_if_idle(self.request(**settings))


@pytest.fixture
def start(finished: ModuleJob, tmp_path: Path) -> Start:
    start = Start(finished, tmp_path / "root")
    assert start.result() is not None
    return start


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow(reason="starts Spark in processes of their own")
def test_a_start_without_input_changes_nothing_and_reports_an_idle_run(finished: ModuleJob) -> None:
    before, head = _files(finished.root), finished.head
    ended = finished.finish()
    assert _files(finished.root) == before
    result = ended.result
    assert result["idle"] is True and result["stopped_because"] == "idle"
    assert result["checkpoint_id"] == result["start_checkpoint_id"] == head.checkpoint
    assert (result["batches"], result["rows_in"], result["rows_out"]) == (0, 0, {})
    assert result["offsets"] == {"rows": {"logOffset": 0}}


def test_a_file_that_was_not_read_needs_a_run(start: Start) -> None:
    file = _deliver(start.job.folder, "1.json", 3)
    assert start.result() is None
    file.unlink()
    assert start.result() is not None


@pytest.mark.parametrize(
    "settings",
    [{"parallelism": "3"}, {"job__bounded": "yes"}, {"job__more": "yes"}, {"job__home": "/nowhere"}, {"name": "other"}],
    ids=str,
)
def test_other_settings_than_those_of_the_checkpoint_need_a_run(start: Start, settings: dict[str, str]) -> None:
    assert start.result(**settings) is None


def test_timers_that_are_due_need_a_run(start: Start) -> None:
    prepared = prepare(start.request().job_file, str(start.root), start.request().layers).start
    now = SystemClock().now()
    for later, is_idle in ((timedelta(), True), (timedelta(hours=1) + timedelta(seconds=1), False)):
        clock = ManualClock(start=now + later)
        assert isinstance(find_idle(dataclasses.replace(prepared, clock=clock)), IdleStart) == is_idle


def test_whatever_a_log_entry_leaves_to_do_needs_a_run(start: Start) -> None:
    head = start.open().head()
    assert unfinished_work(head) == ""
    pending = PendingOutput(checkpoint_id=head.checkpoint_id, sink="out", committables=[])
    for change in ({"ended": False}, {"claimed_for": "restore"}, {"pending": [pending]}):
        assert unfinished_work(dataclasses.replace(head, entry=replace(head.entry, **change))), change


@pytest.fixture
def spark_submit(tmp_path: Path) -> Path:
    """A program that writes its arguments to ``arguments``, and exits with 7."""
    program = tmp_path / "spark-submit"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{tmp_path}/arguments"\nexit 7\n')
    program.chmod(0o755)
    return program


def _submit(start: Start, *arguments: str) -> subprocess.CompletedProcess[str]:
    (layer,) = start.request().layers
    assignments = [word for name, value in layer.items() for word in ("--set", f"{name}={value}")]
    options = ["--job-root", str(start.root), *assignments, *arguments]
    command = [sys.executable, "-m", "stateflow", "submit", start.job.job_file, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_spark_submit_starts_only_if_there_is_something_to_do(start: Start, spark_submit: Path, tmp_path: Path) -> None:
    result, given = tmp_path / "result.json", tmp_path / "arguments"
    words = ["--run-id", "me", "--result-file", str(result)]
    spark = ["--", str(spark_submit), "--master", "local[2]"]
    idle = _submit(start, *words, *spark)
    assert idle.returncode == 0 and not given.exists(), idle.stderr
    assert json.loads(result.read_text())["result"]["idle"] is True
    needed = _submit(start, *words, "--set", "run.skip_idle=no", *spark)
    assert needed.returncode == 7, needed.stderr
    program = str(ROOT / "stateflow" / "__main__.py")
    assert given.read_text().splitlines()[:5] == ["--master", "local[2]", program, "run", start.job.job_file]
    assert given.read_text().splitlines()[-6:] == [*words, "--set", "run.skip_idle=no"]


def test_a_job_file_that_cannot_be_checked_is_run(start: Start, spark_submit: Path) -> None:
    assert _submit(start, "--set", "parallelism=x", "--", str(spark_submit)).returncode == 7


def test_a_missing_spark_submit_is_an_error(start: Start) -> None:
    assert reported_errors(_submit(start, "--", "/nowhere/spark-submit").stderr)[0].code == "config"


@pytest.mark.slow(reason="starts Spark once more")
def test_input_after_idle_starts_is_read_once(finished: ModuleJob, tmp_path: Path) -> None:
    before = finished.rows("out")
    _deliver(finished.folder, "2.json", 4)
    assert finished.finish().result["idle"] is False
    assert finished.rows("out") == before + Counter([("a", 3)])
    assert finished.finish().result["idle"] is True
