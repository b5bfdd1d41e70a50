"""The same on Spark: kills at failpoints and at random moments, of drivers and of Python workers; two drivers."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.recovery.random_kills import DRIVER, JVM, WORKER, candidates, check_at_rest, kill_at_random
from tests.support import root_files
from tests.support.flights_job import FlightsJob
from tests.support.processes import Running, spawn, wait_for

pytestmark = [pytest.mark.spark]


@pytest.fixture
def flights(tmp_path: Path) -> Iterator[FlightsJob]:
    scratch = {"spark__conf__spark.local.dir": tmp_path / "spark", "checkpoints__collect_every": 3}
    box = FlightsJob(tmp_path / "job", scratch, job="small_flights", launcher=spawn)
    yield box
    box.end_all()
    for process in box.processes:
        process.wait_family()


def test_kills_at_failpoints(flights: FlightsJob) -> None:
    flights.deliver(8)
    flights.reach("start.seeded:1", -9)
    flights.reach("batch.reported:2", -9)
    flights.reach("commit.after:2", -9)
    # The start publishes what is pending in both tables; the third is the first one's output of the next batch.
    flights.reach("publish.after:3", -9)
    # A worker dies, and Spark tries its task again: the run goes on.
    flights.reach("task.sink-closed:3", 0)
    check_at_rest(flights)


@pytest.mark.slow
def test_kills_while_files_are_stored_and_checkpoints_committed_beside_the_batches(flights: FlightsJob) -> None:
    flights.settings = {**flights.settings, "checkpoints__asynchronous": "yes"}
    flights.deliver(6)
    # A worker dies with files that it owed: another process stores them, and the run goes on.
    flights.reach("upload.before:3", 0)
    check_at_rest(flights)
    flights.deliver(12)
    # A run has two checkpoints at least, the first batch's and its last, however slowly they are committed.
    flights.reach("commit.stored:2", -9)
    flights.finish()
    check_at_rest(flights)


def test_a_run_whose_spark_is_gone_ends_whatever_its_restart_strategy(flights: FlightsJob) -> None:
    """A process has one Spark, so it would start again without end; whoever launched the run starts a new one."""
    without_end = {"restart__strategy": "exponential-delay", "restart__exponential_delay__initial_backoff": "1ms"}
    flights.deliver(4)
    run = flights.start("batch.reported:2:stop", **without_end)
    run.wait_stopped()
    (spark,) = candidates(run, JVM)
    os.kill(spark, signal.SIGKILL)
    run.resume()
    ended = run.wait()
    assert (ended.code, ended.error.code) == (5, "spark-gone"), str(ended)
    assert "Traceback" not in ended.err, ended.err
    assert [e.doc["kind"] for e in root_files.entries(flights.root)].count("claim") == 1


@pytest.mark.slow
def test_kills_at_random_moments(flights: FlightsJob) -> None:
    kill_at_random(flights, [DRIVER, WORKER, JVM], random.Random(2))


@pytest.mark.slow
def test_two_drivers(flights: FlightsJob) -> None:
    """Two are started at once; then one is stopped between COMMIT and publishing, while another goes through."""
    flights.deliver(6)
    chain = root_files.Chain(flights.root)
    first, second = flights.start(), flights.start()
    codes = sorted(_end(run, chain) for run in (first, second))
    assert codes in ([0, 0], [0, 3]), "\n".join(map(str, (first, second)))
    flights.check_results()
    flights.deliver(12)
    stopped = flights.start("commit.after:2:stop")
    stopped.wait_stopped(chain.look)
    other = flights.start()
    assert _end(other, chain) == 0, str(other)
    stopped.resume()
    assert _end(stopped, chain) == 3, str(stopped)
    chain.check()
    # Its tasks may have written for one more batch behind the other's start; the next start sweeps that.
    flights.deliver(13)
    flights.finish()
    check_at_rest(flights)


def test_a_run_in_a_batch_that_does_not_end_learns_that_it_is_fenced(flights: FlightsJob) -> None:
    """It is neither at its next batch nor at its next append: the look every five seconds interrupts Spark."""
    flights.deliver(6)
    first = flights.start("task.sink-closed:2:stop")
    wait_for(lambda: any(map(_is_stopped, first.workers())), lambda: f"a stopped worker of {first}")
    flights.finish()
    ended = first.wait()
    assert (ended.code, ended.error.code) == (3, "fenced"), str(ended)
    check_at_rest(flights)


def _is_stopped(worker: psutil.Process) -> bool:
    try:
        return worker.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _end(run: Running, chain: root_files.Chain) -> int:
    def look() -> None:
        chain.look()
        run.family()

    ended = run.wait(look)
    assert ended.code != 3 or ended.error.code == "fenced", str(ended)
    return ended.code
