"""Makes an archive of the classes that a run on Spark loads, once, as ``.venv/spark.jsa``: tests start many JVMs, and
one that maps them from a file, parsed and verified, is there sooner.

A small job is run for it, and the JVM writes down what it has loaded (class data sharing of JDK 17 and later). A JVM
takes the archive only with the very JARs that it was made with, and goes on without it otherwise. When there is one of
this Java and this Spark the script returns at once and prints nothing.
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
    """What an archive depends on."""
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    return f"{told}pyspark {version('pyspark')}\n"


def make() -> str:
    """Makes it; returns an empty string, or what went wrong."""
    from tests.recovery.flights import FlightsBox
    from tests.recovery.process import spawn

    with tempfile.TemporaryDirectory(prefix="archive", dir=ARCHIVE.parent) as folder:
        new = Path(folder) / "spark.jsa"
        settings = {"spark__conf__spark.driver.extraJavaOptions":
                    f"-XX:ArchiveClassesAtExit={new} -Xlog:cds=off -Xlog:cds+dynamic=off"}  # fmt: skip
        box = FlightsBox(Path(folder) / "job", settings, job="small_flights", launcher=spawn)
        box.deliver(3)
        run = box.start()
        ended = run.wait(run.family)
        run.wait_family()
        if ended.code != 0 or not new.exists():
            return str(ended)
        new.rename(ARCHIVE)
    return ""


def main() -> int:
    asked = wanted()
    if ARCHIVE.exists() and STAMP.exists() and STAMP.read_text() == asked:
        return 0
    print("setup: making an archive of Spark's classes, by a small run", file=sys.stderr)
    STAMP.unlink(missing_ok=True)
    problem = make()
    if problem:
        print(f"{problem}\nsetup: there is no archive of Spark's classes", file=sys.stderr)
        return 1
    STAMP.write_text(asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
