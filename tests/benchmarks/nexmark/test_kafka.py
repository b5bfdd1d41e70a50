"""The generator sends Nexmark's events to a real topic."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kafka_server import kafka_broker
from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.kafka import records
from benchmarks.nexmark.rules import Stream

pytestmark = pytest.mark.slow(reason="runs a benchmark")
ROOT = Path(__file__).parents[3]


def test_the_command_stores_each_event_once(tmp_path: Path) -> None:
    with kafka_broker(tmp_path / "kafka") as broker:
        broker.create("events")
        arguments = ["--events", "2500", "--events-per-file", "1000", "--kafka", broker.address, "--topic", "events"]
        subprocess.run(
            [sys.executable, "-m", "benchmarks.nexmark.generate", *arguments],
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        found = sorted(broker.committed("events"))
    assert found == sorted(records(generate(Stream(), 0, 2_500)))
