"""Frames of a batch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

import msgspec
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType

from stateflow import KafkaSource, SparkSource, StreamExecutionEnvironment, precision
from stateflow.api.functions.process import TaskInfo
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink
from stateflow.api.source import Source
from stateflow.api.streams.data_stream import DataStream
from stateflow.config.settings import SourceSettings
from stateflow.errors import ConfigError, JobDefinitionError, UserCodeError
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.runtime.spark.frames import check_frame, check_transforms, empty_frame
from stateflow.runtime.spark.inputs import Inputs
from stateflow.runtime.spark.observations import Observations, SeenByTasks
from stateflow.runtime.spark.shuffle import find_unshuffled_input, find_written_rows
from tests.support.errors import raises
from tests.support.graphs import Nowhere


class _Item(msgspec.Struct):
    amount: Annotated[Decimal, precision(9, scale=2)]


class _Row(msgspec.Struct):
    number: int
    text: str | None
    time: datetime
    items: list[_Item]
    counts: dict[str, float]


def test_an_empty_frame_has_the_declared_columns_and_starts_no_worker(spark_session: SparkSession) -> None:
    schema = RowSchema.of(_Row)
    frame = empty_frame(spark_session, schema)
    assert frame.schema == StructType.fromDDL(schema.ddl)
    assert frame.collect() == []
    # Rows that come from Python would be read by PySpark's worker.
    assert frame.rdd.getNumPartitions() == 0


# -- transforms -------------------------------------------------------------------------------------------------------


class Pair(msgspec.Struct):
    key: str
    value: int | None


def _table(frame: DataFrame) -> DataFrame:
    """A table that is not of the stream; its columns are `key` and `other`."""
    return frame.sparkSession.createDataFrame([("a", 1), ("a", 2)], "key string, other bigint")


def _sql(text: str) -> Callable[[DataFrame], DataFrame]:
    def function(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("incoming")
        _table(frame).createOrReplaceTempView("fixed")
        return frame.sparkSession.sql(text)

    return function


def _largest(frame: DataFrame) -> DataFrame:
    def largest(values: pd.Series) -> int:
        return int(values.max())

    return frame.groupBy("key").agg(pandas_udf(largest, "bigint")("value").alias("value"))  # type: ignore[call-overload]


_REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "distinct": (lambda df: df.distinct(), "deduplicate"),
    "dropDuplicates": (lambda df: df.dropDuplicates(["key"]), "deduplicate"),
    "groupBy": (lambda df: df.groupBy("key").agg(f.max("value").alias("value")), "aggregate_columns"),
    "an aggregate of pandas": (_largest, "aggregate_columns"),
    "rollup": (lambda df: df.rollup("key").agg(f.max("value").alias("value")), "aggregate_columns"),
    "pivot": (lambda df: df.groupBy("key").pivot("key", ["a"]).max("value").toDF("key", "value"), "aggregate_columns"),
    "applyInPandas": (lambda df: df.groupBy("key").applyInPandas(lambda p: p, "key string, value bigint"), "key_by"),
    "cogroup": (
        lambda df: df.groupBy("key").cogroup(_table(df).groupBy("key")).applyInPandas(lambda a, b: a, df.schema),
        "key_by",
    ),
    "limit": (lambda df: df.limit(3), "top_n"),
    "offset": (lambda df: df.offset(3), "top_n"),
    "orderBy": (lambda df: df.orderBy("value"), "order_by"),
    "orderBy and limit": (lambda df: df.orderBy("value").limit(1), "order_by"),
    "sortWithinPartitions": (lambda df: df.sortWithinPartitions("value"), "order_by"),
    "a window": (
        lambda df: df.withColumn("value", f.sum("value").over(Window.partitionBy("key").orderBy("value"))),
        "over_columns",
    ),
    "a window without partitions": (lambda df: df.withColumn("value", f.sum("value").over(Window.orderBy("key"))), ""),
    "a self-join": (lambda df: df.alias("a").join(df.alias("b"), "key").select("key", "a.value"), "regular_join"),
    "a semi-join with itself": (lambda df: df.join(df.where("value > 1"), "key", "left_semi"), "regular_join"),
    "a join that keeps the table": (lambda df: _table(df).join(df, "key", "left").select("key", "value"), "other side"),
    "a right join": (lambda df: df.join(_table(df), "key", "right").select("key", "value"), "other side"),
    "a full join": (lambda df: df.join(_table(df), "key", "full").select("key", "value"), "other side"),
    "rows of the table": (lambda df: _table(df).join(df, "key", "left_semi").toDF("key", "value"), "other side"),
    "exceptAll": (lambda df: df.exceptAll(_table(df)), "left anti"),
    "intersect": (lambda df: df.intersect(_table(df)), "left semi"),
    "static rows": (lambda df: df.union(_table(df)), "source"),
    "sample": (lambda df: df.sample(0.5, 7), "hash"),
    "numbers": (lambda df: df.withColumn("value", f.monotonically_increasing_id().cast("bigint")), "map_with_state"),
    "partitions": (lambda df: df.where(f.spark_partition_id() == 0), "map_with_state"),
    "count": (lambda df: df.withColumn("value", f.lit(df.count()).cast("bigint")), "key_by"),
    "collect": (lambda df: df.where(f.col("value").isin([row[0] for row in df.select("value").collect()])), "key_by"),
    "isEmpty": (lambda df: df.where("value > 1") if df.isEmpty() else df, "key_by"),
    "toPandas": (lambda df: df.sparkSession.createDataFrame(df.toPandas(), df.schema), "mapInPandas"),
    "rdd": (lambda df: df.rdd.map(lambda row: row).toDF(df.schema), "mapInPandas"),
    "a checkpoint": (lambda df: df.dropDuplicates().localCheckpoint(), "mapInPandas"),
    "SELECT DISTINCT": (_sql("SELECT DISTINCT key, value FROM incoming"), "deduplicate"),
    "GROUP BY": (_sql("SELECT key, max(value) AS value FROM incoming GROUP BY key"), "aggregate_columns"),
    "a subquery": (_sql("SELECT * FROM incoming WHERE value > (SELECT avg(value) FROM incoming)"), "aggregate_columns"),
    "IN": (_sql("SELECT * FROM incoming WHERE key IN (SELECT key FROM incoming WHERE value = 1)"), "regular_join"),
    "NOT EXISTS": (
        _sql("SELECT * FROM incoming s WHERE NOT EXISTS (SELECT 1 FROM incoming o WHERE o.key = s.key)"),
        "regular_join",
    ),
    "WITH": (
        _sql("WITH c AS (SELECT key, count(*) AS n FROM incoming GROUP BY key) SELECT key, n AS value FROM c"),
        "aggregate_columns",
    ),
    "OVER": (_sql("SELECT key, bigint(row_number() OVER (ORDER BY key)) AS value FROM incoming"), "over_columns"),
}
_ALLOWED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "where": lambda df: df.where("value > 1").selectExpr("upper(key) AS key", "value + 1 AS value"),
    "explode": lambda df: df.select(f.explode(f.split("key", ",")).alias("key"), "value"),
    "union with itself": lambda df: df.union(df.where("value = 1")),
    "unpivot": lambda df: df.unpivot(["key"], ["value"], "n", "value").select("key", "value"),
    "broadcast": lambda df: df.join(f.broadcast(_table(df)), "key", "left").select("key", "value"),
    "left anti": lambda df: df.join(_table(df), "key", "left_anti"),
    "the table on the left": lambda df: _table(df).join(df, "key", "right").select("key", "value"),
    "an aggregated table": lambda df: df.join(_table(df).groupBy("key").count().distinct(), "key").select(
        "key", "value"
    ),
    "cross join": lambda df: df.crossJoin(_table(df).agg(f.max("other").alias("most"))).select("key", "value"),
    "mapInPandas": lambda df: df.mapInPandas(lambda parts: parts, "key string, value bigint"),
    "mapInArrow": lambda df: df.mapInArrow(lambda parts: parts, "key string, value bigint"),
    "a UDF": lambda df: df.withColumn("key", f.udf(str.upper, "string")("key")),
    "repartition": lambda df: df.repartition(3).coalesce(2),
    "a time and a random number": lambda df: df.where(f.current_timestamp().isNotNull() & (f.rand() < 2)),
    "uuid": lambda df: df.withColumn("key", f.expr("uuid()")),
    "aggregates of an array": lambda df: df.withColumn("value", f.expr("aggregate(array(value), 0L, (a, b) -> a + b)")),
    "IN of the table": _sql(
        "SELECT * FROM incoming WHERE key IN (SELECT key FROM fixed GROUP BY key ORDER BY 1 LIMIT 9)"
    ),
    "WITH of the table": _sql(
        "WITH s AS (SELECT * FROM incoming), c AS (SELECT key, max(other) AS n FROM fixed GROUP BY key) "
        "SELECT s.key, s.value FROM s JOIN c ON s.key = c.key WHERE s.value < (SELECT max(other) FROM fixed)"
    ),
    "a correlated query": _sql(
        "SELECT key, (SELECT max(other) FROM fixed t WHERE t.key = s.key) AS value FROM incoming s"
    ),
    "LATERAL": _sql(
        "SELECT s.key, t.m AS value FROM incoming s, LATERAL (SELECT max(other) m FROM fixed WHERE key = s.key) t"
    ),
}


def _check(spark: SparkSession, *functions: Callable[[DataFrame], DataFrame]) -> None:
    env = StreamExecutionEnvironment()
    rows = env.from_collection([], Pair, uid="rows")
    for function in functions:
        rows = rows.transform(function)
    rows.sink_to(Nowhere(), uid="out")
    check_transforms(spark, plan_job(env.graph, 2))


@pytest.mark.spark
@pytest.mark.parametrize("name", _REFUSED)
def test_what_needs_other_rows_of_the_stream_is_refused_before_a_run(name: str, spark_session: SparkSession) -> None:
    function, instead = _REFUSED[name]
    # Also before and after other transforms.
    for functions in ([function], [_ALLOWED["where"], function, _ALLOWED["where"]]):
        with raises(JobDefinitionError) as refused:
            _check(spark_session, *functions)
        assert instead in refused.value.hint
        assert "test_frames.py" in str(refused.value.facts["transform"])


@pytest.mark.spark
@pytest.mark.parametrize(
    "function",
    [
        lambda df: df.where("valu > 1"),
        lambda df: df.selectExpr("key", "valu AS value"),
        lambda df: df.where(df["valu"]),
    ],
)
def test_a_column_that_does_not_exist_is_named(
    function: Callable[[DataFrame], DataFrame], spark_session: SparkSession
) -> None:
    """Spark's error has the plan, in which the rows of a test are marked."""
    with raises(UserCodeError) as refused:
        _check(spark_session, function)
    assert "`valu`" in str(refused.value)


