"""Drivers, Python workers, executors and Spark itself killed, at random times and at named steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.recovery.random_kills import (
    DRIVER,
    JVM,
    WORKER,
    await_batches,
    batches_of,
    check_at_rest,
    check_ended,
    clustered_flights,
    kill_at_random,
    kill_executor_of,
)
from tests.scoreboard.cluster_kills import YarnKills
from tests.scoreboard.jobs import KILLED, is_on_azure, store
from tests.scoreboard.row import Round, Row
from tests.servers.kafka import kafka_cluster
from tests.servers.postgres import postgres_server
from tests.servers.yarn import yarn_server
from tests.support.flights_job import FlightsJob
from tests.support.processes import spawn
from tests.support.table_jobs import ContainerFlightsJob, ServedFlightsJob

_KILLS, _EXECUTORS, _FILES = 3, 3, 8
_IN_TASKS = ("task.restored", "task.processed", "task.snapshot", "task.uploaded", "task.sink-closed")
_IN_DRIVERS = (
    "start.seeded:1", "batch.reported:2", "commit.stored:2", "commit.manifest:2", "log.created:3", "commit.after:2",
    "publish.before:3", "publish.after:3", "batch.end:2",
)  # fmt: skip


@contextmanager
def _flights(round_: Round) -> Iterator[FlightsJob]:
    job = FlightsJob(round_.folder / "job", _settings(round_), job_name="small_flights", launcher=spawn)
    with _ended(job):
        yield job


def _settings(round_: Round) -> dict[str, object]:
    return {
        "spark__conf__spark.local.dir": round_.folder / "spark",
        "checkpoints__collect_every": 3,
        "checkpoints__asynchronous": ["no", "yes"][round_.seed % 2],
    }


@contextmanager
def _ended(job: FlightsJob) -> Iterator[None]:
    try:
        yield
    finally:
        job.end_all()
        for process in job.processes:
            process.wait_family()


def _kill_workers(flights: FlightsJob, round_: Round) -> int:
    flights.deliver(4)
    # At a named step the dead attempt has left something.
    step = _IN_TASKS[-1 - round_.seed % len(_IN_TASKS)]
    flights.reach(f"{step}:{round_.rng.randrange(1, 4)}", 0)
    check_at_rest(flights)
    kill_at_random(flights, [WORKER] * _KILLS, round_.rng)
    return 1 + _KILLS


@Row(2, "killed-drivers-spark", plays=(0, 2, 40), mutants=("no-seed",), within=2, on_spark=True)
def test_killed_drivers_lose_and_double_nothing(round_: Round) -> int:
    """SIGKILL of a driver on Spark at a random time.

    Delta tables and state are what plain dictionaries contain for all input; no file is left over.
    """
    with _flights(round_) as flights:
        kill_at_random(flights, [DRIVER] * _KILLS, round_.rng)
    return _KILLS


@Row(3, "killed-workers", plays=(0, 2, 80), mutants=("all-there-is",), within=3, on_spark=True)
def test_killed_python_workers_lose_and_double_nothing(round_: Round) -> int:
    """SIGKILL of a Python worker in a task, at named steps and at random times.

    As for killed-drivers-spark.
    """
    with _flights(round_) as flights:
        return _kill_workers(flights, round_)


@Row(3, "killed-workers-buckets", plays=(0, 4, 40), mutants=("all-there-is",), within=4, on_spark=True)
def test_killed_python_workers_lose_and_double_nothing_in_a_bucket(round_: Round) -> int:
    """SIGKILL of a Python worker in a task, at named steps and at random times. The job root and the Delta tables are
    on an S3 or an Azure server.

    As for killed-drivers-spark.
    """
    kind = ContainerFlightsJob if is_on_azure(round_) else FlightsJob
    with store(round_, _settings(round_)) as arguments:
        flights = kind(round_.folder / "job", job_name="small_flights", launcher=spawn, **arguments)
        with _ended(flights):
            return _kill_workers(flights, round_)


@Row(3, "killed-workers-servers", plays=(0, 2, 40), mutants=("all-staged",), within=3, on_spark=True)
def test_killed_python_workers_lose_and_double_nothing_in_servers(round_: Round) -> int:
    """SIGKILL of a Python worker in a task, at named steps and at random times. The tables are in PostgreSQL and Kafka.

    As for killed-drivers-spark, for consumers of committed records and in the tables of the server.
    """
    settings = _settings(round_)
    with kafka_cluster(round_.folder / "kafka", brokers=1) as cluster, postgres_server() as server:
        flights = ServedFlightsJob.create(round_.folder / "job", settings, cluster, server)
        with _ended(flights):
            return _kill_workers(flights, round_)


@Row(4, "killed-spark", plays=(0, 2, 40), mutants=("no-seed",), within=2, on_spark=True)
def test_a_killed_spark_loses_and_doubles_nothing(round_: Round) -> int:
    """SIGKILL of Spark's JVM with all its executors, at a random time.

    As for killed-drivers-spark.
    """
    with _flights(round_) as flights:
        kill_at_random(flights, [JVM] * _KILLS, round_.rng)
    return _KILLS


@Row(4, "killed-executors", plays=(0, 3, 40), mutants=("all-there-is",), within=3, on_spark=True)
def test_killed_executors_lose_and_double_nothing(round_: Round) -> int:
    """SIGKILL of executors of a standalone cluster, one at a named step of a task and others at random times, and of
    a worker; speculation on.

    As for killed-drivers-spark.
    """
    rng, marker = round_.rng, round_.folder / "reached"
    step = f"{_IN_TASKS[-1 - round_.seed % len(_IN_TASKS)]}:2:stop"
    with clustered_flights(
        round_.folder, {"STATEFLOW_FAILPOINT": step, "STATEFLOW_FAILPOINT_ONCE": str(marker)}
    ) as flights:
        flights.job.deliver(_FILES)
        run = flights.job.start()
        kill_executor_of(marker, run)
        killed = 1
        while killed < 1 + _EXECUTORS and run.poll() is None:
            await_batches(run, batches_of(run) + rng.randrange(1, 3))
            killed += flights.kill_executor(rng)
        if run.poll() is None:
            flights.replace_worker()
            killed += 1
        check_ended(run.wait(run.family))
        flights.end_well(_FILES + 2)
    return killed


@Row(4, "cluster-drivers-spark", plays=(0, 3, 15), mutants=("second-driver",), within=3, on_spark=True)
def test_kills_on_yarn_lose_and_double_nothing(round_: Round) -> int:
    """SIGKILL of the process that submits a driver to YARN and follows it, of the driver's container, or an executor.

    As for killed-drivers-spark; a successor follows the driver of its launch, and nothing is left in the cluster.
    """
    with yarn_server(round_.folder / "yarn") as yarn:
        return YarnKills(round_, yarn).play()


@Row(5, "named-steps-spark", plays=(0, 2, 40), mutants=("no-seed",), within=2, on_spark=True)
def test_a_kill_at_any_step_loses_and_doubles_nothing(round_: Round) -> int:
    """SIGKILL of a driver on Spark at named steps.

    As for killed-drivers-spark.
    """
    steps = round_.rng.sample(_IN_DRIVERS, _KILLS)
    with _flights(round_) as flights:
        flights.deliver(3)
        flights.finish()
        for number, step in enumerate(steps):
            flights.deliver(3 + 6 * (number + 1))
            flights.reach(step, KILLED)
        flights.finish()
        check_at_rest(flights)
    return _KILLS
