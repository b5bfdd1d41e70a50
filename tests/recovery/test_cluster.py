"""A standalone cluster that loses an executor, with a job root on S3, and without packages of its own.

The scoreboard kills more executors and workers, at steps of tasks and at random times.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recovery.killed_clusters import ClusteredFlights, await_batches, check_ended, clustered_flights
from tests.servers.running import s3_server
from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="starts a Spark cluster")]


def _lose_an_executor(flights: ClusteredFlights, files: int) -> None:
    flights.job.deliver(files)
    run = flights.job.start()
    await_batches(run, 2)
    flights.kill_executor(random.Random(1))
    check_ended(run.wait(run.family))
    flights.end_well(files + 2)


def test_a_job_with_its_root_on_s3_survives_the_loss_of_an_executor(tmp_path: Path) -> None:
    folder = tmp_path / "s3" / "data" / "bucket" / "job"
    with (
        s3_server(tmp_path / "s3", "bucket") as variables,
        # Executors get the credentials from the driver, never from their own environment.
        clustered_flights(tmp_path, root_folder=folder, address="s3://bucket/job", variables=variables) as flights,
    ):
        _lose_an_executor(flights, files=5)


def test_executors_without_the_packages_run_in_a_packed_environment(tmp_path: Path) -> None:
    """As the guide says: their own Python has neither stateflow nor rocksdict."""
    bare = Path(sys.executable).resolve()
    for package in ("stateflow", "rocksdict"):
        looked = subprocess.run([bare, "-c", f"import {package}"], cwd="/", env={}, capture_output=True, check=False)
        assert b"ModuleNotFoundError" in looked.stderr
    archive = _packed(tmp_path, bare)
    nothing = {"PYTHONPATH": "", "PATH": "/usr/local/bin:/usr/bin:/bin", "VIRTUAL_ENV": ""}
    with clustered_flights(tmp_path, nothing) as flights:
        flights.job.settings = {
            **flights.job.settings,
            "spark__conf__spark.archives": f"{archive}#environment",
            "spark__conf__spark.pyspark.python": "./environment/bin/python",
        }
        _lose_an_executor(flights, files=4)
    unpacked = (tmp_path / "cluster").glob("worker-*/app-*/*/environment/bin/python")
    assert list(unpacked), "nothing was unpacked"


_NEEDED = set(
    "arro3-core click deltalake deprecated markdown-it-py mdurl msgspec numpy opentelemetry-api pandas pyarrow "
    "pygments python-dateutil pytz rich rocksdict typing-extensions tzdata wrapt xxhash".split()
)
"""What tasks import, and what that needs; pyspark is Spark's own part."""


def _packed(folder: Path, python: Path) -> Path:
    """An archive with all that tasks need."""
    home, archive = folder / "environment", folder / "environment.tar.gz"
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = [pin for line in lines if (pin := re.split(r" [;\\]", line)[0].strip()).partition("==")[0] in _NEEDED]
    assert len(pins) == len(_NEEDED), sorted(pins)
    subprocess.run([python, "-m", "venv", home], check=True)
    pip: list[str | Path] = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", *pins, "venv-pack2==0.9.2", "setuptools==80.9.0", "wheel"], check=True)
    # A build leaves files where it is made.
    source = folder / "source"
    for name in ("stateflow", "plugins"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", source], check=True)
    pack: list[str | Path] = [home / "bin" / "venv-pack", "-p", home, "-o", archive, "--compress-level", "1"]
    subprocess.run(pack, check=True, capture_output=True)
    return archive
