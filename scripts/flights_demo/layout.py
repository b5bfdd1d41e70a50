"""Folders of the demo, all below one root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kafka_broker import CLIENT_JARS

from flights_demo.airflow_home import AirflowHome, Folders

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Layout:
    """The folders below `root`; dags/flights.py finds them through ``STATEFLOW_HOME``."""

    root: Path = REPOSITORY / ".demo"

    @property
    def dags(self) -> Path:
        """The deployed DAGs and job."""
        return self.root / "dags"

    @property
    def staging(self) -> Path:
        """Input files that are not delivered yet."""
        return self.root / "staging"

    @property
    def landing(self) -> Path:
        """Delivered input files."""
        return self.root / "landing"

    @property
    def job_root(self) -> Path:
        """The job root."""
        return self.root / "jobs" / "flights"

    @property
    def tables(self) -> dict[str, Path]:
        """The output tables, by name."""
        return {name: self.root / "tables" / name for name in ("delays", "routes", "aircraft")}

    @property
    def broker(self) -> Path:
        """Data, log and settings of the Kafka broker."""
        return self.root / "kafka"

    @property
    def exported(self) -> Path:
        """Parquet copies of the tables as Spark reads them."""
        return self.root / "exported"

    @property
    def runs(self) -> Path:
        """Logs, results and process records of every launch of the job."""
        return self.root / "runs"

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME."""
        return self.root / "airflow"

    def airflow_home(self, brokers: str = "") -> AirflowHome:
        """Returns an Airflow with the plugins of the repository and the deployed DAGs.

        Args:
            brokers: address of Kafka, for the job that reads it.
        """
        folders = Folders(home=self.airflow, dags=self.dags, plugins=REPOSITORY / "plugins", runs=self.runs)
        environment = {
            "STATEFLOW_HOME": str(self.root),
            "STATEFLOW_KAFKA_BROKERS": brokers,
            "STATEFLOW_KAFKA_JARS": ",".join(map(str, sorted(CLIENT_JARS.glob("*.jar")))),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # A driver runs for seconds: the JVM's second compiler would cost more time than it saves.
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2,4]"}',
        }
        return AirflowHome(folders, environment)
