"""On Spark, with Delta tables: a job root in a bucket, a checkpoint behind several batches, a run that starts again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.running import s3_server
from tests.support import root_files
from tests.support.flights_job import FlightsJob
from tests.support.processes import spawn

pytestmark = [pytest.mark.spark, pytest.mark.slow]
KILLED = -9


def _box(folder: Path, **more: object) -> FlightsJob:
    scratch = {"spark__conf__spark.local.dir": folder / "spark"}
    return FlightsJob(folder / "job", scratch, job="small_flights", launcher=spawn, **more)  # type: ignore[arg-type]


@pytest.fixture
def flights(tmp_path: Path) -> Iterator[FlightsJob]:
    box = _box(tmp_path)
    yield box
    _end(box)


def _end(box: FlightsJob) -> None:
    box.end_all()
    for process in box.processes:
        process.wait_family()


@pytest.fixture
def in_a_bucket(tmp_path: Path) -> Iterator[FlightsJob]:
    with s3_server(tmp_path / "s3", "bucket") as variables:
        root = tmp_path / "s3" / "data" / "bucket" / "flights"
        box = _box(tmp_path, root_folder=root, address="s3://bucket/flights", variables=variables)
        yield box
        _end(box)


def test_a_job_root_in_a_bucket_survives_a_kill_and_keeps_credentials_to_itself(
    in_a_bucket: FlightsJob, tmp_path: Path
) -> None:
    in_a_bucket.deliver(5)
    assert in_a_bucket.run("commit.after:2:kill").code == KILLED
    in_a_bucket.deliver(7)
    in_a_bucket.finish()
    in_a_bucket.check_results()
    in_a_bucket.check_clean()
    # Spark's own location is on the driver's disk: a bucket needs no Hadoop client.
    assert not (in_a_bucket.root / "spark").exists()
    canary = in_a_bucket.variables["AWS_SECRET_ACCESS_KEY"].encode()
    told = [path for path in tmp_path.rglob("*") if path.is_file() and canary in path.read_bytes()]
    assert told == []


def test_a_checkpoint_behind_three_batches_is_exact_when_killed_between_and_at_it(flights: FlightsJob) -> None:
    third = {"checkpoints__interval_batches": 3}
    flights.deliver(5)
    assert flights.run("batch.end:4:kill", **third).code == KILLED
    assert root_files.head(flights.root).doc["ordinal"] == 3
    flights.marker.unlink()
    assert flights.run("commit.after:1:kill", **third).code == KILLED
    flights.deliver(8)
    flights.finish(**third)
    flights.check_results()
    flights.check_clean()


def test_a_run_that_fails_starts_again_in_the_same_session(flights: FlightsJob) -> None:
    flights.deliver(6)
    ended = flights.run("batch.reported:3:error", restart__strategy="fixed-delay", restart__fixed_delay__delay="10ms")
    assert ended.code == 0 and ended.result["restarts"] == 1, str(ended)
    flights.check_results()
    flights.check_clean()
