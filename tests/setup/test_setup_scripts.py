"""The Python programs of the set-up: downloads of JARs, and the compilation of PySpark."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import fetch_jars
import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.setup


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file with the hash of one JAR, and a Maven Central that gives the JARs of the folder that is returned."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "x_a-1.jar").write_bytes(b"123")
    (tmp_path / "lock.json").write_text("{}")
    monkeypatch.setattr(fetch_jars, "LOCK", tmp_path / "lock.json")
    fetch_jars.record("x:a:1", fetch_jars.hashes(served.iterdir()), fetch_jars.LOCK)

    def resolve(wanted: str, ivy: Path) -> subprocess.CompletedProcess[str]:
        shutil.copytree(served, ivy / "jars")
        return subprocess.CompletedProcess([wanted], 0, "", "")

    monkeypatch.setattr(fetch_jars, "resolve", resolve)
    return served


def test_jars_with_the_recorded_hashes_are_kept(downloads: Path, tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    assert fetch_jars.fetch("x:a:1", folder) == ""
    assert [path.name for path in folder.iterdir()] == ["x_a-1.jar"]
    assert fetch_jars.is_complete(folder, fetch_jars.recorded("x:a:1"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("x_a-1.jar", b"124", id="another content of the same size"),
        pytest.param("y_b-1.jar", b"", id="one more JAR"),
    ],
)
def test_jars_with_other_hashes_are_refused_and_no_folder_is_made(
    downloads: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    (downloads / name).write_bytes(content)
    assert name in fetch_jars.fetch("x:a:1", tmp_path / "jars")
    assert not (tmp_path / "jars").exists()


def test_a_version_without_recorded_hashes_is_refused(downloads: Path, tmp_path: Path) -> None:
    assert "x:a:2" in fetch_jars.fetch("x:a:2", tmp_path / "jars")
    assert not (tmp_path / "jars").exists()
    assert fetch_jars.fetch("x:a:2", tmp_path / "jars", is_new=True) == ""
    assert list(fetch_jars.locked(fetch_jars.LOCK)) == ["x:a:2"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_broker_to_try_jobs_with_removes_its_folder_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\ncase "$*" in *StorageTool*) exit 0 ;; esac\nexec sleep 100\n')
    java.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "JAVA_HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    # As a shell without job control starts it in the background; and not as nohup, which these tests may run under.
    command = [
        "env",
        "--default-signal=HUP",
        "sh",
        "-c",
        f"trap '' INT; exec {sys.executable} scripts/kafka_broker.py 1",
    ]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None and "broker at" in broker.stdout.readline()
        assert list((tmp_path / "tmp").iterdir())
        broker.send_signal(number)
        assert broker.wait(60) == 0
    assert not list((tmp_path / "tmp").iterdir())


# --- Bill of materials -----------------------------------------------------------------------------------------------


def test_the_bill_of_materials_is_valid_and_has_every_installed_package_with_its_hashes(tmp_path: Path) -> None:
    file = tmp_path / "sbom.json"
    subprocess.run([sys.executable, ROOT / "scripts" / "sbom.py", "--into", file], check=True)
    components = json.loads(file.read_text())["components"]
    by_purl = {each["purl"]: each for each in components if "purl" in each}
    (pyspark,) = re.findall(r"^pyspark==(\S+) \\\n    --hash=sha256:(\S+)$", read_lock(), flags=re.MULTILINE)
    (reference,) = by_purl[f"pkg:pypi/pyspark@{pyspark[0]}"]["externalReferences"]
    assert reference["hashes"] == [{"alg": "SHA-256", "content": pyspark[1]}]
    for name in ("apache-airflow", "rocksdict", "deltalake"):
        assert f"pkg:pypi/{name}@{version(name)}" in by_purl
    listed = {each["hashes"][0]["content"] for each in components if each.get("purl", "").startswith("pkg:maven/")}
    for coordinate, _ in fetch_jars.PACKAGES.values():
        recorded = fetch_jars.recorded(coordinate())
        assert recorded and {*recorded.values()} <= listed
    # A JAR in the package of PySpark, which no package list has.
    assert any(re.fullmatch(r"hadoop-client-api-.*\.jar", each["name"]) for each in components)


def read_lock() -> str:
    return (ROOT / "requirements.txt").read_text()
