"""File sources in a bucket, on Spark: which files runs read, once each, whatever is killed, replaced or late."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from stateflow import operations
from tests.servers.running import s3_server
from tests.spark.jobs import bucket_files
from tests.spark.processes import ModuleJob
from tests.support import restores

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each run is a driver with Spark, which takes seconds")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of the server that has the objects."""
    return tmp_path / "s3" / "data" / "bucket" / "in"


@pytest.fixture
def job(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleJob]:
    with s3_server(tmp_path / "s3", "bucket") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        job = ModuleJob(tmp_path, bucket_files, job__files="s3://bucket/in")
        job.variables = variables
        yield job
        job.close()


def _put(path: Path, content: bytes, at: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if at:
        os.utime(path, (at, at))
    return path


def _json(path: Path, numbers: range, at: int = 0) -> Path:
    return _put(path, "".join(json.dumps({"name": "j", "number": n}) + "\n" for n in numbers).encode(), at)


def _csv(path: Path, numbers: range) -> Path:
    return _put(path, "".join(f"c,{n}\n" for n in numbers).encode())


def _parquet(path: Path, numbers: range) -> Path:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"name": ["p"] * len(numbers), "number": [*numbers]}), sink)
    return _put(path, sink.getvalue().to_pybytes())


def _expected(**numbers: list[int]) -> Counter[tuple[object, ...]]:
    return Counter((name, number) for name, own in numbers.items() for number in own)


def _check(job: ModuleJob, **numbers: list[int]) -> None:
    assert job.rows("out") == _expected(**numbers)
    found = job.rows("sums")
    assert {name: max(n for of, n in found if of == name) for name in numbers} == {
        n: sum(v) for n, v in numbers.items()
    }


@pytest.mark.matrix
def test_files_of_a_bucket_are_read_once_by_their_names_whatever_their_times(job: ModuleJob, data: Path) -> None:
    _parquet(data / "parquet" / "a b[1]%20é.parquet", range(5))
    _json(data / "json" / "deep" / "new.json", range(3), at=2_000_000_000)
    _csv(data / "csv" / "one.csv", range(4))
    for hidden in ("_SUCCESS", ".a.json", "_temporary/b.json"):
        _json(data / "json" / hidden, range(90, 95))
    job.finish()
    _check(job, p=[*range(5)], j=[*range(3)], c=[*range(4)])
    # An upload that began earlier and ended later: its time is before the time of a file that was read.
    _json(data / "json" / "late.json", range(3, 6), at=1_000_000_000)
    job.reach("batch.reported:1", -9)
    job.finish()
    _check(job, p=[*range(5)], j=[*range(6)], c=[*range(4)])
    job.finish()
    _check(job, p=[*range(5)], j=[*range(6)], c=[*range(4)])


@pytest.mark.parametrize("formats", ["json", "parquet json csv"])
def test_a_job_begins_before_its_first_file(job: ModuleJob, data: Path, formats: str) -> None:
    if formats != "json":
        _parquet(data / "parquet" / "one.parquet", range(5))
    for _ in range(2):
        job.finish(job__formats=formats)
    _json(data / "json" / "one.json", range(3))
    job.finish(job__formats=formats)
    assert job.rows("out") == _expected(j=[*range(3)], p=[] if formats == "json" else [*range(5)])


def test_files_that_wait_in_a_bucket_are_counted_after_a_run_and_while_none_is_active(
    job: ModuleJob, data: Path
) -> None:
    _parquet(data / "parquet" / "read.parquet", range(5))
    _json(data / "json" / "read.json", range(3))
    job.finish(job__formats="parquet json")
    waiting = [_parquet(data / "parquet" / f"{n}.parquet", range(10 + n)) for n in range(3)]
    status = job.command("status", "--job", job.job_file, "--json", "--set", "job.formats=parquet json", with_job=True)
    backlog = status.check().document["backlog"]
    parquets, lines = (next(s for s in backlog["sources"] if s["uid"] == uid) for uid in ("parquet", "json"))
    assert (parquets["rows"], parquets["files"], lines["rows"], lines["files"]) == (33, 3, 0, 0)
    assert parquets["size_bytes"] == sum(file.stat().st_size for file in waiting)
    oldest = min(file.stat().st_mtime for file in waiting)
    assert abs(datetime.fromisoformat(parquets["oldest_at"]).timestamp() - oldest) < 2
    # At the rate of the one checkpoint.
    assert backlog["catch_up_ms"] > 0
    # The run reads them, and says how much is left.
    ended = job.finish(job__formats="parquet json")
    assert ended.result["backlog"]["rows"] == 0
    _check(job, p=[*range(5), *range(10), *range(11), *range(12)], j=[*range(3)])


def test_corrupt_objects_are_skipped_and_a_replaced_one_ends_the_run(job: ModuleJob, data: Path) -> None:
    _parquet(data / "parquet" / "good.parquet", range(5))
    bad = [_put(data / "parquet" / "bad é.parquet", b"PAR1 and no footer")]
    _json(data / "json" / "one.json", range(3))
    bad.append(_put(data / "json" / "bad.json", b'{"name": "j", "number": 90}\n{"name": "j", "numb'))
    _csv(data / "csv" / "one.csv", range(4))
    job.reach("batch.reported:1", -9)
    job.finish()
    _check(job, p=[*range(5)], j=[*range(3)], c=[*range(4)])
    found = operations.describe(str(job.root)).quarantined
    assert Counter(q.file for q in found) == Counter(f"s3://bucket/in/{f.relative_to(data)}" for f in bad)
    # A restore to the start reads the same again, and no more.
    first = operations.describe(str(job.root)).checkpoint_id
    _json(data / "json" / "two.json", range(3, 6))
    job.finish()
    restores.go_back(job, str(first))
    job.finish()
    _check(job, p=[*range(5)], j=[*range(6)], c=[*range(4)])


def test_a_planner_that_is_killed_and_an_object_that_is_replaced_end_a_run_and_the_next_one_reads_each_file_once(
    job: ModuleJob, data: Path
) -> None:
    _json(data / "json" / "one.json", range(3))
    ended = job.run("files.planned", job__formats="json")
    assert job.marker.exists() and ended.code not in (0, -9), str(ended)
    # The batch has its files, and no task has read them.
    run = job.start("batch.begin:1:stop", job__formats="json").wait_stopped()
    _json(data / "json" / "one.json", range(5))
    _json(data / "json" / "two.json", range(5, 7))
    run.resume()
    ended = run.wait()
    assert (ended.failure["code"], ended.failure["retryable"]) == ("batch-failed", True), str(ended)
    assert ended.failure["facts"]["file"] == "s3://bucket/in/json/one.json"
    assert not job.rows("out")
    job.finish(job__formats="json", source__of__json__max_files_per_batch=1)
    _check(job, j=[*range(7)])
    assert len(job.commits) == 2
