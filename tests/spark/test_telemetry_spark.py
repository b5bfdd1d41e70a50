"""Spans of a run on Spark, whose tasks are other processes than the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.otlp import otlp_collector
from tests.support.flights_job import FlightsJob
from tests.support.processes import spawn

pytestmark = pytest.mark.spark


def test_tasks_send_their_spans_themselves(tmp_path: Path) -> None:
    with otlp_collector() as collector:
        job = FlightsJob(
            tmp_path / "job", {"telemetry__otlp_endpoint": collector.address}, job_name="small_flights", launcher=spawn
        )
        job.deliver(6)
        assert job.run().code == 0
        spans = collector.spans()
    of_tasks = [facts for name, facts in spans if name == "restore" and "stateflow.subtask" in facts]
    assert {(f["stateflow.operator"], f["stateflow.subtask"]) for f in of_tasks} >= {
        (operator, subtask) for operator in ("aircraft", "by-route") for subtask in (0, 1)
    }
    uploads = [facts for name, facts in spans if name == "upload"]
    assert uploads and all(facts["stateflow.file"].startswith("data/") for facts in uploads)
    assert len([name for name, _ in spans if name == "batch"]) == 6
