"""The guide to observing a job: its commands and settings are used as they are written, on a job without Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks, code, read, rows, section
from tests.servers.lineage import lineage_server
from tests.servers.otlp import otlp_collector
from tests.servers.running import free_port
from tests.support.processes import wait_for

GUIDE = read("observe-a-job")
_JOB = """
import json
from pathlib import Path

import msgspec

from stateflow import KeyedProcessFunction, ValueStateDescriptor
from stateflow.api.source import Backlog
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import Pause, ScriptedSource

HERE = Path(__file__).parent


class Flight(msgspec.Struct):
    flight: str
    delay: int


class Delays(KeyedProcessFunction):
    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row, ctx):
        self.total.update((self.total.value() or 0) + row.delay)
        yield Flight(row.flight, self.total.value())


class Flights(ScriptedSource):
    def backlog(self, position):
        return Backlog(rows=6 - (json.loads(position)["row"] if position else 0))


def build(env):
    script = [Flight("abc"[n % 3], n) for n in range(6)]
    script.insert(3, Pause(HERE / "landed"))
    flights = env.from_source(Flights(Flight, script, HERE / "ledger.jsonl", slice_rows=3), uid="flights")
    delays = flights.key_by("flight").process(Delays(), output=Flight, uid="delays")
    delays.sink_to(FolderSink(HERE / "table"), uid="totals")
"""
"""The job of the guide's outputs: its second half waits until the file ``landed`` exists."""


@dataclass
class Shell:
    """A shell in the folder of the job, in which ``/data/jobs/flights`` is a folder of the test."""

    folder: Path

    def start(self, script: str, **variables: str) -> subprocess.Popen[str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        given = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **variables}
        command = ["bash", "-euo", "pipefail", "-c", script.replace("/data/jobs/flights", str(self.root))]
        pipe = subprocess.PIPE
        # In a group of its own: a shell does not pass a signal on to its command.
        return subprocess.Popen(
            command, cwd=self.folder, env=given, stdout=pipe, stderr=pipe, text=True, process_group=0
        )

    def type(self, script: str, **variables: str) -> str:
        process = self.start(script, **variables)
        printed, errors = process.communicate()
        assert process.returncode == 0, f"{script}\n{printed}{errors}"
        return printed

    @property
    def root(self) -> Path:
        return self.folder / "root"


RUN = "stateflow run flights.py --job-root /data/jobs/flights --set local_dir=local"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "flights.py").write_text(_JOB)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "stateflow"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W ignore -m stateflow "$@"\n')
    command.chmod(0o755)
    yield Shell(tmp_path)


def _block(start: str) -> str:
    (block,) = [block for block in blocks(GUIDE) if start in block]
    return block


def _labels(printed: str) -> list[str]:
    """The words with which the lines of an output begin, up to the first number or colon."""
    return [re.split(r"\d|:|\b[0-9a-f]{32}\b", " ".join(line.split()))[0].strip() for line in printed.splitlines()]


@pytest.mark.long(reason="types seven commands, each a process of its own")
def test_the_commands_of_the_guide_show_what_it_prints(shell: Shell) -> None:
    shell.type(RUN)
    for start in ("$ stateflow status", "$ stateflow checkpoints show"):
        command, shown = _block(start).removeprefix("$ ").split("\n", 1)
        # The id of the first checkpoint of this job.
        printed = shell.type(re.sub(r" 5$", " 2", command))
        # Its source has no files.
        assert _labels(printed) == _labels(shown.replace("logOffset", "row")), printed
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    is_healthy, *listed = shell.type(_block("| jq -e")).splitlines()
    assert is_healthy == "true" and [line.split("\t")[::3] for line in listed] == [["2", "true"]]


@pytest.mark.slow(reason="starts three servers, each a process of its own")
def test_the_servers_of_the_guide_show_the_job_to_those_who_may_see_it(shell: Shell) -> None:
    shell.type(RUN)
    local, found, remote = (_block(word) for word in ("pip install", "--roots", "--token-file"))
    found = found.replace("s3://bucket/jobs", str(shell.folder)).replace(" --port 8481", "")
    for script in (local.splitlines()[-1], found, remote):
        asks_for_token = script is remote
        process = shell.start(f"{script.rstrip()} --port 0")
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1].replace("0.0.0.0", "127.0.0.1")
            token = (shell.folder / "pages-token").read_text().strip() if asks_for_token else ""
            (job,) = _await_jobs(address, token)
            assert (job["job"], job["checkpoint_id"]) == ("flights", 2)
            if asks_for_token:
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    _jobs(address, "")
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()


def _await_jobs(address: str, token: str) -> list[dict[str, Any]]:
    # A folder is searched after the server has begun to answer.
    wait_for(lambda: bool(_jobs(address, token)), lambda: "the job root")
    return _jobs(address, token)


def _jobs(address: str, token: str) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(f"{address}/api/v1/jobs", headers=headers)) as answer:
        found: list[dict[str, Any]] = json.load(answer)["jobs"]
    return found


@pytest.mark.long(reason="waits for a run in a process of its own")
def test_a_run_with_the_settings_of_the_guide_reports_metrics_spans_and_lineage(shell: Shell) -> None:
    served, sent = (tomllib.loads(block)["telemetry"] for block in blocks(GUIDE, "toml"))
    (curl,) = re.findall(r"`(curl [^`]+)`", section(GUIDE, "Metrics"))
    assert f":{served['prometheus_port']}/" in curl
    port, figures = free_port(), dict[str, float]()
    curl = curl.replace(str(served["prometheus_port"]), str(port))

    def has_completed() -> bool:
        figures.update(_scrape(shell, curl))
        return figures.get("number_of_completed_checkpoints_total", 0) > 0

    with otlp_collector() as collector, lineage_server() as lineage:
        settings = {"prometheus_port": port, **dict.fromkeys(sent, collector.address)}
        assert settings.keys() == served.keys() | sent.keys()
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        (shell.folder / "flights.toml").write_text(f"[telemetry]\n{lines}")
        exports = re.sub(r"http://\S+", lineage.address, _block("export OPENLINEAGE_URL"))
        run = shell.start(f"{exports}{RUN} --config flights.toml --set run.until=stopped")
        try:
            wait_for(has_completed, lambda: f"a checkpoint of {figures}")
            shell.type("stateflow stop --job-root /data/jobs/flights")
            _, errors = run.communicate()
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 0, errors
    assert figures["num_records_in_total"] == 3
    described = {name.replace(".", "_") for row in rows(section(GUIDE, "Metrics")) for name in code(row[0])}
    own = {name for name in figures if not name.startswith(("process_", "python_", "target_"))}
    assert [name for name in own if not any(name.startswith(each) for each in described)] == []
    named = {name for row in rows(section(GUIDE, "Spans")) for name in code(row[0])}
    assert {name for name, _ in collector.spans()} == named
    assert [event["eventType"] for event in lineage.events] == ["START", "COMPLETE"]
    assert {(event["job"]["namespace"], event["job"]["name"]) for event in lineage.events} == {("lakehouse", "flights")}


def _scrape(shell: Shell, curl: str) -> dict[str, float]:
    """The metrics by name; none before the run serves them."""
    text = shell.type(f"{curl} --silent || true")
    return {name: float(value) for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE)}
