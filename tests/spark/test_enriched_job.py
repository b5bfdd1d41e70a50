"""A job on Spark that enriches rows from a Delta table by broadcast."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.jobs import enriched
from tests.spark.processes import ModuleJob

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ModuleJob]:
    (tmp_path / "sales").mkdir()
    job = ModuleJob(tmp_path, enriched, parallelism=2)
    yield job
    job.close()


def _sell(job: ModuleJob, first: int, *items: str) -> None:
    sales = [{"item": item, "number": number} for number, item in enumerate(items, first)]
    (job.folder / "sales" / f"{first}.json").write_text("".join(json.dumps(sale) + "\n" for sale in sales))


def test_each_row_has_the_values_of_the_table_at_its_run_also_after_a_kill(job: ModuleJob) -> None:
    table = str(job.folder / "prices")
    write_deltalake(table, pa.table({"item": ["a", "b"], "price": pa.array([1, 2], pa.int64())}))
    _sell(job, 0, "a", "b", "c")
    job.finish()
    DeltaTable(table).update({"price": "5"}, predicate="item = 'a'")
    _sell(job, 10, "a")
    job.reach("batch.reported")
    DeltaTable(table).delete("item = 'b'")
    write_deltalake(table, pa.table({"item": ["c"], "price": pa.array([7], pa.int64())}), mode="append")
    job.finish()
    _sell(job, 20, "a", "b", "c")
    job.finish()
    assert job.rows("priced") == Counter([(0, 1), (1, 2), (2, None), (10, 5), (20, 5), (21, None), (22, 7)])


def test_a_job_can_read_the_table_again_after_the_files_of_its_version_are_gone(job: ModuleJob) -> None:
    table = str(job.folder / "prices")
    write_deltalake(table, pa.table({"item": ["a", "b"], "price": pa.array([1, 2], pa.int64())}))
    _sell(job, 0, "a", "b")
    job.finish()
    DeltaTable(table).delete("item = 'b'")
    DeltaTable(table).vacuum(0, enforce_retention_duration=False, dry_run=False)
    _sell(job, 10, "a", "b")
    job.run().check_error(4, "input-lost", version="0")
    plan = str(job.folder / "plan.json")
    changes = ["--source", "prices=earliest", "--drop", "priced.prices"]
    for words in (["--plan", "latest", "--out", plan, *changes], ["--execute", plan]):
        restored = job.begin("restore", job.job_file, *words, with_job=True).wait()
        assert restored.code == 0, str(restored)
    job.finish()
    assert job.rows("priced") == Counter([(0, 1), (1, 2), (10, 1), (11, None)])
