"""Metrics and spans of real runs, as OpenTelemetry and a scraper see them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow.config.settings import TelemetrySettings
from stateflow.errors import ConfigError
from stateflow.observability.exporters import telemetry
from stateflow.observability.metrics import METRICS, Kind
from tests.servers.otlp import Collector, otlp_collector
from tests.servers.running import ROOT, free_port
from tests.support.errors import raises
from tests.support.job_fixture import SLICE, AccountsJob


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    made = AccountsJob(tmp_path / "job")
    yield made
    made.end_all()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with otlp_collector() as server:
        yield server


_SCRAPED = """
import sys, urllib.request
from pathlib import Path
from stateflow.launch import RunRequest, run_job

job, root, port, *assigned = sys.argv[1:]
seen = []

def look(result):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        seen.append(answer.read().decode())

settings = dict(each.split("=", 1) for each in assigned) | {"telemetry.prometheus_port": port}
run_job(RunRequest(Path(job), root, (settings,), "a test", on_batch=look))
print(seen[-1])
try:
    look(None)
except OSError:
    print("closed")
"""


def _scraped(box: AccountsJob, port: int, **settings: Any) -> subprocess.CompletedProcess[str]:
    given = {"job__folder": box.folder, "local_dir": box.local, "checkpoints__asynchronous": "no", **settings}
    assigned = [f"{name.replace('__', '.')}={value}" for name, value in given.items()]
    command = [sys.executable, "-c", _SCRAPED, box.job_file, box.job_root, str(port), *assigned]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_scraper_sees_figures_with_the_names_of_flink_while_a_run_lasts(box: AccountsJob) -> None:
    box.deliver(4 * SLICE)
    told = _scraped(box, free_port())
    assert told.returncode == 0, told.stderr
    figures = dict(re.findall(r'^([a-z_]+)\{job="accounts"[^}]*\} ([\d.e+]+)$', told.stdout, re.MULTILINE))
    names = set()
    for name, about in METRICS.items():
        names |= {found for found in figures if found.startswith(name)}
        assert about.kind is Kind.GAUGE or f"# TYPE {name}_total counter" in told.stdout or name not in told.stdout
    assert names == set(figures)
    assert float(figures["number_of_completed_checkpoints_total"]) == 4
    assert float(figures["num_records_in_total"]) == 4 * SLICE
    assert float(figures["last_checkpoint_size_bytes"]) > 0
    assert told.stdout.rstrip().endswith("closed")


def test_a_port_that_is_taken_is_told_and_no_job_fails_for_it(box: AccountsJob) -> None:
    box.deliver(SLICE)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = box.finish(telemetry__prometheus_port=port)
    [warning] = [line for line in ended.err.splitlines() if " WARNING " in line]
    assert "telemetry.prometheus_port" in warning and str(port) in warning


def test_a_run_without_such_settings_serves_nothing_and_needs_no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with telemetry(TelemetrySettings(), "job") as recorder:
        recorder.count("num_records_in", 3)
        recorder.gauge("last_checkpoint_size", 5)
    with (
        raises(ConfigError, package="opentelemetry.sdk.metrics") as told,
        telemetry(TelemetrySettings(prometheus_port=free_port()), "job"),
    ):
        pass
    assert "stateflow[telemetry]" in told.value.hint


def test_spans_and_metrics_go_to_a_collector(box: AccountsJob, collector: Collector) -> None:
    box.deliver(3 * SLICE)
    box.finish(telemetry__otlp_endpoint=collector.address, checkpoints__asynchronous="yes")
    spans, figures = collector.spans(), collector.text("/v1/metrics")
    for name in ("batch", "checkpoint", "upload", "restore"):
        assert name in [found for found, _ in spans]
    assert {facts["stateflow.job"] for name, facts in spans if name == "batch"} == {"accounts"}
    for name in ("number_of_completed_checkpoints", "last_checkpoint_size", "num_records_in", "num_records_out"):
        assert name in figures


def test_a_collector_that_does_not_answer_costs_a_run_nothing_but_a_moment(box: AccountsJob) -> None:
    box.deliver(2 * SLICE)
    ended = box.finish(telemetry__otlp_endpoint=f"http://127.0.0.1:{free_port()}")
    assert "Traceback" not in ended.err
    box.check_results()
