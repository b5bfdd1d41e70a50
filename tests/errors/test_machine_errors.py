"""Java, Python or Spark of another version, and files with other columns: each error names what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from stateflow.config.settings import SourceSettings
from stateflow.connectors.files.source import FileSource
from stateflow.errors import ConfigError, EnvironmentUnsupported, SchemaMismatch
from stateflow.runtime.spark.session.requirements import check_java, check_master, check_python, check_spark, java_major
from tests.support.cli_fixture import Case, CliFixture, check, contents
from tests.support.errors import raises

# -- the machine --------------------------------------------------------------------------------------------------

SPARK_JOB = "def build(env):\n    env.from_source(FileSource(HERE, schema=Row), uid='rows').sink_to(sink(), uid='out')"


def test_missing_java_is_an_unsupported_environment(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = cli.folder / "empty"
    empty.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(empty))
    case = Case(lambda b: b.write(SPARK_JOB), EnvironmentUnsupported, {"java_home": str(empty)}, hint="openjdk-17-jre")
    check(cli, case)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(empty))
    with raises(EnvironmentUnsupported, java_home=""):
        check_java()


def test_an_old_java_is_refused(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    java = cli.folder / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(cli.folder / "jdk"))
    facts = {"found": 8, "java": str(java)}
    check(cli, Case(lambda b: b.write(SPARK_JOB), EnvironmentUnsupported, facts, hint="JAVA_HOME"))


def test_the_version_of_java_is_read_from_its_output() -> None:
    assert java_major('java version "1.8.0_292"') == 8
    assert java_major('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.1" 2023-10-17') == 21
    assert java_major("no such thing") == java_major("") == 0


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7)])
def test_an_unsupported_python_is_refused(version: tuple[int, int]) -> None:
    with raises(EnvironmentUnsupported, found=f"{version[0]}.{version[1]}") as refused:
        check_python(version)
    assert "3.11" in refused.value.hint
    check_python((3, 11))
    check_python()


@pytest.mark.parametrize("version", ["3.5.1", "4.1.0", "4.3.0", "4.20.0"])
def test_an_unsupported_spark_is_refused(version: str) -> None:
    with raises(EnvironmentUnsupported, found=version) as refused:
        check_spark(version)
    assert "4.2.0" in refused.value.hint
    check_spark("4.2.0")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_a_master_without_task_retries_is_refused(master: str) -> None:
    with raises(ConfigError, master=master) as refused:
        check_master(master)
    assert "local[N,4]" in refused.value.hint
    check_master("local[2,4]")
    check_master("yarn")


# -- columns of files ---------------------------------------------------------------------------------------------


def _file_source(folder: Path, **columns: pa.DataType) -> Any:
    """A source of rows with a text as key and a whole number, over a file with other columns."""
    row_class = msgspec.defstruct("Row", [("key", str), ("number", int)])
    parquet.write_table(pa.schema(columns.items()).empty_table(), folder / "part-0.parquet")
    return FileSource(folder, schema=row_class)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        ({"key": pa.string()}, {"column": "number", "found": ["key"]}),
        ({"key": pa.string(), "number": pa.string()}, {"column": "number", "declared": "bigint", "found": "string"}),
        ({"key": pa.binary(), "number": pa.int64()}, {"column": "key", "declared": "string", "found": "binary"}),
        ({"key": pa.string(), "number": pa.float64()}, {"column": "number", "declared": "bigint", "found": "double"}),
    ],
)
def test_files_with_missing_or_incompatible_columns_are_refused(
    tmp_path: Path, spark_session: Any, columns: dict[str, pa.DataType], facts: dict[str, Any]
) -> None:
    source = _file_source(tmp_path, **columns)
    before = contents(tmp_path)
    with raises(SchemaMismatch, path=str(tmp_path), **facts) as refused:
        source.check(spark_session)
    assert refused.value.hint
    assert contents(tmp_path) == before


@pytest.mark.spark
def test_files_with_narrower_numbers_are_accepted(tmp_path: Path, spark_session: Any) -> None:
    _file_source(tmp_path, key=pa.string(), number=pa.int32(), more=pa.int8()).check(spark_session)


def test_a_missing_input_folder_is_a_configuration_error(tmp_path: Path) -> None:
    source = _file_source(tmp_path, key=pa.string())
    source.path = str(tmp_path / "gone")
    with raises(ConfigError, path=source.path):
        source.check_settings(SourceSettings())
