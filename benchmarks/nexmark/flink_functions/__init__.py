"""Nexmark's functions for Flink, in Java as in Nexmark: Flink would run functions in Python in other processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from zipfile import ZipFile

from benchmarks.flink_environment import FlinkEnvironment

_SOURCES = Path(__file__).parent
_JAVA_RELEASE = "17"


class NoCompiler(Exception):
    """There is no Java compiler."""


def compile_functions(environment: FlinkEnvironment, folder: Path) -> Path:
    """Compiles the functions and returns their JAR.

    Raises:
        CalledProcessError: the sources do not compile.
        NoCompiler: Java is installed without its compiler.
    """
    classes, jar = folder / "classes", folder / "nexmark-functions.jar"
    libraries = os.pathsep.join(map(str, environment.libraries))
    sources = map(str, sorted(_SOURCES.glob("*.java")))
    options = ["--release", _JAVA_RELEASE, "-classpath", libraries, "-d", str(classes), "-proc:none"]
    subprocess.run([_compiler(), *options, *sources], check=True)
    with ZipFile(jar, "w") as archive:
        for path in sorted(classes.rglob("*.class")):
            archive.write(path, path.relative_to(classes))
    return jar


def _compiler() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=str(Path(home) / "bin") if home else None)
    if found is None:
        raise NoCompiler("no javac is found: install the JDK, of which the Java runtime is a part")
    return found
