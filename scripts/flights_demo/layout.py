"""Where the demo's things are: everything it writes is below one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flights_demo.airflow_home import AirflowHome, Folders

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Layout:
    """The folders below `root`; dags/flights.py finds them through ``STATEFLOW_HOME``."""

    root: Path = REPOSITORY / ".demo"

    @property
    def dags(self) -> Path:
        """The DAGs as they are deployed, with the job that they run."""
        return self.root / "dags"

    @property
    def staging(self) -> Path:
        """Files that have not arrived yet."""
        return self.root / "staging"

    @property
    def landing(self) -> Path:
        """Files that have arrived."""
        return self.root / "landing"

    @property
    def job_root(self) -> Path:
        """The job's checkpoints."""
        return self.root / "jobs" / "flights"

    @property
    def tables(self) -> dict[str, Path]:
        """The job's output, by name."""
        return {name: self.root / "tables" / name for name in ("delays", "routes")}

    @property
    def exported(self) -> Path:
        """What Spark read from the tables, for the comparison."""
        return self.root / "exported"

    @property
    def runs(self) -> Path:
        """Logs, results and process records of every launch of the job."""
        return self.root / "runs"

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME."""
        return self.root / "airflow"

    def airflow_home(self) -> AirflowHome:
        """An Airflow that has the repository's own plugins, and its DAGs as they are deployed."""
        folders = Folders(home=self.airflow, dags=self.dags, plugins=REPOSITORY / "plugins", runs=self.runs)
        environment = {
            "STATEFLOW_HOME": str(self.root),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # A driver lives for seconds: the JVM's second compiler costs it more than it saves.
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2,4]"}',
        }
        return AirflowHome(folders, environment)
