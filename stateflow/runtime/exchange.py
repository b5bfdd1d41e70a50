"""The shuffle in front of a level: rows to the subtasks of their keys, and one barrier behind them, in Spark's words.

All edges of a level share one ``repartitionById`` on the global (unit, subtask) index. Its input is a union with
barrier rows, one per subtask, also because Spark drops a shuffle whose input it can prove empty.

Expressions are SQL texts: every method of a Column is a call to the JVM, and a small batch has no time for hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.api.graph import Node, TransformNode
from stateflow.api.schema import RowSchema
from stateflow.errors import SchemaMismatch, StateflowError, UserCodeError
from stateflow.runtime.plan import JobPlan, Level, Unit, producer
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

_ROUTES = "_sf_routes"


def first_exchange(level: Level, source: DataFrame, barrier: Barrier, max_parallelism: int) -> DataFrame:
    """The input of the first level's tasks, from the batch's source frame."""
    router = _Router(level, max_parallelism)
    frames = []
    for index, node in enumerate(level.inputs):
        frame = apply_transforms(node, source)
        frames.append(router.route(index, node, frame, "monotonically_increasing_id()"))
    frames.append(router.barriers(source.sparkSession, barrier))
    return router.exchange(frames)


def next_exchange(level: Level, before: Level, emitted: DataFrame, max_parallelism: int) -> DataFrame:
    """The input of a later level's tasks, from what the level before emitted."""
    router = _Router(level, max_parallelism)
    control = emitted.where(f"{CONTROL} IS NOT NULL")
    frames = [router.controls(control)]
    for index, node in enumerate(level.inputs):
        rows, position = _rows_of(node, before, emitted)
        frames.append(router.route(index, node, rows, position))
    return router.exchange(frames)


def apply_transforms(node: Node, frame: DataFrame) -> DataFrame:
    """`frame` after the Spark expressions between its producer and `node`, with exactly the declared columns."""
    if not isinstance(node, TransformNode):
        return frame
    before = apply_transforms(node.parent, frame)
    try:
        result = node.function(before)
    except StateflowError:
        raise
    except Exception as e:
        raise UserCodeError(f"a transform raised {type(e).__name__}: {str(e)[:1000]}", hint="mend the function",
                            function=getattr(node.function, "__qualname__", repr(node.function))) from e  # fmt: skip
    return conform(result, node.schema)


def check_transforms(spark: SparkSession, plan: JobPlan) -> None:
    """Applies every Spark expression of the job to an empty frame, so that a wrong one is told before a run begins.

    Raises UserCodeError or SchemaMismatch.
    """
    for node in {id(unit.input): unit.input for unit in plan.units}.values():
        apply_transforms(node, spark.createDataFrame([], producer(node).schema.ddl))


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


def _rows_of(node: Node, before: Level, emitted: DataFrame) -> tuple[DataFrame, str]:
    """The rows that reach `node`, and the expression for their position."""
    maker = producer(node)
    index = next(i for i, u in enumerate(before.units) if u.operator is maker)
    rows = emitted.where(f"{UNIT} = {index}")
    prefix = output_prefix(index)
    columns = [f"{_quoted(prefix + name)} AS {_quoted(name)}" for name in maker.schema.names]
    if node is maker:
        return rows.selectExpr(*columns, POSITION), POSITION
    return apply_transforms(node, rows.selectExpr(*columns)), "monotonically_increasing_id()"