@pytest.mark.spark
@pytest.mark.parametrize("name", _ALLOWED)
def test_what_needs_one_row_and_static_tables_is_allowed(name: str, spark_session: SparkSession) -> None:
    _check(spark_session, _ALLOWED[name])
    _check(spark_session, _ALLOWED["where"], _ALLOWED[name])


class OfSpark(Source):
    """A source of the user, over a streaming frame of Spark."""

    def __init__(self, function: Callable[[DataFrame], DataFrame]) -> None:
        self.schema = RowSchema.of(Pair)
        self._function = function

    @property
    def description(self) -> str:
        return "rate"

    def check(self, spark: SparkSession) -> None:
        """Accepts everything."""

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        rows = spark.readStream.format("rate").load()
        return self._function(rows.selectExpr("CAST(value AS STRING) AS key", "value"))


@pytest.mark.spark
def test_a_source_whose_stream_has_state_of_spark_is_refused(spark_session: SparkSession) -> None:
    limits = SourceSettings()
    for name in ("where", "explode", "broadcast", "left anti", "mapInPandas"):
        check_frame(OfSpark(_ALLOWED[name]), spark_session, limits)
    for name in ("dropDuplicates", "groupBy", "limit", "a self-join"):
        function, instead = _REFUSED[name]
        with raises(JobDefinitionError, source="rate") as refused:
            check_frame(OfSpark(function), spark_session, limits)
        assert instead in refused.value.hint


