"""Observes the sources of a batch on Spark: the number of rows, and the latest event times.

Event times are those of each source where its watermarks are assigned, or of each split. Rows that a filter drops
afterwards count, as in Flink. So they are observed in the frame, or by the functions in Python, that the rows pass, and
not by the tasks that take the rows which are left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import expr

from stateflow.api.graph import Node, SourceNode, WatermarkNode, sources_of
from stateflow.api.schema import REJECTED, SPLIT, RowSchema
from stateflow.runtime.executor import BatchInfo
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.spark.frames import ArrowFunction, Batches, FrameBuilder, rows_of_source
from stateflow.runtime.spark.inputs import Inputs
from stateflow.runtime.task.row_conversion import latest_time
from stateflow.runtime.watermarks import NO_TIME
from stateflow.types.declared_types import literal, quote_name

_MILLISECONDS = {
    "timestamp": "unix_millis({})",
    # Not a cast, which would depend on the time zone of the session.
    "timestamp_ntz": "timestampdiff(MILLISECOND, TIMESTAMP_NTZ '1970-01-01', {})",
    "bigint": "{}",
}
"""Expression of an event time in milliseconds since 1970, by the type of its column."""
_BITS = 64
"""How many partitions of a frame are counted one by one: the bits of a bigint."""
_FIRST = f"monotonically_increasing_id() & {(1 << 33) - 1}L = 0 AND spark_partition_id() < {_BITS}"
_PARTITION = f"CASE WHEN {_FIRST} THEN shiftleft(1L, spark_partition_id()) END"
_COUNTED = ("count(1)", f"count({_PARTITION})", f"bit_or({_PARTITION})")
"""The number of rows; how often one of the first partitions was read that has rows; and which of them have rows.

