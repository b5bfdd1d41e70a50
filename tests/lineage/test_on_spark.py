"""The events of a job on Spark: files, SQL and a Delta table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateflow.launch import RunRequest, run_job
from tests.servers.lineage import lineage_server

_JOB = """
import msgspec
from stateflow import DeltaSink, FileSource, StreamExecutionEnvironment


class Sale(msgspec.Struct):
    shop: str
    amount: float


def build(env: StreamExecutionEnvironment) -> None:
    folder = env.parameter("folder")
    env.register_table("sales", env.from_source(FileSource(f"{folder}/in/*", schema=Sale, format="json"), uid="sales"))
    env.register_sink("totals", DeltaSink(f"{folder}/totals", mode="upsert", keys="shop"))
    env.sql("INSERT INTO totals SELECT UPPER(shop) AS shop, SUM(amount) AS total FROM sales GROUP BY UPPER(shop)")
"""


@pytest.mark.spark
@pytest.mark.slow(reason="starts Spark, and runs a job twice")
def test_a_job_on_spark_reports_files_columns_and_versions_and_an_idle_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"shop": "ab"[n % 2], "amount": float(n)} for n in range(6)]
    (tmp_path / "in" / "1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sales.py").write_text(_JOB)
    layer = {"job.folder": str(tmp_path), "local_dir": str(tmp_path / "local")}
    request = RunRequest(tmp_path / "sales.py", str(tmp_path / "root"), (layer,), "a test")
    with lineage_server() as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        result = run_job(request)
        start, *_, complete = server.take()
        idle = run_job(request)
        again = server.take()
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    (sales,), (totals,) = complete["inputs"], complete["outputs"]
    assert (sales["namespace"], sales["name"]) == ("file", str(tmp_path / "in"))
    assert (totals["namespace"], totals["name"]) == ("file", str(tmp_path / "totals"))
    assert sales["inputFacets"]["inputStatistics"]["rowCount"] == len(rows) == result.rows_in
    assert totals["outputFacets"]["outputStatistics"]["rowCount"] == result.rows_out["totals"]
    assert totals["facets"]["storage"]["storageLayer"] == "delta"
    log = sorted((tmp_path / "totals" / "_delta_log").glob("*.json"))
    assert totals["facets"]["version"]["datasetVersion"] == str(int(log[-1].stem))
    fields = totals["facets"]["columnLineage"]["fields"]
    origin = {"namespace": "file", "name": str(tmp_path / "in")}
    shop, total = fields["shop"]["inputFields"], fields["total"]["inputFields"]
    assert [(each["field"], each["transformations"][0]["subtype"]) for each in (*shop, *total)] == [
        ("shop", "TRANSFORMATION"),
        ("amount", "AGGREGATION"),
    ]
    assert all(each.items() >= origin.items() for each in (*shop, *total))
    assert idle.idle and [event["eventType"] for event in again] == ["START", "COMPLETE"]
    assert all(event["run"]["facets"]["stateflow_run"]["idle"] for event in again)
