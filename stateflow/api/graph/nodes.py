"""Nodes of a job's logical plan: frozen declarations without behavior."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.dead_letters import OnError
from stateflow.api.functions.columns import ColumnsFunction
from stateflow.api.functions.process import KeyedFunction
from stateflow.api.functions.rich import RowStep
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.sink import Sink
from stateflow.api.source import LocalSource, Source
from stateflow.api.watermarks import WatermarkStrategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Reduction(Protocol):
    """What is computed of the rows of a partition before the shuffle, so that the operator gets fewer of them."""

    @property
    def name(self) -> str:
        """The name that plans show."""

    @property
    def schema(self) -> RowSchema:
        """The columns of what it yields."""

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields what the operator gets in place of the rows of a partition."""


@dataclass(frozen=True, eq=False)
class SourceNode:
    """A source; its columns are those of its rows, and hidden ones."""

    uid: str
    source: Source | LocalSource
    schema: RowSchema


@dataclass(frozen=True, eq=False)
class RecordsNode:
    """The rows of a source that has hidden columns, without these: those of decoded records, or rejected records."""

    parent: SourceNode
    schema: RowSchema
    rejected: bool = False


@dataclass(frozen=True, eq=False)
class TransformNode:
    """A stateless Spark expression over the rows of `parent`.

    Attributes:
        step: a function of each row with the same results, for runs without Spark; None if there is none.
    """

    parent: Node
    function: Callable[[DataFrame], DataFrame]
    schema: RowSchema
    step: RowStep | None = None


@dataclass(frozen=True, eq=False)
class ColumnsNode:
    """The results of a stateless function over Arrow batches of the rows of `parent`."""

    parent: Node
    function: ColumnsFunction
    schema: RowSchema


@dataclass(frozen=True, eq=False)
class RowsNode:
    """The results of a stateless function over each row of `parent`."""

    parent: Node
    step: RowStep

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows."""
        return self.step.schema


@dataclass(frozen=True, eq=False)
class ReducedNode:
    """What an operator needs of the rows of `parent`, computed before the shuffle."""

    parent: Node
    reduction: Reduction

    @property
    def schema(self) -> RowSchema:
        """The columns after the reduction."""
        return self.reduction.schema


@dataclass(frozen=True, eq=False)
class WatermarkNode:
    """The rows of `parent` with event time. All of them are from one source."""

    parent: Node
    strategy: WatermarkStrategy

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows."""
        return self.parent.schema


@dataclass(frozen=True, eq=False)
class UnionNode:
    """The union of several streams with the same columns."""

    parents: tuple[Node, ...]

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows, with the row class of the first stream."""
        return self.parents[0].schema


@dataclass(frozen=True)
class Keying:
    """How a stream is keyed and ordered.

    Attributes:
        columns: the key columns.
        order_by: columns that order a key's rows; ties keep their order of arrival.
        types: Spark type names of the key columns.
        is_constant: whether all rows have the key 0, which is a column of the state and not of the rows.
    """

    columns: tuple[str, ...]
    order_by: tuple[str, ...]
    types: tuple[str, ...]
    is_constant: bool = False

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The key columns that rows have: none of a constant key."""
        return () if self.is_constant else self.columns


CONSTANT_KEY = 0
"""The key of all rows of a constant keying; part of the stored format."""
ONE_KEY = Keying(("all_rows",), (), ("bigint",), is_constant=True)
"""The keying of an operator over all rows of a stream."""


@dataclass(frozen=True)
class Edge:
    """One input of an operator.

    Attributes:
        keying: None if every subtask receives all rows.
    """

    node: Node
    keying: Keying | None


@dataclass(frozen=True, eq=False)
class ProcessNode:
    """A keyed stateful operator.

    Attributes:
        inputs: one input, or the two of connected streams; the second may be broadcast.
        name: the function's name, for display.
        on_error: what happens to rows for which the function raises.
        changelog: how its rows correct earlier ones; None if they do not, or if their class declares it.
        appends: whether its rows only append although their class may have a row kind, as the rows that it takes.
    """

    uid: str
    inputs: tuple[Edge, ...]
    function: KeyedFunction[object]
    schema: RowSchema
    name: str = ""
    on_error: OnError = None
    changelog: Changelog | None = None
    appends: bool = False

    @property
    def keying(self) -> Keying:
        """The keying of the first input; its types are those of the operator's state."""
        keying = self.inputs[0].keying
        assert keying is not None
        return keying


@dataclass(frozen=True, eq=False)
class SideOutputNode:
    """A side output of an operator."""

    parent: ProcessNode
    tag: OutputTag[Any]
    schema: RowSchema


Node = (
    SourceNode
    | RecordsNode
    | TransformNode
    | ColumnsNode
    | RowsNode
    | ReducedNode
    | WatermarkNode
    | UnionNode
    | ProcessNode
    | SideOutputNode
)


@dataclass(frozen=True, eq=False)
class SinkNode:
    """A sink for the rows of `parent`."""

    uid: str
    parent: Node
    sink: Sink
