"""What needs Hadoop's S3 client: formats that only Spark reads, and names in a catalog, with the settings of the guide.

The JARs are 690 MB: ``python scripts/fetch_jars.py --package s3a`` gets them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import orc

from stateflow import DeltaSink
from stateflow.storage import open_storage
from tests.docs.pages import hadoop_settings
from tests.servers.running import s3_server, variables_of
from tests.servers.s3 import Handler, Server
from tests.spark.jobs import hadoop_s3
from tests.spark.processes import ModuleJob
from tests.support.delta_tables import context, put
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


class Number(msgspec.Struct):
    id: int


def _settings(folder: Path, endpoint: str) -> dict[str, str]:
    """The settings of the guide for the tests' server and the JARs of its packages, and a metastore on disk."""
    given = hadoop_settings()
    packages = [package.split(":")[1:] for package in given.pop("spark.jars.packages").split(",")]
    for name, version in packages:
        assert any(jar.endswith(f"{name}-{version}.jar") for jar in _JARS), name
    assert {"spark.hadoop.fs.s3a.endpoint", "spark.hadoop.fs.s3a.endpoint.region"} < given.keys()
    return {
        **given,
        "spark.jars": ",".join(_JARS),
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
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
    assert json.loads(_run_spark(program, settings).splitlines()[-1]) == [1, 2, 3, 4]


def _run_spark(program: str, settings: dict[str, str]) -> str:
    command = [sys.executable, "-c", program, json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


class _Recording(Handler):
    """Also accepts the markers of folders, and records the condition of each put of a log entry."""

    conditions: dict[str, str | None]

    def do_PUT(self) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("/"):
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(200)
            self.send_header("ETag", '"none"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if "/_delta_log/" in path and path.endswith(".json"):
            self.conditions[path.rpartition("/")[2]] = self.headers["If-None-Match"]
        super().do_PUT()


@contextmanager
def _recording_server(folder: Path) -> Iterator[tuple[str, dict[str, str | None]]]:
    (folder / "bucket").mkdir(parents=True)
    facts: dict[str, Any] = {"conditions": {}, "data_root": folder}
    handler = type("Recording", (_Recording,), facts)
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", facts["conditions"]
        server.shutdown()
        thread.join()


def test_delta_for_spark_does_not_create_entries_on_s3_conditionally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the guide says that it must not write a table that others write; delta-rs and stateflow do."""
    with _recording_server(tmp_path / "s3") as (endpoint, conditions):
        for name, value in {**variables_of(endpoint), "JAVA_TOOL_OPTIONS": ""}.items():
            monkeypatch.setenv(name, value)
        program = (
            "import json, sys; from pyspark.sql import SparkSession\n"
            "builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
            "for name, value in json.loads(sys.argv[1]).items(): builder = builder.config(name, value)\n"
            "builder.getOrCreate().range(3).write.format('delta').save('s3a://bucket/t')"
        )
        _run_spark(program, _settings(tmp_path, endpoint))
        write_deltalake("s3://bucket/t", pa.table({"id": [3]}), mode="append")
        sink = DeltaSink("s3://bucket/t")
        about = context(Number)
        sink.prepare(about)
        put(sink, about, 1, [Number(4)])
        assert sorted(DeltaTable("s3://bucket/t").to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    assert [conditions[f"{version:020d}.json"] for version in range(3)] == [None, "*", "*"]