class _Router:
    """Gives each row a target, an order, and columns of its own per input."""

    def __init__(self, level: Level, max_parallelism: int) -> None:
        self._level = level
        self._max_parallelism = max_parallelism
        self._payload = [
            (_quoted(input_prefix(i) + c.name), c.spark_type)
            for i, n in enumerate(level.inputs)
            for c in n.schema.columns
        ]

    def route(self, index: int, node: Node, frame: DataFrame, position: str) -> DataFrame:
        """One input's rows, once for each unit that takes them."""
        units = [unit for unit in self._level.units if unit.input is node]
        prefix = input_prefix(index)
        renamed = {_quoted(prefix + name): _quoted(name) for name in node.schema.names}
        values = [f"{renamed.get(c, 'CAST(NULL AS ' + kind + ')')} AS {c}" for c, kind in self._payload]
        nothing = [f"CAST(NULL AS BINARY) AS {CONTROL}", f"CAST(NULL AS BINARY) AS {REPORT}"]
        if any(unit.operator is None for unit in units):
            # A position is not to be computed twice: once for the row, once to spread rows over a sink's subtasks.
            frame = frame.selectExpr("*", f"{position} AS {POSITION}")
            position = POSITION
        if len(units) == 1:
            target, order = self._route(units[0], position)
            return frame.selectExpr(f"{target} AS {TARGET}", f"{order} AS {ORDER}", f"{position} AS {POSITION}",
                                    *nothing, *values)  # fmt: skip
        routes = ", ".join(
            f"named_struct('{TARGET}', {target}, '{ORDER}', {order})"
            for target, order in (self._route(unit, position) for unit in units)
        )
        exploded = frame.selectExpr(f"explode(array({routes})) AS {_ROUTES}", f"{position} AS {POSITION}",
                                    *nothing, *values)  # fmt: skip
        names = [c for c, _ in self._payload]
        return exploded.selectExpr(
            f"{_ROUTES}.{TARGET}", f"{_ROUTES}.{ORDER}", POSITION, CONTROL, REPORT, *names
        )

    def barriers(self, spark: SparkSession, barrier: Barrier) -> DataFrame:
        """A barrier from the driver for each task."""
        data = msgspec.msgpack.encode(barrier).hex()
        return spark.range(0, self._level.targets, 1, 1).selectExpr(
            f"CAST(id AS INT) AS {TARGET}", f"{BARRIER_ORDER}L AS {ORDER}", f"0L AS {POSITION}",
            f"X'{data}' AS {CONTROL}", f"CAST(NULL AS BINARY) AS {REPORT}", *self._nulls(),
        )  # fmt: skip

    def controls(self, frame: DataFrame) -> DataFrame:
        """Barriers and reports from the tasks of the level before."""
        return frame.selectExpr(f"CAST({TARGET} AS INT) AS {TARGET}", f"{BARRIER_ORDER}L AS {ORDER}", POSITION, CONTROL,
                                REPORT, *self._nulls())  # fmt: skip

    def exchange(self, frames: Sequence[DataFrame]) -> DataFrame:
        """The frames together, each row with its subtask, sorted."""
        union = frames[0]
        for frame in frames[1:]:
            union = union.union(frame)
        parts = union.repartitionById(self._level.targets, TARGET)
        keys = [F.expr(text) for text in (ORDER, *self._tie_breakers(), POSITION)]
        sorted_parts = parts.sortWithinPartitions(*keys)
        return sorted_parts.selectExpr(ORDER, CONTROL, REPORT, *(c for c, _ in self._payload))

    def _nulls(self) -> list[str]:
        return [f"CAST(NULL AS {kind}) AS {c}" for c, kind in self._payload]

    def _route(self, unit: Unit, position: str) -> tuple[str, str]:
        if unit.operator is None:
            return f"CAST(pmod({position}, {self._level.parallelism}) + {unit.first_target} AS INT)", "0L"
        digest = f"xxhash64({', '.join(_quoted(c) for c in unit.operator.keying.columns)})"
        group = f"pmod({digest}, {self._max_parallelism}L)"
        # As keygroups.subtask_of has it.
        target = f"CAST(({group} * {self._level.parallelism}) DIV {self._max_parallelism} + {unit.first_target} AS INT)"
        order = f"shiftleft({group}, {GROUP_SHIFT}) | shiftrightunsigned({digest}, {64 - GROUP_SHIFT})"
        return target, order

    def _tie_breakers(self) -> list[str]:
        """Key columns, because two keys may have one `_order`; then the declared order."""
        return [
            text
            for index, node in enumerate(self._level.inputs)
            for unit in self._level.units
            if unit.input is node and unit.operator
            for text in self._sort_columns(unit, input_prefix(index))
        ]

    def _sort_columns(self, unit: Unit, prefix: str) -> list[str]:
        assert unit.operator is not None
        keying = unit.operator.keying
        columns = [_quoted(prefix + name) for name in (*keying.columns, *keying.order_by)]
        if len(self._level.units) == 1:
            return columns
        # Other units' rows share these columns, and must not be sorted by them.
        last = unit.first_target + self._level.parallelism - 1
        return [f"IF({TARGET} BETWEEN {unit.first_target} AND {last}, {column}, NULL)" for column in columns]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
