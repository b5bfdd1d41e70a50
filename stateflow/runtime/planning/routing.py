"""The target task and the sort key of each row that enters a level, defined once for Spark and for Python.

Both are integer expressions over the fields of a row. `to_sql` renders them for Spark's shuffle, and `evaluate`
computes them over NumPy arrays for the executor without Spark, so that both give a row the same task and order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from stateflow.api.graph import Keying, Node
from stateflow.runtime.executor import BROADCAST_ORDER, GROUP_SHIFT, PHASE_SHIFT, Numbers
from stateflow.runtime.planning.physical_plan import Level, OperatorChain
from stateflow.types.columns.shapes import Leaf
from stateflow.types.key_groups import check_key_type


class IntegerFunction(Enum):
    """A function of a 64-bit integer and a constant that is not negative."""

    ADD = "+"
    MULTIPLY = "*"
    DIVIDE = "//"
    MODULO = "%"
    SHIFT_LEFT = "<<"
    SHIFT_RIGHT = ">>"
    SHIFT_RIGHT_UNSIGNED = ">>>"


class Expression:
    """A signed 64-bit integer that is computed from the fields of a row."""

    def __add__(self, number: int) -> Expression:
        return Applied(IntegerFunction.ADD, self, number)

    def __mul__(self, number: int) -> Expression:
        return Applied(IntegerFunction.MULTIPLY, self, number)

    def __floordiv__(self, number: int) -> Expression:
        return Applied(IntegerFunction.DIVIDE, self, number)

    def __mod__(self, number: int) -> Expression:
        return Applied(IntegerFunction.MODULO, self, number)

    def __lshift__(self, bits: int) -> Expression:
        return Applied(IntegerFunction.SHIFT_LEFT, self, bits)

    def __rshift__(self, bits: int) -> Expression:
        return Applied(IntegerFunction.SHIFT_RIGHT, self, bits)

    def __or__(self, other: Expression) -> Expression:
        return BitwiseOr(self, other)

    def shifted_right_unsigned(self, bits: int) -> Expression:
        """Returns the value shifted right by `bits`, with zeros from the left."""
        return Applied(IntegerFunction.SHIFT_RIGHT_UNSIGNED, self, bits)


@dataclass(frozen=True)
class ConstantExpression(Expression):
    """A constant."""

    value: int


@dataclass(frozen=True)
class FieldExpression(Expression):
    """A field of a row."""

    name: str


@dataclass(frozen=True)
class Applied(Expression):
    """The result of a function."""

    function: IntegerFunction
    operand: Expression
    number: int


@dataclass(frozen=True)
class BitwiseOr(Expression):
    """The bitwise OR of two expressions."""

    left: Expression
    right: Expression


ROW_POSITION = FieldExpression("position")
"""Grows with the order in which the rows of an input arrived."""
ROW_PHASE = FieldExpression("phase")
"""`TIMER_PHASE` or `SOURCE_PHASE`."""
KEY_HASH = FieldExpression("hash")
"""The signed 64-bit hash of the key."""


@dataclass(frozen=True)
class Route:
    """How the rows of one input reach one task each. A broadcast input has one route per task.

    Attributes:
        target: index of the task within its level.
        order: the value that the task sorts its rows by, before all other columns.
        input: number of the chain's input.
        keying: the key columns of a keyed input; `KEY_HASH` is defined for its routes only.
        by_position: whether the target depends on `ROW_POSITION`.
    """

    target: Expression
    order: Expression
    input: int
    keying: Keying | None = None
    by_position: bool = False


@dataclass(frozen=True)
class LevelRouting:
    """The routes of a level's inputs."""

    level: Level
    max_parallelism: int

    def routes(self, node: Node, batch_bits: int) -> list[Route]:
        """Returns the routes of each row of `node`, which is one of the level's inputs.

        Args:
            batch_bits: how many of the lower bits of a position number rows that arrived together, in one partition or
                from one task.
        """
        return [
            route
            for chain in self.level.chains
            for number, edge in enumerate(chain.inputs)
            if edge.node is node
            for route in self._edge_routes(chain, number, batch_bits)
        ]

    def _edge_routes(self, chain: OperatorChain, number: int, batch_bits: int) -> list[Route]:
        keying, parallelism = chain.inputs[number].keying, self.level.parallelism
        if keying is not None:
            group = KEY_HASH % self.max_parallelism
            # The same formula as `key_groups.subtask_of`: that subtask owns the key's state.
            target = group * parallelism // self.max_parallelism + chain.first_target
            order = ROW_PHASE << PHASE_SHIFT | group << GROUP_SHIFT | KEY_HASH.shifted_right_unsigned(64 - GROUP_SHIFT)
            return [Route(target, order, number, keying)]
        if chain.operator is not None:
            targets = range(chain.first_target, chain.first_target + parallelism)
            return [
                Route(ConstantExpression(target), ConstantExpression(BROADCAST_ORDER), number) for target in targets
            ]
        if (key := _ordering_key(chain)) is not None:
            return [Route(KEY_HASH % parallelism + chain.first_target, ROW_PHASE << PHASE_SHIFT, number, key)]
        # A relay sends rows that arrived together to one task, which keeps their order.
        spread = ROW_POSITION >> batch_bits if chain.is_relay else ROW_POSITION
        target = spread % parallelism + chain.first_target
        return [Route(target, ROW_PHASE << PHASE_SHIFT, number, by_position=True)]


