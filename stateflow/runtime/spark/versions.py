"""What this version runs on, and a clear word when it is something else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from stateflow.errors import EnvironmentUnsupported

PYTHON = ((3, 11), (3, 13))
SPARK = "4.2"
JAVA = (17, 21)


def check_python(version: tuple[int, int] | None = None) -> None:
    """Raises EnvironmentUnsupported unless this Python is one that is supported."""
    found = version or sys.version_info[:2]
    if not PYTHON[0] <= found <= PYTHON[1]:
        raise EnvironmentUnsupported("this Python is not supported", hint="use Python 3.11, 3.12 or 3.13",
                                     found=".".join(map(str, found)))  # fmt: skip


def check_spark(version: str) -> None:
    """Raises EnvironmentUnsupported unless this Spark is one that is supported."""
    if version != SPARK and not version.startswith(f"{SPARK}."):
        raise EnvironmentUnsupported(
            "this Spark is not supported", hint="install pyspark==4.2.0", found=version
        )


def check_java() -> str:
    """Which Java Spark would run on. Raises EnvironmentUnsupported when there is none, or not one that is supported."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise EnvironmentUnsupported("there is no Java", hint="install Java 17 (Debian: apt-get install "
                                     "openjdk-17-jre-headless), or set JAVA_HOME", java_home=home or "")  # fmt: skip
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    major = java_major(text)
    if major not in JAVA:
        raise EnvironmentUnsupported("this Java is not supported", hint="use Java 17 or 21; JAVA_HOME chooses it",
                                     found=major, java=java)  # fmt: skip
    return f"{major}, {java}"


def java_major(text: str) -> int:
    """The major version in what ``java -version`` prints; 0 when it cannot be told."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not match:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])