@pytest.mark.spark
@pytest.mark.parametrize(
    "source",
    # Spark's errors have two classes.
    [KafkaSource("localhost:9", schema=_Row, topics="t", value="json"), SparkSource("no.such", schema=_Row, path="p")],
    ids=["kafka", "another"],
)
def test_a_source_whose_jars_spark_lacks_is_an_error_with_the_setting(
    spark_session: SparkSession, source: Source
) -> None:
    with raises(ConfigError, format="kafka" if isinstance(source, KafkaSource) else "no.such") as refused:
        check_frame(source, spark_session, SourceSettings())
    assert "spark.jars.packages" in refused.value.hint


# -- rows that need no shuffle ----------------------------------------------------------------------------------------


class ByKey(Nowhere):
    """A sink that needs all rows of a key in one task."""

    @property
    def ordering_key(self) -> tuple[str, ...]:
        return ("key",)


Operators = Callable[[DataStream], DataStream]


def _unshuffled(spark: SparkSession, operators: Operators, partitions: int = 3, *sinks: Sink) -> DataFrame | None:
    env, pairs = StreamExecutionEnvironment(), spark.sparkContext.parallelize([("a", n) for n in range(10)], partitions)
    rows = operators(env.from_collection([], Pair, uid="rows"))
    for number, sink in enumerate(sinks or (Nowhere(),)):
        rows.sink_to(sink, uid=f"out-{number}")
    plan, frame = plan_job(env.graph, 2), spark.createDataFrame(pairs, "key string, value bigint")
    counter = Observations(plan, *SeenByTasks().next_attempt(spark.sparkContext))
    info = TaskInfo("", 0, 0, 0, datetime.min.replace(tzinfo=UTC))
    written = find_written_rows(plan, Inputs(plan.sources, frame, counter=counter), info)
    return None if written is None else find_unshuffled_input(plan, written)


