"""The Python programs of the set-up: downloads of JARs, and the compilation of PySpark."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
import zipimport
from importlib.metadata import distribution, version
from pathlib import Path

import compile_pyspark
import fetch_jars
import pytest
import sbom

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.setup


def test_packages_of_jars_have_the_versions_of_their_clients_and_of_spark() -> None:
    assert fetch_jars.delta() == f"io.delta:delta-spark_4.2_2.13:{version('delta-spark')}"
    minicluster, _, hadoop = fetch_jars.hdfs().rpartition(":")
    assert minicluster == "org.apache.hadoop:hadoop-client-minicluster"
    assert (fetch_jars.spark_jars() / f"hadoop-client-runtime-{hadoop}.jar").exists()


def test_jars_that_spark_has_itself_are_left_out() -> None:
    delta, parquet = (
        Path("io.delta_delta-spark_4.2_2.13-4.4.0.jar"),
        Path("org.apache.parquet_parquet-column-1.16.0.jar"),
    )
    assert fetch_jars.missing_in_spark([delta, parquet]) == [delta]


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


@pytest.mark.parametrize("damage", [b"124", None], ids=["changed", "missing"])
def test_a_folder_is_complete_only_with_the_recorded_jars(
    downloads: Path, tmp_path: Path, damage: bytes | None
) -> None:
    fetch_jars.fetch("x:a:1", tmp_path / "jars")
    jar = tmp_path / "jars" / "x_a-1.jar"
    jar.unlink() if damage is None else jar.write_bytes(damage)
    assert not fetch_jars.is_complete(tmp_path / "jars", fetch_jars.recorded("x:a:1"))


def test_the_lock_has_the_hashes_of_the_packages_that_are_used() -> None:
    locked = fetch_jars.locked(fetch_jars.LOCK)
    assert locked.keys() == {wanted() for wanted, _ in fetch_jars.PACKAGES.values()}
    # A broker of the version of the client in Spark's Kafka source.
    (client,) = [jar for jar in locked[fetch_jars.kafka()] if "kafka-clients" in jar]
    assert client in locked[fetch_jars.kafka_broker()]
    assert client.endswith(f"-{fetch_jars.kafka_broker().rpartition(':')[2]}.jar")


def test_pyspark_is_compiled_once_and_another_python_takes_the_sources(tmp_path: Path) -> None:
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as new:
        new.writestr("package/__init__.py", "")
        new.writestr("package/inner.py", "where = __file__\n")
    assert [compile_pyspark.compile_archive(archive), compile_pyspark.compile_archive(archive)] == [True, False]
    code = zipimport.zipimporter(f"{archive}/package").get_code("package.inner")
    assert code.co_filename == f"{archive}/package/inner.py"
    with zipfile.ZipFile(archive) as compiled:
        files = {name: compiled.read(name) for name in compiled.namelist()}
    files["package/inner.pyc"] = b"abcd" + files["package/inner.pyc"][4:]
    with zipfile.ZipFile(archive, "w") as of_another_python:
        for name, data in files.items():
            of_another_python.writestr(name, data)
    zipimport.zipimporter(f"{archive}/package").invalidate_caches()
    assert zipimport.zipimporter(f"{archive}/package").get_code("package.inner").co_names == code.co_names


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


def test_a_package_that_is_not_pinned_is_listed_without_hashes() -> None:
    locked = sbom.locked_hashes(["pytest==0.1 \\\n    --hash=sha256:ab \\\n    --hash=sha256:cd\n"])
    assert locked == {("pytest", "0.1"): {"ab", "cd"}}
    found = sbom.python_package(distribution("pytest"), locked)
    assert (found.version, list(found.external_references)) == (version("pytest"), [])


def test_npm_packages_have_the_hashes_of_the_lock_file() -> None:
    lock = json.loads((ROOT / "tests" / "servers" / "package-lock.json").read_text())["packages"]
    found = {str(each.purl): each for each in sbom.npm_packages(json.dumps({"packages": lock}))}
    azurite = lock["node_modules/azurite"]
    (digest,) = found[f"pkg:npm/azurite@{azurite['version']}"].hashes
    assert base64.b64encode(bytes.fromhex(digest.content)).decode() == azurite["integrity"].removeprefix("sha512-")
    assert any(purl.startswith("pkg:npm/%40azure/") for purl in found)
