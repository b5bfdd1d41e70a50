"""A job whose root, inputs, look-ups and sinks are in a store, on Spark: killed, and behind a failing network."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from stateflow.storage import open_storage
from tests.servers.faults import BUSY, CUT_ANSWER, LOST_ANSWER, LOST_REQUEST, Faults
from tests.spark.jobs import stored_tables
from tests.spark.processes import ModuleJob
from tests.support import file_tables
from tests.support.object_stores import Serve, behind_faults, copy_of, mirror, serve_azure, serve_hdfs, serve_s3

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each run is a driver with Spark, which takes seconds")]
_KINDS = {"apple": "fruit", "leek": "vegetable"}


class StoredJob(ModuleJob):
    """The job, and the local tables that are copied into the store before each run.

    Args:
        bucket: address of the bucket.
        variables: of the processes of the job, perhaps with the address of a proxy.
    """

    def __init__(self, folder: Path, bucket: str, variables: dict[str, str]) -> None:
        super().__init__(folder, stored_tables, parallelism=2, job__bucket=bucket, source__max_files_per_batch=1)
        self.address, self.variables = f"{bucket}/job", variables
        self.bucket = bucket
        self.expected: Counter[tuple[Any, ...]] = Counter()
        self.prices: dict[str, int] = {}
        self._copies: dict[str, dict[str, bytes]] = {}
        self._numbers_sold = 0
        self._write("kinds", pa.table({"item": list(_KINDS), "kind": list(_KINDS.values())}))

    def set_prices(self, **prices: int) -> None:
        self.prices = prices
        self._write("prices", pa.table({"item": list(prices), "price": list(prices.values())}), mode="overwrite")

    def sell(self, *items: str) -> None:
        numbers = [*range(self._numbers_sold, self._numbers_sold + len(items))]
        self._numbers_sold += len(items)
        self._write("sales", pa.table({"item": items, "number": numbers}))
        for item, number in zip(items, numbers, strict=True):
            self.expected[item, number, _KINDS.get(item), self.prices.get(item)] += 1

    def _write(self, name: str, rows: pa.Table, mode: Any = "append") -> None:
        table = self.folder / "own" / name
        write_deltalake(str(table), rows, mode=mode)
        self._copies[name] = mirror(table, open_storage(f"{self.bucket}/{name}"), self._copies.get(name, {}))

    def check(self, copies: Path) -> None:
        """Compares both sinks, as deltalake and the rules of Spark's log read them, with a plain computation."""
        columns = ("item", "number", "kind", "price")
        delta = DeltaTable(str(copy_of(f"{self.bucket}/priced", copies / str(len(self.processes))))).to_pyarrow_table()
        assert Counter(tuple(row[name] for name in columns) for row in delta.to_pylist()) == self.expected
        files = file_tables.rows_in_store(f"{self.bucket}/files")
        assert Counter(tuple(row.get(name) for name in columns) for row in files) == self.expected


@pytest.fixture(params=[serve_s3, serve_azure, serve_hdfs])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoredJob]:
    serve: Serve = request.param
    with serve(tmp_path / "server") as (bucket, variables), mock.patch.dict("os.environ", variables):
        job = StoredJob(tmp_path / "work", bucket, variables)
        yield job
        job.close()


def test_kills_neither_lose_nor_repeat_a_row_of_tables_in_a_store(job: StoredJob, tmp_path: Path) -> None:
    job.set_prices(apple=3, leek=1)
    for items in (("apple", "leek"), ("apple", "other"), ("leek",)):
        job.sell(*items)
    job.reach("publish.before:2")
    # Spark replaces a worker that dies.
    job.reach("task.sink-closed:1", code=0)
    job.check(tmp_path / "copies")
    job.set_prices(apple=4, other=9)
    job.sell("apple", "leek", "other")
    job.reach("publish.after:1")
    job.finish()
    job.check(tmp_path / "copies")


@pytest.mark.parametrize("serve", [serve_s3, serve_azure])
@pytest.mark.parametrize("kinds", [(*BUSY, LOST_ANSWER), (LOST_REQUEST, LOST_ANSWER, CUT_ANSWER)], ids=["busy", "lost"])
def test_a_whole_job_behind_a_network_that_loses_answers(serve: Serve, tmp_path: Path, kinds: tuple[str, ...]) -> None:
    with serve(tmp_path / "server") as (bucket, variables), mock.patch.dict("os.environ", variables):
        faults = Faults(random.Random(5), 0.1, kinds)
        with behind_faults(variables, faults) as changed:
            job = StoredJob(tmp_path / "work", bucket, changed)
            job.set_prices(apple=3, leek=1)
            for items in (("apple", "leek"), ("apple", "other")):
                job.sell(*items)
            job.finish()
            job.sell("leek")
            job.reach("publish.after:1")
            job.finish()
            job.close()
        job.check(tmp_path / "copies")
        assert min(faults.injected[kind] for kind in kinds) > 0, faults.injected
