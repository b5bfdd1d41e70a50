"""On Spark, with Delta tables: kills at failpoints, two drivers, restarts, a bucket, savepoints and going back.

The scoreboard kills drivers, workers and Spark itself at random times.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psutil
import pytest

from tests.recovery.damaged_job import cached_files, unshare
from tests.recovery.random_kills import JVM, ClusteredFlights, await_batches, candidates, check_ended, clustered_flights
from tests.servers.running import s3_server
from tests.support import root_files
from tests.support.flights_job import FlightsJob, expected
from tests.support.job_fixture import KILLED, multiset
from tests.support.processes import ROOT, spawn, wait_for
from tests.support.restores import execute, plan

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each run starts Spark")]


@pytest.fixture
def flights(flights: FlightsJob) -> FlightsJob:
    flights.settings = {**flights.settings, "checkpoints__collect_every": 3, "requests__interval": "20ms"}
    return flights


def test_spark_tries_a_task_again_that_met_a_damaged_copy(flights: FlightsJob) -> None:
    flights.run_to(3)
    unshare(flights)
    for path in cached_files(flights):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    flights.run_to(6)
    flights.check()


@pytest.mark.matrix
def test_a_job_with_asynchronous_checkpoints_on_spark_recovers_from_kills(flights: FlightsJob) -> None:
    flights.settings = {**flights.settings, "checkpoints__asynchronous": "yes"}
    flights.deliver(6)
    # A worker dies with files that it owed: another process stores them, and the run continues.
    flights.reach("upload.before:3", 0)
    flights.check()
    flights.deliver(12)
    # A run has two checkpoints at least, the first batch's and its last, however slowly they are committed.
    flights.reach("commit.stored:2")
    flights.finish()
    flights.check()


def test_a_failed_run_restarts_in_the_same_spark_session(flights: FlightsJob) -> None:
    flights.deliver(6)
    ended = flights.run("batch.reported:3:error", restart__strategy="fixed-delay", restart__fixed_delay__delay="10ms")
    assert ended.check().result["restarts"] == 1, str(ended)
    flights.check()


def test_a_run_whose_spark_is_gone_ends_whatever_its_restart_strategy(flights: FlightsJob) -> None:
    """A process has one Spark, so it would start again without end; the caller of the run starts a new one."""
    without_end: dict[str, Any] = {
        "restart__strategy": "exponential-delay",
        "restart__exponential_delay__initial_backoff": "1ms",
    }
    flights.deliver(4)
    run = flights.start("batch.reported:2:stop", **without_end).wait_stopped()
    (spark,) = candidates(run, JVM)
    os.kill(spark, signal.SIGKILL)
    ended = run.resume().wait()
    ended.check_error(5, "spark-gone")
    assert "Traceback" not in ended.err, ended.err
    assert [e.doc["kind"] for e in root_files.entries(flights.root)].count("claim") == 1


def test_a_fenced_run_detects_the_newer_run_during_a_batch_that_does_not_end(flights: FlightsJob) -> None:
    """It is neither at its next batch nor at its next append: the look every five seconds interrupts Spark."""
    flights.deliver(6)
    first = flights.start("task.sink-closed:2:stop")
    wait_for(lambda: any(map(_is_stopped, first.workers())), lambda: f"a stopped worker of {first}")
    flights.finish()
    first.wait().check_error(3, "fenced")
    flights.check()


def _is_stopped(worker: psutil.Process) -> bool:
    try:
        return bool(worker.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def in_a_bucket(flights: FlightsJob, tmp_path: Path) -> Iterator[FlightsJob]:
    with s3_server(tmp_path / "s3", "bucket") as variables:
        objects = tmp_path / "s3" / "data" / "bucket"
        flights.root_folder, flights.tables_folder = objects / "flights", objects / "tables"
        flights.address, flights.variables = "s3://bucket/flights", variables
        flights.settings = {**flights.settings, "job__tables": "s3://bucket/tables"}
        yield flights


def test_a_job_root_and_tables_in_a_bucket_survive_a_kill_and_keep_credentials_to_themselves(
    in_a_bucket: FlightsJob, tmp_path: Path
) -> None:
    in_a_bucket.deliver(5)
    in_a_bucket.reach("commit.after:2")
    in_a_bucket.reach("publish.before:2")
    in_a_bucket.run_to(7)
    in_a_bucket.check()
    # Spark's own location is on the driver's disk: a bucket needs no Hadoop client.
    assert not (in_a_bucket.root / "spark").exists()
    canary = in_a_bucket.variables["AWS_SECRET_ACCESS_KEY"].encode()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and canary in path.read_bytes()] == []


# -- savepoints and going back -----------------------------------------------------------------------------------------


def _files(offset: dict[str, Any]) -> int:
    """How many files were read up to an offset."""
    return int(offset["logOffset"]) + 1


@pytest.mark.matrix
def test_a_savepoint_taken_during_a_run_on_spark_can_be_restored(flights: FlightsJob) -> None:
    """Taken while a run is stopped in a batch; then more files, the restore, killed at each table, and more files
    again, at another parallelism."""
    flights.deliver(4)
    made, _ = flights.asked_at("batch.reported:2", "savepoint", "create", "--name", "early", "--json")
    report = made.check().document
    files = _files(report["offsets"]["flights"])
    assert report["made_from"] == "run" and 2 <= files <= 4
    flights.run_to(8)
    flights.check_results()

    newest = flights.input / "0007.parquet"
    newest.rename(flights.folder / "aside")
    assert [source["available"] for source in plan(flights, "early")["sources"]] == [False]
    (flights.folder / "aside").rename(newest)
    planned = plan(flights, "early")
    assert [source["available"] for source in planned["sources"]] == [True]
    removed = {s["uid"]: s["rows_removed"] for s in planned["sinks"]}
    assert removed["legs"] == len(flights.rows("legs")) - len(expected(files).movements)
    assert removed["routes"] == len(expected(8).totals) - len(expected(files).totals)
    for failpoint in ("restore.intent:1", "rewind.table:2"):
        assert execute(flights, failpoint=failpoint).code == KILLED
    execute(flights).check()
    assert multiset(flights.rows("legs")) == multiset(expected(files).movements)
    assert multiset(flights.rows("routes")) == multiset(expected(files).totals)

    flights.run_to(9, parallelism=3)
    flights.check_results()
    flights.collect()
    root_files.check_no_orphans(flights.root)
    assert flights.savepoints.keys() == {"early"}


def test_a_forged_savepoint_reads_no_file_of_others(flights: FlightsJob, tmp_path: Path) -> None:
    """An entry of Spark's source log with another file, which the next run would read and publish."""
    flights.run_to(2)
    made = flights.create_savepoint("forged", "--into", str(tmp_path / "kept"))
    stored = Path(unquote(made["path"].removeprefix("file://"))) / "_savepoint"
    intact, _ = root_files.unsealed(stored.read_bytes())
    shutil.copy(flights.input / "0000.parquet", tmp_path / "secret.parquet")
    secret = (tmp_path / "secret.parquet").as_uri()
    settings = {**flights.settings, "job__flights": flights.input}
    for number, facts in ((1, {"file": secret}), (2, {"entry": "2"})):
        files = intact["manifest"]["spark"]["source_files"]
        line = json.dumps({"path": secret, "timestamp": 1, "batchId": number})
        forged = {"path": f"0/{number}", "content": root_files.encoded(f"v1\n{line}".encode())}
        kept = [file for file in files if file["path"] != forged["path"]]
        spark = {**intact["manifest"]["spark"], "source_files": [*kept, forged]}
        stored.write_bytes(root_files.sealed({**intact, "manifest": {**intact["manifest"], "spark": spark}}))
        new = FlightsJob(tmp_path / f"new{number}", settings, job_name=flights.job_name, launcher=spawn)
        ended = new.begin("run", new.job_file, "--from-savepoint", str(stored.parent), with_job=True).wait()
        ended.check_error(4, "corrupt-file", source="flights", **facts)
        assert not list(new.folder.rglob("*.parquet"))


# -- a standalone cluster that loses an executor; the scoreboard kills more executors and workers ---------------------


def _lose_an_executor(flights: ClusteredFlights, files: int) -> None:
    flights.job.deliver(files)
    run = flights.job.start()
    await_batches(run, 2)
    flights.kill_executor(random.Random(1))
    check_ended(run.wait(run.family))
    flights.end_well(files + 2)


@pytest.mark.matrix
@pytest.mark.slow(reason="starts a Spark cluster")
def test_a_job_with_its_root_on_s3_survives_the_loss_of_an_executor(tmp_path: Path) -> None:
    folder = tmp_path / "s3" / "data" / "bucket" / "job"
    with (
        s3_server(tmp_path / "s3", "bucket") as variables,
        # Executors get the credentials from the driver, never from their own environment.
        clustered_flights(tmp_path, root_folder=folder, address="s3://bucket/job", variables=variables) as flights,
    ):
        _lose_an_executor(flights, files=5)


@pytest.mark.slow(reason="starts a Spark cluster")
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
