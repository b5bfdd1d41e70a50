"""The final rows of the queries' jobs on Spark, and of Spark's own queries, for comparisons."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import deltalake
import pyarrow as pa
from pyarrow import dataset, parquet

from benchmarks.nexmark.changelog import Row, Rows
from benchmarks.nexmark.programs import SPARK_KEYS, Load, run_ours, run_spark, settings, spark_order
from benchmarks.peers.nexmark_ours import Order
from benchmarks.processes import ProgramFailed
from stateflow.connectors.files.sink import content, versions
from stateflow.connectors.table_folder import DiskFolder

KILLED_AT = "commit.manifest:2"
"""The failpoint at which the driver is killed: a batch's files are stored, its checkpoint is not committed."""

_BY_CLOCK = ("q12",)
_WINDOW_SECONDS = 11
"""A second more than the length of its windows."""


@dataclass(frozen=True)
class Variant:
    """How a job is run for a comparison.

    Attributes:
        failpoint: where the driver is killed by SIGKILL, before a second run; empty for one run without a kill.
    """

    parallelism: int
    files_per_batch: int
    failpoint: str


VARIANTS = (Variant(1, 1, KILLED_AT), Variant(3, 4, KILLED_AT))
"""Two sizes of batches, parallelism 1 and 3, and a kill in each."""


class NotKilled(Exception):
    """A run ended before the failpoint at which it was to be killed: the input has too few batches."""


def result(query: str, load: Load, variant: Variant) -> Rows:
    """Runs a job on Spark, kills its driver, runs it to its end, and returns the rows of its table.

    Raises:
        NotKilled: the first run was not killed.
        ProgramFailed: the second run failed.
    """
    with tempfile.TemporaryDirectory(prefix="nexmark-check-") as name:
        folder = Path(name)
        given = settings(query, replace(load, files_per_batch=variant.files_per_batch))
        given["parallelism"] = str(variant.parallelism)
        order = Order(folder=name, settings=given, events=[str(load.events)], keep=True)
        if variant.failpoint:
            _run_until_killed(order, variant.failpoint, folder / "killed")
        run_ours(order)
        if query in _BY_CLOCK:
            # A run without input emits the windows that have ended since the last one.
            time.sleep(_WINDOW_SECONDS)
            run_ours(order)
        return table_rows(query, folder / "job" / "table")


def _run_until_killed(order: Order, failpoint: str, marker: Path) -> None:
    variables = {"STATEFLOW_FAILPOINT": failpoint, "STATEFLOW_FAILPOINT_ONCE": str(marker)}
    try:
        run_ours(order, variables)
    except ProgramFailed:
        if marker.exists():
            return
        raise
    raise NotKilled(f"{failpoint} was not reached")


def table_rows(query: str, table: Path) -> Rows:
    """Returns the rows of a result, with the columns of the query in Flink SQL."""
    module = import_module(f"benchmarks.nexmark.queries.{query}")
    partition_by = getattr(module, "PARTITION_BY", ())
    found = _partitioned(table, partition_by) if partition_by else _delta(table)
    return Counter(_rows(found))


def result_of_spark(query: str, load: Load) -> Rows:
    """Runs a query of Spark and returns its final rows: of those with equal keys, the last. Raises ProgramFailed."""
    with tempfile.TemporaryDirectory(prefix="nexmark-check-") as name:
        order = spark_order(query, load, name, keep=True)
        run_spark(order)
        folder = Path(name) / "run0" / "result"
        if order["partition_by"]:
            return Counter(_rows(_without_zones(dataset.dataset(folder, partitioning="hive").to_table())))
        batches = [_without_zones(parquet.read_table(batch)) for batch in sorted(folder.iterdir())]
    found = pa.concat_tables(batches)
    if query not in SPARK_KEYS:
        return Counter(_rows(found))
    keys = _rows(found.select(list(SPARK_KEYS[query])))
    return Counter(dict(zip(keys, _rows(found), strict=True)).values())


def _without_zones(table: pa.Table) -> pa.Table:
    """Returns timestamps as Nexmark has them, which Spark's query may have as those of a time zone, UTC."""
    fields = [
        pa.field(field.name, pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _rows(table: pa.Table) -> Iterator[Row]:
    return zip(*(table[name].to_pylist() for name in table.column_names), strict=True)


def _partitioned(table: Path, partition_by: tuple[str, ...]) -> pa.Table:
    """Returns the rows that are published in a folder of a file sink, with the columns of its partitions."""
    folder = DiskFolder(table)
    published = [str(table / path) for path in content(folder, versions(folder)[-1]) or {}]
    columns = dataset.partitioning(pa.schema([(name, pa.string()) for name in partition_by]), flavor="hive")
    return dataset.dataset(published, partitioning=columns, partition_base_dir=str(table)).to_table()


def _delta(table: Path) -> pa.Table:
    return pa.table(deltalake.DeltaTable(str(table)).to_pyarrow_table())
