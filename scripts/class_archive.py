"""Creates a class data sharing archive of the classes that a run on Spark loads, as ``.venv/spark.jsa``.

Tests start many JVMs, and a JVM starts faster when it maps parsed and verified classes from a file. The script runs a
small job, and the JVM dumps the classes it has loaded (JDK 17 and later). A JVM uses the archive only with the JARs
that it was created from, and starts without it otherwise. If an archive of this Java and this Spark exists, the script
returns at once and prints nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

ARCHIVE = ROOT / ".venv" / "spark.jsa"
STAMP = ARCHIVE.with_suffix(".made")


def wanted() -> str:
    """Returns the versions that an archive depends on."""
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    reported = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    return f"{reported}pyspark {version('pyspark')}\n"


def create_archive() -> str:
    """Creates the archive; returns an empty string, or the error."""
    from tests.support.flights_job import FlightsJob
    from tests.support.processes import spawn

    with tempfile.TemporaryDirectory(prefix="archive", dir=ARCHIVE.parent) as folder:
        new = Path(folder) / "spark.jsa"
        settings = {
            "spark__conf__spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={new} "
            "-Xlog:cds=off -Xlog:cds+dynamic=off"
        }
        job = FlightsJob(Path(folder) / "job", settings, job_name="small_flights", launcher=spawn)
        job.deliver(3)
        run = job.start()
        ended = run.wait(run.family)
        run.wait_family()
        if ended.code != 0 or not new.exists():
            return str(ended)
        new.rename(ARCHIVE)
    return ""


def main() -> int:
    """Creates the archive unless it is up to date; returns the exit code."""
    versions = wanted()
    if ARCHIVE.exists() and STAMP.exists() and STAMP.read_text() == versions:
        return 0
    print("setup: creating an archive of Spark's classes with a small run", file=sys.stderr)
    STAMP.unlink(missing_ok=True)
    problem = create_archive()
    if problem:
        print(f"{problem}\nsetup: could not create the archive of Spark's classes", file=sys.stderr)
        return 1
    STAMP.write_text(versions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
