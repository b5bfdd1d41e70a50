"""How many rows a batch has read on Spark: all rows of its sources, before filters, each once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from stateflow import DataStream, FileSource, StreamExecutionEnvironment
from stateflow.api.source import CollectionSource, LocalSource, Source
from stateflow.clock import ManualClock
from stateflow.config.settings import SourceSettings
from stateflow.connectors.delta.source import DeltaSource
from stateflow.connectors.partitioned.spark_reader import as_spark_reads
from stateflow.environment import declare
from stateflow.runtime.executor import BatchId, BatchInfo, BatchWork, TaskEnvironment, TaskSettings
from stateflow.runtime.planning.physical_plan import JobPlan, plan_job
from stateflow.runtime.spark.batch_input import BatchInput
from stateflow.runtime.spark.checkpoint_location import SparkLocation
from stateflow.runtime.spark.executor import SparkExecutor
from stateflow.runtime.spark.frames import source_frame
from stateflow.runtime.spark.inputs import BatchFiles, Inputs, SourceRows
from stateflow.runtime.spark.observations import Observations, SeenByTasks
from stateflow.storage.memory import MemoryStorage
from tests.connectors.partitioned_lists import Lists
from tests.support.job_fixture import mostly_slow
from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
ROWS, KEPT = 30_000, 880
Build = Callable[[StreamExecutionEnvironment, DataStream], object]


class Row(msgspec.Struct):
    name: str
    number: int


def rows_from(begin: int, end: int) -> list[object]:
    return [Row(f"n{number % 7}", number) for number in range(begin, end)]


def by_sql(env: StreamExecutionEnvironment, rows: DataStream) -> None:
    env.register_table("items", rows)
    env.sql_query(f"SELECT name, number FROM items WHERE number < {KEPT}", uid="kept").print(limit=0, uid="first")


def by_function(env: StreamExecutionEnvironment, rows: DataStream) -> None:
    rows.filter(lambda row: row.number < KEPT).print(limit=0, uid="first")


def by_two(env: StreamExecutionEnvironment, rows: DataStream) -> None:
    by_function(env, rows)
    kept = rows.transform(lambda frame: frame.where(f"number >= {KEPT}"))
    kept.union(kept).key_by("name").reduce(lambda _, row: row, uid="last")


def by_false(env: StreamExecutionEnvironment, rows: DataStream) -> None:
    rows.transform(lambda frame: frame.where("false")).print(limit=0, uid="first")


def unfiltered(env: StreamExecutionEnvironment, rows: DataStream) -> None:
    rows.print(limit=0, uid="first")


def _planned(sources: dict[str, Source | LocalSource], build: Build) -> JobPlan:
    def declared(env: StreamExecutionEnvironment) -> None:
        first, *others = [env.from_source(source, uid=uid) for uid, source in sources.items()]
        build(env, first.union(*others) if others else first)

    return plan_job(declare(declared, "job", ({},))[0].graph, 2)


def _work(plan: JobPlan, folder: Path) -> BatchWork:
    environment = TaskEnvironment((folder / "root").as_uri(), folder / "local")
    batch = BatchInfo(BatchId(ManualClock(1).new_id(), 1, 1, datetime.now(UTC)), TaskSettings(128), environment)
    return BatchWork(plan, batch, {})


def _by_spark(rows: SourceRows) -> dict[str, BatchFiles]:
    return {uid: replace(files, format=None) for uid, files in rows.files().items()}


def _read(
    spark: SparkSession, folder: Path, build: Build, sources: dict[str, Source | LocalSource], by_tasks: bool = True
) -> tuple[int, Counter[str]]:
    """Reads sources by a streaming query; returns the rows in, and those that the tasks of each chain got."""
    plan = _planned(sources, build)
    readers = {uid: as_spark_reads(source) for uid, source in sources.items()}
    location = SparkLocation(folder / "location", MemoryStorage("memory://x"))
    executor, read, taken = SparkExecutor(), [0], Counter[str]()

    def run(frame: DataFrame, batch_id: int) -> None:
        rows = BatchInput(plan.sources, readers, location, batch_id=batch_id, frame=frame).rows()
        executed = executor.execute(
            rows if by_tasks else replace(rows, files=partial(_by_spark, rows)), _work(plan, folder)
        )
        read[0] += executed.rows
        for report in executed.reports:
            taken[report.uid] += report.rows_in

    frame = source_frame([(node, readers[node.uid].stream(spark, SourceSettings())) for node in plan.sources])
    query = frame.writeStream.foreachBatch(run).option("checkpointLocation", str(location.folder))
    query.trigger(availableNow=True).start().awaitTermination()
    return read[0], taken


def _table(begin: int, end: int) -> pa.Table:
    numbers = range(begin, end)
    return pa.table({"name": [f"n{n % 7}" for n in numbers], "number": pa.array(numbers, pa.int64())})


def _source(kind: str, folder: Path) -> Source | LocalSource:
    """Returns a source of the rows, in two files, versions or partitions."""
    if kind == "collection":
        return CollectionSource(rows_from(0, ROWS), Row)
    if kind == "partitions":
        return Lists({"a": rows_from(0, 10_000), "b": rows_from(10_000, ROWS)}, row=Row, split_size=7_000)
    for at, rows in enumerate([_table(0, 10_000), _table(10_000, ROWS)]):
        if kind == "delta":
            write_deltalake(str(folder / "in"), rows, mode="append")
            continue
        (folder / "in").mkdir(exist_ok=True)
        path = folder / "in" / f"{at}.{kind}"
        if kind == "parquet":
            pq.write_table(rows, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    return (
        DeltaSource(folder / "in", schema=Row)
        if kind == "delta"
        else FileSource(folder / "in", schema=Row, format=kind)
    )


@pytest.mark.parametrize(
    ("kind", "build"),
    mostly_slow(
        [
            *(("json", by_two), ("json by Spark", by_sql), ("parquet", by_function), ("parquet by Spark", by_two)),
            *(("delta", by_sql), ("collection", by_false), ("collection", unfiltered), ("partitions", by_two)),
        ],
        [("json", by_two), ("json by Spark", by_sql), ("partitions", by_two)],
        reason="runs a job on Spark",
    ),
)
def test_all_rows_of_a_source_count_once(spark_session: SparkSession, tmp_path: Path, kind: str, build: Build) -> None:
    kind, _, by_spark = kind.partition(" by ")
    rows, taken = _read(spark_session, tmp_path, build, {"rows": _source(kind, tmp_path)}, not by_spark)
    assert rows == ROWS
    assert taken["first"] == (0 if build is by_false else ROWS if build is unfiltered else KEPT)
    assert build is not by_two or taken["last"] == 2 * (ROWS - KEPT)


def _fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Passes rows; the first attempt at each task fails at its end."""
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.attemptNumber() == 0:
        raise LookupError("the first attempt")


