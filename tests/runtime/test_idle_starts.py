"""Starts whose settings or job root alone show that a run is needed do not load the job file to find that out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from stateflow.checkpoint.job_requests import post
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.cli.main import main
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError
from stateflow.launch import RunRequest, run_if_idle
from stateflow.storage import open_storage
from stateflow.submission.cluster import Cluster
from tests.runtime.timer_jobs import Alarm, Event, TimerJobs
from tests.servers.listening import QuietHandler, listening


def _claim(root: JobRoot) -> None:
    root.claim("killed")


def _request(root: JobRoot) -> None:
    at = "2026-01-01T00:00:00+00:00"
    post(
        root.storage, Request(id="ask", kind=RequestKind.CHECKPOINT, savepoint="", origin=Origin.MANUAL, by="a", at=at)
    )


@pytest.fixture
def is_loaded(tmp_path: Path) -> Callable[..., bool]:
    """Returns whether the check of a start loads the job file."""
    TimerJobs(tmp_path).events(Alarm(), [Event("a", 1)])
    job, marker = tmp_path / "job.py", tmp_path / "loaded"
    job.write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")

    def check(root: Path = tmp_path / "root", **settings: str) -> bool:
        layer = {name.replace("__", "."): value for name, value in settings.items()}
        assert run_if_idle(RunRequest(job, str(root), (layer,))) is None
        return marker.exists()

    return check


@pytest.mark.parametrize("settings", [{"run__until": "stopped"}, {"run__drain": "yes"}, {"run__skip_idle": "no"}])
def test_settings_that_need_a_run_are_enough(is_loaded: Callable[..., bool], settings: dict[str, str]) -> None:
    assert not is_loaded(**settings)


def test_a_new_job_root_is_enough(is_loaded: Callable[..., bool], tmp_path: Path) -> None:
    assert not is_loaded(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("change", [_claim, _request])
def test_work_that_the_job_root_shows_is_enough(
    is_loaded: Callable[..., bool], tmp_path: Path, change: Callable[[JobRoot], None]
) -> None:
    change(JobRoot.open(open_storage(str(tmp_path / "root")), SystemClock(), "test"))
    assert not is_loaded()


def test_otherwise_the_job_file_decides(is_loaded: Callable[..., bool]) -> None:
    assert is_loaded()


class _Denying(QuietHandler):
    """A NameNode that denies everything."""

    def do_GET(self) -> None:
        document = {"RemoteException": {"exception": "AccessControlException", "message": "Permission denied"}}
        data = json.dumps(document).encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_PUT = do_POST = do_GET


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_job_root_that_denies_access_ends_a_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Neither a JVM nor a driver is started for it."""
    result, cluster = tmp_path / "result.json", Mock(spec=Cluster)
    program = tmp_path / "spark-submit"
    program.touch(0o700)
    start = Mock(side_effect=AssertionError)
    monkeypatch.setattr(os, "execv", start)
    monkeypatch.setattr("stateflow.cli.run.open_cluster", lambda spark_submit, clock: cluster)
    with listening(_Denying) as address:
        root = f"{address.replace('http', 'webhdfs', 1)}/jobs/one"
        words = ["submit", "job.py", "--job-root", root, "--result-file", str(result)]
        ended = CliRunner().invoke(main, [*words, "--", str(program), "--master", "yarn", "--deploy-mode", mode])
    assert ended.exit_code == ConfigError.exit_code, ended.output
    document = json.loads(result.read_text())["error"]
    assert (document["code"], document["facts"]["status"]) == ("config", 403)
    assert not start.called and not cluster.method_calls
