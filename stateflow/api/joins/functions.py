"""Functions that are called with joined rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from stateflow.api.column_origins import Origins, of_pairs
from stateflow.api.functions.process import Context, RuntimeContext
from stateflow.api.side_outputs import OutputTag

Left = TypeVar("Left", contravariant=True)
Right = TypeVar("Right", contravariant=True)
Out = TypeVar("Out", covariant=True)
T = TypeVar("T")
Untyped = Any
"""A key or a row whose class the arguments of a call do not determine: lambdas may use its fields."""


def has_null(key: object) -> bool:
    """Returns whether a key, or a part of it, is null. As in SQL, rows with such a key have no partner in a join."""
    return key is None or (isinstance(key, tuple) and None in key)


class JoinContext:
    """The key and the times of a pair of rows. All times are milliseconds since 1970.

    Attributes:
        left_timestamp: event time of the left row.
        right_timestamp: event time of the right row.
    """

    __slots__ = ("_context", "left_timestamp", "right_timestamp")

    def __init__(self, context: Context, left_timestamp: int, right_timestamp: int) -> None:
        self._context = context
        self.left_timestamp = left_timestamp
        self.right_timestamp = right_timestamp

    @property
    def timestamp(self) -> int:
        """The later event time of both rows, which Flink gives to the rows that the function emits."""
        return max(self.left_timestamp, self.right_timestamp)

    def get_current_key(self) -> Untyped:
        """Returns the key: the column's value, or a tuple if the key has several columns."""
        return self._context.get_current_key()

    def output(self, tag: OutputTag[T], row: T) -> None:
        """Emits a row to a side output. The row is dropped if the job does not use that output."""
        self._context.output(tag, row)


class ProcessJoinFunction(Generic[Left, Right, Out]):
    """A function that is called with each pair of rows of an interval join."""

    def open(self, ctx: RuntimeContext) -> None:
        """Called once per batch and subtask, to declare state of the key; `left-buffer` and `right-buffer` are used."""

    def process_element(self, left: Left, right: Right, ctx: JoinContext) -> Iterable[Out] | None:
        """Called for each pair; returns or yields rows of the declared output class."""
        raise NotImplementedError(f"{type(self).__name__} has no process_element")

    def close(self) -> None:
        """Called once per batch and subtask, after the last row."""


class PairColumns:
    """Makes a row of columns of a left and a right row, of which one may be None.

    Args:
        row_class: class of the result.
        columns: for each of its columns the name, whether it is of the left row, and its name there.
        more: values of further columns.
    """

    def __init__(
        self,
        row_class: type[object],
        columns: Iterable[tuple[str, bool, str]],
        more: Mapping[str, object] | None = None,
    ) -> None:
        self._row_class = row_class
        self._columns = tuple(columns)
        self._more = dict(more or {})

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`; kinds of rows come from no column."""
        of_rows = of_pairs(self._columns)
        return Origins({**of_rows.columns, **dict.fromkeys(self._more, ())})

    def __call__(self, left: object, right: object) -> object:
        """Returns the row."""
        values = {name: getattr(left if is_left else right, of, None) for name, is_left, of in self._columns}
        return self._row_class(**values, **self._more)
