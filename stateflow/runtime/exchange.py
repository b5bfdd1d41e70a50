"""The shuffle in front of a level: rows to the subtasks of their keys, and one barrier behind them, in Spark's words.

All edges of a level share one ``repartitionById`` on the global (unit, subtask) index. Its input is a union with
barrier rows, one per subtask, also because Spark drops a shuffle whose input it can prove empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.api.graph import Node, TransformNode
from stateflow.api.schema import RowSchema
from stateflow.errors import SchemaMismatch
from stateflow.runtime.plan import Level, Unit, producer
from stateflow.runtime.specs import (
    BARRIER_ORDER,
    CONTROL,
    GROUP_SHIFT,
    ORDER,
    POSITION,
    REPORT,
    TARGET,
    UNIT,
    input_prefix,
    output_prefix,
)
from stateflow.runtime.task import Barrier

_HASH_BITS = (1 << GROUP_SHIFT) - 1
_ROUTES = "_routes"


def first_exchange(level: Level, source: DataFrame, barrier: Barrier, max_parallelism: int) -> DataFrame:
    """The input of the first level's tasks, from the batch's source frame."""
    router = _Router(level, max_parallelism)
    frames = []
    for index, node in enumerate(level.inputs):
        frame = apply_transforms(node, source).withColumn(POSITION, F.monotonically_increasing_id())
        frames.append(router.route(index, node, frame))
    frames.append(_barriers(source.sparkSession, level.targets, barrier))
    return router.exchange(frames)


def next_exchange(level: Level, before: Level, emitted: DataFrame, max_parallelism: int) -> DataFrame:
    """The input of a later level's tasks, from what the level before emitted."""
    router = _Router(level, max_parallelism)
    frames = [
        emitted.where(F.col(CONTROL).isNotNull()).select(
            F.col(TARGET).cast("int").alias(TARGET),
            F.lit(BARRIER_ORDER).alias(ORDER),
            POSITION,
            CONTROL,
            REPORT,
        )
    ]
    for index, node in enumerate(level.inputs):
        frames.append(router.route(index, node, _rows_of(node, before, emitted)))
    return router.exchange(frames)


def apply_transforms(node: Node, frame: DataFrame) -> DataFrame:
    """`frame` after the Spark expressions between its producer and `node`, with exactly the declared columns."""
    if not isinstance(node, TransformNode):
        return frame
    return conform(node.function(apply_transforms(node.parent, frame)), node.schema)


def conform(frame: DataFrame, schema: RowSchema) -> DataFrame:
    """The declared columns of `frame`, in order. Raises SchemaMismatch naming the column."""
    found = dict(frame.dtypes)
    for column in schema.columns:
        if column.name not in found:
            raise SchemaMismatch("a declared column is missing in the frame", hint="declare what the transform "
                                 "returns, or return it", column=column.name, found=sorted(found))  # fmt: skip
        if found[column.name] != column.spark_type:
            raise SchemaMismatch("a column has another type than declared", hint="cast it in the transform",
                                 column=column.name, declared=column.spark_type, found=found[column.name])  # fmt: skip
    return frame.select(*schema.names)


def _rows_of(node: Node, before: Level, emitted: DataFrame) -> DataFrame:
    maker = producer(node)
    index = next(i for i, u in enumerate(before.units) if u.operator is maker)
    rows = emitted.where(F.col(UNIT) == index)
    prefix = output_prefix(index)
    columns = [F.col(prefix + name).alias(name) for name in maker.schema.names]
    if node is maker:
        return rows.select(*columns, POSITION)
    return apply_transforms(node, rows.select(*columns)).withColumn(POSITION, F.monotonically_increasing_id())


class _Router:
    """Gives each row a target, an order, and columns of its own per input."""

    def __init__(self, level: Level, max_parallelism: int) -> None:
        self._level = level
        self._max_parallelism = max_parallelism

    def route(self, index: int, node: Node, frame: DataFrame) -> DataFrame:
        """One input's rows, once for each unit that takes them."""
        routes = [self._route(unit) for unit in self._level.units if unit.input is node]
        prefix = input_prefix(index)
        payload = [F.col(name).alias(prefix + name) for name in node.schema.names]
        if len(routes) == 1:
            target, order = routes[0]
            return frame.select(target.alias(TARGET), order.alias(ORDER), POSITION, *payload)
        structs = [F.struct(target.alias(TARGET), order.alias(ORDER)) for target, order in routes]
        exploded = frame.select(F.explode(F.array(*structs)).alias(_ROUTES), POSITION, *payload)
        names = [prefix + name for name in node.schema.names]
        return exploded.select(f"{_ROUTES}.{TARGET}", f"{_ROUTES}.{ORDER}", POSITION, *names)

    def exchange(self, frames: Sequence[DataFrame]) -> DataFrame:
        """The frames together, each row with its subtask, sorted."""
        union = frames[0]
        for frame in frames[1:]:
            union = union.unionByName(frame, allowMissingColumns=True)
        parts = union.repartitionById(self._level.targets, TARGET)
        sorted_parts = parts.sortWithinPartitions(ORDER, *self._tie_breakers(), POSITION)
        payload = [c for c in union.columns if c not in (TARGET, POSITION, ORDER, CONTROL, REPORT)]
        return sorted_parts.select(ORDER, CONTROL, REPORT, *payload)

    def _route(self, unit: Unit) -> tuple[Column, Column]:
        if unit.operator is None:
            target = F.pmod(F.col(POSITION), F.lit(self._level.parallelism)) + unit.first_target
            return target.cast("int"), F.lit(0).cast("bigint")
        digest = F.xxhash64(*[F.col(c) for c in unit.operator.keying.columns])
        group = F.pmod(digest, F.lit(self._max_parallelism).cast("bigint"))
        # Exact in doubles, since group * parallelism stays below 2^53: floor(g * P / M), as keygroups.subtask_of.
        subtask = F.floor(group * self._level.parallelism / F.lit(self._max_parallelism))
        order = F.shiftleft(group, GROUP_SHIFT).bitwiseOR(
            F.shiftrightunsigned(digest, 64 - GROUP_SHIFT).bitwiseAND(F.lit(_HASH_BITS))
        )
        return (subtask + unit.first_target).cast("int"), order

    def _tie_breakers(self) -> list[Column]:
        """Key columns, because two keys may have one `_order`; then the declared order."""
        result: list[Column] = []
        for index, node in enumerate(self._level.inputs):
            for unit in self._level.units:
                if unit.input is node and unit.operator:
                    result += self._sort_columns(unit, input_prefix(index), node)
        return result

    def _sort_columns(self, unit: Unit, prefix: str, node: Node) -> list[Column]:
        assert unit.operator is not None
        keying = unit.operator.keying
        columns = [F.col(prefix + name) for name in (*keying.columns, *keying.order_by)]
        if len(self._level.units) == 1:
            return columns
        # Other units' rows share these columns, and must not be sorted by them.
        mine = F.col(TARGET).between(unit.first_target, unit.first_target + self._level.parallelism - 1)
        return [F.when(mine, column) for column in columns]


def _barriers(spark: SparkSession, targets: int, barrier: Barrier) -> DataFrame:
    data = F.lit(msgspec.msgpack.encode(barrier))
    return spark.range(0, targets, 1, 1).select(
        F.col("id").cast("int").alias(TARGET), F.lit(BARRIER_ORDER).alias(ORDER),
        F.lit(0).cast("bigint").alias(POSITION), data.alias(CONTROL), F.lit(None).cast("binary").alias(REPORT),
    )  # fmt: skip
