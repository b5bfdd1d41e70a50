"""What needs Hadoop's S3 client: formats that only Spark reads, and names in a catalog, with the settings of the guide.

The JARs are 690 MB: ``python scripts/fetch_jars.py --package s3a`` gets them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import orc

from stateflow.storage import open_storage
from tests.servers.running import s3_server
from tests.spark.jobs import hadoop_s3
from tests.spark.processes import ModuleJob
from tests.support.processes import ROOT

_ENVIRONMENT = Path(sys.prefix)
_JARS = sorted(str(path) for folder in ("s3a", "jars") for path in (_ENVIRONMENT / folder).glob("*.jar"))
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow(reason="each run is a driver with Spark, which takes seconds"),
    pytest.mark.skipif(
        not (_ENVIRONMENT / "s3a").exists(),
        reason="Hadoop's S3 client is not there: scripts/fetch_jars.py --package s3a",
    ),
]


def _settings(folder: Path, endpoint: str) -> dict[str, str]:
    """The settings of the guide, and a metastore on disk."""
    return {
        "spark.jars": ",".join(_JARS),
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{folder / 'metastore'};create=true",
    }


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ModuleJob]:
    with s3_server(tmp_path / "s3", "bucket") as variables, mock.patch.dict("os.environ", variables):
        settings = _settings(tmp_path, variables["AWS_ENDPOINT_URL"])
        own: dict[str, Any] = {f"spark__conf__{name}": value for name, value in settings.items()}
        job = ModuleJob(tmp_path / "work", hadoop_s3, **own)
        job.address, job.variables = "s3://bucket/job", variables
        yield job
        job.close()


def _add(name: str, *numbers: int) -> None:
    sink = pa.BufferOutputStream()
    orc.write_table(pa.table({"name": ["n"] * len(numbers), "number": numbers}), sink)
    open_storage("s3://bucket/in").put_new(name, sink.getvalue().to_pybytes())


def test_orc_files_in_a_bucket_are_read_by_spark_and_the_table_has_a_name(job: ModuleJob, tmp_path: Path) -> None:
    _add("one.orc", 1, 2, 3)
    job.finish(job__name="default.numbers")
    _add("two.orc", 4)
    job.reach("publish.before:1", job__name="default.numbers")
    job.finish(job__name="default.numbers")
    found = DeltaTable("s3://bucket/table").to_pyarrow_table()["number"].to_pylist()
    assert sorted(found) == [1, 2, 3, 4]
    settings = _settings(tmp_path, job.variables["AWS_ENDPOINT_URL"])
    program = (
        "import json, sys; from pyspark.sql import SparkSession\n"
        "builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "for name, value in json.loads(sys.argv[1]).items(): builder = builder.config(name, value)\n"
        "rows = builder.getOrCreate().sql('SELECT number FROM default.numbers ORDER BY number').collect()\n"
        "print(json.dumps([row[0] for row in rows]))"
    )
    command = [sys.executable, "-c", program, json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [1, 2, 3, 4]
