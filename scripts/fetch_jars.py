"""Downloads the JARs that Spark needs for Delta tables, or an HDFS for tests.

The JARs for Delta go to ``.venv/jars``, those of ``--package hdfs`` to ``.venv/hdfs``; ``--into`` changes the folder.
They are resolved from Maven Central by Spark's Ivy, so a mirror that is configured for Spark is used. A session takes
the paths of the Delta JARs, separated by commas, as ``spark.jars``. If the folder is complete, the script returns at
once and prints nothing.
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
# Starting a session resolves all packages; no job needs to run.
RESOLVE = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate().stop()"


def delta() -> str:
    """Returns the Maven coordinate of Delta for the installed Spark; it contains both minor versions."""
    spark_minor = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark_minor}_2.13:{version('delta-spark')}"


def hdfs() -> str:
    """Returns the Maven coordinate of HDFS in the version of Spark's Hadoop client."""
    (client,) = spark_jars().glob("hadoop-client-api-*.jar")
    return f"org.apache.hadoop:hadoop-client-minicluster:{client.stem.rpartition('-')[2]}"


PACKAGES = {"delta": (delta, "jars"), "hdfs": (hdfs, "hdfs")}
"""Functions that return the coordinate of a package, and its folder below ``.venv``."""


def spark_jars() -> Path:
    """Returns the folder of the JARs that are part of PySpark."""
    return Path(str(distribution("pyspark").locate_file("pyspark/jars")))


def is_complete(folder: Path, wanted: str) -> bool:
    """Returns whether the folder has every file of an earlier, complete download of the same version."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    if manifest.get("coordinate") != wanted:
        return False
    files = [(folder / name, size) for name, size in manifest["files"].items()]
    return all(path.is_file() and path.stat().st_size == size for path, size in files)


def resolve(wanted: str, ivy: Path) -> subprocess.CompletedProcess[str]:
    """Starts and stops a Spark session with the packages, which downloads the JARs to ``ivy/jars``."""
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
        # Without it, Spark takes .venv for its home if that has a folder of JARs.
        "SPARK_HOME": str(spark_jars().parent),
    }
    return subprocess.run(
        [sys.executable, "-c", RESOLVE], env=environment, cwd=ivy, capture_output=True, text=True, check=False
    )


def artifact(name: str) -> str:
    """Returns the artifact of a JAR's name: ``parquet-column`` for ``parquet-column-1.17.0.jar``."""
    return re.split(r"-\d", name, maxsplit=1)[0]


def missing_in_spark(jars: list[Path]) -> list[Path]:
    """Returns the JARs that are not part of Spark.

    Delta depends on older versions of Hadoop, Parquet and others than Spark has. Spark's versions take precedence, and
    each session copies every JAR that it is given, so the older ones would only cost time.
    """
    brought = {artifact(jar.name) for jar in spark_jars().glob("*.jar")}
    # Ivy puts the organisation and an underscore before the artifact.
    return [jar for jar in jars if artifact(jar.name.partition("_")[2]) not in brought]


def keep(jars: list[Path], wanted: str, folder: Path, scratch: Path) -> None:
    """Moves the JARs into the folder atomically, together with a manifest."""
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
    """Downloads the JARs into the folder; returns an empty string, or the error."""
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
    """Downloads a package unless its folder is complete; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", choices=PACKAGES, default="delta", help="package to download")
    parser.add_argument("--into", type=Path, help="target folder")
    given = parser.parse_args()
    name, own = PACKAGES[given.package]
    folder, wanted = (given.into or ROOT / ".venv" / own).absolute(), name()
    if is_complete(folder, wanted):
        return 0
    print(f"setup: downloading {wanted} and its dependencies from Maven Central", file=sys.stderr)
    problem = fetch(wanted, folder)
    if problem:
        print(f"{problem}\nsetup: could not download {wanted} from Maven Central", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
