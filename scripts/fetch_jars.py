"""Downloads the JARs that Spark needs for Delta, Kafka, PostgreSQL and S3A; for tests HDFS, YARN and a Kafka broker.

The JARs for Delta go to ``.venv/jars``, those of ``--package hdfs`` to ``.venv/hdfs``, and so on; ``--into`` changes
the folder. They are resolved from Maven Central by Spark's Ivy, so a mirror that is configured for Spark is used. A
session takes the paths of the JARs for Delta or Kafka, separated by commas, as ``spark.jars``. If the folder is
complete, the script returns at once and prints nothing.

``jars.lock.json`` has the SHA-256 of each JAR. Other JARs are an error and not kept; ``--record`` writes the hashes
of a new version into the file instead.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import distribution, version
from pathlib import Path

OTHERS = ("com.yammer.metrics",)
"""Organisations of packages that have the name of another one in Spark: metrics-core."""
ROOT = Path(__file__).resolve().parent.parent
LOCK = Path(__file__).resolve().with_name("jars.lock.json")
MATRIX_LOCK = ROOT / "tests" / "matrix" / "jars.lock.json"
"""The hashes of JARs that only other versions of Spark need."""
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


def s3a() -> str:
    """Returns the Maven coordinate of Hadoop's S3 client in the version of Spark's Hadoop client."""
    return hdfs().replace("hadoop-client-minicluster", "hadoop-aws")


def kafka() -> str:
    """Returns the Maven coordinate of Spark's Kafka source and sink."""
    return kafka_of(version("pyspark"))


def kafka_of(release: str) -> str:
    """Returns the same for another release of Spark."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{release}"


def kafka_broker() -> str:
    """Returns the Maven coordinate of a Kafka broker, in the version of the client of Spark's Kafka source."""
    return "org.apache.kafka:kafka_2.13:3.9.2"


def jdbc() -> str:
    """Returns the Maven coordinate of the driver with which Spark reads tables of PostgreSQL."""
    return "org.postgresql:postgresql:42.7.14"


def yarn() -> str:
    """Returns the Maven coordinate of the cryptography with which a ResourceManager starts; HDFS' JAR has the rest."""
    return "org.bouncycastle:bcpkix-jdk18on:1.78.1"


PACKAGES = {
    "delta": (delta, "jars"),
    "hdfs": (hdfs, "hdfs"),
    "s3a": (s3a, "s3a"),
    "kafka": (kafka, "kafka"),
    "kafka-broker": (kafka_broker, "kafka-broker"),
    "jdbc": (jdbc, "jdbc"),
    "yarn": (yarn, "yarn"),
}
"""Functions that return the coordinate of a package, and its folder below ``.venv``."""


def of_combination(package: str, name: str) -> str:
    """Returns the Maven coordinate of a package for a combination of versions; empty if there is none."""
    # The image has this script only.
    from matrix import combinations

    from stateflow.config.spark_versions import version_of

    if package == "delta":
        return version_of(version("pyspark")).delta_package
    kafka = combinations()[name].kafka
    if package != "kafka" or kafka is None:
        return PACKAGES[package][0]()
    return kafka_of(kafka) if kafka else ""


def spark_jars() -> Path:
    """Returns the folder of the JARs that are part of PySpark."""
    return Path(str(distribution("pyspark").locate_file("pyspark/jars")))


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
    named = [(*jar.name.partition("_")[::2], jar) for jar in jars]
    return [jar for organisation, name, jar in named if organisation in OTHERS or artifact(name) not in brought]


def hashes(jars: Iterable[Path]) -> dict[str, str]:
    """Returns the SHA-256 of each JAR by its name."""
    return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in sorted(jars)}


def locked(lock: Path) -> dict[str, dict[str, str]]:
    """Returns the recorded hashes: by coordinate, the SHA-256 of each JAR by its name."""
    found: dict[str, dict[str, str]] = json.loads(lock.read_text())
    return found


