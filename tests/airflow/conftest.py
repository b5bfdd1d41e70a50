"""Airflow in a folder of its own, before anything imports it; nothing here needs its database."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_HOME = tempfile.mkdtemp(prefix="stateflow-airflow-")

os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "True"
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
# The demo's way of starting a whole Airflow serves the system tests, too.
sys.path.append(str(REPOSITORY / "scripts"))

from tests.airflow.fakes import FakeSpark  # noqa: E402 - Airflow reads its home when it is first imported


def pytest_sessionfinish() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpark]:
    """A spark-submit first on the PATH, and a connection for it; whatever it leaves running is ended."""
    fake = FakeSpark(tmp_path / "fake-spark")
    monkeypatch.setenv("PATH", f"{fake.bin}:{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2,4]"}')
    monkeypatch.setenv("FAKE_SPARK", str(fake.folder))
    yield fake
    fake.end_all()
