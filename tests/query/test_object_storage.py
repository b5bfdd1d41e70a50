"""State in a bucket is read, compared, written and served."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import stateflow
from stateflow import KeyedStateFrame, SavepointWriter, ValueStateDescriptor
from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.serving.client import QueryableStateClient
from stateflow.storage import open_storage
from tests.servers.running import s3_server
from tests.serving.running_server import TOKEN, serving
from tests.serving.shops_job import ShopsJob, Total
from tests.support.cli_fixture import invoke

ROOT = "s3://bucket/jobs/shops"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShopsJob]:
    with s3_server(tmp_path, "bucket") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        jobs = ShopsJob(tmp_path, state__backend="rocksdb", checkpoints__asynchronous="no")
        jobs.storage = open_storage(ROOT)
        yield jobs


@pytest.mark.slow(reason="starts a server of S3, and runs a job and a state server on it")
def test_state_in_a_bucket_is_read_compared_written_and_served(jobs: ShopsJob) -> None:
    first, newest = jobs.sell(20), jobs.sell(5)
    totals = jobs.expected[newest].totals
    table = stateflow.read_state(ROOT, "totals", "total").read_all().flatten()
    keys = list(zip(table["shop"].to_pylist(), table["day"].to_pylist(), strict=True))
    values = map(Total, table["value.count"].to_pylist(), table["value.amount"].to_pylist())
    assert dict(zip(keys, values, strict=True)) == totals

    before = jobs.expected[first].totals
    found = stateflow.diff(f"{ROOT}@{first}", ROOT)
    (state,) = (each for each in found.states if each.state == "total")
    changed = sum(1 for key in before if before[key] != totals[key])
    assert (state.added, state.removed, state.changed) == (len(totals) - len(before), 0, changed)

    create_savepoint(ROOT, SavepointRequest(name="made", from_head=True))
    shown = invoke("state", "show", ROOT, "--snapshot", "made")
    assert shown.exit_code == 0 and shown.output.startswith("savepoint made of job"), shown.output

    frame = KeyedStateFrame(ValueStateDescriptor("total", int), pa.table({"shop": ["north"], "value": [7]}))
    writer = SavepointWriter.new("job", max_parallelism=16).with_operator("totals", key=["shop"], states=[frame])
    written = writer.write("s3://bucket/written")
    assert stateflow.read_state(written, "totals", "total", columns=["shop", "value"]).read_all().to_pylist() == [
        {"shop": "north", "value": 7}
    ]

    with serving(ROOT) as server, QueryableStateClient(ROOT, token=TOKEN, timeout=timedelta(minutes=1)) as client:
        results = client.get_many("totals", list(totals), exactly=newest, value_type=Total)
        assert [result.value for result in results] == list(totals.values())
        assert server.follower.problem is None
    assert not jobs.storage.list("servers/")