def differences(found: Mapping[str, str], recorded: Mapping[str, str]) -> list[str]:
    """Returns the names of the JARs that are missing, were not recorded, or have other contents."""
    return sorted(name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name))


def record(wanted: str, found: Mapping[str, str], lock: Path) -> None:
    """Writes the hashes of a package into the lock file, in place of the hashes of its other versions.

    The lock file of the matrix has several versions of a package.
    """
    package = wanted if lock == MATRIX_LOCK else wanted.rpartition(":")[0]
    others = {
        name: jars for name, jars in locked(lock).items() if name != wanted and name.rpartition(":")[0] != package
    }
    lock.write_text(json.dumps({**others, wanted: dict(found)}, indent=1, sort_keys=True) + "\n")


def recorded(wanted: str) -> dict[str, str] | None:
    """Returns the recorded hashes of a package's JARs; None if that version has none."""
    others = locked(MATRIX_LOCK) if MATRIX_LOCK.exists() else {}
    return (others | locked(LOCK)).get(wanted)


def is_complete(folder: Path, wanted: Mapping[str, str] | None) -> bool:
    """Returns whether the folder has exactly the JARs with these hashes."""
    return wanted is not None and not differences(hashes(folder.glob("*.jar")), wanted)


def keep(jars: list[Path], folder: Path, scratch: Path) -> None:
    """Moves the JARs into the folder atomically."""
    new = scratch / "new"
    new.mkdir()
    for jar in jars:
        jar.rename(new / jar.name)
    new.chmod(0o755)
    new.rename(folder)


def refusal(jars: Iterable[Path], wanted: str) -> str:
    """Returns why downloaded JARs must not be used; an empty string if they are the recorded ones."""
    if (expected := recorded(wanted)) is None:
        return f"{LOCK.name} has no hashes of {wanted}: record them with 'make requirements'"
    different = differences(hashes(jars), expected)
    return f"the downloaded JARs are not the ones in {LOCK.name}: {', '.join(different)}" if different else ""


def fetch(wanted: str, folder: Path, *, new_in: Path | None = None) -> str:
    """Downloads the JARs into the folder; returns an empty string, or the error.

    Args:
        new_in: the lock file into which the JARs' hashes are written; None to verify them.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=folder.name, dir=folder.parent) as temporary:
        scratch = Path(temporary)
        for _ in range(ATTEMPTS):
            done = resolve(wanted, scratch)
            if done.returncode == 0:
                jars = missing_in_spark(sorted((scratch / "jars").glob("*.jar")))
                if new_in is not None:
                    record(wanted, hashes(jars), new_in)
                if problem := refusal(jars, wanted):
                    return problem
                keep(jars, folder, scratch)
                return ""
        return done.stderr[-2000:]


def main() -> int:
    """Downloads a package unless its folder is complete; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", choices=PACKAGES, default="delta", help="package to download")
    parser.add_argument("--into", type=Path, help="target folder")
    parser.add_argument("--record", action="store_true", help="write the hashes into the lock file")
    parser.add_argument("--combination", default="", help="name of a combination of versions, of its environment")
    given = parser.parse_args()
    name, own = PACKAGES[given.package]
    wanted = of_combination(given.package, given.combination) if given.combination else name()
    environment = ROOT / (f".venv-{given.combination}" if given.combination else ".venv")
    folder = (given.into or environment / own).absolute()
    if not wanted:
        print(f"setup: there is no {given.package} for Spark {version('pyspark')}", file=sys.stderr)
        return 1
    if is_complete(folder, recorded(wanted)):
        return 0
    print(f"setup: downloading {wanted} and its dependencies from Maven Central", file=sys.stderr)
    # JARs that are not the recorded ones are not used, even if there are no others.
    shutil.rmtree(folder, ignore_errors=True)
    lock = MATRIX_LOCK if given.combination else LOCK
    problem = fetch(wanted, folder, new_in=lock if given.record else None)
    if problem:
        print(f"{problem}\nsetup: could not get {wanted} from Maven Central", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