def _as_read(rows: DataStream) -> DataStream:
    return rows


@pytest.mark.spark
@pytest.mark.slow(reason="starts Python workers of Spark")
def test_each_task_takes_whole_partitions_of_rows_that_are_only_written(spark_session: SparkSession) -> None:
    frame = _unshuffled(spark_session, lambda rows: rows.transform(_ALLOWED["where"]), 7)
    assert frame is not None
    tasks = frame.rdd.glom().collect()
    assert len(tasks) == 2 and all(tasks)
    assert [tuple(row) for rows in tasks for row in rows] == [("A", n + 1) for n in range(2, 10)]


_SHUFFLED: dict[str, tuple[Operators, tuple[Sink, ...]]] = {
    "repartition": (lambda rows: rows.transform(lambda df: df.repartition(2)), ()),
    "join": (lambda rows: rows.transform(_ALLOWED["left anti"]), ()),
    "map": (lambda rows: rows.map(lambda row: row), ()),
    "reduce": (lambda rows: rows.key_by("key").reduce(lambda _, row: row, uid="last"), ()),
    "a sink by key": (_as_read, (ByKey(),)),
    "two sinks": (_as_read, (Nowhere(), Nowhere())),
}


@pytest.mark.spark
@pytest.mark.parametrize("name", _SHUFFLED)
def test_rows_of_other_jobs_are_shuffled(spark_session: SparkSession, name: str) -> None:
    operators, sinks = _SHUFFLED[name]
    assert _unshuffled(spark_session, operators, 3, *sinks) is None


@pytest.mark.spark
def test_rows_of_fewer_partitions_than_tasks_are_shuffled(spark_session: SparkSession) -> None:
    assert _unshuffled(spark_session, _as_read, 1) is None
    assert _unshuffled(spark_session, _as_read, 2) is not None


@pytest.mark.spark
def test_no_subquery_runs_to_choose_a_shuffle(spark_session: SparkSession) -> None:
    spark_session.range(5).createOrReplaceTempView("limits")
    context = spark_session.sparkContext
    context.setJobGroup("choice", "")
    try:
        of_limits = "value > (SELECT min(id) FROM limits)"
        assert _unshuffled(spark_session, lambda rows: rows.transform(lambda df: df.where(of_limits))) is None
    finally:
        context.setLocalProperty("spark.jobGroup.id", "")
    assert list(context.statusTracker().getJobIdsForGroup("choice")) == []
