"""The supported versions of Python, Spark and Java, and checks of the installed ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata

from stateflow.errors import EnvironmentUnsupported

PYTHON = ((3, 11), (3, 13))
SPARK = "4.2"
JAVA = (17, 21)


def check_python(version: tuple[int, int] | None = None) -> None:
    """Raises EnvironmentUnsupported for an unsupported version of Python."""
    found = version or sys.version_info[:2]
    if not PYTHON[0] <= found <= PYTHON[1]:
        raise EnvironmentUnsupported(
            "this version of Python is not supported",
            hint="use Python 3.11, 3.12 or 3.13",
            found=".".join(map(str, found)),
        )


def installed_spark() -> str:
    """Returns the version of PySpark. Raises EnvironmentUnsupported if it is not installed."""
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError as e:
        raise EnvironmentUnsupported(
            "PySpark is not installed", hint="pip install 'stateflow[spark]'", package="pyspark"
        ) from e


def check_spark(version: str) -> None:
    """Raises EnvironmentUnsupported for an unsupported version of Spark."""
    if version != SPARK and not version.startswith(f"{SPARK}."):
        raise EnvironmentUnsupported(
            "this version of Spark is not supported", hint="install pyspark==4.2.0", found=version
        )


def check_java() -> str:
    """Returns version and path of the Java that Spark would use.

    Raises:
        EnvironmentUnsupported: Java is not installed, or has an unsupported version.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise EnvironmentUnsupported(
            "Java was not found",
            hint="install Java 17 (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME",
            java_home=home or "",
        )
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    major = java_major(text)
    if major not in JAVA:
        raise EnvironmentUnsupported(
            "this version of Java is not supported",
            hint="use Java 17 or 21; JAVA_HOME chooses it",
            found=major,
            java=java,
        )
    return f"{major}, {java}"


def java_major(text: str) -> int:
    """Returns the major version in the output of ``java -version``; 0 when it cannot be parsed."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not match:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])
