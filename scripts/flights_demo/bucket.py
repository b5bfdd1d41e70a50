"""The demo in a bucket: job root, input files and tables in S3, a killed driver, and a restore, without Airflow.

The bucket is one of the S3 server of the tests, or the prefix that ``STATEFLOW_DEMO_BUCKET`` names, such as
``s3://my-bucket/demo``, with the credentials of the environment.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deltalake import DeltaTable

from flights_demo.airflow_home import free_port
from flights_demo.compare import Comparison, compare, expected_table, in_order
from flights_demo.crash import FAILPOINT, DemoCheckFailed
from flights_demo.deliveries import of_quarter
from flights_demo.expected import Row, expected_delays, expected_routes, read_flights
from flights_demo.flights import csv_file, prepare
from flights_demo.layout import REPOSITORY, Layout
from flights_demo.polling import poll
from flights_demo.screen import Screen
from flights_demo.upgrade import SAVEPOINT, deploy
from stateflow.storage import open_storage

_KILLED = -9
_EXPECTED = {"delays": expected_delays, "routes": expected_routes}


@dataclass
class BucketDemo:
    """The job whose job root, input and tables are in a bucket.

    Attributes:
        address: of the bucket, or of a prefix in it.
    """

    layout: Layout
    screen: Screen
    address: str
    _flights: list[Row] = field(default_factory=list)

    @property
    def job_root(self) -> str:
        """Address of the job root."""
        return f"{self.address}/jobs/flights"

    def play(self) -> None:
        """Plays the year. Raises DemoCheckFailed if a table has a wrong row."""
        with self.screen.step("Write a year of flights as Parquet files") as news:
            news("writing files")
            prepare(self.layout.staging)
            self._flights = read_flights(csv_file())
        self._run_quarter(1)
        self._run_quarter(2, killed=True)
        self._check_tables(2)
        with self.screen.step("A savepoint, and a wrong version of the job in quarter 3"):
            self._command("savepoint", "create", "--name", SAVEPOINT)
        deploy(self.layout, wrong=True)
        self._run_quarter(3)
        if all(each.equal for each in self._compare(3)):
            raise DemoCheckFailed("the wrong version of the job wrote correct rows")
        deploy(self.layout)
        with self.screen.step("Restore the savepoint: state, positions in the input, and both tables"):
            plan = str(self.layout.root / "plan.json")
            self._command("restore", self._job, "--plan", SAVEPOINT, "--out", plan, with_job=True)
            self._command("restore", self._job, "--execute", plan, with_job=True)
        self._check_tables(2)
        self._run_quarter(3, again=True)
        self._run_quarter(4)
        self._check_tables(4)

    @property
    def _job(self) -> str:
        return str(self.layout.dags / "jobs" / "flights.py")

    def _run_quarter(self, quarter: int, killed: bool = False, again: bool = False) -> None:
        title = f"Quarter {quarter} arrives" + (", and the driver gets SIGKILL in its third batch" if killed else "")
        with self.screen.step(title) as news:
            if not again:
                news("storing files")
                landing = open_storage(f"{self.address}/landing")
                for delivery in of_quarter(quarter):
                    landing.put_new(delivery.file_name, (self.layout.staging / delivery.file_name).read_bytes())
            news("the job runs")
            if killed:
                self._command("run", self._job, with_job=True, failpoint=FAILPOINT, code=_KILLED)
                self.screen.good("try 1: the driver was killed by SIGKILL after its tasks had reported")
            self._command("run", self._job, with_job=True)

    def _check_tables(self, quarter: int) -> None:
        with self.screen.step(f"Compare the tables, row for row, with a plain computation up to quarter {quarter}"):
            for result in self._compare(quarter):
                if not result.equal:
                    raise DemoCheckFailed(f"{result.name}: {result.difference}")
                self.screen.good(f"{result.name}: all {result.rows:,} rows are equal")

    def _compare(self, quarter: int) -> list[Comparison]:
        """Compares the tables, as delta-rs reads them from the bucket, with the rows that this process computes."""
        last = of_quarter(quarter)[-1].first_day.month
        flights = [flight for flight in self._flights if flight["time"].month <= last]
        return [
            compare(name, in_order(DeltaTable(f"{self.address}/tables/{name}").to_pyarrow_table(), name), wanted)
            for name, rows in _EXPECTED.items()
            for wanted in (expected_table(rows(flights), name),)
        ]

    def _command(self, *arguments: str, with_job: bool = False, failpoint: str = "", code: int = 0) -> None:
        """Runs a command of stateflow on the job root. Raises DemoCheckFailed unless it ends with an exit code."""
        settings = {
            "source.max_files_per_batch": "1",
            "local_dir": str(self.layout.root / "local"),
            "job.flights": f"{self.address}/landing",
            "job.tables": f"{self.address}/tables",
        }
        given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")] if with_job else []
        program = [sys.executable, "-m", "stateflow", *arguments, "--job-root", self.job_root, *given]
        log = self.layout.root / "commands.log"
        with log.open("ab") as file:
            environment = {**os.environ, "STATEFLOW_FAILPOINT": failpoint, "SPARK_LOCAL_IP": "127.0.0.1"}
            ended = subprocess.run(program, cwd=REPOSITORY, env=environment, stdout=file, stderr=file, check=False)
        if ended.returncode != code:
            raise DemoCheckFailed(f"stateflow {arguments[0]} ended with {ended.returncode}, not {code}; see {log}")


@contextlib.contextmanager
def open_bucket(layout: Layout) -> Iterator[str]:
    """Yields the address of the bucket, for which the environment has credentials."""
    given = os.environ.get("STATEFLOW_DEMO_BUCKET", "")
    if given:
        yield given.rstrip("/")
        return
    port, data = free_port(), layout.root / "s3"
    (data / "demo").mkdir(parents=True)
    with (layout.root / "s3.log").open("wb") as log:
        command = [sys.executable, "-m", "tests.servers.s3", str(data), str(port), "0"]
        server = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
    try:
        if not poll(lambda: _listens(port), 30):
            raise DemoCheckFailed(f"the S3 server did not start; see {layout.root / 's3.log'}")
        os.environ.update(_variables(port))
        yield "s3://demo/year"
    finally:
        server.kill()
        server.wait()


def _variables(port: int) -> Mapping[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
