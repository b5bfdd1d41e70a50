"""Compares the final rows of the queries' jobs on Spark with Flink's, or with those of plain Python."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import deltalake
import pyarrow as pa
from pyarrow import dataset

from benchmarks.nexmark.changelog import Rows
from benchmarks.nexmark.programs import Load, run_ours, settings
from benchmarks.peers.nexmark_ours import Order
from benchmarks.processes import ProgramFailed
from stateflow.connectors.files.metadata_log import content, versions

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
    columns = [found[name].to_pylist() for name in found.column_names]
    return Counter(zip(*columns, strict=True))


def _partitioned(table: Path, partition_by: tuple[str, ...]) -> pa.Table:
    """Returns the rows that are published in a folder of a file sink, with the columns of its partitions."""
    published = [str(table / path) for path in content(table, versions(table)[-1]) or {}]
    columns = dataset.partitioning(pa.schema([(name, pa.string()) for name in partition_by]), flavor="hive")
    return dataset.dataset(published, partitioning=columns, partition_base_dir=str(table)).to_table()


def _delta(table: Path) -> pa.Table:
    return pa.table(deltalake.DeltaTable(str(table)).to_pyarrow_table())
