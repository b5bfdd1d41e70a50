"""Fetches JARs, once: those that Spark needs for Delta tables into ``.venv/jars`` (or the folder given by ``--into``),
or with ``--package hdfs`` an HDFS for tests into ``.venv/hdfs``.

They come from Maven Central through Ivy, the resolver inside Spark, so a mirror configured for Spark works here too.
A session takes the paths of the first, separated by commas, as ``spark.jars``. When the folder already holds all of
them the script returns at once and prints nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import distribution, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = "manifest.json"
ATTEMPTS = 3
# A session that starts has resolved everything; a Python worker or a table would add nothing to that.
RESOLVE = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate().stop()"


def delta() -> str:
    """The Maven name of Delta for the installed Spark: it carries Spark's minor version and Delta's own."""
    spark_minor = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark_minor}_2.13:{version('delta-spark')}"


def hdfs() -> str:
    """The Maven name of an HDFS of the version whose client Spark brings."""
    (client,) = spark_jars().glob("hadoop-client-api-*.jar")
    return f"org.apache.hadoop:hadoop-client-minicluster:{client.stem.rpartition('-')[2]}"


PACKAGES = {"delta": (delta, "jars"), "hdfs": (hdfs, "hdfs")}
"""How each is named, and its folder below ``.venv``."""


def spark_jars() -> Path:
    """Where Spark's own are."""
    return Path(str(distribution("pyspark").locate_file("pyspark/jars")))


def is_complete(folder: Path, wanted: str) -> bool:
    """Whether the folder holds every file of an earlier, finished fetch of the same version."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    if manifest.get("coordinate") != wanted:
        return False
    files = [(folder / name, size) for name, size in manifest["files"].items()]
    return all(path.is_file() and path.stat().st_size == size for path, size in files)


def resolve(wanted: str, ivy: Path) -> subprocess.CompletedProcess[str]:
    """Starts and stops a Spark session that asks for the packages; the JARs are then in ``ivy/jars``."""
    settings = {
        "spark.jars.packages": wanted,
        "spark.jars.ivy": str(ivy),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    submit = ["--master", "local[1]"]
    for key, value in settings.items():
        submit += ["--conf", f"{key}={value}"]
    environment = os.environ | {
        "PYSPARK_SUBMIT_ARGS": shlex.join([*submit, "pyspark-shell"]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Else Spark looks for itself from where it is, and takes .venv for its home when that has a folder of JARs.
        "SPARK_HOME": str(spark_jars().parent),
    }
    return subprocess.run(
        [sys.executable, "-c", RESOLVE], env=environment, cwd=ivy, capture_output=True, text=True, check=False
    )


def artifact(name: str) -> str:
    """``parquet-column`` for ``parquet-column-1.17.0.jar``."""
    return re.split(r"-\d", name, maxsplit=1)[0]


def missing_in_spark(jars: list[Path]) -> list[Path]:
    """The JARs that Spark does not bring itself.

    Delta names Hadoop, Parquet and others in older versions than Spark has. Spark's own win when both are there, so the
    others would only cost: each session copies every JAR that it is given.
    """
    brought = {artifact(jar.name) for jar in spark_jars().glob("*.jar")}
    # Ivy puts the organisation and an underscore before the artifact.
    return [jar for jar in jars if artifact(jar.name.partition("_")[2]) not in brought]


def keep(jars: list[Path], wanted: str, folder: Path, scratch: Path) -> None:
    """Moves the JARs to where they stay; the folder appears with its manifest, whole."""
    new = scratch / "new"
    new.mkdir()
    for jar in jars:
        jar.rename(new / jar.name)
    files = {jar.name: jar.stat().st_size for jar in sorted(new.iterdir())}
    (new / MANIFEST).write_text(json.dumps({"coordinate": wanted, "files": files}, indent=1) + "\n")
    new.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def fetch(wanted: str, folder: Path) -> str:
    """Fills the folder; returns an empty string, or what went wrong."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=folder.name, dir=folder.parent) as temporary:
        scratch = Path(temporary)
        for _ in range(ATTEMPTS):
            done = resolve(wanted, scratch)
            if done.returncode == 0:
                keep(missing_in_spark(sorted((scratch / "jars").glob("*.jar"))), wanted, folder, scratch)
                return ""
        return done.stderr[-2000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", choices=PACKAGES, default="delta", help="what to fetch")
    parser.add_argument("--into", type=Path, help="the folder to fill")
    asked = parser.parse_args()
    name, own = PACKAGES[asked.package]
    folder, wanted = (asked.into or ROOT / ".venv" / own).absolute(), name()
    if is_complete(folder, wanted):
        return 0
    print(f"setup: fetching {wanted} and what it needs from Maven Central", file=sys.stderr)
    problem = fetch(wanted, folder)
    if problem:
        print(f"{problem}\nsetup: {wanted} could not be fetched from Maven Central", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
