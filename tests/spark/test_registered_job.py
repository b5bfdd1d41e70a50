"""A job whose table has a name in a metastore of Hive, and another program that reads it by this name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.spark.jobs import registered
from tests.spark.processes import ModuleJob

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]

_QUERY = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1,2]")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.enableHiveSupport().getOrCreate()
print(json.dumps(sorted(row.id for row in spark.table("default.items").collect())))
"""


def _metastore(home: Path) -> dict[str, str]:
    """The settings of a session with a metastore in a folder."""
    return {
        "spark.jars": ",".join(sorted(map(str, (Path(sys.prefix) / "jars").glob("*.jar")))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'metastore'};create=true",
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={home / 'derby.log'}",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }


def _read_by_name(home: Path) -> list[int]:
    """The table as another session sees it."""
    command = [sys.executable, "-c", _QUERY, json.dumps(_metastore(home))]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ModuleJob]:
    with closing(_job(tmp_path / "job", tmp_path)) as job:
        yield job


def _job(folder: Path, home: Path) -> ModuleJob:
    """A job with two rows of input, and the metastore of `home`."""
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "0.json").write_text('{"id": 1}\n{"id": 2}\n')
    settings = {f"spark__conf__{name}": value for name, value in _metastore(home).items()}
    return ModuleJob(folder, registered, spark=True, **settings)


def test_a_table_is_registered_before_the_first_batch_and_another_job_cannot_have_its_name(
    job: ModuleJob, tmp_path: Path
) -> None:
    # The first run registers the table, and is killed before it publishes a row.
    job.reach("batch.reported")
    job.finish()
    assert _read_by_name(tmp_path) == [1, 2]
    with closing(_job(tmp_path / "other", tmp_path)) as other:
        found = f"file:{job.folder / 'table'}"
        other.run().check_error(2, "config", name="default.items", table=str(other.folder / "table"), found=found)
        assert not (other.folder / "table").exists() and not Path(other.job_root).exists()
