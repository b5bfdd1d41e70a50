"""The guide to tables in a bucket: its job runs on an S3 server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.docs.pages import ROOT, blocks, code, read, rows, section
from tests.servers.running import s3_server

GUIDE = read("keep-tables-in-a-bucket")


@pytest.mark.spark
@pytest.mark.slow(reason="two runs of a job on Spark")
def test_the_command_and_the_job_of_the_guide_keep_a_table_in_a_bucket(tmp_path: Path) -> None:
    (command,), (job,) = blocks(GUIDE), blocks(GUIDE, "python")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "flights.py").write_text(job.replace("/data/flights", f"{tmp_path}/flights"))
    (tmp_path / "flights").mkdir()
    (named,) = (code(row[1]) for row in rows(section(GUIDE, "Credentials")) if row[0] == "S3")
    with s3_server(tmp_path / "s3", "my-bucket") as variables:
        assert variables.keys() <= {name.partition("=")[0] for name in named}
        own = {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        for number, delays in enumerate(({"UA1": 3, "B61": -5}, {"UA1": 7, "AA1": 0})):
            flights = pa.table({"flight": list(delays), "delay": list(delays.values())})
            pq.write_table(flights, tmp_path / "flights" / f"{number}.parquet")
            subprocess.run(["bash", "-ec", command], cwd=tmp_path, env={**os.environ, **variables, **own}, check=True)
    bucket = tmp_path / "s3" / "data" / "my-bucket"
    found = DeltaTable(bucket / "tables" / "delays").to_pyarrow_table().to_pylist()
    assert {row["flight"]: row["delay"] for row in found} == {"UA1": 7, "B61": -5, "AA1": 0} and len(found) == 3
    assert any((bucket / "jobs" / "flights" / "log").iterdir())
