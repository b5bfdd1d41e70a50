"""Jobs that read Delta tables without Spark's own source and its JARs, or another source of Spark through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.servers.running import s3_server
from tests.spark.jobs import delta_input
from tests.spark.processes import ModuleJob
from tests.support import restores

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each run is a driver with Spark, which takes seconds")]
_FEED = {"delta.enableChangeDataFeed": "true"}


class DeltaJob(ModuleJob):
    def __init__(self, folder: Path, **settings: object) -> None:
        super().__init__(folder, delta_input, parallelism=2, **settings)  # type: ignore[arg-type]

    @property
    def input(self) -> Path:
        return self.folder / "items"

    def add(self, *ids: int, name: str | None = "a") -> None:
        rows = pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([name] * len(ids), pa.string())})
        write_deltalake(str(self.input), rows, mode="append", configuration=_FEED)

    def copied(self) -> Counter[tuple[Any, ...]]:
        return self.rows("copied")

    def restore(self, start: str) -> None:
        restores.go_back(self, "latest", "--source", f"items={start}")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[DeltaJob]:
    job = DeltaJob(tmp_path)
    yield job
    job.close()


@pytest.mark.matrix
def test_each_row_that_is_added_to_a_table_is_read_once(job: DeltaJob) -> None:
    job.add(1, 2, 3)
    job.finish()
    job.add(4)
    job.reach("batch.reported")
    job.add(5, name=None)
    job.finish()
    assert job.copied() == Counter([(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, None)])
    # A commit that rewrites rows adds none.
    DeltaTable(str(job.input)).update(updates={"name": "'b'"}, predicate="id = 1")
    job.run().check_error(4, "data", source=f"DeltaSource[rows:{job.input}]", version="3")
    job.add(6)
    job.finish(job__skip="yes")
    assert job.copied()[6, "a"] == 1 and job.copied().total() == 6
    before = job.copied()
    job.restore("position:4")
    job.finish(job__skip="yes")
    assert job.copied() == before + Counter([(6, "a")])


def test_rows_that_wait_in_a_table_in_a_bucket_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path / "s3", "bucket") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        job = DeltaJob(tmp_path / "job", job__items="s3://bucket/items")
        job.variables = variables

        def add(ids: range) -> None:
            rows = pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array(["a"] * len(ids))})
            write_deltalake("s3://bucket/items", rows, mode="append", storage_options=dict(variables))

        def backlog() -> Any:
            ended = job.command("status", "--job", job.job_file, "--json", with_job=True)
            return ended.check().document["backlog"]

        add(range(5))
        job.finish()
        assert backlog()["rows"] == 0
        for start in (5, 8):
            add(range(start, start + 3))
        found = backlog()
        assert (found["rows"], found["sources"][0]["files"], found["catch_up_ms"] > 0) == (6, 2, True)
        assert job.finish().result["backlog"]["rows"] == 0 and backlog()["rows"] == 0
        assert job.copied() == Counter((n, "a") for n in range(11))
        job.close()


def test_a_position_is_a_version_or_a_time(job: DeltaJob) -> None:
    for version in range(3):
        job.add(version)
    job.finish(job__start="1")
    assert job.copied() == Counter([(1, "a"), (2, "a")])
    # After version 1, by its own timestamp and by that of its file, which Spark uses: they have different clocks.
    (written,) = [c["timestamp"] for c in DeltaTable(str(job.input)).history() if c["version"] == 1]
    file = job.input / "_delta_log" / f"{1:020}.json"
    at = datetime.fromtimestamp(max(written, file.stat().st_mtime_ns // 1_000_000) / 1000 + 0.001, UTC).isoformat()
    job.restore(f"timestamp:{at}")
    job.finish(job__start="1")
    assert job.copied() == Counter([(1, "a"), (2, "a"), (2, "a")])
    # A new job that begins at that time.
    other = DeltaJob(job.folder / "other")
    other.input.symlink_to(job.input)
    other.finish(job__start=at)
    assert other.copied() == Counter([(2, "a")])
    other.close()


def test_a_job_that_cannot_begin_names_the_time_or_the_version(job: DeltaJob) -> None:
    job.add(1)
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    job.run(job__start=later).check_error(2, "config", table=str(job.input), time=later)
    DeltaTable(str(job.input)).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    source = f"DeltaSource[changes:{job.input}]"
    job.run(job__start="latest", job__kind="changes").check_error(4, "data", source=source, version="1")


def test_versions_that_no_longer_exist_and_a_new_table_end_the_run(job: DeltaJob) -> None:
    job.add(1)
    job.finish()
    for number in range(2, 5):
        job.add(number)
    table = DeltaTable(str(job.input))
    table.create_checkpoint()
    for version in (1, 2):
        (job.input / "_delta_log" / f"{version:020}.json").unlink()
    lost = job.run()
    lost.check_error(4, "input-lost")
    assert lost.failure["facts"]["lost"] == "versions [1, 3)"
    for path in (job.input / "_delta_log").iterdir():
        path.unlink()
    job.add(9)
    job.run().check_error(4, "input-lost")
    job.restore("earliest")
    job.finish()
    assert job.copied() == Counter([(1, "a"), (9, "a")])


def test_any_replayable_source_of_spark_can_be_read(job: DeltaJob) -> None:
    job.finish(job__kind="rate", run__max_batches=2)
    job.reach("batch.reported", job__kind="rate", run__max_batches=2)
    job.finish(job__kind="rate", run__max_batches=2)
    values = sorted(value for (value,) in job.copied().elements())
    assert values == list(range(len(values))) and len(values) == 40