def _ordering_key(chain: OperatorChain) -> Keying | None:
    """Returns the key by which rows are divided among the tasks of a sink; None if any task may write any row."""
    sinks = [sink for output in chain.outputs for sink in output.sinks]
    if len(sinks) != 1 or not (names := sinks[0].sink.ordering_key):
        return None
    columns = [sinks[0].parent.schema.column(name) for name in names]
    if not all(isinstance(column.shape, Leaf) for column in columns):
        return None  # such as a list in the key of a record, whose hash Python does not compute
    return Keying(names, (), tuple(check_key_type(column.spark_type, column.name) for column in columns))


# -- rendering --------------------------------------------------------------------------------------------------------

_SQL = {
    IntegerFunction.ADD: "({} + {}L)",
    IntegerFunction.MULTIPLY: "({} * {}L)",
    IntegerFunction.DIVIDE: "({} DIV {}L)",
    IntegerFunction.MODULO: "pmod({}, {}L)",
    IntegerFunction.SHIFT_LEFT: "shiftleft({}, {})",
    IntegerFunction.SHIFT_RIGHT: "shiftright({}, {})",
    IntegerFunction.SHIFT_RIGHT_UNSIGNED: "shiftrightunsigned({}, {})",
}


def to_sql(expression: Expression, fields: Mapping[FieldExpression, str]) -> str:
    """Renders an expression as Spark SQL of type bigint.

    Args:
        fields: a SQL expression of type bigint for each field that `expression` uses.
    """
    match expression:
        case ConstantExpression(value):
            return f"{value}L"
        case FieldExpression():
            return fields[expression]
        case Applied(function, operand, number):
            return _SQL[function].format(to_sql(operand, fields), number)
        case BitwiseOr(left, right):
            return f"{to_sql(left, fields)} | {to_sql(right, fields)}"
    raise TypeError(expression)


def _shift_right_unsigned(values: Numbers, bits: int) -> Numbers:
    return (values.view(np.uint64) >> np.uint64(bits)).view(np.int64)


_NUMPY: Mapping[IntegerFunction, Callable[[Numbers, int], Numbers]] = {
    IntegerFunction.ADD: np.add,
    IntegerFunction.MULTIPLY: np.multiply,
    IntegerFunction.DIVIDE: np.floor_divide,
    IntegerFunction.MODULO: np.remainder,
    IntegerFunction.SHIFT_LEFT: np.left_shift,
    IntegerFunction.SHIFT_RIGHT: np.right_shift,
    IntegerFunction.SHIFT_RIGHT_UNSIGNED: _shift_right_unsigned,
}


def evaluate(expression: Expression, fields: Mapping[FieldExpression, Numbers], rows: int) -> Numbers:
    """Computes an expression for a batch of rows.

    Args:
        fields: the values of each field that `expression` uses, shape ``(rows,)``.

    Returns:
        The values, shape ``(rows,)``.
    """
    match expression:
        case ConstantExpression(value):
            return np.full(rows, value, np.int64)
        case FieldExpression():
            return fields[expression]
        case Applied(function, operand, number):
            return _NUMPY[function](evaluate(operand, fields, rows), number)
        case BitwiseOr(left, right):
            return evaluate(left, fields, rows) | evaluate(right, fields, rows)
    raise TypeError(expression)
