"""A Python environment of its own for Flink, below a cache folder; the project's environment stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

VERSION = "2.3.0"
_DONE = "done"
_PARQUET = f"org.apache.flink:flink-sql-parquet:{VERSION}"
_RESOLVE = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate().stop()"


@dataclass(frozen=True)
class FlinkEnvironment:
    """Where Flink is.

    Attributes:
        jars: what a job that reads Parquet needs in addition to Flink.
        hadoop: Hadoop's client, which Flink's Parquet format expects on the class path; Spark's package brings it.
    """

    python: Path
    jars: tuple[Path, ...]
    hadoop: tuple[Path, ...]

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Flink's own JARs, which functions in Java are compiled with."""
        return tuple(sorted(self.python.parents[1].glob("lib/python*/site-packages/pyflink/lib/*.jar")))


def set_up() -> FlinkEnvironment:
    """Makes it, or finds it where an earlier run has made it. Raises CalledProcessError when packages cannot be had."""
    folder = _folder()
    python, jars, done = folder / "venv" / "bin" / "python", folder / "jars", folder / _DONE
    if not done.exists():
        print(f"setting Flink {VERSION} up in {folder}", file=sys.stderr)
        _run(sys.executable, "-m", "venv", "--clear", str(folder / "venv"))
        _run(str(python), "-m", "pip", "install", "--quiet", f"apache-flink=={VERSION}")
        _fetch(jars)
        done.touch()
    spark_jars = Path(str(distribution("pyspark").locate_file("pyspark/jars")))
    return FlinkEnvironment(
        python, tuple(sorted(jars.glob("*.jar"))), tuple(sorted(spark_jars.glob("hadoop-client-*.jar")))
    )


def is_set_up() -> bool:
    """Returns whether an earlier run has made it."""
    return (_folder() / _DONE).exists()


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stateflow-benchmarks" / f"flink-{VERSION}"


def _fetch(jars: Path) -> None:
    """From Maven Central by Ivy, the resolver inside Spark, so that a mirror configured for Spark works here too."""
    jars.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as ivy:
        submit = f"--master local[1] --conf spark.jars.packages={_PARQUET} --conf spark.jars.ivy={ivy} pyspark-shell"
        _run(sys.executable, "-c", _RESOLVE, PYSPARK_SUBMIT_ARGS=submit)
        for jar in (Path(ivy) / "jars").glob("*flink-sql-parquet-*.jar"):
            jar.rename(jars / jar.name)


def _run(*command: str, **environment: str) -> None:
    subprocess.run(command, check=True, env={**os.environ, **environment}, capture_output=True)