Spark reads a partition again if an executor with its output is lost, and then adds its rows a second time: the second
number is larger than the number of partitions in the third.
"""
_TIME = -1
"""In the key of an event time, in place of a partition."""
_Seen = dict[tuple[int, str, int], int]
"""Observations of tasks, by number of the attempt at a batch, uid of the source and partition: the number of rows, and
with `_TIME` the latest event time."""


class _SeenParam(AccumulatorParam[_Seen]):
    """Keeps the maximum. So a task that runs again, or reads the same rows, does not change it."""

    def zero(self, value: _Seen) -> _Seen:
        return {}

    def addInPlace(self, value1: _Seen, value2: _Seen) -> _Seen:
        for key, latest in value2.items():
            value1[key] = max(latest, value1.get(key, latest))
        return value1


class SeenByTasks:
    """Observations by functions in Python, in all batches of an executor."""

    def __init__(self) -> None:
        self._accumulator: Accumulator[_Seen] | None = None
        self._attempts = 0

    def next_attempt(self, context: SparkContext) -> tuple[Accumulator[_Seen], int]:
        """Returns the accumulator of the next attempt at a batch, and its number.

        A task of an earlier attempt may still report, with another number. One accumulator serves them all:
        Spark never forgets one.
        """
        if self._accumulator is None:
            self._accumulator = context.accumulator({}, _SeenParam())
        self._accumulator.value = {}
        self._attempts += 1
        return self._accumulator, self._attempts


class Observations:
    """Observes the number of rows and the latest event time of each source in one attempt at a batch.

    Event times of sources with a watermark per split are left out; `latest_by_split` computes those.

    Args:
        plan: the plan of the job.
        accumulator: receives what functions in Python see.
        attempt: number of the attempt.
    """

    def __init__(self, plan: JobPlan, accumulator: Accumulator[_Seen], attempt: int) -> None:
        self._sources = plan.sources
        self._uids = plan.strategies.keys() - plan.times_of_splits.keys()
        self._accumulator = accumulator
        self._attempt = attempt
        self._observed: dict[str, str] = {}
        self._nodes: dict[str, WatermarkNode] = {}
        self._latest: dict[str, int] = {}
        self._counted: dict[str, str] = {}
        self._rows: dict[str, int] = {}

    def count_frame(self, node: SourceNode, frame: DataFrame) -> DataFrame:
        """Returns `frame`, the rows of a source, which are counted when it runs."""
        # Two branches of a batch may contain the frame: Spark then returns the count of one of them.
        name = f"_sf_rows_{self._attempt}_{node.uid}"
        self._counted[name] = node.uid
        return frame.observe(name, *map(expr, _COUNTED))

    def counter(self, node: Node) -> Callable[[int, int], None]:
        """Returns a function that takes the number of a partition of a source, and its rows so far, in a task."""
        assert isinstance(node, SourceNode)
        return partial(_count, self._accumulator, self._attempt, node.uid)

    def of_frame(self, node: WatermarkNode, frame: DataFrame) -> DataFrame:
        """Returns `frame`, whose event times are observed when it runs."""
        uid = self._uid(node)
        if uid not in self._uids:
            return frame
        name = f"_sf_times_{self._attempt}_{len(self._observed)}"
        self._observed[name] = uid
        return frame.observe(name, expr(f"max({_milliseconds(node.schema, node.strategy.column)})"))

    def of_batches(self, node: WatermarkNode) -> ArrowFunction | None:
        """Returns a function that passes rows on, and observes their event times; None if nothing is to observe."""
        uid = self._uid(node)
        if uid not in self._uids:
            return None
        return partial(_observe, self._accumulator, self._attempt, uid, node.strategy.column)

    def collect(self, frame: DataFrame) -> list[Row]:
        """Runs `frame`; returns its rows, and keeps what was observed in the frames that it contains."""
        rows = frame.collect()
        metrics = frame._jdf.queryExecution().observedMetrics()  # noqa: SLF001 - PySpark only has listeners for them
        for name, uid in self._observed.items():
            found = metrics.get(name)
            if found.isDefined():
                self._add(uid, found.get().get(0))
        for name, uid in self._counted.items():
            found = metrics.get(name)
            if found.isDefined() and _is_exact(found.get()):
                self._rows[uid] = found.get().getLong(0)
        return rows

    def rows(self, inputs: Inputs) -> int:
        """Returns how many rows the sources have in the batch; `inputs` has them."""
        found = dict(self._rows)
        for (attempt, uid, partition), count in self._accumulator.value.items():
            if attempt == self._attempt and partition != _TIME:
                found[uid] = found.get(uid, 0) + count
        # Spark does not read rows before a filter that is never true, and has read some twice if it lost an executor.
        not_counted = [node for node in self._sources if node.uid not in found]
        return sum(found.values()) + sum(inputs.frame(node).count() for node in not_counted)

    def latest(self, inputs: Inputs, info: BatchInfo) -> dict[str, int]:
        """Returns the latest event time of each source that has one, in milliseconds since 1970, by uid.

        Args:
            inputs: the rows of the batch.
            info: the batch.
        """
        for (attempt, uid, partition), time in self._accumulator.value.items():
            if attempt == self._attempt and partition == _TIME:
                self._add(uid, time)
        for uid in self._nodes.keys() - self._latest.keys():
            self._add(uid, _read_latest(self._nodes[uid], inputs, info))
        return {uid: time for uid, time in self._latest.items() if time != NO_TIME}

    def _uid(self, node: WatermarkNode) -> str:
        (uid,) = {source.uid for source in sources_of(node)}
        if uid in self._uids:
            self._nodes[uid] = node
        return uid

    def _add(self, uid: str, time: int | None) -> None:
        self._latest[uid] = max(self._latest.get(uid, NO_TIME), NO_TIME if time is None else time)


def _is_exact(counted: JavaObject) -> bool:
    """Returns whether each partition was counted once, as far as `_COUNTED` shows."""
    partitions = 0 if counted.isNullAt(2) else counted.getLong(2) % (1 << _BITS)
    return bool(counted.getLong(1) == partitions.bit_count())


def _count(accumulator: Accumulator[_Seen], attempt: int, uid: str, partition: int, rows: int) -> None:
    accumulator.add({(attempt, uid, partition): rows})


def _observe(accumulator: Accumulator[_Seen], attempt: int, uid: str, column: str, batches: Batches) -> Batches:
    key = attempt, uid, _TIME
    # A partition without rows shows that the function has run.
    accumulator.add({key: NO_TIME})
    for batch in batches:
        time = latest_time(batch.column(column))
        if time is not None:
            accumulator.add({key: time})
        yield batch


def _read_latest(node: WatermarkNode, inputs: Inputs, info: BatchInfo) -> int | None:
    """Returns the latest event time of rows that Spark has not read, such as before a filter that is never true."""

    def leaf(source: Node) -> DataFrame:
        return inputs.frame(source)

    frame = FrameBuilder(leaf, info.task_info(), inputs.begin).frame(node.parent)
    assert frame is not None
    (row,) = frame.selectExpr(f"max({_milliseconds(node.schema, node.strategy.column)})").collect()
    found: int | None = row[0]
    return found


def _milliseconds(schema: RowSchema, column: str) -> str:
    return _MILLISECONDS[schema.column(column).spark_type].format(quote_name(column))


def latest_by_split(plan: JobPlan, rows: DataFrame) -> dict[str, dict[str, int]]:
    """Returns the latest event time of each split that has rows, in milliseconds since 1970, by uid of the source.

    A split whose rows have no event time has `NO_TIME`. That of rejected records does not count, but their split has
    rows.

    Args:
        plan: the plan, with at least one source that has a watermark per split.
        rows: the rows of a batch, as `source_frame` combines them; read once more, so they should be persisted.
    """
    found = []
    for node in plan.sources:
        uid, name = node.uid, plan.times_of_splits.get(node.uid)
        if name is None:
            continue
        time = _milliseconds(node.schema, name)
        if REJECTED in node.schema.names:
            time = f"IF({REJECTED} IS NULL, {time}, NULL)"
        of_source = rows_of_source(plan.sources, rows, node)
        grouped = of_source.selectExpr(f"{literal(uid)} AS uid", SPLIT, f"{time} AS time").groupBy("uid", SPLIT)
        found.append(grouped.agg({"time": "max"}))
    latest: dict[str, dict[str, int]] = {uid: {} for uid in plan.times_of_splits}
    for uid, split, time in reduce(DataFrame.union, found).collect():
        latest[uid][split] = NO_TIME if time is None else time
    return latest