@pytest.mark.slow(reason="Spark tries each task again")
def test_rows_of_a_task_that_failed_count_once(spark_session: SparkSession, tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment, rows: DataStream) -> None:
        rows.transform(lambda frame: frame.mapInArrow(_fail_once, frame.schema)).print(limit=0, uid="first")

    assert _read(spark_session, tmp_path, build, {"rows": _source("delta", tmp_path)})[0] == ROWS


def _lose_output(folders: list[str], lost: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Passes rows; the first task deletes the output of the stage before, as if its executor was lost."""
    yield from batches
    if not lost.exists():
        lost.touch()
        for folder in folders:
            for path in Path(folder).glob("*/shuffle_*"):
                path.unlink(missing_ok=True)


def _read_again(folder: str) -> None:
    """Prints whether the output of a stage was lost, the number of rows that were read, and the number counted."""
    lost = Path(folder) / "lost"
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    plan = _planned({"rows": CollectionSource([], Row)}, unfiltered)
    frame = session.range(0, ROWS, 1, 3).selectExpr("'n' AS name", "id AS number")
    observed = Observations(plan, *SeenByTasks().next_attempt(session.sparkContext))
    inputs = Inputs(plan.sources, frame, counter=observed)
    manager = session._jsc.sc().env().blockManager().diskBlockManager()
    lose = partial(_lose_output, list(manager.localDirsString()), lost)
    shuffled = inputs.frame(plan.sources[0]).repartition(8, "number")
    read = len(observed.collect(shuffled.mapInArrow(lose, shuffled.schema)))
    print(json.dumps([lost.exists(), read, observed.rows(inputs)]))
    session.stop()


@pytest.mark.slow(reason="starts Spark in a process of its own")
def test_rows_that_spark_reads_again_count_once(tmp_path: Path) -> None:
    """Runs in its own process: Spark then treats its only executor as lost, and exits ten minutes later."""
    program = f"from {__name__} import _read_again; _read_again({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [True, ROWS, ROWS]
