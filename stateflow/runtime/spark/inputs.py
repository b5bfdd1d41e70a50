"""The rows of a batch's sources: as Spark reads them, and the files that tasks read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from stateflow.api.graph.nodes import Node, SourceNode
from stateflow.api.graph.traversal import leaves_of
from stateflow.runtime.spark.file_reader import BatchFiles, FileReader, useful_partitions
from stateflow.runtime.spark.frames import rows_of_source
from stateflow.runtime.spark.python_functions import ArrowFunction


class RowCounter(Protocol):
    """Counts the rows of sources, before any filter."""

    def count_frame(self, node: SourceNode, frame: DataFrame) -> DataFrame:
        """Returns `frame`, the rows of a source, which are counted when it runs."""

    def counter(self, node: Node) -> Callable[[int, int], None]:
        """Returns a function that takes the number of a partition of a source, and its rows so far, in a task."""


@dataclass(frozen=True)
class Inputs:
    """The rows of a batch's sources.

    Attributes:
        sources: the sources of the job.
        rows: the rows of sources without files, as Spark reads them and `source_frame` combines them.
        files: the files of the other sources.
        in_order: as in `SourceRows`.
        ranks: as in `SourceRows`.
        by_tasks: whether tasks read the files, if they can; otherwise Spark does.
        counter: counts the rows; None if they are not counted.
    """

    sources: tuple[SourceNode, ...]
    rows: DataFrame
    files: Mapping[Node, BatchFiles] = field(default_factory=dict)
    in_order: Mapping[str, Callable[[DataFrame], DataFrame]] = field(default_factory=dict)
    ranks: Sequence[int] = ()
    by_tasks: bool = True
    counter: RowCounter | None = None
    _frames: dict[Node, DataFrame] = field(default_factory=dict, init=False)

    @property
    def spark(self) -> SparkSession:
        """The session of the batch."""
        return self.rows.sparkSession

    @property
    def cores(self) -> int:
        """How many tasks Spark can run at once."""
        return self.spark.sparkContext.defaultParallelism

    def by_spark(self) -> Inputs:
        """Returns the same rows, all of which Spark reads."""
        return replace(self, by_tasks=False)

    @cached_property
    def read_by_tasks(self) -> Mapping[Node, BatchFiles]:
        """The files that tasks read."""
        return {node: f for node, f in self.files.items() if self.by_tasks and f.format is not None}

    def begin(self, node: Node) -> tuple[DataFrame, ArrowFunction] | None:
        """Returns a frame with one row per partition, and the function that yields the rows of a source's files for it.

        Returns None unless tasks read the files.
        """
        files = self.read_by_tasks.get(node)
        return None if files is None else self.begin_in(node, useful_partitions(files, self.cores))

    def begin_in(self, node: Node, partitions: int) -> tuple[DataFrame, ArrowFunction]:
        """Returns what `begin` returns for a source whose files tasks read, in so many partitions."""
        reader = FileReader.of(self.read_by_tasks[node], node.schema, partitions)
        if self.counter is not None:
            reader = replace(reader, on_read=self.counter.counter(node))
        return reader.frame(self.spark), reader.read

    def ranks_of(self, node: Node) -> Sequence[int]:
        """Returns `ranks` if the frame of the node has the partitions of `rows`, however often."""
        leaves = leaves_of(node)
        has_others = any(
            leaf in self.files or (isinstance(leaf, SourceNode) and leaf.uid in self.in_order) for leaf in leaves
        )
        return () if has_others else self.ranks

    def frame(self, node: Node) -> DataFrame:
        """Returns the rows of a source, in the order of their arrival."""
        if node not in self._frames:
            self._frames[node] = self._read(node)
        return self._frames[node]

    def persist(self, node: Node) -> DataFrame:
        """Returns the rows of a source, which Spark keeps from now on."""
        self._frames[node] = self.frame(node).persist()
        return self._frames[node]

    def _read(self, node: Node) -> DataFrame:
        begun = self.begin(node)
        if begun is not None:
            return begun[0].mapInArrow(begun[1], node.schema.ddl)
        assert isinstance(node, SourceNode)
        rows = self._read_by_spark(node)
        return rows if self.counter is None else self.counter.count_frame(node, rows)

    def _read_by_spark(self, node: SourceNode) -> DataFrame:
        if node in self.files:
            return self.files[node].by_spark()
        rows = rows_of_source(self.sources, self.rows, node)
        return self.in_order[node.uid](rows) if node.uid in self.in_order else rows
