"""What other folders test without Spark, once on it: windows, operator state, dead letters, sources, sinks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stateflow.testing.sinks import FolderSink
from tests.recovery.test_backends import check_collected, check_rated
from tests.runtime.jobs import letters
from tests.servers.kafka import Kafka, kafka_broker
from tests.servers.otlp import otlp_collector
from tests.servers.postgres import Postgres, postgres_server
from tests.spark.jobs import sinks
from tests.spark.processes import ModuleJob, observed_runs
from tests.support import file_tables, staged_tables
from tests.support.flights_job import FlightsJob
from tests.support.job_fixture import KILLED, AccountsJob
from tests.support.ledger_job import LedgerJob
from tests.support.processes import spawn
from tests.support.table_jobs import committed
from tests.windows.windows_job import WindowsJob

pytestmark = pytest.mark.spark
_ON_SPARK = {"job__spark": "yes", "parallelism": 2}
_slow = pytest.mark.slow(reason="a driver with Spark takes seconds; without Spark other folders test the same")


@pytest.mark.matrix
def test_bad_rows_of_an_operator_and_of_a_row_function_are_committed_as_dead_letters(tmp_path: Path) -> None:
    with closing(ModuleJob(tmp_path, letters, parallelism=2)) as job:
        job.finish()
        found = [(row["operator"], json.loads(row["row"])["number"]) for row in FolderSink(tmp_path / "letters").rows()]
        assert sorted(number for _, number in found) == letters.BAD
        assert {operator for operator, number in found if number % 11 == 10} == {"refuse_tens"}
        assert job.rows("out") == letters.expected()


@pytest.mark.matrix
@_slow
def test_operator_state_is_written_by_workers_and_redistributed(tmp_path: Path) -> None:
    settings = {"job__folder": tmp_path, "job__spark": "yes", "job__pad": 1500}
    job = AccountsJob(tmp_path, settings, job_name="checkpointed")
    job.deliver(40)
    observed_runs(job, {"parallelism": 2, "run__max_batches": 3}, {"parallelism": 3})
    check_collected(job)
    check_rated(job)
    assert job.requested()


@_slow
def test_windows_are_those_of_plain_python_after_a_kill_at_another_parallelism_and_drained(tmp_path: Path) -> None:
    job = WindowsJob(tmp_path / "job", _ON_SPARK, job_name="windows", launcher=spawn)
    try:
        job.deliver(60)
        job.finish()
        assert job.windows("hours") <= job.hours() and job.windows("sessions") <= job.sessions()
        before = job.windows("sessions")
        job.deliver(240)
        job.reach("commit.after:1", KILLED)
        # A worker; Spark repeats its task.
        job.reach("task.fired:1", 0)
        job.finish(run__drain="yes", parallelism=3)
        assert before and job.windows("hours") == job.hours() and job.windows("sessions") == job.sessions()
        assert job.windows("all-hours") == job.by_columns("all-hours") == job.all_hours()
    finally:
        job.end_all()


@pytest.mark.matrix
@_slow
def test_runs_over_a_source_in_python_read_each_row_once_also_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with closing(LedgerJob(tmp_path)) as job:
        job.send("a", 25)
        job.send("b", 4)
        # Of several batches, the killed run has committed the first; its tasks read the others for nothing.
        job.reach("batch.reported:2", source__max_rows_per_batch=10)
        job.send("b", 8)
        job.send("c", 5)
        job.finish(job__arrow="yes")
        job.check_rows()
        assert job.finish().result["idle"]


class SinksJob(ModuleJob):
    """The job of `tests/spark/jobs/sinks.py`, whose batches have one file each."""

    def __init__(self, folder: Path, kafka: Kafka, server: Postgres) -> None:
        self.kafka, self.server, self.lake = kafka, server, folder / "lake"
        super().__init__(
            folder, sinks, parallelism=2, source__max_files_per_batch=1,
            job__lake=self.lake, job__brokers=kafka.address, job__postgres=server.conninfo,
        )  # fmt: skip
        self.variables = server.variables
        self.totals: Counter[str] = Counter()
        self.emitted: Counter[tuple[str, int]] = Counter()
        staged_tables.create_catalog(self.lake)
        kafka.create("totals")
        (folder / "in").mkdir()

    def deliver(self, **numbers: int) -> None:
        lines = [json.dumps({"name": name, "number": number}) for name, number in numbers.items()]
        (self.folder / "in" / f"{self.emitted.total()}.json").write_text("\n".join(lines))
        self.totals.update(numbers)
        self.emitted.update((name, self.totals[name]) for name in numbers)

    def published(self) -> dict[str, Counter[tuple[str, int]]]:
        """The rows of each table, as its own client reads them."""
        tables = {
            "files": file_tables.rows(self.folder / "files"),
            "iceberg": staged_tables.iceberg_rows(staged_tables.catalog_in(self.lake).load_table("db.totals")),
            "kafka": [json.loads(message.value() or b"") for message in committed(self.kafka.address, "totals")],
            "postgres": self.server.rows("public.totals"),
        }
        return {kind: Counter((row["name"], row["number"]) for row in rows) for kind, rows in tables.items()}


@pytest.fixture
def to_each_sink(tmp_path: Path) -> Iterator[SinksJob]:
    with kafka_broker(tmp_path / "kafka") as kafka, postgres_server() as server:
        with closing(SinksJob(tmp_path / "job", kafka, server)) as job:
            yield job


@pytest.mark.matrix
@_slow
def test_sinks_of_each_kind_get_each_row_once_although_a_run_is_killed_between_two(to_each_sink: SinksJob) -> None:
    job = to_each_sink
    job.deliver(a=1, b=2, c=3)
    job.reach("publish.before:3")
    assert sorted(map(len, job.published().values())) == [0, 0, 3, 3]
    job.deliver(b=20, c=30, d=40)
    job.finish()
    upserted = Counter(job.totals.items())
    assert job.published() == {**dict.fromkeys(("files", "iceberg", "kafka"), job.emitted), "postgres": upserted}


@_slow
def test_tasks_send_their_spans_themselves(tmp_path: Path) -> None:
    with otlp_collector() as collector:
        settings = {"telemetry__otlp_endpoint": collector.address}
        job = FlightsJob(tmp_path / "job", settings, job_name="small_flights", launcher=spawn)
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
