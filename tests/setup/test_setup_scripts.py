"""The Python programs of the set-up: downloads of JARs, and the compilation of PySpark."""

from __future__ import annotations

import zipfile
import zipimport
from importlib.metadata import version
from pathlib import Path

import compile_pyspark
import fetch_jars
import pytest

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


def test_a_folder_is_complete_only_with_every_file_in_its_size(tmp_path: Path) -> None:
    folder, scratch = tmp_path / "jars", tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "a-1.jar").write_bytes(b"123")
    assert not fetch_jars.is_complete(folder, "x:y:1")
    fetch_jars.keep([scratch / "a-1.jar"], "x:y:1", folder, scratch)
    assert fetch_jars.is_complete(folder, "x:y:1")
    assert not fetch_jars.is_complete(folder, "x:y:2")
    (folder / "a-1.jar").write_bytes(b"12")
    assert not fetch_jars.is_complete(folder, "x:y:1")


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
